"""What a case reads off the record: which probed batches stand out, and whether the rate rose."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trimtab.guard import case as module
from trimtab.guard.case import lr_rise, outliers
from trimtab.record import RecordBuilder

pytestmark = pytest.mark.torch

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
        ([1.5, 1.5, 1.5], [True] * 3),  # too good is odd, too
    ],
)
def test_batches_in_a_row_need_not_be_as_far(
    ahead: list[float], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onset_sample", lambda _case: len(QUIET))
    samples = [(i, i, x) for i, x in enumerate([*QUIET, *ahead])]
    case: Any = SimpleNamespace(probe_samples=samples, level=2.0, sigma=0.1)
    assert outliers(case, margin=4) == [False] * len(QUIET) + expected


def test_a_batch_that_was_trained_on_long_before_the_onset_is_not_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = [*QUIET, 9.0, *QUIET, 9.0]
    samples = [(2 * i, 2 * i + 1, x) for i, x in enumerate(losses)]
    case: Any = SimpleNamespace(probe_samples=samples, level=2.0, sigma=0.1)
    for onset, found in ((44, [20, 41]), (82, [41])):
        monkeypatch.setattr(module, "onset_sample", lambda _case, onset=onset: onset)
        assert np.flatnonzero(outliers(case, margin=4)).tolist() == found


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
def test_a_rate_that_rises_is_told_with_the_one_it_rose_from(
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
