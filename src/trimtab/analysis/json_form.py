"""The public JSON form of an account: `"schema": 1`, documented in docs/formats.md.

NaN and Inf are null; times stand on the log's own axis; `onset_row` and `end_row` count train-loss
records from 0 in file order.
"""

import math
from typing import Any

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.resolution import resolved, settled
from trimtab.diagnosis.diagnose import Cause
from trimtab.diagnosis.patterns import name_pattern
from trimtab.incidents import Incident
from trimtab.record import Attempt, RunRecord

__all__ = ["incident_to_json", "run_to_json"]


def run_to_json(account: RunAccount, *, path: str) -> dict[str, Any]:
    """Return one run of `trimtab inspect --json`; `path` as the user gave it."""
    record = account.record
    loss = record.columns.get("loss")
    past, quiet = resolved(account), settled(account)
    steps = record.step[loss.present] if loss is not None else record.step[:0]
    return {
        "path": path,
        "format": record.format,
        "rows": record.num_loss_rows,
        "first_step": _time(float(steps.min())) if len(steps) else None,
        "last_step": _time(float(steps.max())) if len(steps) else None,
        "axis": record.axis,
        "signals": sorted(record.columns),
        "attempts": [_attempt(record, a) for a in record.attempts],
        "incidents": [
            incident_to_json(record, a, past=i in past, quiet=i in quiet)
            for i, a in enumerate(account.incidents)
        ],
        "notes": list(account.notes),
    }


def _attempt(record: RunRecord, a: Attempt) -> dict[str, Any]:
    has_rows = a.first_row < a.end_row
    return {
        "number": a.number,
        "parent": a.parent,
        "parent_step": _time(a.parent_step),
        "first_step": _time(float(record.step[a.first_row])) if has_rows else None,
        "last_step": _time(float(record.step[a.end_row - 1])) if has_rows else None,
        "rows": record.loss_row(a.end_row) - record.loss_row(a.first_row),
        "settings": dict(a.settings),
        "why": a.why,
        "trial": a.trial,
    }


def incident_to_json(
    record: RunRecord, told: IncidentAccount, *, past: bool = False, quiet: bool | None = None
) -> dict[str, Any]:
    """Return one incident.

    Args:
        record: The run.
        told: The incident with its causes and plan.
        past: Whether a guard dealt with it.
        quiet: Whether it is no alarm any more; None: when it was dismissed.
    """
    i = told.incident
    quiet = bool(told.dismissed) if quiet is None else quiet
    return {
        "kind": i.kind,
        "also": list(i.also),
        "attempt": i.attempt,
        "severity": "info" if quiet else i.severity,
        "severity_then": i.severity,
        "resolved": past,
        "dismissed": told.dismissed or None,
        "confidence": i.confidence,
        "precursor": _time(i.precursor),
        "lead": _lead(i),
        "onset": _time(i.onset),
        "onset_row": record.loss_row(i.onset_row),
        "peak": _time(i.peak),
        "end": _time(i.end),
        "end_row": _end_row(record, i),
        "signals": list(i.signals),
        "risk": i.risk,
        "pattern": name_pattern(record, i),
        "headline": i.headline,
        "causes": [_cause(c) for c in told.diagnosis.causes],
        "next_test": told.diagnosis.next_test or None,
        "next_test_flags": told.plan.next_test_flags or None,
        "plan": [
            {
                "remedy": r.remedy,
                "values": {k: _value(v) for k, v in r.values.items()},
                "why": r.why,
                "when": r.when,
                "flags": r.flags or None,
            }
            for r in told.plan.remedies
        ],
    }


def _lead(i: Incident) -> dict[str, Any] | None:
    """Return which signal moved first.

    And how far before the onset and the peak, on the log's axis.
    """
    if i.precursor is None:
        return None
    return {
        "signal": i.precursor_signal,
        "before_onset": _time(i.onset - i.precursor),
        "before_peak": _time(i.peak - i.precursor),
    }


def _end_row(record: RunRecord, incident: Incident) -> int | None:
    """Return the index, among the train-loss records, of the last one in the incident."""
    if incident.end_row is None:
        return None
    return max(record.loss_row(incident.end_row + 1) - 1, record.loss_row(incident.onset_row))


def _cause(c: Cause) -> dict[str, Any]:
    return {
        "cause": c.cause,
        "title": c.title,
        "confidence": c.confidence,
        "evidence": list(c.evidence),
        "against": list(c.against),
    }


def _time(x: float | None) -> float | int | None:
    """Return a position on the axis: whole numbers as integers, non-finite as null."""
    if x is None or not math.isfinite(x):
        return None
    return int(x) if x == int(x) else x


def _value(x: object) -> object:
    return None if isinstance(x, float) and not math.isfinite(x) else x
