"""Which of the probed batches stand out: far ones alone, nearer ones in a row."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trimtab.guard import case as module
from trimtab.guard.case import outliers

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
    assert outliers(case) == [False] * len(QUIET) + expected
