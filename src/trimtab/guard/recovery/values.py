"""Small values that events, commands and the state of recovery share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.state.decisions import LrHold
    from trimtab.plan.trials import Trial

__all__ = ["InForce", "JobNoise", "Key", "RestorePoint", "settings_of"]

_FAR_BEYOND = 8.0
"""Times the largest difference of calm replays. Ours: a difference grows from step to step."""

Key = tuple[str, str, int]
"""Identity of a finding: detector, signal, row of its onset."""


@dataclass(frozen=True)
class JobNoise:
    """How far replays of the same calm steps from one state repeat each other, and the record."""

    spread: float
    """Largest difference between two replays at a step, in units of the loss; 0: bit for bit."""
    apart: float
    """Largest difference of a replay from the record."""

    def is_far_below(self, size: float) -> bool:
        """Whether trouble of a size is far beyond what this job does by itself.

        It is not where replays agree with each other and not with the record: what is gone back
        to is not the whole state then.
        """
        return _FAR_BEYOND * max(self.spread, self.apart) < size


@dataclass(frozen=True)
class RestorePoint:
    """Names a copy of the training state, which the executor holds."""

    handle: int
    step: int
    attempt: str
    sample_id: int
    """Sample id that comes next."""
    samples: int
    """Samples counted up to it."""


@dataclass(frozen=True)
class InForce:
    """The decisions that a branch may change."""

    lr_cuts: tuple[tuple[int, float], ...] = ()
    lr_limits: tuple[tuple[int, float], ...] = ()
    lr_holds: tuple[LrHold, ...] = ()
    clip_factor: float = 1.0
    settings: Mapping[str, float] = field(default_factory=dict)
    rewarm: tuple[int, int] | None = None
    precision: str = ""
    held: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Settings that are held at the values before they changed."""

    def lr_cuts_with(self, trial: Trial) -> tuple[tuple[int, float], ...]:
        """Return the cuts of the rate once a trial comes on top."""
        if trial.lr_factor == 1.0:
            return self.lr_cuts
        return (*self.lr_cuts, (trial.lr_from_step or 0, trial.lr_factor))

    def lr_limits_with(self, trial: Trial) -> tuple[tuple[int, float], ...]:
        """Return the limits of the rate once a trial comes on top."""
        if trial.lr_limit is None or trial.lr_sound is not None:
            return self.lr_limits
        return (*self.lr_limits, (trial.lr_from_step or 0, trial.lr_limit))

    def lr_holds_with(self, trial: Trial) -> tuple[LrHold, ...]:
        """Return the rates put back to a value once a trial comes on top."""
        if trial.lr_limit is None or trial.lr_sound is None:
            return self.lr_holds
        hold = (trial.lr_from_step or 0, 0, trial.lr_limit, trial.lr_share, trial.lr_sound)
        return (*self.lr_holds, hold)


def settings_of(trial: Trial) -> dict[str, str]:
    """Return what a trial sets, by name: the knobs that its attempt turns against its parent's."""
    values = {
        "skip_samples": "" if trial.skip is None else f"{trial.skip[0]}-{trial.skip[1]}",
        "lr_factor": "" if trial.lr_factor == 1.0 else f"{trial.lr_factor:g}",
        "lr_limit": "" if trial.lr_limit is None else f"{trial.lr_limit:g}",
        "clip_factor": "" if trial.clip_factor == 1.0 else f"{trial.clip_factor:g}",
        "precision": trial.precision,
        "rewarm_steps": "" if trial.rewarm_steps is None else str(trial.rewarm_steps),
        "put_back": ", ".join(change.shown for change in trial.put_back),
        **{name: f"{value:g}" for name, value in trial.settings},
    }
    return {name: value for name, value in values.items() if value}
