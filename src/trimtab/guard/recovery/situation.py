"""What the next step of a case depends on: what is known, what was spent, how far back to go."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.curves import usual_norm
from trimtab.guard.recovery.data_probe import low_window, onset_sample
from trimtab.guard.recovery.standstill import ROWS_BEHIND, leap_of
from trimtab.guard.recovery.triage import factor_needed, is_no_updates_doing, saturates
from trimtab.plan.ladder import Situation

if TYPE_CHECKING:
    from trimtab.guard.recovery.case import Case
    from trimtab.guard.recovery.events import Standing
    from trimtab.guard.recovery.state import RecoveryState
    from trimtab.plan.policy import Policy
    from trimtab.plan.trials import SettingPutBack

__all__ = [
    "affordable_probe",
    "affordable_step",
    "calm_steps",
    "older_target",
    "situation_of",
    "trial_length",
    "wasted_share",
]

_FEWEST_CALM, _MOST_CALM = 2, 8
"""Calm steps that are replayed to measure how far a job repeats itself. Ours."""


def situation_of(
    state: RecoveryState, case: Case, standing: Standing, oldest_step: int | None
) -> Situation:
    """Return the facts on which the next step of a case is decided.

    Args:
        state: Of recovery.
        case: The incident being dealt with.
        standing: What was decided and spent so far.
        oldest_step: Step of the oldest state that can be gone back to; None without any.
    """
    # the trial in force has put its own range into the skips; it is not decided yet
    tried = case.trial.skip if case.trial is not None else None
    onset = onset_sample(case)
    policy = state.policy if case.arms is None else replace(state.policy, arms=case.arms)
    return Situation(
        kind=case.incident.kind,
        saturating=saturates(case.incident),
        lr_needed=factor_needed(case.incident),
        returning=case.returning,
        nonfinite="non-finite" in (case.incident.kind, *case.incident.also),
        lr_now=case.lr_now,
        lr_restore=case.lr_restore,
        lr_jump_step=None if case.lr_jump is None else case.lr_jump.step,
        lr_rising=case.lr_rising,
        lr_scheduled=case.lr_scheduled,
        lr_returned=case.lr_returned,
        lr_proven=case.lr_sound is not None or not case.lr_rising,
        policy=policy,
        changed=tuple(
            c
            for c in _changed(case, standing)
            if c.step > case.base.step and c.values and _fits(case, c)
        ),
        may_skip=case.arms is None or "other-data" in case.arms,
        probe=case.probe,
        window=(onset, max(case.seen_sample - 1, onset)),
        low_window=low_window(case),
        trials=case.trials,
        recurrences=case.recurrences,
        rollbacks=standing.rollbacks - state.rollbacks_forgiven,
        begun=state.case is not None,
        depth=case.depth,
        older_restore_point=oldest_step is not None and oldest_step < case.base.step,
        wasted_share=wasted_share(
            state,
            case,
            standing.executed_steps,
            standing.probed_batches,
            base=case.base.step,
            ahead=0 if state.case is not None else round(affordable_probe(policy)),
        ),
        planned_samples=_planned_samples(case, state.final_step),
        skipped_samples=sum(b - a + 1 for a, b in standing.skips if (a, b) != tried),
        failures=standing.failures,
        worked=case.worked,
        low_precision=case.low_precision,
        clip=None if standing.clip is None else standing.clip * case.before.clip_factor,
        usual_norm=usual_norm(case.record, case.base.step),
        beta2=case.beta2,
        eps=case.eps,
        older_state=older_target(state, case, oldest_step) is not None,
        trial_steps=case.trial_steps,
        step=case.seen_step,
        last_action_step=state.last_action_step,
        calm_steps=calm_steps(state, case, standing),
        calm_replays=len(case.calm),
        branch_steps=trial_length(state, case),
        stake_steps=_at_stake(state, case),
        back_steps=case.seen_step - case.base.step + affordable_probe(policy),
        lasted=max(case.seen_step - int(case.incident.onset), 0),
        leaps=_leaps_unexplained(case, standing),
    )


def _leaps_unexplained(case: Case, standing: Standing) -> bool:
    """Whether nothing that is known explains a leap that the replay repeats, or that no cut ends."""
    known = (
        case.lr_jump is not None
        or low_window(case) is not None
        or bool(_changed(case, standing))
        or saturates(case.incident)
        or is_no_updates_doing(case.incident)
        or "non-finite" in (case.incident.kind, *case.incident.also)
    )
    looked = case.probe is not None and not case.probe.num_outliers
    repeats = case.repeat == "bit-equal" and leap_of(case) is not None and not case.returning
    failed = any(not t.held and t.cuts_rate for t in case.trials)
    return looked and not known and (repeats or failed)


def calm_steps(state: RecoveryState, case: Case, standing: Standing) -> int:
    """Return how many calm steps may be replayed, to measure how far this job repeats itself.

    0 where that is known, where too few lie before the first sign, or where they cost too much.
    """
    steps = min(_calm_before(case) - case.base.step, _MOST_CALM)
    if state.noise is not None or steps < _FEWEST_CALM:
        return 0
    share = wasted_share(
        state,
        case,
        standing.executed_steps,
        standing.probed_batches,
        base=case.base.step,
        ahead=2 * steps,
    )
    return steps if share <= state.policy.max_wasted_share else 0


def _calm_before(case: Case) -> int:
    """Return the last step before all signs of the trouble."""
    return int(min(case.first_sign, case.incident.first_step)) - 1


def _at_stake(state: RecoveryState, case: Case) -> float:
    """Return the steps from the base to the end: a run whose end is not known is half-way."""
    return max((state.final_step or 2 * case.seen_step) - case.base.step, 1)


def _changed(case: Case, standing: Standing) -> tuple[SettingPutBack, ...]:
    """Return the settings that changed; what a trial holds just now is no longer among those."""
    tried = {c.name: c for trial in case.tried.values() for c in trial.put_back}
    return tuple(({c.name: c for c in standing.changed} | tried).values())


def _fits(case: Case, change: SettingPutBack) -> bool:
    """Whether what was looked at since does not explain a change better: data that stands out."""
    loss_grew = change.factors_loss == "guessed" and change.values[0] > 0
    return not (loss_grew and case.probe is not None and case.probe.num_outliers)


def older_target(state: RecoveryState, case: Case, oldest_step: int | None) -> int | None:
    """Return the step to go to for another state; None where none lies far enough back."""
    base, trial_steps = case.base.step, state.policy.trial_steps
    if oldest_step is None or base - oldest_step < trial_steps // 2:
        return None
    return max(base - max(trial_steps, case.seen_step - base), oldest_step)


def wasted_share(
    state: RecoveryState,
    case: Case,
    executed_steps: int,
    probed_batches: int,
    *,
    base: int,
    ahead: int = 0,
) -> float:
    """Return the share of steps that are not on the final lineage.

    Args:
        state: Of recovery.
        case: The incident being dealt with.
        executed_steps: Optimizer steps done so far, trials included.
        probed_batches: Forward passes without an update so far; each counts a third of a step.
        base: Step that the run goes on from.
        ahead: Steps of a trial still to come.
    """
    off = executed_steps + probed_batches / 3 + ahead - base
    return off / (state.final_step or max(case.seen_step, 1))


def affordable_step(state: RecoveryState, standing: Standing, step: int) -> int:
    """Return the oldest step that one trial can go back to, within what may be wasted."""
    policy = state.policy
    final = state.final_step or step
    spent = standing.executed_steps + standing.probed_batches / 3 + affordable_probe(policy)
    spent += 2 * policy.trial_steps
    return max(int(spent - policy.max_wasted_share * final) + 1, 0)


def affordable_probe(policy: Policy) -> float:
    """Return what looking at the data ahead costs, in steps: a forward pass is a third of one."""
    return 4 * policy.probe_margin_batches / 3


def trial_length(state: RecoveryState, case: Case) -> int:
    """Return how many steps a trial takes.

    It passes the step at which the incident was seen, and the patience after it; where the rate is
    suspected, the first sign instead, as the effect of a rate is seen soon after. Data that is left
    out shows what it did where the trouble was. It never passes the end of the run: a scheduler may
    refuse to go on there.
    """
    if case.now is not None:  # to where the other branch, the run itself, has got
        return case.now.step - case.base.step
    policy = state.policy
    if case.trial is not None and case.trial.stands_still:
        steps = int(case.incident.onset) + ROWS_BEHIND - case.base.step
        return min(max(steps, case.seen_step - case.base.step), _left(state, case))
    # what a setting does that is put back is known only where the trouble was
    puts_back = case.trial is not None and case.trial.put_back
    leaves_out = case.trial is not None and case.trial.skip is not None
    compares = case.in_doubt or puts_back or leaves_out
    early = saturates(case.incident) or (case.returning and not compares)
    sign = case.first_sign if early else case.seen_step
    steps = max(policy.trial_steps, sign - case.base.step + 2 * policy.patience_steps)
    return min(steps, _left(state, case))


def _left(state: RecoveryState, case: Case) -> int:
    """Return the steps from the restore point to the end of the run, where that is known."""
    return sys.maxsize if state.final_step is None else state.final_step - case.base.step


def _planned_samples(case: Case, final_step: int | None) -> int | None:
    """Return the samples of the whole run at the rate so far; None where its length is unknown."""
    if final_step is None or case.seen_step < 1:
        return None
    return round(case.seen_sample / case.seen_step * final_step)
