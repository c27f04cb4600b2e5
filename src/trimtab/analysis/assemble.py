"""From a record to its analysis: judge, group, explain, plan. Every command takes this path."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.against import against_findings, against_note, compared
from trimtab.analysis.outcome import aftermath_of, plan_after
from trimtab.analysis.resolution import left_behind, with_resolved
from trimtab.analysis.self_test import Deferred, SelfTester
from trimtab.analysis.timeline import NEAR_STEPS
from trimtab.analysis.verdict import Ending
from trimtab.chronicle.authority_words import unannounced_changes
from trimtab.chronicle.coverage import Coverage, coverage_of
from trimtab.chronicle.dismissals import Dismissal, dismissal_of
from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import Judge
from trimtab.detectors.offline import all_findings, as_judged
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.diagnosis.causes import CAUSES
from trimtab.diagnosis.config_signs import ConfigSign
from trimtab.diagnosis.diagnose import Cause, Diagnosis, diagnose
from trimtab.diagnosis.features import incident_features
from trimtab.diagnosis.history import EarlierIncidents, warm_up_label
from trimtab.diagnosis.probes import TrialResult
from trimtab.incidents import Incident, group_findings
from trimtab.kinds import KIND_BY_NAME, severity_rank
from trimtab.plan.plan import Plan
from trimtab.plan.planner import make_plan
from trimtab.plan.rollback import CheckpointInfo
from trimtab.readers.layers import LayerReadings
from trimtab.record import RunRecord
from trimtab.signals import derive
from trimtab.signals.phases import slope_notes
from trimtab.signals.runs import root_of, separate_runs
from trimtab.text import plain

__all__ = ["events_of", "make_account"]

# Each costs some 5 ms, and nobody reads the causes of the thousandth spike of a run.
_MOST_EXPLAINED = 256
"""Alarms of one run that are explained and planned for."""
_MOST_CHANGES = 8
"""Changes of settings that a note names; the journal has them all."""


@np.errstate(over="ignore", invalid="ignore")  # losses of 1e308 are ugly, not wrong
def make_account(
    record: RunRecord,
    *,
    events: Sequence[Event] = (),
    checkpoints: Sequence[CheckpointInfo] = (),
    framework: str = "",
    dismissed: Sequence[Dismissal] = (),
    hindsight: bool = True,
    grows: bool = False,
    read_s: float = 0.0,
    judge: Judge | None = None,
    sensitivity: Sensitivity | None = None,
    layers: Sequence[LayerReadings] = (),
    path: str = "",
    ending: Ending | None = None,
    reference: RunRecord | None = None,
    config: Sequence[ConfigSign] = (),
    tester: SelfTester | None = None,
    self_test: bool = True,
) -> RunAccount:
    """Return everything that can be said about one run.

    Args:
        record: What it logged.
        events: Its journal, where it has one.
        checkpoints: What it could go back to, where known.
        framework: Whose flags to give; empty: that of the log's format.
        dismissed: Incidents that a person called fine.
        hindsight: Also say what only later rows show.
        grows: Whether more rows will come, so that the last ones are not judged in hindsight yet.
        read_s: How long reading took, seconds; shown to people.
        judge: The detectors to use; None: the built-in ones with their own settings.
        sensitivity: Thresholds moved by a factor; for measuring.
        layers: What was measured block by block; drawn, not judged.
        path: Path as given; empty for a record that was made in memory.
        ending: How the run is known to have ended badly; None: that is not known.
        reference: A run to judge by, besides the run's own past; None: none.
        config: What a check of the run's config found.
        tester: Injects faults into copies of the rows; None: a new one. One that is kept while a
            log grows pays for a few faults at each look.
        self_test: Whether to inject faults at all; without, a quiet run is `not-judged`.
    """
    record = separate_runs(derive(record))
    keeps_tester = tester is not None
    tester = tester or SelfTester(hindsight=hindsight)
    states = tester.places(record) if self_test else {}
    judge = (sensitivity or Sensitivity()).judge() if judge is None else judge
    judge = judge.seeing(record.columns)
    findings = all_findings(
        record,
        judge=judge,
        sensitivity=sensitivity,
        hindsight=hindsight,
        grows=grows,
        before=states,
    )
    if reference is not None:
        record, beyond = _against(record, reference)
        findings = (*findings, *beyond)
    found = [_unless_tried(record, incident) for incident in group_findings(record, findings)]
    told = _explained(
        record,
        found,
        stops=_stops(events),
        explain=partial(
            _explain,
            record,
            checkpoints=checkpoints,
            events=events,
            framework=framework,
            config=config,
        ),
    )
    incidents = [ia.incident for ia in told]
    told = [_as_dismissed(_as_it_went_on(record, ia, incidents), dismissed) for ia in told]
    logged = record
    tested = Deferred(
        lambda: tester.run(as_judged(logged) if hindsight else logged, judge, findings, states)
    )
    if grows or keeps_tester:  # each look of one that grows injects a few more
        tested()
    told.sort(key=lambda a: (-severity_rank(a.incident.severity), -a.incident.onset_row))
    account = RunAccount(
        record=record,
        incidents=tuple(told),
        notes=_notes(record, found, events),
        events=tuple(events),
        read_s=read_s,
        layers=tuple(layers),
        path=path,
        ending=ending,
        coverage=_coverage(record, events),
        tested=tested,
        judged_signals=frozenset(judge.signals),
    )
    return with_resolved(account)


def _against(record: RunRecord, reference: RunRecord) -> tuple[RunRecord, Sequence[Finding]]:
    """Return the record with a note on its reference, and where it leaves that."""
    name = Path(reference.source).name or "the reference"
    c = compared(record, reference, name)
    findings = against_findings(record, reference, name, c)
    noted = replace(record, notes=(*record.notes, against_note(record, reference, name, c)))
    return noted, findings


def _notes(
    record: RunRecord, found: Sequence[Incident], events: Sequence[Event]
) -> tuple[str, ...]:
    return (
        *record.notes,
        *slope_notes(record),
        *_bound_note(found),
        *_in_force_note(events),
        *_unannounced_note(events),
    )


def _explained(
    record: RunRecord,
    found: Sequence[Incident],
    *,
    stops: Mapping[str, float],
    explain: Callable[[Incident, Sequence[Incident]], IncidentAccount],
) -> list[IncidentAccount]:
    """Return each incident explained in the light of those before it in the same run."""
    told: list[IncidentAccount] = []
    earlier: dict[int, EarlierIncidents] = {}
    in_full = _explained_in_full(found)
    for number, told_of in enumerate(found):
        root = root_of(record, record.attempt_index(told_of.attempt))
        kin = earlier.setdefault(root, EarlierIncidents())
        incident, before = _unless_stopped(record, told_of, kin, stops)
        told.append(explain(incident, before) if number in in_full else _only_told(incident))
        if incident.severity != "info":
            kin.append(incident)
    return told


def _only_told(incident: Incident) -> IncidentAccount:
    return IncidentAccount(incident=incident, diagnosis=Diagnosis(causes=()), plan=Plan())


def _explained_in_full(found: Sequence[Incident]) -> frozenset[int]:
    """Return which incidents get causes and a plan: the most severe, of those the latest."""
    alarms = [i for i, incident in enumerate(found) if incident.severity != "info"]
    alarms.sort(key=lambda i: (severity_rank(found[i].severity), found[i].onset_row))
    notes = (i for i, incident in enumerate(found) if incident.severity == "info")
    return frozenset((*alarms[-_MOST_EXPLAINED:], *notes))


def _in_force_note(events: Sequence[Event]) -> tuple[str, ...]:
    """Return what the guard of the run holds against the script's own settings, as a note."""
    told = next((e.data["in_force"] for e in reversed(events) if "in_force" in e.data), None)
    if not isinstance(told, list) or not told:
        return ()
    held = "; ".join(plain(text, limit=120) for text in told[:8])
    return (f"the guard holds in force: {held}",)


