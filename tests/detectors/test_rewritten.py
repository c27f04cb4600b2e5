"""Weights that the first updates write anew: told within the first steps, and of nothing else."""

import numpy as np
import pytest

from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import judge_record
from trimtab.testing.curves import record_of


def _found(
    steps: list[int], norms: list[float], ratios: list[float], scale: float = 0.6
) -> list[Finding]:
    scales = np.where(np.arange(len(steps)) == 0, scale, np.nan)
    columns = {
        "weight_norm": np.array(norms),
        "update_ratio": np.array(ratios),
        "weight_scale": scales,
    }
    record = record_of(np.array(steps, dtype=float), columns)
    return [f for f in judge_record(record) if f.detector == "rewritten"]


# As the guard reads them of a VAE, and of the same under a rate thirty times too high.
SOUND = ([10, 20, 30, 40, 50], [9.81, 9.92, 10.0, 9.95, 9.88], [0.012, 0.017, 0.012, 0.009, 0.007])
BAD = ([10, 20, 30, 40, 50], [11.5, 19.6, 26.8, 30.2, 32.9], [0.118, 0.077, 0.038, 0.03, 0.02])


def test_a_rate_far_too_high_is_told_at_the_first_reading_that_shows_it() -> None:
    (first, *_) = found = _found(*BAD)
    assert len(found) == 1
    assert (first.step, first.onset, first.signal) == (30, 10, "update_ratio")
    assert first.expected / first.value == pytest.approx(1 / 24, rel=0.02)
    assert "norm 11.5 → 26.8 within 20 steps, up to 12 % in one" in first.text


def test_sound_first_steps_are_silent() -> None:
    assert _found(*SOUND) == []
    steps = list(range(10, 400, 10))
    slow = [10 * 1.6 ** (k / 10) for k in range(len(steps))]  # twice by step 150
    assert _found(steps, slow, [0.05] * len(steps)) == []


def test_a_log_that_does_not_begin_with_the_run_is_not_judged() -> None:
    steps, norms, ratios = BAD
    assert _found([s + 1000 for s in steps], norms, ratios) == []


def test_growth_by_something_else_than_updates_is_not_told() -> None:
    steps, norms, _ = BAD
    assert _found(steps, norms, [0.004] * 5) == []


def test_missing_and_nan_readings_change_nothing() -> None:
    steps, norms, ratios = BAD
    with_nan = [n if k != 1 else float("nan") for k, n in enumerate(norms)]
    assert [f.step for f in _found(steps, with_nan, ratios)] == [30]


def test_it_closes_after_some_readings() -> None:
    steps = list(range(10, 210, 10))
    norms = [11.5, 19.6, 26.8, *[30.0] * 17]
    assert [(f.step, f.closed) for f in _found(steps, norms, [0.1] * 20)] == [
        (30, False),
        (110, True),
    ]


def test_weights_that_begin_near_zero_may_grow() -> None:
    assert _found(*BAD, scale=0.05) == []
    assert _found(*BAD, scale=float("nan")) == []
