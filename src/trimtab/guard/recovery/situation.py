"""All that the next step of a case depends on, gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.guard.recovery.case import onset_sample
from trimtab.guard.recovery.curves import usual_norm
from trimtab.guard.recovery.triage import saturates
from trimtab.plan.ladder import Situation

if TYPE_CHECKING:
    from trimtab.guard.recovery.case import Case
    from trimtab.guard.step.engine import Engine

__all__ = ["older_target", "situation_of"]


def situation_of(
    engine: Engine,
    case: Case,
    *,
    wasted_share: float,
    final_step: int | None,
    last_action_step: int | None,
) -> Situation:
    """Return what the next step of a case is decided on.

    Args:
        engine: Of the run.
        case: The trouble being dealt with.
        wasted_share: Steps off the final lineage so far, as a share of the effective steps.
        final_step: Last step of the whole run, where known.
        last_action_step: Step from which the last kept remedy went on; None: there was none.
    """
    d = engine.decisions
    skips = engine.data.skips if engine.data is not None else ()
    tried = case.trial.skip if case.trial is not None else None  # in the skips, not decided
    oldest = engine.oldest_step()
    onset = onset_sample(case)
    return Situation(
        kind=case.incident.kind,
        saturating=saturates(case.incident),
        returning=case.returning,
        nonfinite="non-finite" in (case.incident.kind, *case.incident.also),
        lr_now=case.lr_now,
        lr_restore=case.lr_restore,
        lr_jump_step=None if case.lr_jump is None else case.lr_jump.step,
        lr_rising=case.lr_rising,
        lr_proven=case.lr_sound is not None or not case.lr_rising,
        policy=engine.policy,
        probe=case.probe,
        window=(onset, max(case.seen_sample - 1, onset)),
        trials=tuple(case.trials),
        recurrences=case.recurrences,
        rollbacks=d.rollbacks,
        depth=case.depth,
        older_restore_point=oldest is not None and oldest < case.base.step,
        wasted_share=wasted_share,
        planned_samples=_planned_samples(case, final_step),
        skipped_samples=sum(b - a + 1 for a, b in skips if (a, b) != tried),
        failures=d.failures,
        worked=case.worked,
        low_precision=case.low_precision,
        clip=None if engine.clip is None else engine.clip * case.before.clip_factor,
        usual_norm=usual_norm(case.record, case.base.step),
        beta2=case.beta2,
        eps=case.eps,
        older_state=older_target(engine, case) is not None,
        trial_steps=case.trial_steps,
        step=case.seen_step,
        last_action_step=last_action_step,
    )


def older_target(engine: Engine, case: Case) -> int | None:
    """Return the step to go to for another state; None where none lies far enough back."""
    oldest, base = engine.oldest_step(), case.base.step
    if oldest is None or base - oldest < engine.policy.trial_steps // 2:
        return None
    return max(base - max(engine.policy.trial_steps, case.seen_step - base), oldest)


def _planned_samples(case: Case, final_step: int | None) -> int | None:
    """Samples of the whole run, where its length is known: as many per step as so far."""
    if final_step is None or case.seen_step < 1:
        return None
    return round(case.seen_sample / case.seen_step * final_step)
