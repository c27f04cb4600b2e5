"""A measured change of a setting, tried both ways: as the script has it, and without the change.

Such changes are as often meant as not (layers trained in turn, a second warm-up), so that none is
undone for itself, and many do their harm without a rise of the loss. First the fixed batches say
how fast the run learned before, and since. Where it has lost half of that speed (under a rate that
climbs, all of it) a branch begins before the change, over the same data to the same step, with the
setting as it was. The run itself is the other branch, so that one is enough.

The change is undone only where the branch is better, as `trial_verdict.is_better_without` has it.
Else the run goes on from the very state in which it was asked, and the change is told as before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery import opening, trial_cycle
from trimtab.guard.recovery.commands import (
    Capture,
    Confirm,
    DropSnapshots,
    GoBackTo,
    NoteOnset,
    SetAside,
    TakeBack,
    at_step,
    decision,
    detail,
    findings_left,
)
from trimtab.guard.recovery.curves import recorded_curve
from trimtab.guard.recovery.kept_remedy import keep
from trimtab.guard.recovery.learning_rate import lr_at, lr_rise
from trimtab.guard.recovery.permission import rights_of
from trimtab.guard.recovery.situation import wasted_share
from trimtab.guard.recovery.state import (
    Leaving,
    ReadingWanted,
    StartingTrial,
    SuspectedChange,
    TryingBothWays,
)
from trimtab.plan.ladder import CONTROL, Commit, Wait
from trimtab.plan.trials import Trial

if TYPE_CHECKING:
    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.case import Case
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import (
        Captured,
        IncidentInRecord,
        ReadingDone,
        RestorePointFound,
        StepDone,
        Surveyed,
    )
    from trimtab.guard.recovery.state import Opening, RecoveryState, Surveying

__all__ = ["conclude", "examine", "hear_reading", "is_asked", "look", "start", "try_without"]

Result = tuple["RecoveryState", tuple["Command", ...]]

_SETTINGS = {
    "most-frozen": ("requires_grad", 1.0),
    "rate-beyond-peak": ("lr", 0.5),
    "weights-grew": ("weights", 0.5),
}
"""Detectors of the changes that are tried both ways, with the setting that each is of, and the
steps after which it is looked at, as a share of `verify_steps`: what is trained in turn has its
turns by then, and a rate that climbs does harm soon."""
SLOWER_SPEED = 0.5
"""Share of its speed before the change from which on the run learns as before. Ours."""
_STILL_UP = 2.0
"""Times the rate before a jump, from which on the jump is still in force: a schedule may have come
down since. Ours."""
_MOST_SHARE = 0.25
"""Of the whole run, that one branch may take. Ours."""
_MOST_LEFT = 2.0
"""Times the steps that are left, that it may take. Ours."""
_LOOKS = 2
"""Times that the speed is looked at, the second one after twice as many steps: what climbs slowly
does its harm late."""


def _wait_steps(state: RecoveryState, f: Finding) -> int:
    return max(round(_SETTINGS[f.detector][1] * state.policy.verify_steps), 1)


def look(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Ask for a reading where such a change was told, and some steps after it."""
    acts = state.policy.mode == "act" and not state.advising_only and e.reads and not e.last
    busy = state.wants is not None or state.is_blocked
    if not acts or busy or rights_of(state.policy, {}).restore != "act":
        return state
    s = state.suspected
    if s is not None:
        if e.step < s.due_step or state.verification is not None:
            return state
        if s.is_due:  # it could not be looked up
            return replace(state, suspected=None)
        return replace(state, wants=ReadingWanted(e, -1, of_change=True))
    told = [f for f in e.findings if f.detector in _SETTINGS and not f.closed]
    told = [f for f in told if f.signal != "weight_jump"]  # it is asked about at once
    new = [f for f in told if f.key not in state.handled]
    wait = _wait_steps(state, new[0]) if new else 0
    if not new or e.step <= wait:
        return state
    suspected = SuspectedChange(finding=new[0], step=e.step, due_step=e.step + wait)
    return replace(
        state, suspected=suspected, wants=ReadingWanted(e, e.step - wait, of_change=True)
    )


