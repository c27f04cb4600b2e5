"""From an alarm that outlasted the patience to an incident that is dealt with, or advised about.

The incident is looked up, then a state from before its first sign. What is known then decides:
wait, advise, give up, or go back and look at the data ahead.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery import notices
from trimtab.guard.recovery.case import Approach, Case
from trimtab.guard.recovery.commands import (
    FindIncident,
    FindRestorePoint,
    NoteOnset,
    Survey,
    at_step,
    decision,
    findings_left,
    weighed,
)
from trimtab.guard.recovery.data_probe import low_before
from trimtab.guard.recovery.expectation import expected_loss
from trimtab.guard.recovery.kept_remedy import give_up
from trimtab.guard.recovery.learning_rate import find_lr_jump, lr_at, lr_rise, sound_lr
from trimtab.guard.recovery.permission import rights_of, stage
from trimtab.guard.recovery.rough_start import FREED_STEPS, wait_for_start
from trimtab.guard.recovery.situation import affordable_step, situation_of
from trimtab.guard.recovery.state import (
    LeftAlone,
    Opening,
    ReadingWanted,
    Responding,
    StagedRequest,
    Surveying,
    SuspectedChange,
)
from trimtab.guard.recovery.triage import (
    BY_NO_UPDATE,
    COUNTED,
    EARLY_SIGNS,
    NO_RISE,
    SLOW_RISES,
    is_trouble,
    saturates,
)
from trimtab.guard.recovery.trial_cycle import start_probe
from trimtab.guard.recovery.trial_verdict import reading_of
from trimtab.guard.state.decisions import is_back
from trimtab.plan.expected import NEVER_EXPECTED
from trimtab.plan.expected_steps import chance_of_healing
from trimtab.plan.ladder import GiveUp, Wait, next_step, now_or_wait
from trimtab.plan.memory import prefer
from trimtab.plan.planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.commands import Command, Say
    from trimtab.guard.recovery.events import (
        IncidentFound,
        IncidentInRecord,
        ReadingDone,
        RestorePointFound,
        Standing,
        StepDone,
        Surveyed,
    )
    from trimtab.guard.recovery.expectation import Expectation
    from trimtab.guard.recovery.state import RecoveryState
    from trimtab.guard.yardstick.reading import BatchComparison, Reading
    from trimtab.incidents import Incident
    from trimtab.plan.ladder import Situation
    from trimtab.plan.policy import Policy
    from trimtab.record import RunRecord

__all__ = [
    "ask",
    "ask_of_healed",
    "ask_of_weights",
    "asks_first",
    "case_of",
    "decide",
    "examine",
    "has_lasted",
    "is_troubled",
    "leave_again",
    "look_up",
    "open_case",
    "search_base",
    "watch_again",
]

_RECOUNTED = 0.1
"""Distance from 1 of a factor on the loss that the loop was seen to multiply it by. Ours."""
_CHANGE_STEPS = 128
"""Steps within which trouble may follow a change of a setting. Ours: two verifications."""

_GREW = "weights-grew"

_GREW_SHARE = 0.25
"""Of what is noise of fixed batches else, by which each of them must be worse after that: noise
grows no matrix. Ours."""

_COMES_BACK = ("spike", "unrecovered-spike")
"""Rises that end by coming back to where the loss was."""

_TAKEN_IN = 4.0
"""Times what is noise of fixed batches else, beyond which they are worse although the loss of what
is fed has come back: the model has taken in other data, and lost what it knew. Ours."""

_UNREAD = (*EARLY_SIGNS, "after-change")
"""Detectors whose alarms the fixed batches say nothing about."""

_LEFT_ALONE_BEFORE = 2
"""Times that trouble was left alone, from which noise of the fixed batches is no sign of harm."""

_FREED_FOR = 3
"""Times `FREED_STEPS` since parameters were set free, for which what scatters the loss may be theirs.
Ours."""
_ADDED = 0.75
"""Share of the rise of the loss, by which the same weights cost more than when they were trained,
from which the rise is of the loss and not of the weights. Ours."""

_OF_LOW_LOSS = ("replay", "other-data", "other-state", "put-back")
"""Arms that are tried where the loss is too low."""

_BACK_SHARE = 0.15
"""Distance from the level before, share of the unit, within which a loss is back. As of trials."""
_ON_ITS_WAY = 0.5
"""Share of its rise that a loss has at most, after as long as it was left alone. Ours."""
_SAME_KIND, _LEARNED_GAP = 0.5, 0.75
"""Of what fixed batches of other data cost more than what was fed: within what share of it data costs
what they do. And the most that they cost more, share of the unit, where something of them is
learned. Ours."""

_MOST_GAIN = 4.0
"""Units, the descent of the run so far among them, that fixed batches may gain while an alarm is open.
Ours."""
_MOST_PATIENCES = 5
"""Times the patience for which trouble that may heal is waited for, as `supervise` has it. Ours."""

Result = tuple["RecoveryState", tuple["Command", ...]]


def is_troubled(state: RecoveryState, e: StepDone) -> bool:
    """Whether an open alarm on the loss has outlasted the patience."""
    waiting = e.step < state.wait_until
    return any(
        has_lasted(state, e, f)
        for f in state.open.values()
        if not _is_left_alone(state, f)
        and f.severity != "info"
        and f.key not in state.handled
        and f.end_row is None
        and (f.kind == "non-finite" or not waiting)
    )


def _is_left_alone(state: RecoveryState, f: Finding) -> bool:
    """Whether experiments have shown that no remedy helps against what began so early."""
    until = max(state.recounted_until, state.slow_until if f.kind in SLOW_RISES else 0)
    return f.onset < until and f.kind not in NEVER_EXPECTED


def has_lasted(state: RecoveryState, e: StepDone, f: Finding) -> bool:
    """Whether an open alarm has outlasted the patience, so that `act` would do something."""
    policy, grace, recurrence = state.policy, state.grace, state.recurrence
    returns = recurrence.returns(policy, f)
    return is_trouble(
        f,
        e.row - 1 - f.onset_row,
        0 if returns or e.last else policy.patience_steps,
        last=e.last,
        scaled=e.scaled,
        waits=lambda f: (
            not recurrence.returns(policy, f) and grace.lasts(policy, f, e.step, lr=e.script_lr)
        ),
    )


def asks_first(state: RecoveryState, e: StepDone) -> bool:
    """Whether the yardstick is read before anything is done: what it cannot say is acted on.

    A loss or norm that is not finite needs no second opinion. An early sign gets none, since it
    comes before the loss rises on any batch, nor does a change of a setting: dropout is off in eval
    mode, and what only slows learning makes no state worse.
    """
    acting = state.policy.mode == "act" and not state.advising_only
    finite = math.isfinite(e.loss) and (math.isfinite(e.norm) or e.scaled)
    grave = any(
        (f.kind == "non-finite" or (f.detector in _UNREAD and f.severity != "info"))
        and not f.closed
        and f.key not in state.handled
        for f in state.open.values()
    )
    return acting and e.reads and finite and not grave and not e.last


def ask(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Ask for a reading of the state of now, and of the one from before the first sign."""
    alarms = _alarms(state)
    # what is read now and then began somewhere between two readings: other signs know better
    onsets = [f.onset for f in alarms if f.grain_rows == 1] or [f.onset for f in alarms]
    target = int(min(onsets, default=e.step)) - 1 - state.policy.rollback_margin_steps
    return replace(state, wants=ReadingWanted(e, max(target, 0)))


