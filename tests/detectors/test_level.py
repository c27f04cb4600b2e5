"""Lasting changes: what counts as one, and what is too small to matter."""

import numpy as np

from trimtab.detectors.level import LevelDetector
from trimtab.testing.contract import find_all


def test_a_tiny_change_at_the_end_of_a_run_that_learnt_everything_is_no_divergence() -> None:
    rng = np.random.default_rng(100)
    fall = 3 * np.exp(-np.arange(600) / 20) + 1e-7
    loss = np.r_[fall, np.linspace(1e-7, 1e-5, 400)] * (1 + 0.02 * rng.standard_normal(1000))
    assert not find_all(LevelDetector(), {"loss": loss})
    # the same rise is one where it is more than a thousandth of what the run began with
    assert find_all(LevelDetector(), {"loss": loss[500:]})