def hear_reading(state: RecoveryState, asked: ReadingWanted, e: ReadingDone) -> Result:
    """Take in the speed before the change, or the one since: goes the run on as before?"""
    s, r, now = state.suspected, e.reading, asked.event.step
    if s is None:
        return state, ()
    first = not s.losses
    fell, steps = math.nan, 1
    if r is not None and first and r.base_step is not None:
        fell, steps = r.base_mean - r.mean, now - r.base_step
    elif r is not None and len(r.losses) == len(s.losses):
        fell, steps = sum(s.losses) / len(s.losses) - r.mean, now - s.step
    if r is None or not math.isfinite(fell) or steps <= 0:
        return replace(state, suspected=None), ()
    speed = fell / steps
    if first:
        losses = r.losses
        if s.finding.detector == "rate-beyond-peak" and fell < 0 and len(r.base) == len(losses):
            losses = r.base  # a jump had done its harm before the first reading
        return replace(state, suspected=replace(s, speed=speed, losses=losses)), ()
    slower = speed < min(SLOWER_SPEED * s.speed, s.speed)
    if s.finding.detector == "rate-beyond-peak":
        # lower rates gain in the short run whatever is better in the end: only where nothing more
        # is learned
        slower = fell < state.policy.verify_tolerance * e.scale.unit
    said = f"the fixed batches fall by {speed:.3g} in a step since, by {s.speed:.3g} before"
    if not slower and s.looks + 1 < _LOOKS:
        due = e.step + _wait_steps(state, s.finding)
        return replace(state, suspected=replace(s, looks=s.looks + 1, due_step=due)), ()
    if not slower:
        return _leave_told(state, s.finding, said, e.step)
    s = replace(s, now=r.losses, is_due=True)
    alarm = replace(s.finding, severity="warning")
    state = replace(state, suspected=s, open={**state.open, alarm.key: alarm})
    return opening.look_up(state, asked.event)


def _leave_told(state: RecoveryState, f: Finding, why: str, step: int) -> Result:
    """Leave the change in force, and write down why."""
    noted = {k: x for k, x in state.open.items() if k != f.key}
    state = replace(state, suspected=None, handled=state.handled | {f.key}, open=noted)
    left = findings_left([f])
    return state, (decision(step, "leave alone", why, (f.text,), findings=left),)


def is_asked(state: RecoveryState, found: IncidentInRecord) -> bool:
    """Whether what was looked up is to be tried both ways."""
    s = state.suspected
    return s is not None and s.is_due and s.finding.key in found.keys


def examine(state: RecoveryState, asked: Opening, e: RestorePointFound) -> Result:
    """Ask what the decision needs besides a state from before the change; without one, leave it."""
    s = state.suspected
    assert s is not None
    if e.point is None or e.point.step >= s.finding.onset:
        return _leave_told(state, s.finding, "not tried both ways: no state before it", e.step)
    return opening.examine(state, asked, e)


def start(state: RecoveryState, asked: Surveying, e: Surveyed) -> Result:
    """Ask for a copy of the state as it is, to come back to; or leave the change in force."""
    s, case = state.suspected, opening.case_of(asked, e)
    assert s is not None
    trial = _without(s.finding, case, e)
    rights = rights_of(state.policy, e.standing.used_today, state.granted)
    steps = case.seen_step - case.base.step
    standing, final = e.standing, state.final_step or 2 * case.seen_step
    share = wasted_share(
        state,
        case,
        standing.executed_steps,
        standing.probed_batches,
        base=case.seen_step,
        ahead=steps,
    )
    allowed = rights.arms is None or (trial is not None and trial.arms[-1] in rights.arms)
    problem = e.misfit or next(
        (
            why
            for why, holds in {
                "the script has set it anew since": trial is None,
                "going back asks a person": rights.restore != "act" or not allowed,
                "too little of the run is left": steps > _MOST_LEFT * (final - case.seen_step),
                "a branch would take too many steps": steps > _MOST_SHARE * final
                or share > state.policy.max_wasted_share,
            }.items()
            if holds
        ),
        "",
    )
    if problem or trial is None:
        return _leave_told(state, s.finding, f"not tried both ways: {problem}", e.step)
    slower = "has learned less than half as fast"
    if not math.isfinite(s.speed):
        slower = "has not been compared with how it learned before"
    state = replace(state, pending=TryingBothWays(case, trial))
    return state, (
        decision(
            e.step,
            f"try both ways: {trial.name}",
            f"since step {s.step} the run {slower}",
            (s.finding.text,),
        ),
        at_step(
            e.step,
            f"{s.finding.text}; since then the run {slower}: {steps} steps from step"
            f" {case.base.step} without it, to compare",
        ),
        Capture(),
    )


