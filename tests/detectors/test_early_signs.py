"""Saturating attention, odd batches and corrupt state, on simulated runs with a known onset."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.batch import BatchDetector
from trimtab.detectors.contract import Detector, Finding, Row, state_from_json, state_to_json
from trimtab.detectors.corrupt import CorruptDetector
from trimtab.detectors.judge import judge_record
from trimtab.detectors.saturation import SaturationDetector
from trimtab.incidents import group_findings
from trimtab.record import RecordBuilder

Floats = NDArray[np.float64]


def judge(detector: Detector[Any], *signals: Floats) -> list[Finding]:
    """Feed columns row by row; a NaN stands for a row where the signal was not read."""
    state, found = detector.start(), list[Finding]()
    for i, values in enumerate(zip(*signals, strict=True)):
        row = np.array(values)
        state, new = detector.update(state, Row(i, float(i + 1), row, np.isfinite(row)))
        found += new
        if i % 40 == 0:  # a checkpoint in between changes nothing
            state = state_from_json(state, state_to_json(state))
    return found


def course(
    *, num_rows: int = 400, begins: int = 200, falls: float = 0.1, to: float = 0.02, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Entropy, largest logit and hidden norm of a run that saturates from row `begins` on."""
    rng = np.random.default_rng(seed)
    t = np.maximum(np.arange(num_rows) - begins, 0)
    share = np.maximum(np.exp(-falls * t), to)
    entropy = 3.0 * share * np.exp(0.05 * rng.standard_normal(num_rows))
    logit = 12.0 / share * np.exp(0.1 * rng.standard_normal(num_rows))
    hidden = np.maximum(share, 0.1) ** 0.4 * np.exp(0.005 * rng.standard_normal(num_rows))
    return entropy, logit, hidden


def thinned(signal: Floats, every: int) -> Floats:
    out = np.full(len(signal), math.nan)
    out[every - 1 :: every] = signal[every - 1 :: every]
    return out


@pytest.mark.parametrize("every", [1, 2, 4, 10])
def test_saturation_is_told_once_soon_and_dated_to_its_beginning(every: int) -> None:
    entropy, logit, hidden = course()
    found = judge(SaturationDetector(), thinned(entropy, every), thinned(logit, every), hidden)
    assert [f.closed for f in found] == [False] + [True] * (len(found) - 1)
    first = found[0]
    assert (first.kind, first.signal, first.severity) == ("shift", "attention_entropy", "warning")
    # it halves 7 rows after its beginning, and is at an eighth after 21
    assert 200 < first.onset_row <= 208 + 2 * every
    assert first.row <= 225 + 3 * every
    assert len(found) <= 2


@pytest.mark.parametrize("alone", ["entropy", "logit", "hidden", "slow"])
def test_one_or_two_of_the_three_signs_say_nothing(alone: str) -> None:
    entropy, logit, hidden = course()
    flat = course(begins=10_000)
    if alone == "entropy":
        logit, hidden = flat[1], flat[2]
    elif alone == "logit":
        entropy, hidden = flat[0], flat[2]
    elif alone == "hidden":
        hidden = flat[2]
    else:
        entropy, logit, hidden = course(num_rows=2000, falls=0.003, to=0.001)
    assert judge(SaturationDetector(), entropy, logit, hidden) == []


@pytest.mark.parametrize(("kept", "told"), [(1.5, True), (0.4, False)])
def test_a_slower_fall_counts_where_the_hidden_state_shrinks_by_half(
    kept: float, told: bool
) -> None:
    entropy, logit, _ = course(num_rows=600, falls=0.006, to=0.2)
    share = np.maximum(np.exp(-0.006 * np.maximum(np.arange(600) - 200, 0)), 0.2)
    found = judge(SaturationDetector(), entropy, logit, share**kept)
    assert [f.closed for f in found] == ([False, True] if told else [])
    if told:  # it halves 116 rows after its beginning, and is at half of that 116 after
        assert 300 < found[0].onset_row < 330


@pytest.mark.parametrize("factor", [1 / 8, 8.0])
def test_what_counts_is_the_runs_own_course_and_no_ceiling(factor: float) -> None:
    entropy, logit, hidden = course()
    usual = judge(SaturationDetector(), entropy, logit, hidden)
    moved = judge(SaturationDetector(), entropy * factor, logit * factor, hidden * factor)
    assert [(f.row, f.onset_row, f.closed) for f in moved] == [
        (f.row, f.onset_row, f.closed) for f in usual
    ]


@pytest.mark.parametrize("stands", [60, 200])
def test_saturation_is_dated_to_the_fall_and_not_to_when_a_head_had_begun_to_sharpen(
    stands: int,
) -> None:
    """The sharpest head of a sound run stood at a third of its first entropy for `stands` rows."""
    entropy, logit, hidden = course(num_rows=200 + stands, begins=100 + stands, falls=0.5)
    entropy[100:] /= 3.0
    found = judge(SaturationDetector(), entropy, logit, hidden)
    assert 100 + stands <= found[0].onset_row <= 104 + stands
    assert found[0].row <= 112 + stands


