"""A rate that climbs past its earlier peak in small steps, and what the loss does."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.api.analysis import analyze
from trimtab.detectors.contract import Finding
from trimtab.detectors.rate_climb import RateClimbDetector
from trimtab.testing.contract import find_all

Floats = NDArray[np.float64]
N = 600


def schedule(climb: float = 1.03, at: int = 300) -> Floats:
    """Warm-up, cosine, and from a row on a climb."""
    t = np.arange(N)
    rate = 1e-3 * np.minimum((t + 1) / 40, 1) * (0.55 + 0.45 * np.cos(np.pi * t / N))
    return np.asarray(rate * climb ** np.clip(t - at, 0, None))


def losses(seed: int, rise: float = 0.0, at: int = 300, noise: float = 0.15) -> Floats:
    t = np.arange(N)
    fall = 0.6 + 1.8 * np.exp(-t / 80)
    noisy = noise * np.random.default_rng(seed).standard_normal(N)
    return np.asarray(fall + noisy + rise * np.clip(t - at, 0, None) / 100)


def found(loss: Floats, rate: Floats) -> list[Finding]:
    return list(find_all(RateClimbDetector(), {"loss": loss, "lr": rate}))


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_creeps_up_under_a_climbing_rate_is_told_through_the_front_door(
    seed: int,
) -> None:
    run = analyze({"step": np.arange(N), "loss": losses(seed, rise=0.5), "lr": schedule()})
    told = [i for i in run.incidents if i.severity != "info"]
    first = min(told, key=lambda i: i.onset)
    assert 300 <= first.onset <= 420
    assert first.causes[0].cause in ("learning-rate-too-high", "learning-rate-jump")


@pytest.mark.parametrize("seed", range(20))
def test_a_climb_that_does_no_harm_is_no_alarm(seed: int) -> None:
    assert not found(losses(seed), schedule())


@pytest.mark.parametrize("seed", range(20))
def test_without_a_climb_beyond_the_peak_a_rise_is_left_to_other_rules(seed: int) -> None:
    for rate in (schedule(1.0), np.full(N, 1e-3), schedule(1.002)):
        assert not found(losses(seed, rise=0.5), rate)


def test_a_warm_up_however_long_is_no_climb_back() -> None:
    rate = np.asarray(1e-5 * 1.02 ** np.arange(N), dtype=np.float64)
    assert not found(losses(0, rise=0.5), rate)


def test_a_jump_is_left_to_the_rule_of_jumps() -> None:
    rate = schedule(1.0)
    rate[300:] *= 10
    assert not found(losses(0, rise=0.5), rate)


def test_scale_and_offset_of_the_loss_change_nothing() -> None:
    loss, rate = losses(1, rise=0.5), schedule()
    first = [(f.row, f.onset_row, f.closed) for f in found(loss, rate)]
    assert first
    for other in (7 * loss, loss - 3, -100 + 0.01 * loss):
        assert [(f.row, f.onset_row, f.closed) for f in found(other, rate)] == first


def test_missing_and_nan_rows_are_passed_over() -> None:
    loss, rate = losses(1, rise=0.5), schedule()
    loss[::7], rate[::5] = np.nan, np.nan
    told = found(loss, rate)
    assert told
