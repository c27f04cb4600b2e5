"""A rank whose loss steps away from the other, where single rows swing more widely than the step."""

import numpy as np
import pytest

from trimtab.detectors.ranks import rank_findings
from trimtab.testing.curves import record_of


def _record(step: float, seed: int) -> tuple[float, ...]:
    rng, rows = np.random.default_rng(seed), np.arange(200.0)
    shared = 0.4 + 1.2 * np.exp(-rows / 30)
    one, two = (shared + 0.3 * np.abs(rng.standard_normal(200)) for _ in range(2))
    two = two + step * (rows >= 80) * (1 + 0.5 * rng.standard_normal(200))
    found = rank_findings(record_of(rows, {"loss": one, "rank 1/loss": two}))
    return tuple(f.onset for f in found if f.signal == "rank 1/loss")


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_steps_away_is_told(seed: int) -> None:
    (onset,) = _record(0.9, seed)
    assert 70 <= onset <= 90


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_swing_alike_are_left_alone(seed: int) -> None:
    assert not _record(0.0, seed)


def _four(drift: float, seed: int, shards: float = 0.0) -> list[str]:
    rng, rows = np.random.default_rng(seed), np.arange(600.0)
    shared = 2 + 4 * (1 + rows / 20) ** -0.4
    columns = {}
    for rank in range(4):
        apart = drift * rows / 600 if rank == 3 else 0.0
        own = shards * rng.standard_normal() * (2 - shared / 6)  # data of its own, learned apart
        name = f"rank {rank}/loss" if rank else "loss"
        columns[name] = shared + apart + own + 0.05 * rng.standard_normal(600)
    return [f.signal for f in rank_findings(record_of(rows, columns))]


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_drifts_away_from_the_first_row_on_is_told(seed: int) -> None:
    assert _four(2.4, seed) == ["rank 3/loss"]


@pytest.mark.parametrize("seed", range(20))
def test_shards_that_are_learned_apart_are_left_alone(seed: int) -> None:
    assert not _four(0.0, seed, shards=0.1)
