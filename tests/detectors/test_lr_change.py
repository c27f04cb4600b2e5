"""Jumps of the rate, and a warm-up that is held from epoch to epoch."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.judge import Judge, judge_record
from trimtab.detectors.lr_change import LrChangeDetector
from trimtab.detectors.stated_changes import as_stated
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]


def _told(lr: Floats, *, hindsight: bool = False) -> list[tuple[int, str]]:
    record = record_of(np.arange(float(len(lr))), {"lr": lr})
    found = judge_record(record, Judge(detectors=(LrChangeDetector(),)))
    found = tuple(as_stated(record, f) for f in found) if hindsight else found
    return [(f.onset_row, f.severity) for f in found if f.severity != "info" or not hindsight]


@pytest.mark.parametrize("rows", [1, 6, 40])
@pytest.mark.parametrize("first", [0.0, 1e-6, 2e-4])
def test_a_warm_up_by_epochs_is_no_jump(rows: int, first: float) -> None:
    steps = first + 2e-4 * np.arange(6)
    down = np.linspace(1e-3, 1e-5, 20)
    lr = np.repeat(np.concatenate((steps, down)), rows)
    # Live, the first step of long epochs looks as any other.
    assert _told(lr, hindsight=True) == []
    assert len(_told(lr)) <= (rows > 10)


@pytest.mark.parametrize("next_rate", [1.01e-2, 1.05e-2, 1.2e-2])
def test_a_jump_that_a_small_step_follows_is_no_warm_up(next_rate: float) -> None:
    lr = np.concatenate((np.full(200, 1e-5), np.full(150, 1e-2), np.full(150, next_rate)))
    assert _told(lr, hindsight=True)[0] == (200, "warning")


def test_a_jump_beyond_the_rise_before_and_one_after_a_fall_are() -> None:
    warm = np.repeat(1e-6 + 2e-4 * np.arange(4), 6)
    jump = np.concatenate((warm, np.full(20, 2e-3)))
    assert _told(jump) == _told(jump, hindsight=True) == [(24, "warning")]
    cut = np.concatenate((warm, np.full(20, 1e-4), np.full(20, 2.5e-4)))
    assert [row for row, _ in _told(cut)] == [44]