def _without(f: Finding, case: Case, e: Surveyed) -> Trial | None:
    """Return the branch without the change; None where the script has changed it again since."""
    name, _ = _SETTINGS[f.detector]
    jump = case.lr_jump
    if name == "lr" and jump is not None and 0 < jump.before < jump.after:
        if lr_at(case.record, case.seen_step, case.before.lr_cuts) < _STILL_UP * jump.before:
            return None
        factor = jump.before / jump.after
        # Held as a value: what was set once is undone by going back, and is not cut again.
        return Trial(
            name=f"LR back to {jump.before:.3g} (x {factor:.3g})",
            lr_limit=jump.before,
            lr_share=factor if case.lr_scheduled else 1.0,
            lr_sound=jump.before,
            lr_from_step=jump.step,
        )
    if name == "lr":
        rising, sound = lr_rise(case.record, case.seen_step, case.before.lr_cuts)
        limit = sound or lr_at(case.record, case.base.step, case.before.lr_cuts)
        if not rising or not 0 < limit < math.inf:
            return None
        return Trial(name=f"LR held at {limit:.3g}", lr_limit=limit, lr_sound=limit)
    if name == "weights":  # a replay does it no more, unless the script does it again
        return CONTROL
    found = [c for c in e.standing.changed if c.name == name and c.step == f.onset]
    back = tuple(c for c in found if not c.ended and not c.moved)
    return Trial(name=back[0].shown, put_back=back) if back else None


def try_without(state: RecoveryState, asked: TryingBothWays, e: Captured) -> Result:
    """Begin the branch without the change."""
    s, case = state.suspected, asked.case
    assert s is not None
    case = replace(
        case,
        now=e.point,
        both=s.now,
        base_reading=s.losses,
        control=recorded_curve(case.record, after=case.base.step, until=case.seen_step),
    )
    handled = state.handled | {s.finding.key}
    state = replace(state, case=case, suspected=None, handled=handled)
    begun = StartingTrial(asked.trial, case.base, goes_on=False, kept=None)
    return trial_cycle.begin_branch(state, case, begun)


def conclude(state: RecoveryState, case: Case, e: Surveyed) -> Result:
    """Keep the branch where it was better, as `trial_verdict` says; else go on as it was."""
    trial, result, now = case.trial, case.trials[-1], case.now
    assert trial is not None
    assert now is not None
    if not result.held:
        why = f"tried both ways: {trial.name} is not better, {case.compared}"
        commands = (TakeBack(trial, case.before), GoBackTo(now), Confirm())
        ending = Wait(until_step=state.wait_until, reason=why)
        state = replace(state, case=replace(case, trial=None), pending=Leaving(ending))
        told = decision(e.step, "leave alone", why, findings=findings_left(case.incident.findings))
        return state, (told, detail(f"left alone: {why}"), *commands)
    incident, base = case.incident, case.base
    keys = frozenset(f.key for f in incident.findings)
    diagnosis = diagnose(case.record, incident, earlier=state.incidents, trials=case.trials)
    told_, commands_, _ = state.notices.report(incident, diagnosis, keys, e.step)
    state = replace(state, notices=told_, incidents=(*state.incidents, incident))
    reason = f"{trial.name}: tried both ways, better without the change, {case.compared}"
    state, kept = keep(
        state,
        case,
        Commit(trial=trial, reason=reason),
        lr_cuts=e.standing.in_force.lr_cuts,
        step=e.step,
    )
    aside = SetAside(
        point=base, first_sign=case.first_sign, now=now.step, why=f"{trial.name} is better"
    )
    onset = NoteOnset(int(incident.first_step))
    return state, (*commands_, DropSnapshots(after=base.step), aside, onset, *kept)
