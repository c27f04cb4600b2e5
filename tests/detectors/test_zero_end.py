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
    first = 122.0 / np.arange(1, num + 1)
    assert _told(np.append(first, [0.0] * 36)) == [("critical", num)]
    assert not _told(np.append(first, [0.0] * 12))
    assert not _told(np.append(0.1 * first / 122, [0.0] * 36))
    loss = np.append(first, [0.0] * 36)
    found = analyze({"step": 10 * np.arange(len(loss)), "loss": loss})
    assert [i.kind for i in found.incidents if i.severity != "info"] == ["non-finite"]
