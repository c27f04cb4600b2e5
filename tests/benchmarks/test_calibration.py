"""What is stated with a confidence holds on simulated runs."""

import numpy as np
import pytest

from benchmarks.logs.calibration import reliability, reliability_table, simulate_pairs


def test_reliability_counts_every_incident_once() -> None:
    told = [(0.6, True), (0.6, False), (0.9, True), (1.0, True)]
    assert reliability(told) == [(0.6, 0.5, 2), (0.9, 1.0, 1), (1.0, 1.0, 1)]
    assert reliability_table(told).splitlines()[1] == "0.60   0.50          2"


@pytest.mark.slow
def test_of_what_is_said_with_a_confidence_about_that_share_is_right() -> None:
    pairs = simulate_pairs([110])
    said = np.mean([p.confidence for p in pairs])
    assert np.mean([p.right for p in pairs]) == pytest.approx(said, abs=0.1)
