"""The public JSON of an analysis: `"schema": 1`, documented in docs/formats.md.

NaN and Inf are null; times stand on the log's own axis; `onset_row` and `end_row` count train-loss
records from 0 in file order.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.resolution import with_resolved
from trimtab.detectors.confidence import level_of
from trimtab.detectors.kind_places import KindPlace
from trimtab.diagnosis.cause_levels import cause_level
from trimtab.diagnosis.diagnose import Cause
from trimtab.diagnosis.patterns import name_pattern
from trimtab.incidents import Incident
from trimtab.kinds import KIND_BY_NAME
from trimtab.record import Attempt, RunRecord
from trimtab.text import finite_json

__all__ = ["document_of", "incident_to_json", "run_to_json"]


def document_of(
    runs: Iterable[Mapping[str, object]], errors: Iterable[tuple[str, str]] = ()
) -> dict[str, object]:
    """Return the document of `trimtab inspect --json`.

    Args:
        runs: As `run_to_json` gives them.
        errors: (path, why it cannot be read).
    """
    return {
        "schema": 1,
        "runs": [finite_json(run) for run in runs],
        "errors": [{"path": path, "error": why} for path, why in errors],
    }


def run_to_json(account: RunAccount, *, path: str) -> dict[str, Any]:
    """Return one run of `trimtab inspect --json`; `path` as the user gave it."""
    account = with_resolved(account)
    record = account.record
    loss = record.columns.get("loss")
    steps = record.step[loss.present] if loss is not None else record.step[:0]
    return {
        "path": path,
        "verdict": account.verdict,
        "format": record.format,
        "rows": record.num_loss_rows,
        "first_step": _time(float(steps.min())) if len(steps) else None,
        "last_step": _time(float(steps.max())) if len(steps) else None,
        "axis": record.axis,
        "signals": sorted(record.columns),
        "attempts": [_attempt(record, a) for a in record.attempts],
        "incidents": [incident_to_json(record, a) for a in account.incidents],
        "notes": list(account.notes),
        "judged": account.judgement.to_json(),
        "ending": None if account.ending is None else account.ending.to_json(),
        "degraded": "" if account.coverage is None else account.coverage.degraded,
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


def incident_to_json(record: RunRecord, told: IncidentAccount) -> dict[str, Any]:
    """Return one incident of a run with its causes and plan."""
    i = told.incident
    return {
        "kind": i.kind,
        "nature": KIND_BY_NAME[i.kind].nature,
        "also": list(i.also),
        "kinds": [_kind_place(record, k) for k in i.kinds],
        "attempt": i.attempt,
        "severity": told.severity,
        "severity_then": i.severity,
        "resolved": told.resolved,
        "dismissed": told.dismissed or None,
        "confidence": i.confidence,
        "confidence_level": _level(i.confidence),
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


def _level(confidence: float) -> dict[str, Any]:
    """Return the level of a confidence with what was measured of it."""
    level = level_of(confidence)
    return {
        "level": level.name,
        "hit_rate": level.hit_rate,
        "low": level.low,
        "high": level.high,
        "alarms": level.num_alarms,
        "measured": level.measured,
    }


def _kind_place(record: RunRecord, k: KindPlace) -> dict[str, Any]:
    """Return one kind of an incident with its own place, as the incident gives its own."""
    last = None if k.end_row is None else record.loss_row(k.end_row + 1) - 1
    onset_row = record.loss_row(k.onset_row)
    return {
        "kind": k.kind,
        "signal": k.signal,
        "onset": _time(k.onset),
        "onset_row": onset_row,
        "peak": _time(k.peak),
        "end": _time(k.end),
        "end_row": None if last is None else max(last, onset_row),
    }


def _lead(i: Incident) -> dict[str, Any] | None:
    """Return which signal moved first, and how far before onset and peak, on the log's axis."""
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
        "confidence_level": cause_level(c.confidence).name,
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
