"""What recovery may do by itself in one incident, and what it asks a person for.

    trouble --restore is ask-----------------------> staged --approved--> go back, try all
    trouble --go back, try what may act--none held-> staged --approved--> go back, try the rest
                                                       |denied or never: advice only
                                                       |no answer: what `at_deadline` says

While an action is staged training goes on as it is, and nothing else is acted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.commands import (
    AwaitAnswer,
    FindRestorePoint,
    JournalAction,
    JournalEvent,
    NoteAction,
    RaiseRate,
    TakeSnapshot,
    at_step,
    decision,
    detail,
)
from trimtab.guard.recovery.situation import affordable_probe
from trimtab.guard.recovery.state import Grant, Opening, StagedRequest
from trimtab.plan.authority import ARM_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import AnswerHeard, StepDone
    from trimtab.guard.recovery.state import RecoveryState
    from trimtab.plan.policy import Policy

__all__ = [
    "RISES",
    "Rights",
    "answered",
    "no_longer_needed",
    "rights_of",
    "stage",
    "stage_rise",
    "withdraw",
]

Result = tuple["RecoveryState", tuple["Command", ...]]

RAISE = "raise-lr"
"""The action that gives a part of a cut of the rate back."""
RISES = (RAISE, "undo lower-lr")
"""Actions after which the rate is higher on purpose."""


@dataclass(frozen=True)
class Rights:
    """What may be done in one incident."""

    restore: str
    """never, ask or act."""
    arms: tuple[str, ...] | None = None
    """Branches that may be tried; None: all of the policy."""
    asks: tuple[str, ...] = ()
    """Classes of action that a person would have to allow first."""
    refused: tuple[str, ...] = ()
    """Why the classes that are never done are not."""


def rights_of(policy: Policy, used: Mapping[str, int], grant: Grant | None = None) -> Rights:
    """Return what may be done by itself in an incident.

    Args:
        policy: Says what each class of action may do, and how often within a day.
        used: Actions of each class within the last 24 hours, count.
        grant: What a person has allowed for it; None: nothing.
    """
    authority = policy.permissions
    granted = () if grant is None else grant.classes

    def permission(action: str) -> str:
        if action in granted:
            return "act"
        return authority.permission(action, used_today=used.get(action, 0))

    class_of = {arm: ARM_CLASS.get(arm) for arm in policy.arms}
    by_arm = {arm: "act" if c is None else permission(c) for arm, c in class_of.items()}
    if grant is not None and grant.only:  # the others were tried, and none held
        by_arm = {a: p if class_of[a] in granted else "never" for a, p in by_arm.items()}
    allowed = tuple(arm for arm in policy.arms if by_arm[arm] == "act")
    restore = permission("restore")
    asks = tuple(
        dict.fromkeys(
            [
                *(["restore"] if restore == "ask" else []),
                *(str(class_of[arm]) for arm in policy.arms if by_arm[arm] == "ask"),
            ]
        )
    )
    classes = dict.fromkeys(["restore", *(c for c in class_of.values() if c is not None)])
    refused = tuple(
        filter(None, (authority.why_not(c, used_today=used.get(c, 0)) for c in classes))
    )
    return Rights(restore, None if allowed == policy.arms else allowed, asks, refused)


def stage(state: RecoveryState, request: StagedRequest, *, why: str, step: int) -> Result:
    """Ask a person: write the action down with its cost and its undo, and go on training."""
    policy = state.policy
    gone = max(step - request.target_step, 0)
    trial = max(policy.trial_steps, gone + 2 * policy.patience_steps)
    cost = round(gone + affordable_probe(policy) + trial)
    what = f"go back to step {request.target_step} or before"
    further = [c for c in request.classes if c != "restore"]
    if further:
        what += f", and try there: {', '.join(further)}"
    data = {
        "what": what,
        "why": why,
        "cost_steps": cost,
        "given_up_steps": gone,
        "trial_steps": trial,
        "undo": "nothing is deleted: checkpoints after it are moved to aside/;"
        " guard.undo(REMEDY, why=...) takes a kept change back",
    }
    told = f"about {cost} steps ({gone} given up, {trial} of trials and probes)"
    return _wait(state, request, data, step=step, cost=told)


def stage_rise(state: RecoveryState, request: StagedRequest, *, what: str, why: str) -> Result:
    """Ask a person whether the rate may rise; nothing else waits for the answer."""
    data = {
        "what": what,
        "why": why,
        "cost_steps": 0,
        "raise_by": request.raise_by,
        "undo": f"guard.scale_lr({1 / request.raise_by:.3g}, why=...) cuts it again",
    }
    told = "no steps, unless the rate is too high; then what came after it is given up"
    return _wait(state, request, data, step=request.step, cost=told)


def _wait(
    state: RecoveryState,
    request: StagedRequest,
    data: Mapping[str, object],
    *,
    step: int,
    cost: str,
) -> Result:
    """Stage an action, and wait for what is said to it."""
    policy = state.policy
    replaced: tuple[Command, ...] = ()
    if state.request is not None:  # one that blocks nothing
        state, replaced = withdraw(state, "something else has to be asked", step)
    request = replace(request, id=f"ask-{state.num_requests + 1}")
    meanwhile = {
        "wait": "without an answer nothing is done and the request stays open",
        "never": "without an answer nothing is done",
        "act": "without an answer it is done",
    }[policy.at_deadline]
    known = {
        "id": request.id,
        "classes": list(request.classes),
        "kind": request.kind,
        "deadline_s": policy.ask_deadline_s,
        "at_deadline": policy.at_deadline,
    }
    state = replace(state, request=request, num_requests=state.num_requests + 1)
    return state, (
        *replaced,
        JournalEvent("staged", step, {**known, **data}),
        at_step(step, f"waits for approval ({request.id}): {data['what']}; {data['why']}"),
        detail(f"cost: {cost}"),
        detail(
            f"training goes on; trimtab approve RUN {request.id}, or --deny; after"
            f" {policy.ask_deadline_s:g} s {meanwhile}"
        ),
        AwaitAnswer(policy.ask_deadline_s),
    )


def answered(state: RecoveryState, e: AnswerHeard) -> Result:
    """Do, or leave, what was staged."""
    request = state.request
    if request is None or e.id != request.id:
        return state, ()
    policy = state.policy
    if not request.blocks and (void := _void(state)):
        return withdraw(state, void, e.step)
    if e.answer == "deadline" and policy.at_deadline == "wait":
        text = f"{request.id} still waits for approval; training goes on as it is"
        return state, (
            decision(e.step, "wait", text),
            at_step(e.step, f"{text}: trimtab approve RUN {request.id}, or --deny"),
            AwaitAnswer(policy.ask_deadline_s),
        )
    approved = e.answer == "approved" or (e.answer == "deadline" and policy.at_deadline == "act")
    data = {"id": request.id, "answer": e.answer, "why": e.why, "by": e.by, "done": approved}
    told = f"{request.id} {e.answer}" + f" by {e.by}" * bool(e.by)
    told += f": {e.why}" if e.why else ""
    commands: tuple[Command, ...] = (
        JournalEvent("answered", e.step, data),
        at_step(e.step, told),
    )
    state = replace(state, request=None)
    if not approved:
        if not request.blocks:
            state = replace(state, early_cut=None)
        handled = state.handled
        if request.found is not None:
            handled |= request.found.keys
        return replace(state, handled=handled), commands
    if not request.blocks:
        state, more = raise_rate(state, request.raise_by, e.step, why=told)
        return state, (*commands, *more)
    state = replace(state, granted=Grant(request.kind, request.classes, only=request.after_trials))
    if request.found is None or request.event is None or request.approach is None:
        return state, commands  # staged before a restart: it holds for the next such trouble
    opened = Opening(request.event, request.found, request.approach)
    return replace(state, pending=opened), (
        *commands,
        FindRestorePoint(request.approach.target_step, or_oldest=True),
    )


def withdraw(state: RecoveryState, why: str, step: int) -> Result:
    """Take back what was staged: there is nothing left to approve."""
    request = state.request
    if request is None:
        return state, ()
    data = {"id": request.id, "answer": "withdrawn", "why": why, "done": False}
    return replace(state, request=None), (
        JournalEvent("answered", step, data),
        at_step(step, f"{request.id} withdrawn: {why}"),
    )


def raise_rate(state: RecoveryState, factor: float, step: int, *, why: str) -> Result:
    """Give a part of a cut of the rate back from the next step on, and watch what comes of it."""
    values = {"factor": factor, "lr_from_step": step + 1}
    effects = state.effects.begin_by_hand(RAISE, step, verify_steps=state.policy.verify_steps)
    rises = (*state.rises, (step + 1, factor))
    return replace(state, effects=effects, rises=rises, early_cut=None), (
        RaiseRate(step + 1, factor),
        NoteAction(step, RAISE, values, why),
        JournalAction(step, RAISE, values, why),
        TakeSnapshot(),
        at_step(step, f"learning rate x {factor:.3g} from step {step + 1} on: {why}"),
    )


def _void(state: RecoveryState) -> str:
    """Return why a request to raise the rate is none any more; empty where it still is."""
    if state.early_cut is None:
        return "the cut no longer stands"
    asks = state.policy.permissions.permission("raise-rate") == "ask"
    return "" if asks else "the policy no longer asks about it"


def no_longer_needed(state: RecoveryState, e: StepDone) -> str:
    """Return why what is staged is no longer needed; empty where it is.

    A spike is over once the loss is back. A level that has moved is not: the run goes on from a
    damaged state, and a person may still want to go back.
    """
    request = state.request
    if request is not None and not request.blocks:
        if any(f.severity != "info" and not f.closed for f in e.findings):
            return "an alarm: this is no time to raise the rate"
        return _void(state)
    if request is None or (not e.findings and request.found is not None):
        return ""
    if request.found is None:  # staged before a restart, which went back by itself
        since = e.step - request.step
        if since >= 4 * state.policy.verify_steps and not state.alarmed:
            return "no such trouble since the restart"
        return ""
    if request.kind != "spike" or request.after_trials:
        return ""
    known = [state.open[k] for k in request.found.keys if k in state.open]
    if known and all(f.closed for f in known):
        return "the loss came back by itself"
    return ""
