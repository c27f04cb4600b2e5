"""The bench of the state measures what it says."""

import pytest
import torch

from benchmarks import state_cost
from benchmarks.state_cost import StateCost, measure_state, run_state_bench
from trimtab.lab.config import ModelConfig

pytestmark = pytest.mark.torch


def test_each_figure_is_a_time_and_the_sizes_are_those_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(1)
    small = ModelConfig(width=16, num_layers=1, num_heads=2, context_tokens=16)
    monkeypatch.setattr(state_cost, "SIZES", {"small": (small, 2)})
    said: list[str] = []
    document = run_state_bench(rounds=1, ranks=(1,), say=said.append)
    (row,) = document["state"]
    assert row["ranks"] == 1
    times = [row[name] for name in ("step", "snapshot", "restore", "save", "save_pause", "load")]
    assert min(times) > 0
    assert row["restore_in_steps"] == pytest.approx(row["restore"] / row["step"])
    assert row["state_mb"] == pytest.approx(3 * 4 * row["parameters"] / 1e6, rel=0.02)
    assert "below one step" in said[1] or "ABOVE ONE STEP" in said[1]


@pytest.mark.slow
def test_ranks_share_the_work() -> None:
    cost = measure_state("d=64, 3 layers", ranks=2, rounds=1)
    assert isinstance(cost, StateCost)
    assert cost.ranks == 2
