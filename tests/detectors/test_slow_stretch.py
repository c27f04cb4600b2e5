"""Rows in a row that take hours, between rows that take minutes."""

import numpy as np
import pytest

from trimtab.detectors.silence import slow_stretch_findings
from trimtab.testing.curves import record_of

N = 40


def _told(seconds: np.ndarray) -> list[tuple[int, int | None]]:
    step = 1300.0 * np.arange(N)
    columns = {"loss": np.ones(N), "wall_time_s": 1.7e9 + np.cumsum(seconds)}
    return [(f.onset_row, f.end_row) for f in slow_stretch_findings(record_of(step, columns))]


def _run(*slow: int, takes: float = 6000.0) -> np.ndarray:
    seconds = 330.0 + 20 * np.random.default_rng(0).random(N)
    seconds[list(slow)] = takes
    return seconds


def test_a_stretch_that_cost_most_of_the_time_is_told_though_it_is_over() -> None:
    assert _told(_run(10, 11, 12, 13)) == [(10, 14)]


@pytest.mark.parametrize(
    "seconds",
    [
        _run(),
        _run(10, 20, 30),  # each alone: evaluations
        _run(10, 11, takes=2000.0),  # little of the time
        _run(36, 37, 38, 39),  # it goes on: other rules tell it
        _run(0, 1, 2, 3),  # what is read for the first time
    ],
    ids=["even", "alone", "little", "to-the-end", "first"],
)
def test_other_rows_are_silent(seconds: np.ndarray) -> None:
    assert not _told(seconds)
