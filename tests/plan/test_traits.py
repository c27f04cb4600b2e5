"""A remedy is planned only for what the run has, and worded conditionally where that is open."""

import dataclasses

import pytest

from trimtab.diagnosis.causes import CAUSE_BY_ID
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.incidents import Incident
from trimtab.plan.planner import make_plan
from trimtab.plan.traits import open_traits, traits_of
from trimtab.record import RecordBuilder, RunRecord

OF_ADAM = {"adam-beta2", "adam-eps", "optimizer-reset"}


def run(settings: dict[str, str] | None = None, **columns: float) -> RunRecord:
    builder = RecordBuilder("x", "csv")
    builder.start_attempt(settings=settings or {})
    for i in range(1, 301):
        builder.add(i, {"loss": 3.0 if i < 295 else 9.0, **columns})
    return builder.build()


def planned(record: RunRecord, cause: str) -> dict[str, str]:
    """Return the remedies of one cause, with why."""
    incident = Incident(
        kind="divergence",
        attempt=record.attempts[0].number,
        severity="critical",
        onset_row=294,
        onset=295,
        peak_row=298,
        peak=299,
        signals=("loss",),
        headline="",
    )
    told = Cause(cause=cause, title=CAUSE_BY_ID[cause].title, confidence=0.9, evidence=())
    unknown = Cause(cause="unknown", title="", confidence=0.1, evidence=())
    diagnosis = Diagnosis(causes=(told, unknown), next_test="ask")
    return {r.remedy: r.why for r in make_plan(record, incident, diagnosis).remedies}


@pytest.mark.parametrize(
    ("settings", "has"),
    [
        ({"optimizer": "AdamW"}, OF_ADAM),
        ({"optim.name": "lion"}, set()),
        ({"optimizer_type": "SGD"}, set()),
        ({"traits": "moments"}, {"optimizer-reset"}),
        ({"traits": "none"}, set()),
        ({"traits": "moments, second-moment"}, OF_ADAM),
    ],
)
def test_a_remedy_of_adam_is_none_for_another_optimizer(
    settings: dict[str, str], has: set[str]
) -> None:
    found = planned(run(settings), "poisoned-optimizer-state")
    assert OF_ADAM & set(found) == has
    assert not any("does not say" in why for why in found.values())


def test_where_the_log_does_not_name_the_optimizer_a_remedy_says_so() -> None:
    found = planned(run(), "poisoned-optimizer-state")
    assert found["adam-beta2"].startswith("if the optimizer is Adam")
    assert found["optimizer-reset"].startswith("if the optimizer keeps moments")
    assert not any("does not say" in found[r] for r in found if r not in OF_ADAM)
    assert open_traits(run(adam_v_max=1.0)) == frozenset()


def test_a_beta2_that_is_low_already_is_not_lowered() -> None:
    assert "adam-beta2" in planned(run(beta2=0.999), "poisoned-optimizer-state")
    assert "adam-beta2" not in planned(run(beta2=0.95), "poisoned-optimizer-state")


def test_what_a_guarded_run_states_is_what_its_model_has() -> None:
    cause = "learning-rate-too-high"
    record = dataclasses.replace(run({"traits": "none"}, tokens_seen=1.0), format="nanogpt")
    assert "qk-norm" not in planned(record, cause)
    assert "attention" not in traits_of(record)
    assert "language-model" in traits_of(record)
    assert "qk-norm" in planned(run({"traits": "attention"}), cause)