def test_saturation_that_comes_back_is_told_as_over_and_may_come_again() -> None:
    once = course(num_rows=400, begins=200)
    healed = course(num_rows=200, begins=10_000, seed=1)
    again = course(num_rows=400, begins=200, seed=2)
    columns = [np.concatenate(parts) for parts in zip(once, healed, again, strict=True)]
    found = judge(SaturationDetector(), *columns)
    opened = [f.onset_row for f in found if not f.closed]
    assert len(opened) == 2
    assert 200 < opened[0] < 215
    assert 800 < opened[1] < 815


def test_non_finite_readings_blind_nothing() -> None:
    entropy, logit, hidden = course()
    entropy[[50, 203]], logit[120], hidden[210] = math.nan, math.inf, math.nan
    first, *_ = judge(SaturationDetector(), entropy, logit, hidden)
    assert first.row <= 228


def test_saturation_makes_an_incident_whose_first_sign_is_its_onset() -> None:
    entropy, logit, hidden = course()
    builder = RecordBuilder("course", "made up")
    rng = np.random.default_rng(3)
    for i in range(400):
        builder.add(
            float(i + 1),
            {
                "loss": 2.0 + 0.02 * rng.standard_normal(),
                "attention_entropy": entropy[i],
                "attention_logit_max": logit[i],
                "activation_norm": hidden[i],
            },
        )
    found = judge(SaturationDetector(), entropy, logit, hidden)
    (incident,) = group_findings(builder.build(), found)
    assert incident.severity == "warning"
    assert incident.first_step == found[0].onset
    assert "attention saturates" in incident.headline


def batches(num_rows: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    return 0.57 + 0.008 * rng.standard_normal(num_rows), 3.1 + 0.03 * rng.standard_normal(num_rows)


@pytest.mark.parametrize("to", [1.0, 0.05])
def test_odd_batches_are_told_at_their_first_row_both_ways(to: float) -> None:
    squeezed, entropy = batches(400, 0)
    squeezed[250:270] = to
    found = judge(BatchDetector(), squeezed, entropy)
    assert [(f.row, f.onset_row, f.end_row, f.closed) for f in found] == [
        (250, 250, None, False),
        (272, 250, 269, True),
    ]
    assert {(f.kind, f.severity, f.signal) for f in found} == {
        ("batch-outlier", "info", "batch_compression")
    }
    assert found[0].direction == ("up" if to > 0.57 else "down")


def test_batches_of_one_kind_are_quiet_and_a_lasting_change_is_accepted_once() -> None:
    assert judge(BatchDetector(), *batches(20_000, 1)) == []
    squeezed, entropy = batches(1000, 2)
    squeezed[400:] += 0.3
    found = judge(BatchDetector(), squeezed, entropy)
    assert [f.closed for f in found] == [False, True]
    assert found[1].end_row is None


def test_an_element_that_no_update_makes_is_critical_and_closes_when_sound() -> None:
    rng = np.random.default_rng(0)
    weights = 1.5 + 0.01 * rng.standard_normal(60)
    moments = np.exp(2 * rng.standard_normal(60))  # gradients of very different sizes
    weights[40:45] = 3e28
    calm = np.zeros(60)
    found = judge(CorruptDetector(), weights, moments, moments**2, calm)
    assert [(f.signal, f.severity, f.row, f.closed) for f in found] == [
        ("weight_max", "critical", 40, False),
        ("weight_max", "critical", 45, True),
    ]
    assert judge(CorruptDetector(), weights[:40], 1e4 * moments[:40], moments[:40], calm[:40]) == []


def test_batches_that_were_odd_before_their_step_speak_for_bad_data() -> None:
    from trimtab.analysis.assemble import make_account

    def confidence_of(squeezed: Floats) -> tuple[float, str]:
        builder = RecordBuilder("course", "made up")
        rng = np.random.default_rng(4)
        for i in range(400):
            # it decays, as a spike of the optimizer does: only the batches speak for the data
            spike = 6.0 * np.exp((250 - i) / 8) if 250 <= i < 270 else 0.0
            loss = 2.0 + 0.02 * rng.standard_normal() + spike
            builder.add(float(i + 1), {"loss": loss, "batch_compression": float(squeezed[i])})
        (told,) = (
            a for a in make_account(builder.build()).incidents if a.incident.severity != "info"
        )
        bad = next(c for c in told.diagnosis.causes if c.cause == "bad-data-window")
        return bad.confidence, " ".join(bad.evidence)

    calm, _ = batches(400, 0)
    odd = calm.copy()
    odd[250:270] = 1.0
    (usual, said), (surer, told) = confidence_of(calm), confidence_of(odd)
    assert surer > usual + 0.05
    assert "before their step" in told
    assert "before their step" not in said


def test_change_that_is_known_to_the_row_is_not_dated_by_what_was_odd_before() -> None:
    builder, rng = RecordBuilder("course", "made up"), np.random.default_rng(0)
    for i in range(260):
        odd = 1.0 + 3.0 * (i >= 60)
        values = {"loss": 2 + 0.1 * rng.normal(), "activation_norm": odd + 0.02 * rng.normal()}
        builder.add(float(i + 1), values | ({"loss_factor": -1.0} if i == 255 else {}))
    record = builder.build()
    told = group_findings(record, judge_record(record))
    found = [x for x in told if x.kind == "setting-jump"]
    assert [(x.onset_row, x.first_step) for x in found] == [(255, 256.0)]
