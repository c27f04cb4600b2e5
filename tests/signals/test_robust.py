"""Robust statistics against scipy, and against loops of a few lines that follow the equations."""

import itertools
import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from trimtab.signals.robust import (
    MAD_TO_SIGMA,
    MEAN_DEVIATION_TO_SIGMA,
    block_median_sigma,
    dependent_blocks_sigma,
    difference_sigma,
    mad_sigma,
    median,
    medians,
    running_median,
    theil_sen_slope,
)

Floats = NDArray[np.float64]

VALUES = arrays(
    np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6, allow_subnormal=False)
)


def noise(n: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(3.0, 2.0, n)


def test_scale_factors_are_those_of_normal_noise() -> None:
    # four digits of 1 / Phi^-1(3/4), as published; the mean's factor is kept to three
    assert pytest.approx(1 / stats.norm.ppf(0.75), abs=5e-5) == MAD_TO_SIGMA
    assert pytest.approx(math.sqrt(math.pi / 2), abs=5e-3) == MEAN_DEVIATION_TO_SIGMA


@given(VALUES)
def test_median_is_numpys(values: Floats) -> None:
    assert median(values) == float(np.median(values))
    assert medians(values[None]) == [float(np.median(values))]


@given(VALUES)
def test_mad_sigma_is_scipys(values: Floats) -> None:
    # the same factor, so only the order of rounding may differ
    expected = MAD_TO_SIGMA * stats.median_abs_deviation(values)
    assert mad_sigma(values) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("center", [0.0, -1.5, 3.0])
def test_mad_sigma_is_taken_about_a_given_center(center: float) -> None:
    values = noise(101)
    expected = MAD_TO_SIGMA * sorted(abs(x - center) for x in values)[50]
    assert mad_sigma(values, center=center) == pytest.approx(expected, rel=1e-12)


def test_mad_sigma_counts_an_infinite_value_as_far_away() -> None:
    assert mad_sigma(np.array([1.0, 2.0, 3.0, np.inf]), center=2.0) == MAD_TO_SIGMA


@pytest.mark.parametrize(("order", "weights"), [(1, (1, -1)), (2, (1, -2, 1))])
def test_difference_sigma_follows_its_equation(
    order: Literal[1, 2], weights: tuple[int, ...]
) -> None:
    x = noise(200)
    found = []
    for t in range(len(x) - order):
        found.append(abs(sum(w * x[t + k] for k, w in enumerate(weights))))
    expected = MAD_TO_SIGMA * float(np.median(found)) / math.sqrt(sum(w * w for w in weights))
    assert difference_sigma(np.diff(x, order), order=order) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_difference_sigma_of_a_difference_is_root_two_of_a_values(order: Literal[1, 2]) -> None:
    d = np.diff(noise(200), order)
    pair = difference_sigma(d, order=order, of="difference") / difference_sigma(d, order=order)
    assert pair == pytest.approx(math.sqrt(2), rel=1e-12)


def test_difference_sigma_finds_the_noise_on_a_trend() -> None:
    x = noise(20000) + np.linspace(0, 400, 20000)
    # 20,000 values: the error of such an estimate is about 1 %
    assert difference_sigma(np.diff(x)) == pytest.approx(2.0, rel=0.03)
    assert difference_sigma(np.diff(x, 2), order=2) == pytest.approx(2.0, rel=0.03)
    assert mad_sigma(x) > 50


def dependent_by_loop(x: Floats) -> float:
    second = [abs(x[t + 2] - 2 * x[t + 1] + x[t]) for t in range(len(x) - 2)]
    means = [sum(x[t : t + 4]) / 4 for t in range(len(x) - 3)]
    apart = [means[t + 4] - means[t] for t in range(len(means) - 4)]
    near = MAD_TO_SIGMA * float(np.median(second)) / math.sqrt(6)
    far = MAD_TO_SIGMA * float(stats.median_abs_deviation(apart)) * math.sqrt(2)
    return max(near, far)


@pytest.mark.parametrize("n", [8, 9, 24, 96])
def test_dependent_blocks_sigma_follows_its_equation(n: int) -> None:
    for seed in range(20):
        x = noise(n, seed)
        # sums of n values of size 3 lose a few of their last digits
        assert dependent_blocks_sigma(x) == pytest.approx(dependent_by_loop(x), rel=1e-9)


def test_dependent_blocks_sigma_sees_blocks_that_follow_one_another() -> None:
    e = noise(4000) - 3.0
    x = np.empty(4000)
    x[0] = e[0]
    for t in range(1, 4000):
        x[t] = 0.8 * x[t - 1] + e[t]
    neighbors = difference_sigma(np.diff(x, 2), order=2)
    assert dependent_blocks_sigma(x) > 1.5 * neighbors


def test_dependent_blocks_sigma_leaves_a_straight_line_out() -> None:
    x = noise(96)
    line = dependent_blocks_sigma(x + np.linspace(0, 1000, 96))
    assert line == pytest.approx(dependent_blocks_sigma(x), rel=1e-9)


def test_block_median_sigma_follows_its_equation() -> None:
    x = noise(70)
    blocks = [float(np.median(x[6 + 16 * k : 22 + 16 * k])) for k in range(4)]
    steps = [abs(b - a) for a, b in itertools.pairwise(blocks)]
    expected = MAD_TO_SIGMA * float(np.median(steps)) / math.sqrt(2)
    assert block_median_sigma(x, 16) == pytest.approx(expected, rel=1e-12)


def test_block_median_sigma_takes_the_rows_below_four_blocks() -> None:
    x = noise(63)
    rows = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(x)))) / math.sqrt(2)
    assert block_median_sigma(x, 16) == pytest.approx(2 * rows / 4, rel=1e-12)


def test_theil_sen_slope_is_scipys() -> None:
    x = np.sort(noise(40))
    y = 0.7 * x + noise(40, 1)
    y[7] = 1e6
    assert theil_sen_slope(x, y) == pytest.approx(stats.theilslopes(y, x).slope, rel=1e-12)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 9, 10, 11, 50])
@pytest.mark.parametrize("window", [1, 5, 10, 11])
def test_running_median_follows_its_equation(n: int, window: int) -> None:
    y, half = noise(n), window // 2
    expected = [float(np.median(y[max(0, t - half) : t + half + 1])) for t in range(n)]
    assert running_median(y, window).tolist() == expected


def test_running_median_keeps_a_gap_a_gap() -> None:
    y = np.array([0.0, 1.0, 2.0, 3.0, np.nan, 5.0, 6.0, 7.0])
    smooth = running_median(y, window=3)
    assert np.flatnonzero(np.isnan(smooth)).tolist() == [3, 4, 5]
