"""A loss that stands is no alarm, and no health: how long it does is said, from the start not judged."""

import numpy as np
import pytest

from trimtab import analyze
from trimtab.analysis.assemble import make_account
from trimtab.analysis.standing import standing_of
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _noisy(level: Floats, seed: int, sigma: float = 0.04) -> Floats:
    return np.asarray(level + sigma * np.random.default_rng(seed).normal(size=len(level)))


def _fall(n: int, stands_from: int) -> Floats:
    steps = np.minimum(np.arange(n), stands_from)
    return np.asarray(2 + 4 * (1 + steps / 20.0) ** -0.35)


@pytest.mark.parametrize("n", [12, 24, 64, 300, 2000])
@pytest.mark.parametrize("level", [0.72, 1.9, 6.5, -3.0])
def test_a_loss_that_never_moves_is_not_judged(n: int, level: float) -> None:
    record = record_of(np.arange(1.0, n + 1), {"loss": _noisy(np.full(n, level), 1)})
    found = standing_of(record)
    assert found is not None
    assert found.from_start
    account = make_account(record)
    assert account.verdict != "healthy"
    if account.verdict == "not-judged" and n > 100:
        assert f"for all {n:,} rows".replace(",", "") in account.judgement.why.replace(",", "")


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_learns_does_not_stand(seed: int) -> None:
    assert (
        standing_of(record_of(np.arange(1.0, 2001), {"loss": _noisy(_fall(2000, 2000), seed)}))
        is None
    )


def test_how_long_it_stands_is_said_beside_a_healthy_run() -> None:
    loss = _noisy(_fall(2000, 400), 1)
    found = standing_of(record_of(np.arange(1.0, 2001), {"loss": loss}))
    assert found is not None
    assert not found.from_start
    assert 1300 <= found.rows <= 1700
    account = make_account(record_of(np.arange(1.0, 2001), {"loss": loss}))
    assert found.text in account.judgement.ignored or account.verdict == "incident"


def test_held_out_data_that_get_better_and_excerpts_are_no_case() -> None:
    n = 400
    loss = _noisy(np.full(n, 1.9), 1)
    better = {"loss": loss, "val_loss": np.linspace(2.0, 1.5, n)}
    assert standing_of(record_of(np.arange(1.0, n + 1), better)) is None
    assert standing_of(record_of(np.arange(50_000.0, 50_000 + n), {"loss": loss})) is None
    assert standing_of(record_of(np.arange(1.0, n + 1), {"loss": loss, "reward": loss})) is None


def test_rows_without_a_step_that_stand_from_the_first_on_are_said_to() -> None:
    loss = 16.5 + 0.08 * np.random.default_rng(0).standard_normal(84)
    (run,) = analyze({"loss": loss}).runs
    found = standing_of(run.record)
    assert found is not None
    assert (found.rows, found.from_start) == (84, False)


@pytest.mark.parametrize("n", [40, 135, 1000])
def test_a_loss_that_has_hardly_come_down_is_not_judged(n: int) -> None:
    loss = _noisy(np.linspace(10.19, 10.11, n), 3, sigma=0.004)
    record = record_of(np.arange(1.0, n + 1), {"loss": loss})
    found = standing_of(record)
    assert found is not None
    assert found.from_start
    assert "hardly lower than where it began" in found.text
    account = make_account(record)
    assert account.verdict != "healthy"
    deeper = _noisy(np.linspace(10.19, 9.4, n), 3, sigma=0.004)
    assert standing_of(record_of(np.arange(1.0, n + 1), {"loss": deeper})) is None


def test_a_loss_that_came_down_and_went_up_again_has_not_hardly_moved() -> None:
    down = np.concatenate([np.linspace(3.0, 2.0, 100), np.linspace(2.0, 2.97, 100)])
    assert standing_of(record_of(np.arange(1.0, 201), {"loss": _noisy(down, 1, 0.01)})) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_never_came_back_to_where_it_began_is_not_judged(seed: int) -> None:
    n = np.arange(200.0)
    thrown = np.where(n < 2, 2.8, 3.0 + 1.2 * np.exp(-n / 20))
    found = standing_of(record_of(n, {"loss": _noisy(thrown, seed, 0.1)}))
    assert found is not None
    assert found.from_start
    assert "no lower than where it began" in found.text
