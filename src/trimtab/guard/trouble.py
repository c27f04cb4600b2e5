"""From the judge's open findings to the incident that the guard acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.incidents import group_findings
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.engine import Engine
    from trimtab.guard.snapshots import Snapshot
    from trimtab.incidents import Incident
    from trimtab.record import RunRecord

__all__ = ["find_incident", "loss_level"]


def find_incident(
    engine: Engine, findings: Sequence[Finding], handled: set[tuple[str, str, int]]
) -> tuple[RunRecord, Incident, set[tuple[str, str, int]]] | None:
    """Return the record so far, the latest incident that is not yet handled, and its findings' keys.

    The record is read back from the run directory: the very rows that `trimtab inspect` will see.
    """
    record = read_run_directory(engine.directory.root)
    here = [f for f in findings if f.onset_row < record.num_rows]
    for incident in reversed(group_findings(record, here)):
        keys = {f.key for f in incident.findings if f.severity != "info"}
        if incident.severity != "info" and keys - handled:
            return record, incident, keys
    return None


def loss_level(snapshot: Snapshot) -> tuple[float, float]:
    """Return level and spread of the loss as the judge knew them at a snapshot, nats per token."""
    for state in snapshot.payload["judge"].states:
        calm: Any = getattr(state, "calm", None)
        if calm:
            return float(calm[0].level), max(float(calm[0].sigma), 2e-3 * abs(float(calm[0].level)))
    raise AssertionError("the judge has no spike detector")
