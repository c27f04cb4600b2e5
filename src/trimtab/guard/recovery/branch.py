"""Applies what a trial changes to the run, and undoes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.guard.recovery.values import InForce
from trimtab.guard.step import actuators

if TYPE_CHECKING:
    from trimtab.guard.step.engine import Engine
    from trimtab.plan.trials import Trial

__all__ = ["put_in_force", "take_back", "what_is_in_force"]


def what_is_in_force(engine: Engine) -> InForce:
    """Return the decisions in force."""
    d = engine.decisions
    return InForce(
        tuple((int(a), float(b)) for a, b in d.lr_cuts),
        tuple((int(a), float(b)) for a, b in d.lr_limits),
        tuple((int(a), int(b), float(c), float(e), float(f)) for a, b, c, e, f in d.lr_holds),
        d.clip_factor,
        dict(d.optimizer_settings),
        d.rewarm,
        d.precision,
        {name: tuple(values) for name, values in d.held_settings.items()},
    )


def put_in_force(engine: Engine, trial: Trial, before: InForce) -> None:
    """Change what a trial changes, from the state that was just restored on.

    Args:
        engine: At the restore point.
        trial: What to change.
        before: What was in force before the trial; the trial comes on top of it.

    Raises:
        ConfigError: The optimizer has no such setting.
    """
    d = engine.decisions
    if trial.skip is not None and engine.data is not None:
        engine.data.skip(*trial.skip)
    d.lr_cuts = list(before.lr_cuts_with(trial))
    d.lr_limits = list(before.lr_limits_with(trial))
    d.lr_holds = list(before.lr_holds_with(trial))
    d.clip_factor = before.clip_factor * trial.clip_factor
    if trial.settings:
        actuators.set_optimizer(engine, dict(trial.settings))
        engine.own_settings()
    if trial.rewarm_steps is not None:
        actuators.reset_moments(engine)
        d.rewarm = (engine.counters.step + 1, trial.rewarm_steps)
    if trial.precision:
        engine.set_precision(trial.precision)
    if trial.put_back:
        engine.hold_settings({change.name: change.values for change in trial.put_back})


def take_back(engine: Engine, trial: Trial, before: InForce) -> None:
    """Undo what a trial changed, except weights and moments, which a restore brings back."""
    d = engine.decisions
    if trial.skip is not None and engine.data is not None:
        engine.data.unskip(*trial.skip)
    d.lr_cuts, d.lr_limits = list(before.lr_cuts), list(before.lr_limits)
    d.lr_holds = list(before.lr_holds)
    d.clip_factor = before.clip_factor
    d.rewarm = before.rewarm
    if trial.settings:
        actuators.withdraw(engine, [name for name, _ in trial.settings], before.settings)
        engine.own_settings()
    if trial.precision:
        engine.set_precision(before.precision)
    if trial.put_back:
        # a change that comes after the state that was put back is made again when its step comes
        step = engine.counters.step
        engine.release_settings(
            {c.name: c.changed_to if c.step <= step else () for c in trial.put_back}
        )
