"""Rows that a log does not hold: what was learned there is neither a stall nor too good, and is said."""

import numpy as np
import pytest

import trimtab
from trimtab.analysis.unlogged import unlogged
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _steps(last: int, first: int, num: int) -> Floats:
    kept = [*range(last), *range(first, first + num - last)]
    return np.array(kept, dtype=np.float64)


def _loss(steps: Floats, seed: int) -> Floats:
    noise = 0.03 * np.random.default_rng(seed).standard_normal(len(steps))
    return np.asarray(2 + 4 * (1 + steps / 20) ** -0.4 + noise)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("last", "first", "num"), [(201, 420, 381), (400, 4000, 600), (100, 5000, 600), (30, 300, 600)]
)
def test_a_gap_in_the_steps_is_no_alarm_and_is_said(
    last: int, first: int, num: int, seed: int
) -> None:
    steps = _steps(last, first, num)
    columns = {"step": steps, "loss": _loss(steps, seed), "lr": np.full(num, 1e-4)}
    (run,) = trimtab.analyze(columns).runs
    assert run.verdict == "healthy"
    assert any(f"no rows between step {last - 1}" in said for said in run.judgement.ignored)


def test_a_fall_behind_a_gap_to_a_tenth_stays_an_alarm() -> None:
    steps = _steps(400, 4000, 600)
    loss = np.where(steps < 400, _loss(steps, 1), 0.05 * _loss(steps, 1))
    (run,) = trimtab.analyze({"step": steps, "loss": loss, "lr": np.full(600, 1e-4)}).runs
    assert run.verdict == "incident"


def test_a_stall_behind_a_gap_is_seen() -> None:
    steps = _steps(201, 420, 900)
    loss = _loss(np.minimum(steps, 600), 1)
    (run,) = trimtab.analyze({"step": steps, "loss": loss, "lr": np.full(900, 1e-4)}).runs
    assert [i.kind for i in run.incidents] == ["plateau"]


def test_validation_that_is_logged_no_more_is_said() -> None:
    steps = np.arange(600.0)
    held_out = np.where((steps % 20 == 0) & (steps < 300), _loss(steps, 2) + 0.1, np.nan)
    record = record_of(steps, {"loss": _loss(steps, 1), "val_loss": held_out})
    assert unlogged(record) == ("no validation is logged behind step 280",)
    whole = np.where(steps % 20 == 0, _loss(steps, 2) + 0.1, np.nan)
    assert unlogged(record_of(steps, {"loss": _loss(steps, 1), "val_loss": whole})) == ()
