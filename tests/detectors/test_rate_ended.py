"""A learning rate of 0 for many rows: a schedule that ended, or few digits."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.rate_ended import RateEndedDetector

N = 600
T = np.arange(N)
COSINE = 0.5 * (1 + np.cos(np.pi * T / N))


def _told(lr: NDArray[np.float64]) -> list[str]:
    detector, num = RateEndedDetector(), len(lr)
    rows = Rows(np.arange(num), np.arange(float(num)), lr[:, None], np.ones((num, 1), bool))
    state, many = detector.update_rows(detector.start(), rows)
    one, found = detector.start(), list[Finding]()
    for k in range(num):
        one, new = detector.update(one, rows.row(k))
        found += new
    assert (one, tuple(found)) == (state, many)
    return [f.severity for f in many]


@pytest.mark.parametrize(("peak", "digits"), [(1e-3, 4), (1e-4, 5), (2e-5, 6), (1e-2, 3)])
def test_a_rate_that_reads_0_in_few_digits_is_none(peak: float, digits: int) -> None:
    assert not _told(np.round(peak * COSINE, digits))
    assert not _told(np.round(peak * (0.01 + 0.99 * COSINE), digits))
    assert not _told(np.round(peak * np.exp(-T / 90), digits))


@pytest.mark.parametrize(
    "lr",
    [
        np.maximum(1e-4 * (1 - T / 100), 0.0),  # a straight line to 0, by the last digit a row
        np.maximum(3e-4 * np.cos(np.pi * T / 600), 0.0),
        np.where(T < 300, 1e-4, 0.0),
        np.select([T < 100, T < 200, T < 300, T < 400], [1e-3, 1e-4, 1e-5, 1e-6], 0.0),
        np.round(np.maximum(1e-3 * (1 - T / 300), 0.0), 4),
        np.select([T < 100, T < 200, T < 300, T < 400], [4e-3, 3e-3, 2e-3, 1e-3], 0.0),
    ],
    ids=["line", "cosine", "cut", "decades", "half-of-the-run", "stairs"],
)
def test_a_schedule_that_ended_is_an_alarm(lr: NDArray[np.float64]) -> None:
    assert _told(lr) == ["warning"]
