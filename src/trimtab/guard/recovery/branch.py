"""What a branch changes, put in force for its steps and taken back after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.guard.step import actuators

if TYPE_CHECKING:
    from trimtab.guard.step.engine import Engine
    from trimtab.plan.trials import Trial

__all__ = ["InForce", "put_in_force", "settings_of", "take_back", "what_is_in_force"]


@dataclass(frozen=True)
class InForce:
    """The decisions that a branch may change, as they were before it."""

    lr_cuts: tuple[tuple[int, float], ...]
    lr_limits: tuple[tuple[int, float], ...]
    clip_factor: float
    settings: dict[str, float]
    rewarm: tuple[int, int] | None
    precision: str


def what_is_in_force(engine: Engine) -> InForce:
    """Return the decisions in force."""
    d = engine.decisions
    return InForce(
        tuple((int(a), float(b)) for a, b in d.lr_cuts),
        tuple((int(a), float(b)) for a, b in d.lr_limits),
        d.clip_factor,
        dict(d.optimizer_settings),
        d.rewarm,
        d.precision,
    )


def settings_of(trial: Trial) -> dict[str, str]:
    """Return what a trial sets, by name: the knobs that its attempt turns against its parent's."""
    values = {
        "skip_samples": "" if trial.skip is None else f"{trial.skip[0]}-{trial.skip[1]}",
        "lr_factor": "" if trial.lr_factor == 1.0 else f"{trial.lr_factor:g}",
        "lr_limit": "" if trial.lr_limit is None else f"{trial.lr_limit:g}",
        "clip_factor": "" if trial.clip_factor == 1.0 else f"{trial.clip_factor:g}",
        "precision": trial.precision,
        "rewarm_steps": "" if trial.rewarm_steps is None else str(trial.rewarm_steps),
        **{name: f"{value:g}" for name, value in trial.settings},
    }
    return {name: value for name, value in values.items() if value}


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
    cut = [(trial.lr_from_step or 0, trial.lr_factor)] if trial.lr_factor != 1.0 else []
    d.lr_cuts = [*before.lr_cuts, *cut]
    held = [(trial.lr_from_step or 0, trial.lr_limit)] if trial.lr_limit is not None else []
    d.lr_limits = [*before.lr_limits, *held]
    d.clip_factor = before.clip_factor * trial.clip_factor
    if trial.settings:
        actuators.set_optimizer(engine, dict(trial.settings))
    if trial.rewarm_steps is not None:
        actuators.reset_moments(engine)
        d.rewarm = (engine.counters.step + 1, trial.rewarm_steps)
    if trial.precision:
        engine.set_precision(trial.precision)


def take_back(engine: Engine, trial: Trial, before: InForce) -> None:
    """Undo what a trial changed, but for the weights and moments: those a restore brings back."""
    d = engine.decisions
    if trial.skip is not None and engine.data is not None:
        engine.data.unskip(*trial.skip)
    d.lr_cuts, d.lr_limits = list(before.lr_cuts), list(before.lr_limits)
    d.clip_factor = before.clip_factor
    d.rewarm = before.rewarm
    if trial.settings:
        actuators.withdraw(engine, [name for name, _ in trial.settings], before.settings)
    if trial.precision:
        engine.set_precision(before.precision)
