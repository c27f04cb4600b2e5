"""A loss scale that falls in the first rows: calibration, or a collapse behind a scale that held."""

import numpy as np
import pytest

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.scale_collapse import ScaleCollapseDetector


def _told(scale: np.ndarray, *, by_row: bool) -> list[Finding]:
    detector = ScaleCollapseDetector()
    index = np.arange(len(scale))
    rows = Rows(index, index.astype(float), scale[:, None], np.ones((len(scale), 1), bool))
    if not by_row:
        return list(detector.update_rows(detector.start(), rows)[1])
    state, found = detector.start(), list[Finding]()
    for k in range(len(scale)):
        state, new = detector.update(state, rows.row(k))
        found += new
    return found


def _halvings(num_held: int, num: int, rest: int) -> np.ndarray:
    fall = 2.0 ** (16 - np.minimum(np.arange(1, num + 1), 16))
    return np.concatenate((np.full(num_held, 65536.0), fall, np.full(rest, fall[-1])))


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("num_held", [19, 40])
def test_a_scale_that_held_and_falls_to_its_floor_is_told_in_a_short_log(
    num_held: int, by_row: bool
) -> None:
    found = _told(_halvings(num_held, 16, 4), by_row=by_row)
    assert found
    assert (found[0].onset_row, found[-1].severity) == (num_held, "critical")


@pytest.mark.parametrize("by_row", [True, False])
def test_calibration_is_none_though_the_scale_holds_behind_it(by_row: bool) -> None:
    assert not _told(_halvings(2, 12, 40), by_row=by_row)
    assert not _told(_halvings(20, 3, 30), by_row=by_row)  # few halvings in the first rows
