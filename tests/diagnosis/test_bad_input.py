"""NaN in the batch itself is the first cause of a loss that is NaN."""

import numpy as np

from trimtab.detectors.judge import judge_record
from trimtab.diagnosis.diagnose import Cause, diagnose
from trimtab.diagnosis.features import incident_features
from trimtab.incidents import group_findings
from trimtab.testing.curves import record_of


def causes(broken: float, before: float = 0.0, integers: float = 0.0) -> tuple[Cause, ...]:
    n, at = 400, 300
    loss = 1.0 + 0.05 * np.random.default_rng(0).standard_normal(n)
    loss[at:] = np.nan
    values = np.full(n, before)
    values[at] = broken
    columns = {
        "loss": loss,
        "grad_norm": np.where(np.isnan(loss), np.nan, 0.5),
        "batch_nonfinite": values,
        "batch_integers": np.full(n, integers),
    }
    record = record_of(1.0 + np.arange(float(n)), columns)
    incident = next(i for i in group_findings(record, judge_record(record)) if i.severity != "info")
    return diagnose(record, incident).causes


def shares(broken: float, before: float = 0.0, integers: float = 0.0) -> dict[str, float]:
    return {c.cause: c.confidence for c in causes(broken, before, integers)}


def test_nan_in_the_batch_is_the_first_cause() -> None:
    found = shares(broken=3.0)
    assert max(found, key=lambda c: found[c]) == "bad-data-window"
    assert found["bad-data-window"] >= 0.65


def test_what_is_said_of_nan_in_the_batch_agrees_with_itself() -> None:
    first = causes(broken=1.0)[0]
    assert first.evidence == (
        "the batch itself held NaN or Inf before its step, in 1 of its values",
    )
    assert first.against == ()


def test_nan_that_stands_for_what_is_missing_is_none() -> None:
    found = shares(broken=3.0, before=5.0)
    assert max(found, key=lambda c: found[c]) != "bad-data-window"


def test_labels_are_no_cause_where_a_batch_has_none() -> None:
    assert shares(0.0).get("masked-batch", 0.0) < 0.1 < shares(0.0, integers=1.0)["masked-batch"]


def test_a_loss_that_is_no_higher_than_by_chance_did_not_climb() -> None:
    n = 600
    rng = np.random.default_rng(1)
    norm = 0.3 * np.exp(0.1 * rng.standard_normal(n)) * np.where(np.arange(n) < 300, 1.0, 4.0)
    clipped = (norm > 1.0).astype(np.float64)
    columns = {"loss": 0.9 + 0.02 * rng.standard_normal(n), "grad_norm": norm, "clipped": clipped}
    record = record_of(1.0 + np.arange(float(n)), columns)
    incident = next(i for i in group_findings(record, judge_record(record)) if i.severity != "info")
    assert incident_features(record, incident).rise_rows is None
