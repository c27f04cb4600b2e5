"""Recovery as a function: `update(state, events) -> (state, commands)`.

Pure: it reads no file, no clock and no object of the run, so the same state and events give the
same result, and states can be kept, compared and replayed. The executor observes the run, calls
`update`, and carries the commands out in order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from trimtab.detectors.contract import changed
from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery import (
    both_ways,
    kept_remedy,
    opening,
    permission,
    rate_review,
    trial_cycle,
)
from trimtab.guard.recovery.commands import (
    FindIncident,
    JournalEvent,
    Question,
    at_step,
    decision,
)
from trimtab.guard.recovery.events import (
    Answer,
    AnswerHeard,
    BrokenStateFound,
    Captured,
    ChangeAnnounced,
    ChangedByHand,
    Confirmed,
    FaultHeard,
    IncidentFound,
    OddRanksFound,
    ProbeDone,
    ReadingDone,
    RestorePointFound,
    RolledBackByHand,
    RunEnded,
    StepDone,
    Surveyed,
    UpdateDone,
)
from trimtab.guard.recovery.state import (
    Advancing,
    Capturing,
    FindingOlderState,
    GoingFurtherBack,
    Leaving,
    Opening,
    Reporting,
    Responding,
    StartingProbe,
    StartingTrial,
    Surveying,
    TryingBothWays,
)
from trimtab.guard.recovery.triage import (
    NO_RISE,
    explained_by,
    speaks_of_data,
    speaks_of_state,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import Event
    from trimtab.guard.recovery.shadow import ShadowWhy
    from trimtab.guard.recovery.state import Pending, RecoveryState
    from trimtab.guard.recovery.values import Key

__all__ = ["update"]

Result = tuple["RecoveryState", tuple["Command", ...]]

_MOST_EXPECTED = 64
"""Announced changes that are remembered."""
_MOST_FINDINGS = 1024
"""Findings kept where alarms open all the time: each step looks at all of them."""


def update(state: RecoveryState, events: Sequence[Event]) -> Result:
    """Take in events in their order; return the new state and what is to be done, in order.

    Where the last command is a question, its answer must be the next event. A question that got
    no answer, because a command before it failed, is forgotten with the next event.
    """
    commands: list[Command] = []
    for event in events:
        assert not commands or not isinstance(commands[-1], Question), "a question is unanswered"
        state, more = _update(state, event)
        commands += more
    return state, tuple(commands)


def _update(state: RecoveryState, e: Event) -> Result:
    pending = state.pending
    if pending is not None:
        state = replace(state, pending=None)
    if isinstance(e, Answer):
        # `pending` was cleared above: an answer is valid only right after its question.
        assert pending is not None, f"nobody asked for {type(e).__name__}"
        return _answered(state, pending, e)
    match e:
        case StepDone():
            return _step(state, e)
        case ReadingDone():
            return _read(state, e)
        case ProbeDone():
            assert state.case is not None
            return trial_cycle.probe_step(state, state.case, e)
        case UpdateDone():
            told, commands = state.notices.hear_update(e)
        case OddRanksFound():
            told, commands = state.notices.hear_odd_ranks(e)
        case BrokenStateFound():
            told, commands = state.notices.hear_broken_state(e)
        case ChangedByHand():
            verify_steps = state.policy.verify_steps
            effects = state.effects.begin_by_hand(e.remedy, e.step, verify_steps=verify_steps)
            by_hand = ((e.step + 1, math.nan),) if e.remedy in permission.RISES else ()
            rises = (*state.rises, *by_hand)
            cut = None if e.remedy == "undo lower-lr" else state.early_cut
            return replace(state, effects=effects, rises=rises, early_cut=cut), ()
        case RolledBackByHand():
            effects = state.effects.forget_changes()
            state = replace(state, verification=None, effects=effects, wants=None)
            state, commands = permission.withdraw(state, "rolled back by hand", e.step)
            return trial_cycle.forget_findings(state), commands
        case FaultHeard():
            return trial_cycle.break_off(state, e)
        case AnswerHeard():
            return permission.answered(state, e)
        case ChangeAnnounced():
            expected = (*state.expected[-_MOST_EXPECTED:], e.change)
            return replace(state, expected=expected), ()
        case RunEnded():
            return _end(state, e)
        case _:
            assert_never(e)
    return (state if told is state.notices else replace(state, notices=told)), commands


def _answered(state: RecoveryState, pending: Pending, e: Answer) -> Result:
    """Go on with what waited for an answer."""
    match pending, e:
        case Reporting(), IncidentFound():
            return _report(state, pending, e)
        case Responding(), IncidentFound():
            return opening.search_base(state, pending, e)
        case Opening(), RestorePointFound():
            if both_ways.is_asked(state, pending.found):
                return both_ways.examine(state, pending, e)
            return opening.examine(state, pending, e)
        case Surveying(), Surveyed():
            if both_ways.is_asked(state, pending.found):
                return both_ways.start(state, pending, e)
            return opening.open_case(state, pending, e)
        case TryingBothWays(), Captured():
            return both_ways.try_without(state, pending, e)
        case _:
            pass
    case = state.case
    assert case is not None
    match pending, e:
        case StartingProbe(), Confirmed():
            return trial_cycle.probe_ready(state, case)
        case Capturing(), Captured():
            return trial_cycle.finish_trial(state, e.step, e)
        case Advancing(), Surveyed():
            if case.now is not None:
                return both_ways.conclude(state, case, e)
            return trial_cycle.advance(state, case, pending, e)
        case GoingFurtherBack(), RestorePointFound():
            return trial_cycle.continue_further_back(state, case, pending, e)
        case FindingOlderState(), RestorePointFound():
            return trial_cycle.start_from_older_state(state, case, pending, e)
        case StartingTrial(), Confirmed():
            return trial_cycle.trial_ready(state, case, pending, e)
        case Leaving(), Confirmed():
            return trial_cycle.finish_leaving(state, case, pending, e)
        case _:
            raise AssertionError(f"{type(e).__name__} does not answer {type(pending).__name__}")


# -- a step ---------------------------------------------------------------------------------


def _step(state: RecoveryState, e: StepDone) -> Result:
    findings = e.findings
    of_data = tuple(f for f in findings if speaks_of_data(f)) if state.phase == "calm" else ()
    explained: tuple[Command, ...] = ()
    if e.by_design or e.unexplained:
        state, findings, explained = _by_design(state, e)
        e = replace(e, findings=findings)
    if findings:
        # spikes of a trial are judged by the trial; they are undone with it. Where spikes return, it
        # has failed with as many of them as the run was not trained through.
        returning = state.case is not None and state.case.returning
        if state.phase == "calm" or (state.phase == "trial" and returning):
            recurrence, findings = state.recurrence.take_in(state.policy, findings)
            state = replace(state, recurrence=recurrence)
        if state.left_before:
            state = opening.leave_again(state, e)
        findings = tuple(f for f in findings if speaks_of_state(f))
        known = {f.key: f for f in (*findings, *of_data)}
        state = replace(state, open={**state.open, **known})
    if state.phase == "trial":
        assert state.case is not None
        return trial_cycle.trial_step(state, state.case, e, findings)
    commands = [*explained]
    if findings and (state.expected or state.rises):
        state, findings, more = _pass_expected(state, findings, e.step)
        commands += more
    if len(state.open) > _MOST_FINDINGS:
        state = replace(state, open=_without_old(state.open))
    if findings != e.findings:
        e = replace(e, findings=findings)
    if state.chief and (findings or of_data):
        # Nothing is undone for what the data does, but it is said at once.
        heard = (*findings, *of_data)
        told, lines = state.notices.hear(heard, e.step, scheduled=e.scheduled)
        commands += lines
        state = replace(state, notices=told)
    state, more = _look_up_waiting(state, e)
    commands += more
    if state.pending is None:
        state, more = _calm_step(state, e)
        commands += more
    return state, tuple(commands)


def _by_design(
    state: RecoveryState, e: StepDone
) -> tuple[RecoveryState, tuple[Finding, ...], tuple[Command, ...]]:
    """Take alarms that the script explains as notes; and as alarms again where it no longer does.

    Each explanation is said once, each alarm written down.
    """
    commands: list[Command] = []
    handled, said = state.handled, state.said
    found = {**state.open, **{f.key: f for f in e.findings}}
    for key in (k for k in e.by_design if k not in handled):
        why, f = e.by_design[key], found[key]
        handled |= {key}
        commands.append(decision(e.step, "leave alone", why, (f.text,)))
        if why not in said and state.chief:
            said |= {why}
            verdict = "left alone" if state.policy.mode == "act" else "explained"
            commands.append(at_step(e.step, f"{f.text}; {verdict}: {why}"))
    again = [f for k, f in state.open.items() if k in e.unexplained and k in handled]
    if again:
        why = "the loss rose further than that explains, or did not come back"
        handled -= e.unexplained
        commands.append(
            decision(e.step, "no longer leave alone", why, tuple(f.text for f in again)[:6])
        )
    noted = {f.key: f for f in e.findings if f.key in e.by_design}
    state = replace(state, handled=handled, said=said, open={**state.open, **noted})
    others = tuple(f for f in e.findings if f.key not in e.by_design)
    return state, (*others, *(f for f in again if not f.closed)), tuple(commands)


def _pass_expected(
    state: RecoveryState, findings: Sequence[Finding], step: int
) -> tuple[RecoveryState, tuple[Finding, ...], tuple[Command, ...]]:
    """Take alarms that an announced change explains as dealt with; write each down, once.

    A rate that was raised on purpose explains its own rise alone: what comes of it is judged.
    """
    commands: list[Command] = []
    others: list[Finding] = []
    handled = state.handled
    for f in findings:
        change = explained_by(state.expected, f)
        raised = state.raised_on_purpose(f)
        if (change is None and not raised) or f.severity == "info":
            others.append(f)
            continue
        if f.key not in handled:
            why = "the rate was raised on purpose"
            if change is not None:
                why = f"announced: {change.what}, steps {change.from_step} to {change.until_step}"
            data = {
                "kind": f.kind,
                # whatever an announced change turns into
                "severity": f.severity if change is None else "critical",
                # what the raised rate does is judged
                **({"signal": "lr"} if change is None else {}),
                "onset": f.onset,
                "onset_row": f.onset_row,
                "why": why,
            }
            commands += [JournalEvent("dismiss", step, data), at_step(step, f"{f.text}; {why}")]
        handled |= {f.key}
    # no first sign of what comes later
    known = {k: f for k, f in state.open.items() if not state.raised_on_purpose(f)}
    return replace(state, handled=handled, open=known), tuple(others), tuple(commands)


def _without_old(found: Mapping[Key, Finding]) -> dict[Key, Finding]:
    """Return the findings without the oldest closed ones."""
    closed = [k for k, f in found.items() if f.closed]
    dropped = set(closed[: len(closed) - _MOST_FINDINGS // 4])
    return {k: f for k, f in found.items() if k not in dropped}


def _look_up_waiting(state: RecoveryState, then: StepDone | RunEnded) -> Result:
    """Ask for the incident behind alarms that opened, where one may be reported now."""
    if not state.chief or not state.notices.is_due(then.row):
        return state, ()
    told, keys = state.notices.take_waiting(then.row)
    # one incident is reported for all alarms that waited; what was reported before is not news
    others = (frozenset(state.open) | told.reported) - keys
    question = FindIncident(tuple(state.open.values()), others, together=False)
    return replace(state, notices=told, pending=Reporting(keys, then)), (question,)


def _report(state: RecoveryState, asked: Reporting, e: IncidentFound) -> Result:
    """Report an incident that has opened, then go on with the event that led to it."""
    told = state.notices
    commands: list[Command] = []
    if e.found is not None:
        diagnosis = diagnose(e.found.record, e.found.incident)
        told, lines, _ = told.report(e.found.incident, diagnosis, e.found.keys, e.step)
        commands += lines
    state = replace(state, notices=told.mark(asked.keys))
    if isinstance(asked.then, RunEnded):
        state, more = _conclude_all(state, asked.then)
    else:
        state, more = _calm_step(state, asked.then)
    return state, (*commands, *more)


def _calm_step(state: RecoveryState, e: StepDone) -> Result:
    """Watch what was done before, and see whether something must be done now."""
    policy = state.policy
    notices, lines = state.notices.repeat(state.open, e.step)
    opened = sum(1 for f in e.findings if f.severity != "info" and not f.closed)
    effects, entries = state.effects.take_in(
        e.loss, e.norm, opened, e.step, verify_steps=policy.verify_steps
    )
    commands: list[Command] = [*lines, *entries]
    grace = state.grace
    if policy.mode == "act" and not state.advising_only:
        grace, decisions = grace.take_in(policy, e.loss, e.step, e.findings)
        commands += [decision(e.step, what, why) for what, why in decisions]
    # each step comes here: `changed` costs a fifth of `replace`
    state = changed(state, notices=notices, effects=effects, grace=grace)
    if state.advising_only and policy.mode == "act":
        state, more = kept_remedy.act_again(
            state, e.step, alarmed=any(f.severity != "info" for f in e.findings)
        )
        commands += more
    broken = not math.isfinite(e.loss) or not (e.scaled or math.isfinite(e.norm))
    if broken or state.broken_steps:
        state = replace(state, broken_steps=state.broken_steps + 1 if broken else 0)
    if state.verification is not None:
        alarmed = any(f.severity != "info" and f.kind not in NO_RISE for f in e.findings)
        state, more = kept_remedy.verify_step(
            state, e.loss, alarmed=alarmed, step=e.step, failures=e.failures
        )
        commands += more
    if state.early_cut is not None:
        state, more = rate_review.review(state, e)
        commands += more
    why_idle = _why_idle(state)
    if state.chief and (e.findings or state.shadow.watched or why_idle != state.shadow.why):
        state, more = _shadow(state, e, why_idle)
        commands += more
    if state.request is not None:
        blocked, why = state.is_blocked, permission.no_longer_needed(state, e)
        if why:
            state, more = permission.withdraw(state, why, e.step)
            commands += more
        if blocked:
            return state, tuple(commands)
    if policy.mode != "observe" and opening.is_troubled(state, e):
        if opening.asks_first(state, e):
            return opening.ask(state, e), tuple(commands)
        state, more = opening.look_up(state, e)
        commands += more
    elif state.watch is not None:
        state = opening.watch_again(state, e)
    else:
        if e.findings:
            state = opening.ask_of_weights(state, e)
            state = opening.ask_of_healed(state, e)
        if e.findings or state.suspected is not None:
            state = both_ways.look(state, e)
    return state, tuple(commands)


def _why_idle(state: RecoveryState) -> ShadowWhy | None:
    """Return why nothing is done to the run whatever happens; None where something may be."""
    mode = state.policy.mode
    if mode != "act":
        return mode
    if state.is_blocked:
        return "ask"
    return "paused" if state.advising_only else None


def _shadow(state: RecoveryState, e: StepDone, why: ShadowWhy | None) -> Result:
    """Write down what `act` would do now, and what came of what it would have done."""
    # alarms that opened while something could be done are followed from here on, too
    new = why is not None and why != state.shadow.why
    shadow, ended = state.shadow.take_in(state.open.values() if new else e.findings, e.step)
    if why is None:  # what was denied is followed to its end
        return replace(state, shadow=shadow.only_begun()), ended
    shadow, begun = replace(shadow, why=why).look(
        state.policy, e.step, why=why, is_trouble=lambda f: opening.has_lasted(state, e, f)
    )
    return replace(state, shadow=shadow), (*ended, *begun)


def _read(state: RecoveryState, e: ReadingDone) -> Result:
    """Go on with what a reading was asked for."""
    wanted = state.wants
    state = replace(state, wants=None)
    if wanted is None:  # given up in the meantime
        return state, ()
    foreign = e.reading is not None and e.reading.foreign
    if foreign and (state.phase == "trial" or wanted.of_change):
        e = replace(e, reading=None)  # the training loss decides
    if state.phase == "trial":
        assert state.case is not None
        return trial_cycle.end_trial(state, state.case, wanted.event.step, e)
    if wanted.of_change:
        return both_ways.hear_reading(state, wanted, e)
    return opening.decide(state, wanted, e)


# -- the end --------------------------------------------------------------------------------


def _end(state: RecoveryState, e: RunEnded) -> Result:
    """Report what was put off, and judge what is watched by the steps there are."""
    told, commands = state.notices.end_skips()
    # nothing can be put off any longer
    state = replace(state, notices=replace(told, next_row=0))
    state, more = _look_up_waiting(state, e)
    if state.pending is None:
        state, more = _conclude_all(state, e)
    return state, (*commands, *more)


def _conclude_all(state: RecoveryState, e: RunEnded) -> Result:
    state, commands = kept_remedy.conclude(state, e.step, e.failures)
    effects, entries = state.effects.finish(e.step)
    shadow, ended = state.shadow.end("lasted to the end", e.step)
    state = replace(state, effects=effects, shadow=shadow)
    return state, (*commands, *entries, *ended)