def _unannounced_note(events: Sequence[Event]) -> tuple[str, ...]:
    """Return the settings that changed without being announced, as a note."""
    told = unannounced_changes(events)
    if not told:
        return ()
    more = f"; and {len(told) - _MOST_CHANGES} more" if len(told) > _MOST_CHANGES else ""
    return (f"settings changed, not announced: {'; '.join(told[:_MOST_CHANGES])}{more}",)


def _bound_note(found: Sequence[Incident]) -> tuple[str, ...]:
    num = sum(incident.severity != "info" for incident in found)
    if num <= _MOST_EXPLAINED:
        return ()
    return (
        f"{num} alarms; causes and plans are given for the {_MOST_EXPLAINED} most severe and"
        " latest",
    )


def _coverage(record: RunRecord, events: Sequence[Event]) -> Coverage | None:
    """Return which steps a guard judged; None for a run without a guard's journal."""
    of_others = ("adopted", "supervised")
    guarded = any(
        e.event == "attempt" and not any(e.data.get(key) for key in of_others) for e in events
    )
    if not guarded or not record.num_rows:
        return None
    return coverage_of(events, int(record.step[-1]))


def _as_dismissed(ia: IncidentAccount, known: Sequence[Dismissal]) -> IncidentAccount:
    found = dismissal_of(ia.incident, known) if ia.incident.severity != "info" else None
    return ia if found is None else replace(ia, dismissed=found.why or "no reason given")


