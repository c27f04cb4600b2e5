"""Rows in a row that take hours, between rows that take minutes."""

from dataclasses import replace

import numpy as np
import pytest

from trimtab.detectors.silence import slow_stretch_findings
from trimtab.record import Column
from trimtab.testing.curves import record_of

N = 40


def _told(seconds: np.ndarray, **more: np.ndarray) -> list[tuple[int, int | None]]:
    columns = {"loss": np.ones(N), "wall_time_s": 1.7e9 + np.cumsum(seconds), **more}
    record = record_of(np.arange(0.0, 1300.0 * N, 1300.0), columns)
    if "val_loss" in more:  # 0: it is not logged there
        logged = Column(more["val_loss"], more["val_loss"] != 0)
        record = replace(record, columns={**record.columns, "val_loss": logged})
    found = slow_stretch_findings(record)
    return [(f.onset_row, f.end_row) for f in found if f.severity != "info"]


def _run(*slow: int, takes: float = 6000.0) -> np.ndarray:
    seconds = 330.0 + 20 * np.random.default_rng(0).random(N)
    seconds[list(slow)] = takes * (1 + 0.3 * np.arange(len(slow)))
    return seconds


def test_a_stretch_that_cost_most_of_the_time_is_told_though_it_is_over() -> None:
    assert _told(_run(10, 11, 12, 13)) == [(10, 14)]


@pytest.mark.parametrize(
    "seconds",
    [
        _run(),
        _run(10, 20, 30),  # each alone: evaluations
        _run(10, 11, takes=1500.0),  # little of the time
        _run(36, 37, 38, 39),  # it goes on: other rules tell it
        _run(0, 1, 2, 3),  # what is read for the first time
    ],
    ids=["even", "alone", "little", "to-the-end", "first"],
)
def test_other_rows_are_silent(seconds: np.ndarray) -> None:
    assert not _told(seconds)


def test_agents_evaluations_stages_and_more_data_are_by_design() -> None:
    slow = _run(10, 11, 12, 13)
    assert not _told(slow, reward=np.arange(N, dtype=float))
    assert not _told(slow, val_loss=(np.arange(N) // 5 == 2).astype(float))
    assert not _told(slow, tokens_seen=np.cumsum(slow))
    even = _run()
    even[10:14] = 6000.0
    assert not _told(even)
