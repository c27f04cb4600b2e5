"""Confidence is calibrated: the table rises, and what it says holds on runs not fitted on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.logs.calibration import fit_steps, reliability, reliability_table, simulate_pairs
from trimtab.detectors.confidence import CONFIDENCE, calibrated, rule_group
from trimtab.detectors.judge import DETECTORS


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.booleans()), min_size=6, max_size=80))
def test_a_fitted_table_rises_and_is_never_certain(told: list[tuple[float, bool]]) -> None:
    steps = fit_steps([s for s, _ in told], [r for _, r in told])
    shares = [p for _, p in steps]
    assert shares == sorted(shares)
    assert all(0 < p < 1 for p in shares)


def test_the_fit_gives_back_the_share_that_is_right() -> None:
    rng = np.random.default_rng(100)
    scores = rng.uniform(5, 50, 4000)
    right = rng.random(4000) < np.clip(scores / 50, 0, 1)
    for score, share in fit_steps(scores.tolist(), right.tolist()):
        assert share == pytest.approx(score / 50, abs=0.05)


def test_the_table_in_use_rises() -> None:
    for steps in CONFIDENCE.values():
        scores, shares = zip(*steps, strict=True)
        assert list(scores) == sorted(scores)
        assert list(shares) == sorted(shares)
    assert calibrated("non-finite", math.nan) == 0.99
    assert 0 < calibrated("spike", math.nan) <= calibrated("spike", 1e9) < 1
    assert {rule_group(d.name) for d in DETECTORS} <= {"row", "block", "certain", "other"}


def test_reliability_counts_every_incident_once() -> None:
    told = [(0.6, True), (0.6, False), (0.9, True), (1.0, True)]
    assert reliability(told) == [(0.6, 0.5, 2), (0.9, 1.0, 1), (1.0, 1.0, 1)]
    assert reliability_table(told).splitlines()[1] == "0.60   0.50          2"


@pytest.mark.slow
def test_of_what_is_said_with_a_confidence_about_that_share_is_right() -> None:
    pairs = simulate_pairs([110])
    said = np.mean([p.confidence for p in pairs])
    assert np.mean([p.right for p in pairs]) == pytest.approx(said, abs=0.1)