def ask_of_weights(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Ask for a reading where a matrix or the moments changed by no update.

    The loss may not say what that did.
    """
    grew = [f for f in e.findings if f.detector in BY_NO_UPDATE and not f.closed]
    acting = state.policy.mode == "act" and not state.advising_only
    if not (grew and acting and e.reads) or e.last or state.wants is not None:
        return state
    # it grew after the reading before that one, or in its step
    since = int(grew[0].onset) - state.policy.probe_every_steps
    target = max(since - state.policy.rollback_margin_steps, 0)
    return replace(state, wants=ReadingWanted(e, target))


def ask_of_healed(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Ask for a reading where a rise of the loss is over: the model may have taken in other data.

    The loss of what it was fed has come back; what it knew before, only the fixed batches tell.
    """
    over = [
        f
        for f in e.findings
        if f.closed and f.signal == "loss" and f.severity != "info" and f.kind in _COMES_BACK
    ]
    over = [f for f in over if f.key not in state.handled and f.grain_rows == 1]
    acting = state.policy.mode == "act" and not state.advising_only
    busy = state.wants is not None or state.verification is not None
    soon = e.step < state.healed_step + state.policy.verify_steps
    if not (over and acting and e.reads) or e.last or busy or soon:
        return state
    first = min(over, key=lambda f: f.onset)
    target = max(int(first.onset) - 1 - state.policy.rollback_margin_steps, 0)
    wants = ReadingWanted(e, target, healed=first)
    return replace(state, wants=wants, healed_step=float(e.step))


def _weigh_healed(
    state: RecoveryState, healed: Finding, asked: ReadingWanted, r: Reading, found: BatchComparison
) -> Result:
    """Go back where the fixed batches have not come back with the loss of what is fed."""
    if not (found.worse and not found.rise <= _TAKEN_IN * found.limit):
        return state, ()
    why = f"the loss is back, and they are worse: {_told(r, found)}"
    step = asked.event.step
    state, more = look_up(state, replace(asked.event, is_worse=True))
    text = f"{healed.text}; the fixed batches are not: {_told(r, found)}"
    return state, (decision(step, "read the fixed batches", why), at_step(step, text), *more)


def _weigh_weights(
    state: RecoveryState, asked: ReadingWanted, step: int, r: Reading, found: BatchComparison
) -> Result:
    """Make an alarm of a matrix that grew where the fixed batches are worse; else leave it."""
    each = len(r.losses) == len(r.base) and all(
        a > b for a, b in zip(r.losses, r.base, strict=True)
    )
    if not (found.worse or (each and found.rise > _GREW_SHARE * found.limit)):
        why = f"the fixed batches have not got worse: {_told(r, found)}"
        grown = next((f for f in asked.event.findings if f.detector == _GREW), None)
        if grown is not None and state.suspected is None:  # how it learned before is not known
            due = step + state.policy.verify_steps // 2
            suspected = SuspectedChange(
                finding=grown, step=step, due_step=due, losses=r.losses, speed=math.inf
            )
            state = replace(state, suspected=suspected)
        return state, (decision(step, "leave alone", why),)
    grew = {
        f.key: replace(f, severity="warning")
        for f in asked.event.findings
        if f.detector in BY_NO_UPDATE
    }
    state = replace(state, open={**state.open, **grew})
    told = decision(step, "read the fixed batches", f"worse: {_told(r, found)}")
    state, more = look_up(state, replace(asked.event, is_worse=True))
    return state, (told, *more)


def leave_again(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Leave alone what was left alone before a restart, and look after it from here on."""
    again = [f for f in e.findings if (f.detector, f.signal, int(f.onset)) in state.left_before]
    keys = frozenset(f.key for f in again if f.severity != "info")
    state = replace(state, handled=state.handled | {f.key for f in again})
    if not keys or not e.reads or state.policy.mode != "act":
        return state
    if state.watch is not None:
        return replace(state, watch=replace(state.watch, keys=state.watch.keys | keys))
    wait = max(state.policy.patience_steps, 1)
    watch = LeftAlone(
        keys=keys, target_step=e.step, losses=(), base=(), due_step=e.step + wait, wait_steps=wait
    )
    return replace(state, watch=watch)


def watch_again(state: RecoveryState, e: StepDone) -> RecoveryState:
    """Ask for a reading where trouble that was left alone is to be looked after."""
    w = state.watch
    if w is None or e.step < w.due_step or state.wants is not None:
        return state
    if state.advising_only or not e.reads or e.last:
        return replace(state, watch=None)
    return replace(state, wants=ReadingWanted(e, w.target_step))


def decide(state: RecoveryState, asked: ReadingWanted, e: ReadingDone) -> Result:
    """Leave the run alone where the fixed batches have not got worse; else see what to do."""
    r, watch = e.reading, state.watch
    if r is None or not r.base or (not math.isfinite(e.scale.sigma) and r.sigma is None):
        if watch is not None and e.step >= watch.due_step:
            return replace(state, watch=None), ()
        return look_up(state, asked.event) if _alarms(state) else (state, ())
    if not (all(map(math.isfinite, r.losses)) or any(map(math.isfinite, r.base))):
        return _evaluation_is_broken(state, asked, e.step, r)
    if r.sigma == math.inf and all(map(math.isfinite, (*r.losses, *r.base))):
        return look_up(state, asked.event) if _alarms(state) else (state, ())
    factor = _recounted(r, e.scale)
    scale = replace(e.scale, sigma=factor * e.scale.sigma, unit=factor * e.scale.unit)
    found = reading_of(r.losses, r, scale, tolerance=state.policy.verify_tolerance)
    if r.foreign and watch is not None and asked.target_step == watch.target_step:
        return _look_after_loss(state, watch, asked, e, scale, found)
    if watch is not None and asked.target_step == watch.target_step:
        return _look_after(state, watch, asked, e.step, r, found)
    alarms = _alarms(state)
    arrived = bool(alarms) and r.foreign and _costs_as_much(asked.event.loss, r, scale, found)
    # What batches of other data accuse is not this run.
    if r.foreign and not arrived and not (alarms and found.rise <= 0):
        return look_up(state, asked.event) if alarms else (state, ())
    if not alarms and asked.healed is not None:
        return _weigh_healed(state, asked.healed, asked, r, found)
    # An alarm of before that nobody acted on is not what the batches got worse by.
    by_itself = any(f.detector in BY_NO_UPDATE and not f.closed for f in asked.event.findings)
    if not alarms or (by_itself and found.worse):
        return _weigh_weights(state, asked, e.step, r, found)
    # Some steps have been done since: a sound state is no worse than the older one at all. What
    # lies within noise of it is dealt with as if nothing had been read, except where waiting is
    # known to do no harm: after a jump that was left alone before, of a rise without a jump, which
    # is looked at again soon, of a loss that is too low, where the loop counts the loss otherwise, and
    # shortly after parameters were set free, whose first updates scatter the loss.
    slow = all(f.kind in SLOW_RISES or f.kind in NO_RISE for f in alarms)
    # the older weights cost as much more now: what is added to the loss is no state's doing
    extra, risen = r.base_mean - scale.level, asked.event.loss - scale.level
    added = r.sigma is None and extra >= _ADDED * risen > 0
    harmless = (
        slow
        or added
        or abs(factor - 1) > _RECOUNTED
        or state.times_left_alone >= _LEFT_ALONE_BEFORE
        or arrived
        or _are_of_freed(state, alarms, e)
    )
    # No step takes a sound loss so far down: it is counted otherwise, or has another sign.
    believed = found.rise >= -_MOST_GAIN * scale.unit
    alike = found.rise <= 0 or (harmless and math.isfinite(found.rise))
    if found.worse or not (believed and alike):
        what = "worse" if found.worse else "not better" if believed else "too good to be true"
        told = decision(e.step, "read the fixed batches", f"{what}: {_told(r, found)}")
        # what lies within noise shows neither: that waiting does no harm is not known
        state, more = look_up(state, replace(asked.event, is_worse=found.worse or None))
        return state, (told, *more)
    wait = max(state.policy.patience_steps, 1)
    watch = LeftAlone(
        keys=frozenset(f.key for f in alarms),
        target_step=asked.target_step,
        losses=r.losses,
        base=r.base,
        due_step=e.step + wait,
        wait_steps=wait,
        loss=asked.event.loss,
    )
    state = replace(
        state,
        handled=state.handled | watch.keys,
        watch=watch,
        times_left_alone=state.times_left_alone + 1,
    )
    why = f"the fixed batches have not got worse: {_told(r, found)}"
    if arrived:
        why += f"; what is fed now ({asked.event.loss:.4g}) costs what they do: other data"
    if abs(factor - 1) > _RECOUNTED:
        # Paired with what the same weights cost on the same batches it is sure; else labels may do it.
        doubt = "" if r.recount is not None else " (or other labels are asked for)"
        why += f"; the loss is counted differently{doubt}, x {factor:.3g} for the same weights"
    what = ", ".join(sorted({f.kind for f in alarms}))
    return state, (
        decision(
            e.step,
            "leave alone",
            why,
            tuple(f.text for f in alarms)[:6],
            findings=findings_left(alarms),
        ),
        at_step(e.step, f"{what} of the training loss left alone: {why}"),
    )


def _evaluation_is_broken(
    state: RecoveryState, asked: ReadingWanted, step: int, r: Reading
) -> Result:
    """Leave alone what only an evaluation says that gives no number for a sound state either.

    What the training loss says is looked into as if nothing had been read.
    """
    alarms = _alarms(state)
    own = frozenset(f.key for f in alarms if f.kind == "held-out-worse")
    state = replace(state, handled=state.handled | own, watch=None)
    why = (
        f"the evaluation gives no finite number for the weights of step {r.base_step} either:"
        " it is broken, not the state"
    )
    said = decision(step, "read the fixed batches", why), at_step(step, why)
    if own or not alarms:
        return state, said
    state, more = look_up(state, asked.event)
    return state, (*said, *more)


def _look_after(
    state: RecoveryState,
    watch: LeftAlone,
    asked: ReadingWanted,
    step: int,
    r: Reading,
    found: BatchComparison,
) -> Result:
    """Go on leaving trouble alone, or deal with it after all."""
    since = found.rise
    if len(watch.base) == len(r.base) and len(watch.losses) == len(r.losses):
        # What the loop itself makes of the loss has changed by as much as the older state's has.
        moved = r.base_mean - _mean(watch.base)
        since = max(since, r.mean - _mean(watch.losses) - moved)
    # A state far better than the older one, as the loop counts now, is not mended by that one.
    if not since <= found.limit and not found.rise < -found.limit:
        # Only the comparison that decides: the other one may lie within its noise.
        against = _told(r, found)
        if found.rise <= found.limit < since:
            against = f"{since:+.3g} since it was left alone ({found.limit:.2g} is noise)"
        why = f"worse after all: {against}"
        state = replace(state, watch=None, handled=state.handled - watch.keys, left_before=())
        told = decision(step, "read the fixed batches", why, no_longer=True)
        said = at_step(step, f"the fixed batches are {why}")
        state, more = look_up(state, replace(asked.event, is_worse=True))
        return state, (told, said, *more)
    wait = 2 * watch.wait_steps
    over = wait > state.policy.verify_steps
    again = replace(watch, due_step=step + wait, wait_steps=wait)
    return replace(state, watch=None if over else again), ()


def _look_after_loss(
    state: RecoveryState,
    watch: LeftAlone,
    asked: ReadingWanted,
    e: ReadingDone,
    scale: Expectation,
    found: BatchComparison,
) -> Result:
    """Leave alone what the training loss comes back from by itself; else deal with it after all.

    It is on its way where it has halved, or where what is fed now is of the kind of the fixed
    batches: they get better still, have gained more than the loss has lost, or cost as much and are
    no worse.
    """
    assert e.reading is not None
    risen, left = asked.event.loss - e.scale.level, watch.loss - e.scale.level
    better = e.reading.mean < _mean(watch.losses) - found.limit or found.rise < -risen
    arrived = _costs_as_much(asked.event.loss, e.reading, scale, found)
    mends = better or arrived or risen <= _ON_ITS_WAY * left
    if risen <= _BACK_SHARE * e.scale.unit:
        return replace(state, watch=None), ()
    wait = 2 * watch.wait_steps
    if mends:
        again = replace(watch, due_step=e.step + wait, wait_steps=wait, losses=e.reading.losses)
        return replace(state, watch=again if wait <= state.policy.verify_steps else None), ()
    why = f"the loss has not come back: {asked.event.loss:.4g}, {e.scale.level:.4g} before"
    state = replace(state, watch=None, handled=state.handled - watch.keys, left_before=())
    told = decision(e.step, "deal with it after all", why, no_longer=True)
    state, more = look_up(state, asked.event)
    return state, (told, at_step(e.step, why), *more)


def _costs_as_much(loss: float, r: Reading, scale: Expectation, found: BatchComparison) -> bool:
    """Whether what is fed has come to cost what the fixed batches of other data do, that are no worse.

    The data has then become of their kind: a state that is at fault does worse on them as well,
    where it has learned something of them. What it has not costs as much however broken it is.
    """
    gap = r.mean - scale.level
    learned = 0 < gap <= _LEARNED_GAP * scale.unit
    return learned and not found.worse and abs(loss - r.mean) <= _SAME_KIND * gap


def _recounted(r: Reading, scale: Expectation) -> float:
    """Return by what the loop now multiplies the loss that the older state had; 1: it does not.

    The batches are copies, and the weights those of then: only the loop itself can have changed.
    """
    if r.recount is not None:
        return r.recount
    if r.sigma is not None or not scale.level > 0:
        return 1.0
    factor = r.base_mean / scale.level
    return factor if COUNTED <= factor < math.inf else 1.0


def _mean(losses: tuple[float, ...]) -> float:
    return sum(losses) / len(losses)


def _alarms(state: RecoveryState) -> list[Finding]:
    """Return the open alarms that nothing was decided about."""
    return [
        f
        for f in state.open.values()
        if f.severity != "info" and f.key not in state.handled and f.end_row is None
    ]


def _are_of_freed(state: RecoveryState, alarms: Sequence[Finding], e: ReadingDone) -> bool:
    """Whether alarms began soon after parameters were set free, and not long ago.

    A matrix whose norm jumps is more than their first updates.
    """
    soon = 0 <= _first_of(state, alarms) - e.freed_step <= FREED_STEPS
    jumped = any(f.signal == "weight_jump" for f in state.open.values())
    return soon and e.step - e.freed_step <= _FREED_FOR * FREED_STEPS and not jumped


def _first_of(state: RecoveryState, alarms: Sequence[Finding]) -> float:
    """Return the step of the first sign of these alarms: of spikes that return, that of the first."""
    recurrence, policy = state.recurrence, state.policy
    returned = (recurrence.first_of(policy, f) for f in alarms if recurrence.returns(policy, f))
    return min((*(f.onset for f in alarms), *returned), default=math.inf)


def _told(r: Reading, found: BatchComparison) -> str:
    return (
        f"{r.mean:.4g} against {r.base_mean:.4g} with the weights of step {r.base_step}"
        f" ({found.rise:+.3g}, {found.limit:.2g} is noise)"
    )


def look_up(state: RecoveryState, e: StepDone) -> Result:
    """Ask which incident is behind the alarm."""
    advising = state.policy.mode == "advise" or state.advising_only
    question = FindIncident(
        tuple(state.open.values()), state.handled, together=True, recall=advising
    )
    return replace(state, pending=Responding(e)), (question,)


def search_base(state: RecoveryState, asked: Responding, e: IncidentFound) -> Result:
    """Advise on the incident; or, in act mode, ask for a state from before its first sign."""
    found = e.found
    if found is None:  # reported already: do not look it up again with every step
        return replace(state, handled=state.handled | frozenset(state.open)), ()
    if state.policy.mode == "advise" or state.advising_only:
        return _advise(state, found, e)
    rights = rights_of(state.policy, e.standing.used_today, state.granted)
    if rights.restore == "never":
        state, commands = _advise(state, found, e)
        return state, (*commands, decision(e.step, "not allowed", "; ".join(rights.refused)))
    if state.forgives:
        state = replace(state, forgives=False, rollbacks_forgiven=e.standing.rollbacks)
    approach = _approach(state, found, e.standing, asked.event.step)
    state = replace(state, pending=Opening(asked.event, found, approach))
    return state, (FindRestorePoint(approach.target_step, or_oldest=True),)


def _approach(
    state: RecoveryState, found: IncidentInRecord, standing: Standing, step: int
) -> Approach:
    """Return how far back to go: before the first sign, further where it has come back."""
    policy, incident, record = state.policy, found.incident, found.record
    recurrence = state.recurrence
    # where spikes return, the trouble began with the first of them, not with the last
    returned = [f for f in incident.findings if recurrence.returns(policy, f)]
    first_sign = min([_first_step(incident), *(recurrence.first_of(policy, f) for f in returned)])
    # a change that nobody announced may act long before it shows
    recent = [c.step for c in standing.changed if 0 <= first_sign - c.step <= _CHANGE_STEPS]
    first_sign = min([first_sign, *recent])
    low_since = low_before(incident, state.open.values())
    first_sign = first_sign if low_since is None else min(first_sign, low_since)
    # earlier incidents near this one: what was done did not last, so go further back
    horizon = 4 * policy.verify_steps
    recurrences = sum(1 for onset in standing.last_onsets if abs(onset - first_sign) <= horizon)
    # a detector sees a sign some steps after its cause, hence the margin
    target = first_sign - 1 - policy.rollback_margin_steps
    distance = max(int(incident.onset) - target, 1)
    target -= distance * (2**recurrences - 1)
    cuts = standing.in_force.lr_cuts
    jump = find_lr_jump(incident, record, cuts)
    rising, sound = (False, None) if jump else lr_rise(record, incident.onset, cuts)
    if saturates(incident) or returned:
        # it grew as long before it could be told apart as it did after
        grown = step - first_sign
        deeper = target - (grown // 2 if rising else grown)  # lower rates did less harm before
        target = max(deeper, min(target, affordable_step(state, standing, step)))
    return Approach(
        first_sign=first_sign,
        target_step=target,
        recurrences=recurrences,
        returning=bool(returned),
        lr_jump=jump,
        lr_rising=rising,
        lr_sound=sound,
        low_since=low_since,
    )


def _first_step(incident: Incident) -> int:
    """Return the first sign of an incident; a rate that came back, which is a note, is none.

    Nor is anything before a change of a setting since which the loss, or the fixed batches, have
    risen.
    """
    if any(f.detector == "after-change" and f.onset == incident.onset for f in incident.findings):
        return int(incident.onset)
    if incident.kind == "held-out-worse":  # begun anywhere between two readings: by the change
        read = [f for f in incident.findings if f.kind == incident.kind]
        begun, last = min(f.onset for f in read), max(f.step for f in read)
        changes = [f.onset for f in incident.findings if f.kind == "setting-jump"]
        within = [x for x in changes if begun <= x <= last]
        # a jump of another signal in between dates it as well
        jumped = [incident.first_step] if incident.onset > begun else []
        return int(min([*within, *jumped], default=incident.first_step))
    came_back = {f.onset for f in incident.findings if f.signal == "lr" and f.severity == "info"}
    if incident.first_step not in came_back:
        return int(incident.first_step)
    alarms = [f.onset for f in incident.findings if f.severity != "info"]
    return int(min([*alarms, incident.onset]))


def examine(state: RecoveryState, asked: Opening, e: RestorePointFound) -> Result:
    """Ask what the first decision needs besides the state; give up where there is none."""
    incident = asked.found.incident
    # the oldest state stands in where none lies before the target; it must precede the onset
    begun = max(incident.onset, asked.approach.first_sign)
    if e.point is None or e.point.step >= begun:
        state, commands = _report(state, asked.found, e.step)
        state, more = give_up(state, "no healthy state lies before the first sign", e.step)
        return state, (*commands, *more)
    state = replace(state, pending=Surveying(asked.event, asked.found, asked.approach, e.point))
    return state, (Survey(e.point, incident.kind),)


def open_case(state: RecoveryState, asked: Surveying, e: Surveyed) -> Result:
    """Wait, give up, or go back and begin to look at the data ahead."""
    case = case_of(asked, e)
    # asked before anything is reported: while it waits, the alarm stays unhandled and comes again
    situation = situation_of(state, case, e.standing, e.oldest_step)
    situation = replace(
        situation,
        due=bool(due := _why_due(state, asked.event, case, situation)),
        heals=_heals(state, asked.found, situation.lasted),
    )
    ahead = wait_for_start(case, state.policy.patience_steps) or next_step(situation)
    if isinstance(ahead, Wait):
        state = replace(state, wait_until=ahead.until_step)
        waits = decision(e.step, "wait", ahead.reason)
        return state, (waits, at_step(e.step, f"waiting: {ahead.reason}"))
    problem = e.misfit or (ahead.reason if isinstance(ahead, GiveUp) else "")
    rights = rights_of(state.policy, e.standing.used_today, state.granted)
    if rights.restore == "ask" and not problem:
        return _ask_first(state, asked, rights.asks, e)
    state, commands = _report(state, asked.found, e.step)
    if problem:
        state, more = give_up(state, problem, e.step)
        return state, (*commands, *more)
    shadow, ended = state.shadow.end("recovery went back", e.step)
    state, commands = replace(state, shadow=shadow), (*commands, *ended)
    case = replace(
        case, arms=arms_for(case.incident.kind, rights.arms, state.policy), asks=rights.asks
    )
    if rights.refused:
        commands = (*commands, decision(e.step, "not allowed", "; ".join(rights.refused)))
    state = replace(state, granted=None)
    # the steps after the base are undone, and with them what was measured of earlier changes
    told, ended = state.notices.end_skips()
    state = replace(state, notices=told, effects=state.effects.forget_changes(), case=case)
    state, more = start_probe(state, case, e.step)
    sums = weighed(e.step, "go back, and do not wait", now_or_wait(situation), because=due)
    return state, (*commands, *ended, sums, NoteOnset(int(case.incident.first_step)), *more)


def arms_for(kind: str, allowed: tuple[str, ...] | None, policy: Policy) -> tuple[str, ...] | None:
    """Return what is tried against an incident of a kind, of what is allowed; None: all of it.

    Nothing that steadies an update is a cure of a loss that is too low.
    """
    if kind != "too-good":
        return allowed
    return tuple(a for a in (policy.arms if allowed is None else allowed) if a in _OF_LOW_LOSS)


def _why_due(state: RecoveryState, e: StepDone, case: Case, s: Situation) -> str:
    """Return why waiting is no choice; empty where it is."""
    stays = s.saturating or s.returning or s.lr_jump_step is not None or bool(s.changed)
    reasons = {
        "the fixed batches have got worse": e.is_worse is True,
        "no fixed batches show that waiting does no harm": e.is_worse is None,
        "it is critical": case.incident.severity == "critical" or s.nonfinite,
        "what it may come from stays": stays,
        "it lasts": s.lasted >= _MOST_PATIENCES * max(state.policy.patience_steps, 1),
        "the run would end here": e.last,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _heals(state: RecoveryState, found: IncidentInRecord, lasted: int) -> float:
    """Return how likely an incident passes by itself until the next look."""
    causes = diagnose(found.record, found.incident, earlier=state.incidents).causes
    soon = max(state.policy.patience_steps, 1)
    confidence = {c.cause: c.confidence for c in causes}
    return chance_of_healing(confidence, lasted=lasted, soon=soon)


def _ask_first(
    state: RecoveryState, asked: Surveying, classes: tuple[str, ...], e: Surveyed
) -> Result:
    """Report the incident, and stage going back to the state that was found for it."""
    incident = asked.found.incident
    # not counted as dealt with: it is acted on once it is approved
    diagnosis = diagnose(asked.found.record, incident, earlier=state.incidents)
    told, commands, _ = state.notices.report(incident, diagnosis, asked.found.keys, e.step)
    request = StagedRequest(
        kind=incident.kind,
        classes=classes,
        step=e.step,
        target_step=asked.base.step,
        found=asked.found,
        event=asked.event,
        approach=asked.approach,
    )
    why = f"{incident.kind}, first sign at step {asked.approach.first_sign}"
    state, more = stage(replace(state, notices=told), request, why=why, step=e.step)
    return state, (*commands, *more)


def case_of(asked: Surveying, e: Surveyed) -> Case:
    """Return the case that is opened from a state that was found."""
    approach, base = asked.approach, asked.base
    record, incident = asked.found.record, asked.found.incident
    cuts, jump = e.standing.in_force.lr_cuts, approach.lr_jump
    now = jump.after if jump else lr_at(record, incident.onset, cuts)
    return Case(
        incident=incident,
        record=record,
        seen_step=asked.event.step,
        seen_sample=asked.event.sample,
        base=base,
        lr_now=now,
        lr_restore=(
            jump.before if jump else approach.lr_sound or sound_lr(record, base.step, now, cuts)
        ),
        lr_sound=approach.lr_sound,
        expected=expected_loss(record, base.step, onset=approach.first_sign),
        before=e.standing.in_force,
        lr_jump=jump,
        recurrences=approach.recurrences,
        worked=e.worked,
        first_sign=approach.first_sign,
        low_since=approach.low_since,
        returning=approach.returning,
        lr_rising=approach.lr_rising,
        lr_scheduled=e.standing.lr_scheduled,
        lr_returned=jump is not None and is_back(e.standing.script_lr, jump.before),
        beta2=e.beta2,
        eps=e.eps,
    )


def _report(state: RecoveryState, found: IncidentInRecord, step: int) -> Result:
    """Count the incident as dealt with, and report it unless that was done."""
    diagnosis = diagnose(found.record, found.incident, earlier=state.incidents)
    told, commands, _ = state.notices.report(found.incident, diagnosis, found.keys, step)
    return _handled(replace(state, notices=told), found), commands


def _handled(state: RecoveryState, found: IncidentInRecord) -> RecoveryState:
    incidents = state.incidents
    if found.incident not in incidents:  # a person may have been asked about it in between
        incidents = (*incidents, found.incident)
    return replace(state, handled=state.handled | found.keys, incidents=incidents)


def _planned_samples(record: RunRecord, step: int, final_step: int | None) -> float | None:
    """Return the samples of the whole run at the rate so far; None where that is not known."""
    column = record.columns.get("samples_seen")
    if column is None or final_step is None or step < 1:
        return None
    rows = column.finite_rows(slice(0, record.num_rows))
    return float(column.values[rows[-1]]) / step * final_step if len(rows) else None


def _advise(state: RecoveryState, found: IncidentInRecord, e: IncidentFound) -> Result:
    """Report the incident, and say the first remedies of its plan."""
    record, incident, keys = found.record, found.incident, found.keys
    earlier = state.incidents
    # What the case before has shown stays true: advice must not contradict it.
    left = state.left if state.left is not None and state.left.kind == incident.kind else None
    probe, trials = (None, ()) if left is None else (left.probe, left.trials)
    diagnosis = diagnose(record, incident, earlier=earlier, probe=probe, trials=trials)
    told, commands, is_new = state.notices.report(incident, diagnosis, keys, e.step)
    plan = make_plan(record, incident, diagnosis, earlier=earlier, probe=probe, trials=trials)
    plan = prefer(plan, e.worked)
    left_out = sum(last - first + 1 for first, last in e.standing.skips)
    planned = _planned_samples(record, e.step, state.final_step)
    plan = notices.within_limit(plan, state.policy, planned=planned, left_out=left_out)
    headline: tuple[Say, ...] = ()
    if not is_new:  # it was reported at its opening; say again what the advice is about
        told, headline = told.headline(incident, e.step)
    texts, lines = notices.advice(plan)
    told = told.advised_on(incident, texts, keys, e.step)
    state = _handled(replace(state, notices=told), found)
    advised = decision(e.step, "advise", "; ".join(texts))
    return state, (*commands, *headline, *lines, advised)
