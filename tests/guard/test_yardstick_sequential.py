"""The sequential paired test and the comparison of two states, as functions of data."""

import math

import numpy as np
import pytest

from trimtab.guard.yardstick.reading import compare
from trimtab.guard.yardstick.sequential import ALARM, PairedTest

RUNS = 60
EVALUATIONS = 50
BATCHES = 4
LEVEL, JITTER = 2.5, 0.0025
"""nats per token, and how the mean of the batches moves from one evaluation to the next."""


def evaluations(rng: np.random.Generator, *, rise_at: int | None, rise: float) -> list[list[float]]:
    """Losses of the same batches, some harder than others, on a run that slowly learns."""
    hardness = rng.normal(0, 0.3, BATCHES)
    found = []
    for t in range(EVALUATIONS):
        level = LEVEL + 0.3 * math.exp(-t / 8)
        level += rise if rise_at is not None and t >= rise_at else 0.0
        common = rng.normal(0, JITTER)
        found.append([*(level + hardness + common + rng.normal(0, JITTER / 2, BATCHES))])
    return found


def first_alarm(losses: list[list[float]]) -> int | None:
    test = PairedTest()
    for t, x in enumerate(losses):
        if test.take_in(t, x, sigma=0.05).alarms:
            return t
    return None


def test_level_runs_rarely_alarm() -> None:
    rng = np.random.default_rng(100)
    alarms = [first_alarm(evaluations(rng, rise_at=None, rise=0.0)) for _ in range(RUNS)]
    assert sum(a is not None for a in alarms) <= 0.0015 * RUNS * EVALUATIONS


def test_half_a_percent_is_seen_within_four_evaluations() -> None:
    rng = np.random.default_rng(101)
    at = 30
    delays = [
        None if a is None else a - at
        for a in (
            first_alarm(evaluations(rng, rise_at=at, rise=0.005 * LEVEL)) for _ in range(RUNS)
        )
    ]
    seen = [d for d in delays if d is not None and 0 <= d <= 3]
    assert len(seen) >= 0.8 * RUNS


def fallen(rng: np.random.Generator, *, rises: bool) -> list[list[float]]:
    """One loss that comes down to a hundredth, by noise that follows it; it may climb tenfold."""
    steps = np.arange(EVALUATIONS)
    level = 0.003 + 0.3 * np.exp(-np.maximum(steps - 2, 0) / 1.2)
    climb = np.where(steps >= 10, np.minimum(0.4 * (steps - 9), math.log(10)), 0.0)
    noise = rng.normal(0, 0.15, EVALUATIONS)
    return [[float(x)] for x in level * np.exp(noise + (climb if rises else 0.0))]


def test_a_fall_over_orders_of_magnitude_does_not_hide_a_tenfold_rise() -> None:
    rng = np.random.default_rng(102)
    found = [first_alarm(fallen(rng, rises=True)) for _ in range(RUNS)]
    assert sum(a is not None and 10 <= a <= 17 for a in found) >= 0.9 * RUNS


def test_sound_runs_that_fall_by_orders_of_magnitude_rarely_alarm() -> None:
    rng = np.random.default_rng(103)
    alarms = [first_alarm(fallen(rng, rises=False)) for _ in range(RUNS)]
    # one number has no pairs, and alarms more often than four batches do
    assert sum(a is not None for a in alarms) <= 0.0025 * RUNS * EVALUATIONS


def test_noise_that_does_not_shrink_with_the_level_is_no_rise() -> None:
    rng = np.random.default_rng(104)
    level = 0.01 + np.exp(-np.arange(EVALUATIONS) / 3)
    runs = [[[x] for x in level + rng.normal(0, 0.002, EVALUATIONS)] for _ in range(RUNS)]
    assert sum(first_alarm(run) is not None for run in runs) <= 0.0025 * RUNS * EVALUATIONS


def test_a_spread_that_is_not_known_says_nothing() -> None:
    test = PairedTest()
    totals = [
        test.take_in(t, [2.0 + (5.0 if t == 4 else 0.01 * t)], sigma=math.inf) for t in range(5)
    ]
    assert [e.total for e in totals] == [0.0] * 5


def test_a_loss_that_is_not_finite_is_certain_and_hides_nothing() -> None:
    test = PairedTest()
    test.take_in(0, [2.0, 3.0], sigma=0.1)
    assert test.take_in(1, [2.0, math.nan], sigma=0.1).total == math.inf
    assert test.take_in(2, [2.0, 3.0], sigma=0.1).total == 0.0
    assert test.take_in(3, [4.0, 5.0], sigma=0.1).total >= ALARM


def test_a_level_that_lasts_is_accepted_and_going_back_forgets() -> None:
    test = PairedTest()
    for t in range(8):
        test.take_in(t, [2.0], sigma=0.1)
    after = [test.take_in(8 + t, [5.0], sigma=0.1).total for t in range(8)]
    assert after[0] >= ALARM
    assert after[-1] == 0.0
    test.forget_after(6)
    assert test.last_good_step is None or test.last_good_step <= 6


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (8.0, 0.0), (1.0, -4.0), (0.01, 100.0)])
def test_the_comparison_is_the_same_for_any_scale_and_offset(a: float, b: float) -> None:
    base, better, worse = [2.0, 2.4], [1.9, 2.35], [2.3, 2.7]
    scale = {"sigma": 0.05 * a, "unit": 2.0 * a}
    there = [a * x + b for x in base]
    assert not compare([a * x + b for x in better], there, **scale).worse
    assert not compare([a * x + b + 0.5 * scale["sigma"] for x in base], there, **scale).worse
    found = compare([a * x + b for x in worse], there, **scale)
    assert found.worse
    assert found.rise == pytest.approx(0.3 * a)


def test_a_comparison_with_what_is_not_finite() -> None:
    assert compare([math.inf], [2.0], sigma=0.1, unit=3.0).worse
    assert not compare([2.0], [math.nan], sigma=0.1, unit=3.0).worse
    with pytest.raises(ValueError, match="as many"):
        compare([1.0, 2.0], [1.0], sigma=0.1, unit=3.0)


def test_a_single_number_is_not_taken_for_worse_because_its_highest_values_are_left_out() -> None:
    alarmed = seen = 0
    for seed in range(60):
        noise = 0.01 * np.random.default_rng(seed).normal(size=50)
        level, test = 1 + noise, PairedTest()
        alarmed += any(
            test.take_in(i, [x], sigma=math.inf).alarms for i, x in enumerate(level.tolist())
        )
        risen, test = level + np.where(np.arange(50) >= 25, 0.03, 0.0), PairedTest()
        told = [test.take_in(i, [x], sigma=math.inf).alarms for i, x in enumerate(risen.tolist())]
        seen += not any(told[:25]) and any(told[25:35])
    assert (
        alarmed <= 0.25 * 60
    )  # nearly a half before: noise without its highest values is too small
    assert seen >= 0.7 * 60