def _as_it_went_on(
    record: RunRecord, ia: IncidentAccount, incidents: Sequence[Incident]
) -> IncidentAccount:
    """Return an alarm that the training left behind with a plan that says so."""
    after = None
    if ia.incident.severity != "info":
        after = aftermath_of(record, ia.incident, incidents)
    return ia if after is None else replace(ia, plan=plan_after(ia.plan, after, record.axis))


def _explain(
    record: RunRecord,
    incident: Incident,
    earlier: Sequence[Incident],
    *,
    checkpoints: Sequence[CheckpointInfo],
    events: Sequence[Event],
    framework: str,
    config: Sequence[ConfigSign],
) -> IncidentAccount:
    """Explain and plan; a note is only told, because nothing needs doing about it."""
    if incident.severity == "info":
        return _only_told(incident)
    incident = _with_risk(record, incident, earlier)
    trials = _trials_of(incident, events)
    diagnosis = diagnose(record, incident, earlier=earlier, config=config, trials=trials)
    diagnosis = _as_tried(incident, events) or diagnosis
    plan = make_plan(
        record,
        incident,
        diagnosis,
        earlier=earlier,
        checkpoints=checkpoints,
        framework=framework,
        trials=trials,
    )
    return IncidentAccount(incident=incident, diagnosis=diagnosis, plan=plan)


def _with_risk(record: RunRecord, incident: Incident, earlier: Sequence[Incident]) -> Incident:
    """Return an incident of learning that began as the warm-up ended with that said of it.

    The end of the warm-up is what the log states, else what its learning rates show.
    """
    if incident.kind in KIND_BY_NAME and KIND_BY_NAME[incident.kind].topic != "learning":
        return incident
    f = incident_features(record, incident, earlier=earlier)
    label = "" if f.warm_up_ratio is None else warm_up_label(f.warm_up_ratio, 1.0)
    if not label:
        return incident
    where = f"{label}: at {f.warm_up_ratio:.2f} x the warm-up, in {f.warm_up_unit}"
    return replace(incident, risk=label, headline=f"{incident.headline} · {where}")


def _unless_tried(record: RunRecord, incident: Incident) -> Incident:
    """Return an incident within a trial that was not kept as a note: it is that trial's outcome."""
    index = record.attempt_index(incident.attempt)
    if not record.attempts[index].trial or index in record.final_lineage():
        return incident
    return replace(incident, severity="info")


def _stops(events: Sequence[Event]) -> dict[str, float]:
    """Return the attempts that continued after a process ended, with the step they start from."""
    stops: dict[str, float] = {}
    resumed = False
    for event in events:
        resumed = resumed or event.event == "resume"
        if event.event == "attempt" and resumed:
            step = event.data.get("parent_step")
            resumed = False
            if isinstance(step, int | float):
                stops[str(event.data.get("number") or event.attempt)] = float(step)
    return stops


