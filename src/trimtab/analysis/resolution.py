"""Incidents that need no action any more: resolved by a guard, or dismissed by a person."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from trimtab.analysis.account import RunAccount
from trimtab.analysis.timeline import SKIP_UPDATE, answers
from trimtab.chronicle.journal import Event
from trimtab.incidents import Incident
from trimtab.record import RunRecord
from trimtab.signals.runs import root_of

__all__ = ["left_behind", "resolved", "settled", "with_resolved"]


def left_behind(record: RunRecord, incident: Incident) -> bool:
    """Tell whether an incident began on a branch that was given up; another run's is not one."""
    chain = record.final_lineage()
    try:
        index = record.attempt_index(incident.attempt)
        if chain and root_of(record, index) != chain[0]:
            return False
        at = chain.index(index)
    except (KeyError, ValueError):
        return bool(chain)
    if at + 1 == len(chain):
        return False
    limit = record.attempts[chain[at + 1]].parent_step
    return limit is not None and incident.onset > limit


def resolved(account: RunAccount) -> frozenset[int]:
    """Return the alarms that a guard dealt with, by their index in the account.

    Such an alarm began on a branch that was given up, the remedy taken is in force on the final
    lineage, and the last outcome recorded about it says that it worked; or its steps were given up
    with those of such a one. Or it is over, was of nothing but values that are not finite, and
    their updates were left out.
    """
    record = account.record
    live = {record.attempts[i].number for i in record.final_lineage()}
    found: set[int] = set()
    for index, events in answers(account).items():
        incident = account.incidents[index].incident
        actions = [e for e in events if e.event == "action"]
        outcomes = [e for e in events if e.event == "outcome"]
        if not actions or incident.severity == "info":
            continue
        if actions[-1].data.get("remedy") == SKIP_UPDATE:
            held = _only_skipped(incident)
        else:
            held = left_behind(record, incident) and _proven(actions, outcomes, live)
        if held:
            found.add(index)
    return frozenset(found | _given_up(account, _gone_from(account.events, live)))


def _gone_from(events: Sequence[Event], live: Set[str]) -> float:
    """Return the first step that a remedy which held gave up, whatever it was taken against.

    Judged as a whole, an attempt may have begun to fail before the guard saw it.
    """
    told = [e for e in events if e.event in ("action", "outcome") and not e.data.get("trial")]
    first = math.inf
    for i, action in enumerate(told):
        if action.event != "action":
            continue
        after = next((j for j in range(i + 1, len(told)) if told[j].event == "action"), len(told))
        if _proven([action], told[i + 1 : after], live):
            first = min(first, _given_up_from(action))
    return first


def _given_up_from(action: Event) -> float:
    values = action.data.get("values")
    step = values.get("to_step") if isinstance(values, Mapping) else None
    return step + 1 if isinstance(step, int) else math.inf


def _given_up(account: RunAccount, first: float) -> set[int]:
    """Return the alarms of steps from `first` on that are not part of the run any more."""
    found = set()
    for index, told in enumerate(account.incidents):
        incident = told.incident
        alarm = incident.severity != "info" and incident.onset >= first
        if alarm and left_behind(account.record, incident):
            found.add(index)
    return found


def _proven(actions: Sequence[Event], outcomes: Sequence[Event], live: Set[str]) -> bool:
    """Whether the last remedy is in force on the final lineage and was seen to work."""
    kept = str(actions[-1].data.get("kept_attempt") or actions[-1].attempt) in live
    return kept and bool(outcomes) and outcomes[-1].data.get("verdict") == "worked"


def _only_skipped(incident: Incident) -> bool:
    """Whether an alarm is over and of nothing but values that are not finite."""
    alarms = [f for f in incident.findings if f.severity != "info"]
    return bool(alarms) and incident.end is not None and {f.kind for f in alarms} == {"non-finite"}


def with_resolved(account: RunAccount) -> RunAccount:
    """Return the analysis with its resolved incidents marked as such."""
    past = resolved(account)
    marked = (replace(ia, resolved=i in past) for i, ia in enumerate(account.incidents))
    return replace(account, incidents=tuple(marked)) if past else account


def settled(account: RunAccount) -> frozenset[int]:
    """Return the alarms that were dealt with or dismissed, by their index in the account."""
    dismissed = {i for i, ia in enumerate(account.incidents) if ia.dismissed}
    return resolved(account) | dismissed
