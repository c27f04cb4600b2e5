"""A loss of exactly 0 at the end: some trainers print NaN so."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import analyze
from trimtab.detectors.zero_end import zero_end_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

LEVEL = np.array([1.281, 1.278, 1.284, 1.263, 1.265, 1.275, 1.263, 1.27, 1.292, 1.306, 1.324])


def _told(loss: Floats, **more: Floats) -> list[tuple[str, int]]:
    found = zero_end_findings(record_of(np.arange(float(len(loss))), {"loss": loss, **more}))
    return [(f.severity, f.onset_row) for f in found]


@pytest.mark.parametrize("num", [1, 2, 15])
def test_a_leap_and_then_nothing_is_a_loss_that_broke(num: int) -> None:
    assert _told(np.append(LEVEL, [34023.8, *[0.0] * num])) == [("critical", 11)]


def test_three_zeros_behind_a_level_are_told_and_fewer_are_not() -> None:
    assert _told(np.append(LEVEL, [0.0] * 3)) == [("critical", 11)]
    assert not _told(np.append(LEVEL, [0.0] * 2))
    assert _told(np.append(LEVEL, [0.0] * 40)) == [("critical", 11)]


def test_a_loss_that_comes_down_to_nothing_or_was_there_before_is_sound() -> None:
    assert not _told(np.append(np.geomspace(2, 1e-4, 30), [0.0] * 5))
    assert not _told(np.append(0.01 * LEVEL, [0.0] * 5))
    assert not _told(np.concatenate(([0.0], LEVEL, [0.0] * 5)))
    assert not _told(np.append(LEVEL, [34023.8, 0.0, 1.3]))
    # of an agent or of groups with one reward it may be 0
    assert not _told(np.append(LEVEL, [0.0] * 5), reward=np.ones(16))


@pytest.mark.parametrize("num", [1, 3, 6])
def test_zeros_behind_a_few_first_rows_are_told_once(num: int) -> None:
    first = np.array([122.14, 131.2, 118.7, 127.9, 124.3, 119.8])[:num]
    assert _told(np.append(first, [0.0] * 36)) == [("warning", num)]
    assert not _told(np.append(first, [0.0] * 12))
    assert not _told(np.append(0.1 * first / 122, [0.0] * 36))
    loss = np.append(first, [0.0] * 36)
    found = analyze({"step": 10 * np.arange(len(loss)), "loss": loss})
    assert len([i for i in found.incidents if i.severity != "info"]) == 1


def test_what_may_come_to_nothing_in_a_few_rows_is_silent() -> None:
    zeros = [0.0] * 40
    assert not _told(np.append([0.9, 0.7, 0.6], zeros))  # it falls: the margin may be met
    assert not _told(np.append([12.0, 7.0, 9.0], zeros))  # mistakes are counted
    loss = np.append([0.9, 1.1, 0.8], zeros)
    assert not _told(loss, accuracy=np.append([0.8, 0.7, 0.9], np.ones(40)))
    assert _told(loss, accuracy=np.append([0.8, 0.7, 0.9], np.full(40, np.nan)))


def test_rows_that_nobody_filled_are_a_note() -> None:
    loss = np.append(LEVEL, [0.0] * 30)
    rate = np.append(np.full(len(LEVEL), 1e-3), [0.0] * 30)
    assert [severity for severity, _ in _told(loss, lr=rate)] == ["info"]