def _unless_stopped(
    record: RunRecord, incident: Incident, earlier: Sequence[Incident], stops: Mapping[str, float]
) -> tuple[Incident, Sequence[Incident]]:
    """Return an incident on a branch given up, and the incidents that it may be a recurrence of.

    An attempt that ended because its process was killed was no remedy: what the resumed one meets
    again did not come back in spite of anything.
    """
    if incident.attempt not in stops or not left_behind(record, incident):
        return incident, earlier
    kept = [
        e for e in earlier if e.attempt == incident.attempt or e.onset <= stops[incident.attempt]
    ]
    gone = {e.onset for e in earlier if e not in kept}
    if incident.recurrence_of in gone:
        again = re.sub(r", again after \w+ [^·]*(?= · )", "", incident.headline, count=1)
        incident = replace(incident, recurrence_of=None, headline=again)
    return incident, kept


def _as_tried(incident: Incident, events: Sequence[Event]) -> Diagnosis | None:
    """Return the causes as a guard found them by experiment; None where it tried nothing.

    A reading afterwards has the log alone; the guard had probes of the data and trials.
    """
    for event in reversed(events):
        d = event.data
        if event.event != "incident" or d.get("state") != "explained":
            continue
        onset = d.get("onset")
        if not isinstance(onset, int | float) or abs(onset - incident.onset) > NEAR_STEPS:
            continue
        causes = tuple(_cause(c) for c in d.get("causes") or () if isinstance(c, Mapping))
        if causes:
            return Diagnosis(causes=causes)
    return None


def _trials_of(incident: Incident, events: Sequence[Event]) -> tuple[TrialResult, ...]:
    """Return the trials over the onset of an incident that the journal holds, in their order.

    A journal that names no step or outcome of a trial says nothing of it.
    """
    begun: dict[str, Mapping[str, Any]] = {}
    found: list[TrialResult] = []
    for event in events:
        d = event.data
        if event.event == "attempt" and d.get("trial"):
            begun[event.attempt] = d
        elif event.event == "outcome" and d.get("trial") and event.attempt in begun:
            start = begun.pop(event.attempt)
            at = start.get("parent_step")
            if isinstance(at, int | float) and at <= incident.onset <= event.step:
                found.append(_trial(start, d))
    return tuple(found)


def _trial(start: Mapping[str, Any], outcome: Mapping[str, Any]) -> TrialResult:
    """Return one trial from the two lines that a guard writes of it."""
    figures, settings = outcome.get("figures"), start.get("settings")
    told = figures if isinstance(figures, Mapping) else {}
    asked = settings if isinstance(settings, Mapping) else {}
    tag = str(start.get("tag") or "")
    return TrialResult(
        name=str(start.get("why") or tag).removeprefix("trial: "),
        held=outcome.get("verdict") == "worked",
        loss=_number(told.get("loss"), math.nan),
        expected_loss=_number(told.get("expected"), math.nan),
        steps=int(_number(told.get("steps"), 0.0)),
        skipped=start.get("skip") is not None,
        lr_factor=_number(asked.get("lr_factor"), 1.0),
        lr_limit=_number(asked.get("lr_limit"), math.nan) if "lr_limit" in asked else None,
        changed=() if tag in ("", "replay", "other-data", "lower-lr") else (tag,),
    )


def _number(value: object, otherwise: float) -> float:
    """Return a finite number of a journal line, which holds settings as text."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return otherwise
    return number if math.isfinite(number) else otherwise


def _cause(told: Mapping[str, Any]) -> Cause:
    name = str(told.get("cause", "unknown"))
    title = next((entry.title for entry in CAUSES if entry.id == name), name.replace("-", " "))
    share = told.get("confidence")
    return Cause(
        cause=name,
        title=title,
        confidence=float(share) if isinstance(share, int | float) else 0.0,
        evidence=tuple(str(e) for e in told.get("evidence") or ()),
    )


def events_of(path: str | Path) -> tuple[Event, ...]:
    """Return the journal of a run directory; nothing for a log file."""
    journal = RunDirectory(Path(path)).journal
    return read_journal(journal)[0] if journal.is_file() else ()
