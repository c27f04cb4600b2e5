"""A loss that falls steeply as the log ends: cut in mid-learning, or too good."""

import numpy as np
import pytest

from trimtab.detectors.loss_shapes import too_low_findings
from trimtab.testing.curves import record_of


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rests", [False, True])
def test_a_fall_that_goes_on_as_the_log_ends_is_learning(seed: int, *, rests: bool) -> None:
    rows = np.arange(100.0)
    loss = 1.75 + 2.5 * np.exp(-rows / 18)
    loss[90:] -= 0.3 if rests else 0.03 * np.arange(1, 11)
    loss += 0.015 * np.random.default_rng(seed).standard_normal(100)
    rate = np.full(100, 1e-3)
    found = too_low_findings(record_of(rows, {"loss": loss, "lr": rate}))
    assert [f.kind for f in found] == (["too-good"] if rests else [])
