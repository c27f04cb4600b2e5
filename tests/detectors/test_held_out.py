"""A rise on the fixed batches: since when it lasts, and whether only the counting has changed."""

import math

import numpy as np

from trimtab.detectors.contract import Finding, Rows, step_through
from trimtab.detectors.held_out import HeldOutDetector

DETECTOR = HeldOutDetector()
CHANGE = 200
READINGS = {81: (0.0, 1.73), 161: (0.0, 1.51), 241: (3.0, 1.81), 321: (7.5, 1.80), 401: (20.0, 1.8)}


def rows(*, rise: float, norm: float = 1.0, ramp: int = 0, seed: int = 0) -> Rows:
    """A level loss that rises at step 200, at once or over `ramp` steps; four readings."""
    rng = np.random.default_rng(seed)
    step = np.arange(1.0, 421.0)
    after = np.clip((step - CHANGE + 1) / max(ramp, 1), 0, 1)
    loss = 1.52 + rng.normal(0, 0.06, len(step)) + rise * after
    norms = (0.19 + rng.normal(0, 0.02, len(step))) * np.where(step >= CHANGE, norm, 1.0)
    values = np.full((len(step), 4), math.nan)
    for at, pair in READINGS.items():
        values[at - 1, :2] = pair
    values[:, 2], values[:, 3] = loss, norms
    values[60, 2] = math.inf
    return Rows(np.arange(len(step)), step, values, ~np.isnan(values))


def found(given: Rows) -> tuple[Finding, ...]:
    """What is found at once, which must be what is found row by row."""
    state, at_once = DETECTOR.update_rows(DETECTOR.start(), given)
    by_row, one_by_one = step_through(DETECTOR, DETECTOR.start(), given)
    assert at_once == one_by_one
    assert state == by_row
    return at_once


def test_a_rise_is_dated_to_the_step_at_which_the_training_loss_shows_it() -> None:
    for seed in range(5):
        first, second = found(rows(rise=0.8, norm=1.1, seed=seed))
        assert (first.severity, second.severity) == ("warning", "critical")
        assert first.onset == second.onset == CHANGE
        assert first.key == second.key


def test_a_rise_that_the_training_loss_does_not_show_dates_after_the_last_good_reading() -> None:
    told = found(rows(rise=0.0))
    # somewhere between two readings: rows 162 to 321
    assert {(f.onset, f.onset + f.grain_rows - 1) for f in told} == {(162.0, 321.0)}
    assert {f.onset for f in found(rows(rise=0.3, ramp=120))} == {162.0}


def test_what_moves_both_losses_alike_in_one_row_and_no_norm_is_another_count() -> None:
    for seed in range(5):
        (told,) = found(rows(rise=0.3, seed=seed))
        assert (told.severity, told.onset, told.closed) == ("info", CHANGE, True)
        assert "counted differently since 200" in told.text
    assert found(rows(rise=0.3, norm=2.5))[0].severity == "warning"


def test_what_rises_further_under_the_new_count_is_a_warning() -> None:
    given = rows(rise=0.3)
    given.values[400, 1] = 2.4
    told, worse = found(given)
    assert (told.severity, worse.severity) == ("info", "critical")
    assert worse.onset > 321


def test_what_is_over_tells_its_worst_and_is_a_note_after_one_reading_alone() -> None:
    for more, severity in (({}, "info"), ({300: (20.0, -1.2)}, "critical")):
        given = rows(rise=0.0)
        given.values[:, :2] = math.nan
        read = {81: (0.0, -2.0), 161: (0.0, -2.1), 241: (15.0, -1.3), **more, 401: (0.0, -2.2)}
        for at, pair in read.items():
            given.values[at - 1, :2] = pair
        whole = Rows(given.index, given.step, given.values, ~np.isnan(given.values))
        *_, over = found(whole)
        assert (over.closed, over.severity) == (True, severity)
        assert over.value == max(x for _, x in read.values())
        assert "-2.2" in over.text
