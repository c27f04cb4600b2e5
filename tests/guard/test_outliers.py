"""What a case reads off the record: which probed batches stand out, and whether the rate rose."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trimtab.guard.recovery import data_probe as module
from trimtab.guard.recovery.data_probe import outliers
from trimtab.guard.recovery.expectation import Expectation
from trimtab.guard.recovery.learning_rate import lr_rise
from trimtab.record import RecordBuilder

pytestmark = pytest.mark.torch

RISE = SimpleNamespace(kind="spike", also=(), findings=())
QUIET = (2.0 + 0.1 * np.random.default_rng(0).standard_normal(20)).tolist()


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        ([3.0], [True]),
        ([2.5], [False]),
        ([2.5, 2.5], [False, False]),
        ([2.5, 2.55, 2.5], [True] * 3),
        ([2.5, 2.5, 2.0, 2.5], [False] * 4),
        ([2.5, 2.5, float("nan")], [True] * 3),
        ([1.5, 1.5, 1.5], [False] * 3),  # what is easier made no loss rise
    ],
)
def test_outliers_in_a_row_need_not_be_as_far(
    ahead: list[float], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(QUIET))
    samples = [(i, i, x) for i, x in enumerate([*QUIET, *ahead])]
    case: Any = SimpleNamespace(
        probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=RISE
    )
    assert outliers(case, margin=4) == [False] * len(QUIET) + expected
    if ahead == [1.5] * 3:
        case.incident = SimpleNamespace(kind="too-good", also=(), findings=())
        assert sum(outliers(case, margin=4)) == 3


def test_outliers_are_no_batches_that_were_trained_on_long_before_the_onset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for onset, last, found in ((44, 2.0, [20]), (82, 9.0, [41])):
        losses = [*QUIET, 9.0, *QUIET, last]
        samples = [(2 * i, 2 * i + 1, x) for i, x in enumerate(losses)]
        case: Any = SimpleNamespace(
            probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=RISE
        )
        monkeypatch.setattr(module, "onset_sample", lambda _case, onset=onset: onset)
        assert np.flatnonzero(outliers(case, margin=4)).tolist() == found


LEARNT = [7.0 + 0.2 * (i % 3) for i in range(30)]


@pytest.mark.parametrize(
    ("before", "ahead", "num_found"),
    [
        (QUIET[:5] + LEARNT, QUIET[5:15], 30),  # trained through; the second alarm is at its end
        (QUIET[:5] + LEARNT[:20], LEARNT[20:] + QUIET[5:15], 30),
        ([x + 5.0 for x in QUIET], [x + 5.0 for x in QUIET], 0),  # the state is odd: all are high
        (LEARNT, LEARNT, 0),
        (QUIET[:2] + LEARNT, QUIET[2:4], 0),  # too few that cost the usual
        ([2.0, 3.1] * 5 + LEARNT, QUIET, 0),  # not one window
        ([*QUIET[:10], *np.linspace(2.25, 6, 30)], QUIET[10:], 0),  # not apart from the others
    ],
)
def test_outliers_are_a_window_that_was_trained_through_before_the_onset(
    before: list[float], ahead: list[float], num_found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(before))
    samples = [(i, i, float(x)) for i, x in enumerate([*before, *ahead])]
    case: Any = SimpleNamespace(
        probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=RISE
    )
    found = np.flatnonzero(outliers(case, margin=4))
    assert len(found) == num_found
    assert all(samples[i][2] > 6 for i in found)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([1e-3] * 200, (False, None)),
        ([1e-3 * 0.999**i for i in range(200)], (False, None)),
        ([1e-3] * 100 + [1e-3 * 1.05**i for i in range(1, 101)], (True, 1e-3)),
        ([1e-5 * i for i in range(1, 201)], (True, None)),  # a warm-up proves no rate
        ([1e-3] * 195 + [1e-3 * 1.05**i for i in range(1, 6)], (True, 1e-3)),
        ([float("nan")] * 200, (False, None)),
    ],
)
def test_lr_rise_gives_the_rate_that_it_rose_from(
    rates: list[float], expected: tuple[bool, float | None]
) -> None:
    builder = RecordBuilder("course", "made up")
    for i, rate in enumerate(rates):
        builder.add(float(i + 1), {"loss": 2.0, "lr": rate})
    record = builder.build()
    for factor, cuts in ((1.0, []), (2.0, [(0, 0.5)])):  # in force, over the guard's own factor
        rising, sound = lr_rise(record, 200.0, cuts)
        assert rising is expected[0]
        assert sound == (None if expected[1] is None else pytest.approx(factor * expected[1]))


def strewn(every: int) -> list[float]:
    return [9.0 if i % every == 0 else 2.0 for i in range(24)]


@pytest.mark.parametrize(
    ("reference", "ahead", "num_found"),
    [
        (QUIET, strewn(2), 12),
        (QUIET, strewn(5), 0),  # a state that spikes at random, not a window of data
        (QUIET, [9.0, 9.0, 9.0, *strewn(5)], 8),
        (QUIET, [30.0, 30.0, 30.0, 30.0, *strewn(5)[1:]], 4),  # the others are hard batches
        ([], [9.0] * 24, 0),  # where all stand out, nothing does
        ([1.5 * x for x in QUIET], [9.0] * 5, 0),  # the state itself is not what the run had
    ],
)
def test_outliers_are_none_where_the_state_is_odd_everywhere(
    reference: list[float], ahead: list[float], num_found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(QUIET))
    samples = [(i, i, x) for i, x in enumerate([*reference, *ahead])]
    case: Any = SimpleNamespace(
        probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=RISE
    )
    assert sum(outliers(case, margin=4)) == num_found


@pytest.mark.parametrize(
    ("before", "bad", "num_found"),
    [
        (QUIET[:2], 40, 0),  # two rows of an easy start: a queue that fills, a task that grows
        (QUIET[:2], 10, 10),  # a window
        (QUIET, 200, 200),  # a bad rest of the data: what was trained on costs the usual
    ],
)
def test_outliers_are_none_where_nearly_all_stand_out_from_the_first_rows(
    before: list[float], bad: int, num_found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(before))
    samples = [(i, i, x) for i, x in enumerate([*before, *[4.0] * bad, 2.0])]
    case: Any = SimpleNamespace(
        probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=RISE
    )
    assert sum(outliers(case, margin=4)) == num_found


@pytest.mark.parametrize(
    ("incident", "num_found"),
    [
        (RISE, 3),
        (SimpleNamespace(kind="non-finite", also=(), findings=()), 0),
        (SimpleNamespace(kind="spike", also=("non-finite",), findings=()), 0),
        (
            SimpleNamespace(kind="shift", also=(), findings=(SimpleNamespace(detector="corrupt"),)),
            0,
        ),
    ],
)
def test_hard_batches_make_no_nan_and_nothing_that_no_update_does(
    incident: Any, num_found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(QUIET))
    samples = [(i, i, x) for i, x in enumerate([*QUIET, 3.5, 3.5, 3.5, *QUIET])]
    case: Any = SimpleNamespace(
        probe_samples=samples, expected=Expectation(2.0, 0.1, 2.0), incident=incident
    )
    assert sum(outliers(case, margin=4)) == num_found
    nan = [(i, i, math.nan if x == 3.5 else x) for i, _, x in samples]
    case.probe_samples = nan
    of_data = num_found == 3 or incident.kind == "non-finite" or "non-finite" in incident.also
    assert sum(outliers(case, margin=4)) == (3 if of_data else 0)
