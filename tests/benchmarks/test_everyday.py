"""Everyday faults through the door that users take: a log in, an alarm and its first cause out."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from benchmarks.everyday.faults import FAULT_BY_ID, FAULTS
from benchmarks.everyday.formats import FORMATS, formats_of, write_log
from benchmarks.everyday.measure import EverydayCase, measure
from benchmarks.everyday.reference import reference_power
from benchmarks.everyday.runs import make_healthy

SURE = (
    "rate-jump-30",
    "rate-jump-calm",
    "resume-rate",
    "resume-weight-decay",
    "weight-decay-step",
    "batch-falls",
    "chance-level",
    "dead-gradient",
    "rate-zero",
    "rate-ended",
    "overfitting",
    "nan-masked-batches",
    "silent-nan",
    "scale-floor-2^-14",
)


IN_HINDSIGHT = (
    "overfitting-one-set",
    "one-set-apart",
    "repeated-batches",
    "nan-division",
    "bad-window",
)


@pytest.mark.usefixtures("incidents_alone")
@pytest.mark.parametrize("fault", IN_HINDSIGHT)
def test_a_fault_is_told_afterwards_with_its_cause(fault: str) -> None:
    # The length is one at which each of them was missed or misnamed before.
    (outcome,) = measure(EverydayCase(fault, 300, 6), one_format=True)
    assert outcome.alarmed
    assert outcome.cause in FAULT_BY_ID[fault].causes
    assert outcome.twin_silent, outcome.twin_kinds


def test_losses_that_stand_still_and_wander_do_not_overfit(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    log = tmp_path / "log.csv"
    train, val = 6.9 + 0.02 * rng.standard_normal(400), 6.9
    rows = ["step,loss,val_loss,grad_norm"]
    for i, loss in enumerate(train.tolist()):
        val += 0.004 * rng.standard_normal()
        held_out = f"{val:.4f}" if i % 10 == 9 else ""
        rows.append(f"{i},{loss:.4f},{held_out},0.0")
    log.write_text("\n".join(rows))
    kinds = {a.incident.kind for a in trimtab.analyze(log).incidents}
    assert "never-learns" in kinds
    assert "overfitting" not in kinds


@pytest.mark.usefixtures("incidents_alone")
@pytest.mark.parametrize("fault", SURE)
def test_a_fault_is_alarmed_with_its_cause_and_its_twin_is_quiet(fault: str) -> None:
    (outcome,) = measure(EverydayCase(fault, 300, 7), one_format=True)
    assert outcome.alarmed
    assert outcome.live
    assert outcome.cause in FAULT_BY_ID[fault].causes
    assert outcome.twin_silent, outcome.twin_kinds


def test_the_table_has_thirty_faults_each_with_a_twin_a_source_and_known_causes() -> None:
    from trimtab.diagnosis.causes import CAUSE_BY_ID

    assert len(FAULTS) >= 30
    for fault in FAULTS:
        assert fault.twin_title
        assert fault.source
        assert fault.causes
        assert set(fault.causes) <= set(CAUSE_BY_ID) | {"learning-stalled"}


def test_the_reference_test_tells_a_large_fault_and_not_one_within_the_noise() -> None:
    assert reference_power(FAULT_BY_ID["diverges"], 7, 1000) > 0.99
    healthy = make_healthy(7, 1000, noise=False)
    assert healthy.quiet
    # a fault that changes nothing in the signals looked at is found as often as alpha
    fault = FAULT_BY_ID["half-speed"]
    assert reference_power(fault, 7, 300) > 0.99


def test_formats_of_one_run_give_the_same_verdict(tmp_path: Path) -> None:
    told = set[tuple[str, int]]()
    run = make_healthy(7, 300)
    FAULT_BY_ID["rate-jump-10"].plant(run)
    for name in formats_of(run):
        assert name in FORMATS
        found = trimtab.analyze(write_log(run, name, tmp_path))
        told |= {
            (a.incident.kind, a.incident.onset_row)
            for a in found.incidents
            if a.incident.severity != "info"
        }
    assert len({kind for kind, _ in told}) == 1
