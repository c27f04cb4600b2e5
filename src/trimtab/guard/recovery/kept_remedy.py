"""A remedy that was kept: journalled, watched, and judged as worked, did not, or unclear."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery.case import Verification
from trimtab.guard.recovery.commands import (
    CountRollback,
    DropSnapshots,
    JournalAction,
    JournalEvent,
    NoteAction,
    ReleaseSettings,
    SaveCheckpoint,
    SetFailures,
    TakeSnapshot,
    at_step,
    decision,
    detail,
)
from trimtab.guard.recovery.early_cut import early_cut
from trimtab.guard.recovery.notices import incident_entry
from trimtab.guard.recovery.recurrence import RecurringSpikes
from trimtab.guard.state.decisions import lr_factor
from trimtab.plan.memory import remedy_of
from trimtab.plan.trials import ARM_BY_ID

if TYPE_CHECKING:
    from trimtab.guard.recovery.case import Case
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.state import RecoveryState
    from trimtab.plan.ladder import Commit
    from trimtab.plan.trials import Trial

__all__ = ["act_again", "conclude", "give_up", "keep", "verify_step"]

Result = tuple["RecoveryState", tuple["Command", ...]]

_ACCEPTED_PAUSES = 4
"""Pauses after which an alarm that is still open no longer keeps recovery from acting again."""
_NOT_VERIFIED = "not verified: the run ended"


def keep(
    state: RecoveryState,
    case: Case,
    commit: Commit,
    *,
    lr_cuts: tuple[tuple[int, float], ...],
    step: int,
) -> Result:
    """Write down the remedy that is now in force, have it verified, and save the state.

    Args:
        state: Of recovery.
        case: The incident that it ends.
        commit: What is kept, and why.
        lr_cuts: Cuts of the rate in force, this one included.
        step: Where the run is.
    """
    trial, policy = commit.trial, state.policy
    remedy, values = remedy_of(trial), _values(case, trial, lr_cuts)
    diagnosis = diagnose(
        case.record,
        case.incident,
        earlier=state.incidents[:-1],
        probe=case.probe,
        trials=case.trials,
    )
    verification = Verification(
        remedy,
        max(step, case.seen_step) + policy.verify_steps,
        case.expected,
        step=step,
        by_metric=case.by_metric,
        put_back=trial.put_back,
    )
    # compared with the steps in trouble, not with the healthy ones before: did the remedy help?
    trouble = case.seen_step - int(case.incident.onset) + 1
    effects = state.effects.begin_kept(
        remedy, step, verify_steps=policy.verify_steps, after_rows=max(trouble, 8)
    )
    state = replace(
        state,
        phase="calm",
        case=None,
        pending=None,
        verification=verification,
        effects=effects,
        last_action_step=step,
    )
    if trial.lr_sound is None and "lower-lr" in trial.arms:
        cut = early_cut(policy, values, step, state.final_step)
        state = replace(state, early_cut=cut or state.early_cut)
    told: tuple[Command, ...] = ()
    if commit.given_up:
        state, told = give_up(state, commit.given_up, step, seen_step=case.seen_step)
    return state, (
        # counted first: the journalled action holds the decisions in force, this one included
        CountRollback(),
        NoteAction(case.seen_step, remedy, values, commit.reason),
        JournalAction(step, remedy, values, commit.reason),
        incident_entry(case.incident, diagnosis, "explained", step),
        detail(
            f"{'nothing held, least bad:' if commit.given_up else 'kept:'} {trial.name} ·"
            f" {case.seen_step - case.base.step} steps given up ·"
            f" {diagnosis.top.title} ({diagnosis.top.confidence:.2f})"
        ),
        *_not_told_apart(trial),
        DropSnapshots(after=case.base.step),
        TakeSnapshot(),
        SaveCheckpoint("after an action"),
        *told,
    )


def _not_told_apart(trial: Trial) -> tuple[Command, ...]:
    if len(trial.put_back) < 2:
        return ()
    names = ", ".join(c.name for c in trial.put_back)
    return (
        detail(f"not told apart: {names} were put back together; which one did harm is not known"),
    )


def _values(case: Case, trial: Trial, lr_cuts: tuple[tuple[int, float], ...]) -> dict[str, object]:
    """Return what a kept trial changed, as the journal has it."""
    values: dict[str, object] = {
        "to_step": case.base.step,
        "skip_samples": list(trial.skip) if trial.skip else None,
        "num_samples": trial.skip[1] - trial.skip[0] + 1 if trial.skip else 0,
        "lr_factor": lr_factor(lr_cuts, math.inf),
        "lr_from_step": trial.lr_from_step,
    }
    evidence = ", ".join(ARM_BY_ID[a].evidence for a in trial.arms if ARM_BY_ID[a].evidence)
    more: tuple[tuple[str, object], ...] = (
        ("factor", trial.lr_factor),
        ("lr_limit", trial.lr_limit),
        ("clip_factor", trial.clip_factor),
        ("evidence", evidence),
        ("precision", trial.precision),
        ("rewarm_steps", trial.rewarm_steps),
        ("put_back", ", ".join(c.shown for c in trial.put_back)),
        *trial.settings,
    )
    changed = {
        name: value
        for name, value in more
        # a factor of 1 changes nothing; a limit of 1 is a rate
        if value not in ("", None) and (value != 1.0 or name == "lr_limit")
    }
    return values | changed


def verify_step(
    state: RecoveryState, loss: float, *, alarmed: bool, step: int, failures: int
) -> Result:
    """Take in a calm step while a kept remedy is being watched; judge it when it is due."""
    v = state.verification
    if v is None:
        return state, ()
    v = v.with_step(loss, alarmed=alarmed)
    state = replace(state, verification=v)
    if step < v.until_step and not v.alarmed:
        return state, ()
    return conclude(state, step, failures)


def conclude(state: RecoveryState, step: int, failures: int) -> Result:
    """Judge the remedy that is being watched by the steps so far.

    Args:
        state: Of recovery.
        step: Where the run is.
        failures: Recoveries in a row that did not hold, before this verdict.
    """
    v = state.verification
    if v is None:
        return state, ()
    commands: list[Command] = []
    verdict, figures = v.conclude(tolerance=state.policy.verify_tolerance)
    # an unclear verdict says nothing about a series of failures, so it neither adds nor ends one
    if verdict != "unclear":
        failures = failures + 1 if verdict == "did not" else 0
        commands.append(SetFailures(failures))
    effects, label = state.effects.conclude_kept()
    loss = figures["loss"]
    text = f"loss {loss:.4g} against {v.expected.level:.4g} before the trouble"
    data = {
        "remedy": v.remedy,
        "verdict": verdict,
        "figures": figures,
        "label_figures": {} if label is None else {m: list(x) for m, x in label.figures.items()},
        "of_step": v.step,
        "label": "" if label is None else label.overall,
        "metrics": {} if label is None else dict(label.metrics),
        "failures": failures,
        "text": text if v.losses else _NOT_VERIFIED,
    }
    said = "did not help" if verdict == "did not" else verdict
    found = f"{said} (loss {loss:.3f}, {v.expected.level:.3f} before the trouble)"
    commands += [
        JournalEvent("outcome", step, data),
        at_step(step, f"{v.remedy}: {found if v.losses else _NOT_VERIFIED}"),
    ]
    if verdict == "did not" and v.put_back:
        names = ", ".join(c.name for c in v.put_back)
        commands += [
            ReleaseSettings(v.put_back),
            decision(step, f"no longer hold {names}", "to hold it did not help"),
            at_step(
                step,
                f"{names}: held no longer, it did not help; the script's own value is"
                " in force again",
            ),
        ]
    return replace(state, verification=None, effects=effects), tuple(commands)


def give_up(
    state: RecoveryState, reason: str, step: int, *, seen_step: int = 0, hopeless: bool = False
) -> Result:
    """Pause automatic recovery: the guard only advises until the run has been calm for a while.

    Args:
        state: Of recovery.
        reason: Why nothing is tried any more.
        step: Where the run is.
        seen_step: Where the trouble was seen: a calm stretch before it says nothing, as the run
            comes to the same place again.
        hopeless: Whether the run can only go on with NaN, and is ended.
    """
    stood_down = state.times_stood_down + 1
    state = replace(
        state,
        advising_only=True,
        given_up=reason,
        forward_fails=hopeless,
        times_stood_down=stood_down,
        calm_since=max(step, seen_step),
    )
    what = f"training continues, advice only until {state.pause_steps} steps without an alarm"
    if hopeless or state.policy.on_give_up == "stop":
        what = "the run is stopped"
    return state, (
        decision(step, "stop acting", reason),
        at_step(step, f"automatic recovery disabled: {reason}; {what}"),
    )


def act_again(state: RecoveryState, step: int, *, alarmed: bool) -> Result:
    """Let recovery act again once the run has been calm for as long as the pause takes.

    Args:
        state: Of recovery, in mode act, which only advises after it gave up.
        step: Where the run is.
        alarmed: Whether an alarm about the weights opened, or was reported again, at this step.
    """
    if alarmed:
        return replace(state, calm_since=max(state.calm_since, step)), ()
    calm, pause = step - state.calm_since, state.pause_steps
    # an alarm that stays open keeps it off, until its level counts as the run's new one
    lasts = any(
        f.severity != "info" and not f.closed and step - f.onset < _ACCEPTED_PAUSES * pause
        for f in state.open.values()
    )
    if calm < pause or lasts:
        return state, ()
    text = f"{calm} steps without an alarm: automatic recovery is on again"
    state = replace(
        state,
        advising_only=False,
        given_up="",
        forward_fails=False,
        forgives=True,
        recurrence=RecurringSpikes(),
    )
    return state, (
        SetFailures(0),
        decision(step, "act again", text),
        at_step(step, text),
    )
