"""Which rank the others wait for."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor
from torch.utils.data import DataLoader

from tests.guard.crowd import Crew, Job, run_crowd
from tests.guard.tiny import Sequences, events_of, guard_of, make
from trimtab.guard.distributed.rank_pace import PaceShare, RankPace

pytestmark = pytest.mark.torch


def told(
    own: np.ndarray, *, step_s: float = 0.1, data: np.ndarray | None = None, between: float = 0.0
) -> list[str]:
    """Return what is told of own times [steps, ranks]; four ranks a host."""
    pace = RankPace()
    found: list[str] = []
    for i, times in enumerate(own):
        fetch = np.full(own.shape[1], 0.001) if data is None else data[i]
        shares = (
            PaceShare(float(f), float(t), between, r // 4)
            for r, (f, t) in enumerate(zip(fetch, times, strict=True))
        )
        found += pace.see(tuple(shares), step_s)
    return found


def steps(num: int = 192, ranks: int = 8) -> np.ndarray:
    """Return own times of ranks that differ by chance alone."""
    return 0.03 * np.random.default_rng(0).lognormal(0.0, 0.1, (num, ranks))


def test_rank_pace_names_a_straggler_once_and_leaves_chance_alone() -> None:
    own = steps()
    assert told(own) == []
    own[:, 5] *= 1.6
    (text,) = told(own)
    assert text.startswith("rank 5 is slow")
    assert "slow node" not in text


def test_rank_pace_tells_a_drift_and_a_slow_node() -> None:
    own = steps()
    own[:, 2] *= np.linspace(1.0, 2.5, len(own))
    (text,) = told(own)
    assert "at first" in text
    own = steps(ranks=12)
    own[:, 4:8] *= 2
    (text,) = told(own)
    assert text.startswith("rank 4, 5, 6, 7 are slow")
    assert "a slow node" in text


def test_rank_pace_tells_data_starvation_from_a_slow_rank_and_takes_what_is_not_known() -> None:
    own = steps()
    (text,) = told(own, data=np.full(own.shape, 0.04))
    assert text == "training waits for data: 40% of a step is spent fetching the batch"
    own[:, 0] = np.nan
    assert told(own) == []


class SlowSequences(Sequences):
    """Takes its time for each sample."""

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.004)
        return super().__getitem__(index)


def steps_with_pace_told(
    run: Path, loader: DataLoader[Tensor], after: Callable[[], object]
) -> list[str]:
    """Return what is noted of the pace of a loop that calls `after` after each step."""
    s = make(num_samples=400)
    s.loader = loader
    guard = guard_of(s, run, mode="observe", steps=90)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        after()
    texts = [str(e.data["text"]) for e in events_of(run, "note")]
    return [t for t in texts if "of a step" in t]


def test_only_the_fetch_is_waiting_for_data_and_time_after_a_step_is_the_loops_own(
    tmp_path: Path,
) -> None:
    quick = DataLoader(Sequences(400), batch_size=4)
    slow = DataLoader(SlowSequences(400), batch_size=4)
    (own,) = steps_with_pace_told(tmp_path / "own", quick, lambda: time.sleep(0.02))
    assert "between guard.step() and the next batch" in own
    assert "for data" not in own
    (data,) = steps_with_pace_told(tmp_path / "data", slow, lambda: None)
    assert data.startswith("training waits for data: ")


def slow_rank_1(crew: Crew, _step: int, loss: Tensor) -> Tensor:
    """Rank 1 takes its time before its loss is there."""
    time.sleep(0.02 * crew.rank)
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("slow", [True, False])
def test_a_rank_that_is_slowed_is_named_by_the_guard_of_all(tmp_path: Path, slow: bool) -> None:
    job = Job("ddp", 80, spoil_loss=slow_rank_1 if slow else None)
    assert run_crowd(tmp_path, 2, job) == [0, 0]
    found = [
        e.data["text"] for e in events_of(tmp_path / "run", "note") if "slow" in e.data["text"]
    ]
    assert [text[:14] for text in found] == ["rank 1 is slow"] * slow
