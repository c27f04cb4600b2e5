"""Every kind of incident gets causes that speak, and a test that separates the first two."""

from dataclasses import replace
from pathlib import Path

import pytest

from trimtab import detectors
from trimtab.analysis.explain import causes_of_kind
from trimtab.diagnosis.causes import UNKNOWN
from trimtab.diagnosis.diagnose import Diagnosis, rank_causes
from trimtab.diagnosis.experiments import EXPERIMENT_BY_ID
from trimtab.diagnosis.features import Features
from trimtab.diagnosis.kind_notes import KIND_NOTE_BY_NAME, KIND_NOTES
from trimtab.kinds import KIND_BY_NAME


def explained(kind: str, **known: object) -> Diagnosis:
    features = Features(kinds=frozenset({kind}), severity="warning", axis="step", onset=1000.0)
    return rank_causes(replace(features, **known), before=990.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KIND_BY_NAME)
def test_every_kind_has_causes_and_a_test_between_the_first_two(kind: str) -> None:
    found = explained(kind)
    assert sum(c.confidence for c in found.causes) == pytest.approx(1.0)
    named = [c for c in found.causes if c.cause != UNKNOWN]
    assert len(named) >= 2
    assert found.next_test
    test = EXPERIMENT_BY_ID[found.experiment]
    assert test.separates(named[0].cause, named[1].cause)
    assert not test.kinds or kind in test.kinds


@pytest.mark.parametrize(
    ("kind", "known", "cause", "experiment"),
    [
        ("slowdown", {}, "input-or-network", "step-times"),
        ("stall", {}, "planned-pause", "save-times"),
        ("plateau", {}, "updates-too-small", "update-size"),
        ("too-good", {}, "repeated-data", "data-ledger"),
        ("repeated-data", {"resume_rows": 1}, "code-or-resume-change", "compare-settings"),
        ("frozen-signal", {}, "not-wired", "by-hand"),
        ("grad-drift", {"lr_peak_share": 0.1}, "schedule-effect", "predicted-norm"),
        ("resume-jump", {"resume_rows": 1}, "code-or-resume-change", "compare-settings"),
        ("grokking", {}, "benign-noise", "wait"),
    ],
)
def test_what_leads_and_what_would_tell(
    kind: str, known: dict[str, object], cause: str, experiment: str
) -> None:
    found = explained(kind, **known)
    named = [c for c in found.causes if c.cause != UNKNOWN]
    assert named[0].cause == cause
    assert named[0].evidence
    assert found.experiment == experiment


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("memorised", "memorised-data"),
        ("overfitting", "overfitting"),
        ("never-learns", "chance-from-start"),
        ("setting-jump", "setting-changed"),
        ("plateau", "updates-too-small"),
        ("too-good", "leaked-targets"),
        ("frozen-signal", "not-wired"),
        ("repeated-data", "repeated-data"),
    ],
)
def test_the_first_cause_told_of_an_everyday_kind_has_evidence(kind: str, cause: str) -> None:
    told = [c for c in causes_of_kind(kind) if c != UNKNOWN]
    assert told[0] == cause
    signs = KIND_NOTE_BY_NAME[kind].signs
    ways = [explained(kind, signs=frozenset({s})) for s in signs] or [explained(kind)]
    assert any(c.evidence for w in ways for c in w.causes if c.cause == cause)


def test_the_signs_of_a_kind_are_detectors_that_find_it() -> None:
    sources = [p.read_text("utf-8") for p in Path(detectors.__file__).parent.glob("*.py")]
    for note in KIND_NOTES:
        found = [s for s in sources if f'"{note.kind}"' in s]
        for sign in note.signs:
            parts = sign.split("-")
            names = ["-".join(parts[:n]) for n in range(1, len(parts) + 1)]
            assert any(f'"{name}"' in s for name in names for s in found), (note.kind, sign)


def test_a_drift_at_the_full_rate_is_not_the_schedules_doing() -> None:
    falling, full = (explained("grad-drift", lr_peak_share=share) for share in (0.1, 1.0))
    assert falling.share("schedule-effect") > 2 * full.share("schedule-effect")
    (cause,) = (c for c in full.causes if c.cause == "schedule-effect")
    assert cause.against


def test_what_lies_outside_takes_nothing_from_a_spike() -> None:
    found = explained("spike")
    outside = ("input-or-network", "planned-pause", "not-wired", "schedule-effect", "repeated-data")
    assert sum(found.share(c) for c in outside) == 0.0


def test_a_nan_is_no_noise_and_a_large_step_is_written_out() -> None:
    seen = Features(
        kinds=frozenset({"non-finite"}),
        severity="warning",
        axis="step",
        onset=1_234_567.0,
        recovered=True,
        num_rows=1,
    )
    found = rank_causes(seen, before=1_234_567.0)
    assert found.top.cause != "benign-noise"
    assert "e+06" not in found.next_test
    assert "1234567" in EXPERIMENT_BY_ID["replay"].instructions(1_234_567.0)
