"""A spike is seen while the loss still falls: the level that lags behind it is no noise."""

import numpy as np
import pytest

import trimtab
from trimtab.detectors.contract import Row
from trimtab.detectors.judge import judge_record
from trimtab.detectors.spike import SpikeDetector
from trimtab.testing.curves import record_of

NUM = 140


def falling(seed: int, *, num: int = NUM) -> np.ndarray:
    """A loss of epochs: a steep fall, then a slow one, with hardly any noise."""
    t = np.arange(float(num))
    noise = 0.003 * np.random.default_rng(seed).normal(size=num)
    return 1.2 + 1.1 * np.exp(-t / 3) + 0.5 * np.exp(-t / 60) + noise


@pytest.mark.parametrize("row", [60, 80, 110])
def test_a_spike_in_a_fall_is_told_as_it_comes(row: int) -> None:
    loss = falling(row)
    loss[row : row + 3] += 0.17
    record = record_of(np.arange(float(NUM)), {"loss": loss})
    told = [f for f in judge_record(record) if f.detector == "spike" and f.severity == "warning"]
    assert [(f.onset_row, f.row < row + 10) for f in told][:1] == [(row, True)]


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_a_fall_that_stops_or_turns_is_no_spike(slope: float) -> None:
    for seed in range(20):
        t = np.arange(float(NUM))
        noise = 2e-4 * np.random.default_rng(seed).normal(size=NUM)
        loss = 3.0 - 0.01 * np.minimum(t, 80) + slope * 0.01 * np.maximum(t - 80, 0) + noise
        record = record_of(t, {"loss": loss})
        assert not [f for f in judge_record(record) if f.detector == "spike"]


def test_a_log_whose_early_fall_hides_faults_is_healthy_with_that_said() -> None:
    t = np.arange(120.0)
    noise = np.random.default_rng(4).normal(size=120)
    loss = (4.5 * np.exp(-t / 35) + 0.2) * (1 + 0.07 * noise) + 5 * np.exp(-t / 2)
    analysis = trimtab.analyze({"loss": loss})
    assert analysis.verdict == "healthy"
    judged = analysis.runs[0].judgement
    assert judged.power.startswith("but in its first half a 3-row spike of ")
    assert any("in its second half in " in said for said in judged.not_judged)


def test_losses_near_the_largest_float_are_ugly_and_not_wrong() -> None:
    loss = 1e307 * (1.5 - np.arange(60.0) / 60)
    with np.errstate(all="raise"):
        state, detector = SpikeDetector().start(), SpikeDetector()
        for k, value in enumerate(loss):
            present = np.array([True, False, False, False, False])
            values = np.where(present, value, np.nan)
            state, _ = detector.update(state, Row(k, float(k), values, present))
    assert np.isfinite(state.calm[0].lag)
