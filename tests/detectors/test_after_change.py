"""A rise of the loss after a setting changed that nobody announced."""

import math

import numpy as np
import pytest

from trimtab.detectors.after_change import AfterChangeDetector
from trimtab.detectors.contract import Finding, Rows, step_through

DETECTOR = AfterChangeDetector()
CHANGE = 120


def rows(
    rise: float, *, scale: float = 1.0, offset: float = 0.0, rate: float = 1.0, seed: int = 0
) -> Rows:
    """A loss that falls from 4 to 2, with a change at row 120 and a rise from 20 rows later on."""
    place = np.arange(400.0)
    noise = np.random.default_rng(seed).normal(0, 0.05, len(place))
    loss = 2 + 2 * np.exp(-place / 30) + noise + rise * (place >= CHANGE + 20)
    loss[60] = math.nan
    changes = np.where(place == CHANGE, 1.0, math.nan)
    rates = np.where(place >= CHANGE, rate, 1.0)
    values = np.stack([changes, scale * loss + offset, rates], axis=1)
    return Rows(np.arange(len(place)), place + 1, values, ~np.isnan(values))


def found(given: Rows) -> tuple[Finding, ...]:
    """What is found at once, which must be what is found row by row."""
    state, at_once = DETECTOR.update_rows(DETECTOR.start(), given)
    by_row, one_by_one = step_through(DETECTOR, DETECTOR.start(), given)
    assert at_once == one_by_one
    assert state == by_row
    return at_once


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1000.0, -5000.0), (1e-3, 7.0)])
def test_a_rise_after_the_change_is_a_shift_dated_to_it(scale: float, offset: float) -> None:
    opened, closed = found(rows(0.3, scale=scale, offset=offset))
    assert (opened.kind, opened.signal, opened.severity) == ("shift", "loss", "warning")
    assert (opened.onset_row, opened.closed, closed.closed) == (CHANGE, False, True)
    assert CHANGE + 20 < opened.row < CHANGE + 40
    assert closed.key == opened.key
    assert closed.row - opened.row == DETECTOR.watch_rows  # the level that lasts is the new one


@pytest.mark.parametrize("seed", range(5))
def test_what_changes_little_or_falls_on_is_left_alone(seed: int) -> None:
    assert found(rows(0.03, seed=seed)) == ()
    assert found(rows(-0.3, seed=seed)) == ()


def test_a_change_of_the_rate_is_left_to_its_own_rules() -> None:
    assert found(rows(0.3, rate=10.0)) == ()
