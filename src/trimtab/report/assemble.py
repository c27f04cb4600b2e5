"""A record -> its account: judged, grouped, explained, planned. The one path of every command."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.excerpt import excerpt_findings
from trimtab.detectors.judge import judge_record
from trimtab.diagnosis.diagnose import Diagnosis, diagnose
from trimtab.incidents import Incident, group_findings
from trimtab.plan.plan import Plan
from trimtab.plan.planner import make_plan
from trimtab.plan.rollback import CheckpointInfo
from trimtab.record import RunRecord
from trimtab.report.account import IncidentAccount, RunAccount
from trimtab.signals import derive

__all__ = ["events_of", "make_account"]

_RANK = {"critical": 2, "warning": 1, "info": 0}


def make_account(
    record: RunRecord,
    *,
    events: Sequence[Event] = (),
    checkpoints: Sequence[CheckpointInfo] = (),
    read_s: float = 0.0,
) -> RunAccount:
    """Return everything that can be said about one run.

    Args:
        record: What it logged.
        events: Its journal, where it has one.
        checkpoints: What it could go back to, where known.
        read_s: How long reading took, seconds; shown to people.
    """
    record = derive(record)
    findings = (*judge_record(record), *excerpt_findings(record))
    told: list[IncidentAccount] = []
    earlier: list[Incident] = []
    for incident in group_findings(record, findings):
        told.append(_explain(record, incident, earlier, checkpoints))
        if incident.severity != "info":
            earlier.append(incident)
    told.sort(key=lambda a: (-_RANK[a.incident.severity], -a.incident.onset_row))
    return RunAccount(
        record=record,
        incidents=tuple(told),
        notes=record.notes,
        events=tuple(events),
        read_s=read_s,
    )


def _explain(
    record: RunRecord,
    incident: Incident,
    earlier: Sequence[Incident],
    checkpoints: Sequence[CheckpointInfo],
) -> IncidentAccount:
    """Explain and plan; a note is only told, because nothing needs doing about it."""
    if incident.severity == "info":
        return IncidentAccount(incident=incident, diagnosis=Diagnosis(causes=()), plan=Plan())
    diagnosis = diagnose(record, incident, earlier=earlier)
    plan = make_plan(record, incident, diagnosis, earlier=earlier, checkpoints=checkpoints)
    return IncidentAccount(incident=incident, diagnosis=diagnosis, plan=plan)


def events_of(path: str | Path) -> tuple[Event, ...]:
    """Return the journal of a run directory; nothing for a log file."""
    journal = RunDirectory(Path(path)).journal
    return read_journal(journal)[0] if journal.is_file() else ()
