"""One incident being dealt with: what was seen, what was tried, and what was found. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trimtab.guard.recovery.expectation import Expectation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.diagnosis.probes import DataProbe, TrialResult
    from trimtab.guard.recovery.learning_rate import LrJump
    from trimtab.guard.recovery.values import InForce, RestorePoint
    from trimtab.incidents import Incident
    from trimtab.plan.trial_results import Repeat, TrialRow
    from trimtab.plan.trials import SettingPutBack, Trial
    from trimtab.record import RunRecord

__all__ = ["Approach", "Case", "Verification"]

_VERDICT_STEPS = 32
"""Last steps that a kept remedy is judged by."""
_FEWEST_STEPS = 8
"""Steps below which a verdict is unclear."""
_NEWEST = 4
"""Last steps, each of which must be below the level where an alarm says nothing of the remedy."""
_LEVEL_STEPS = 64
"""Steps before the trouble that the level is of: it has an error of its own."""


@dataclass(frozen=True)
class Approach:
    """How to deal with an incident, before a state to go back to is known."""

    first_sign: int
    """Step of the earliest sign, an earlier spike that healed among them."""
    target_step: int
    """Go back to a state at or before it."""
    recurrences: int
    returning: bool
    lr_jump: LrJump | None
    lr_rising: bool
    lr_sound: float | None
    low_since: int | None = None
    """Step since which the loss had been too low to be true, up to the onset; None: it was not."""


@dataclass(frozen=True)
class Case:
    """One incident being dealt with."""

    incident: Incident
    record: RunRecord = field(compare=False, repr=False)
    """The rows as they were when it was acted on; read, never changed."""
    seen_step: int
    """Step at which it was acted on."""
    seen_sample: int
    """Sample id that came next then."""
    base: RestorePoint
    lr_now: float
    lr_restore: float
    expected: Expectation
    """Loss before the trouble, and the scales that it is judged in."""
    before: InForce
    """What the guard had decided before the case."""
    lr_jump: LrJump | None
    recurrences: int
    first_sign: int
    """Step of the earliest sign, an earlier spike that healed among them."""
    lr_rising: bool = False
    """Whether the scheduled rate was still rising at the onset, without a jump."""
    lr_sound: float | None = None
    """The rate that it rose from; None: it did not, or none was proven before."""
    lr_scheduled: bool = False
    """Whether a schedule gives the rate."""
    lr_returned: bool = False
    """Whether the script has put a rate that jumped back by itself."""
    low_since: int | None = None
    """Step since which the loss had been too low to be true, up to the onset; None: it was not."""
    returning: bool = False
    """Whether it is one of several spikes, of which the earlier ones healed."""
    beta2: float | None = None
    eps: float | None = None
    """Settings of the optimizer before the case; None: it has no such."""
    worked: tuple[str, ...] = ()
    """Arms that worked in an earlier incident of this kind, the latest first."""
    depth: int = 0
    probe_samples: tuple[tuple[int, int, float], ...] = ()
    """First and last sample id of each probed batch, and its loss."""
    probe: DataProbe | None = None
    trials: tuple[TrialResult, ...] = ()
    tried: Mapping[str, Trial] = field(default_factory=dict)
    """Every trial that was started, by name."""
    ends: tuple[tuple[str, RestorePoint], ...] = ()
    """States at the end of the last two trials that held, by name: to go on from, if one is kept.
    """
    trial: Trial | None = None
    """The trial in force."""
    rows: tuple[TrialRow, ...] = ()
    """One for each trial that ended, from this restore point."""
    control: Mapping[int, float] = field(default_factory=dict)
    """Losses by step of what changed nothing, from this restore point: as recorded, or replayed."""
    calm: tuple[Mapping[int, float], ...] = ()
    """Losses by step of replays of calm steps from this restore point, beside the control's."""
    repeat: Repeat = ""
    """How the unchanged replay compared with the record."""
    low_precision: str = ""
    """fp16 or bf16 where the forward pass runs in it and can be run in another."""
    trial_steps: int = 0
    """Steps spent on trials, over all restore points."""
    from_step: int = 0
    """Step of the state that the trial began from."""
    expect: Expectation = field(default_factory=Expectation)
    """What the trial should come back to."""
    losses: tuple[float, ...] = ()
    """Of the trial, step by step."""
    lr_peak: float = 0.0
    """Highest rate that the script asked for in the trial; 0 where the rate had not jumped."""
    alarmed: bool = False
    base_reading: tuple[float, ...] = ()
    """Losses of the fixed batches under the base; empty: not read."""
    by_metric: bool = False
    """Whether a metric of the user's judged the last trial."""
    by_batches: bool = False
    """Whether the loss of the fixed batches did."""
    broken_steps: int = 0
    """Last steps of the trial in a row whose gradient was not finite."""
    arms: tuple[str, ...] | None = None
    """Branches that may be tried without asking; None: all of the policy."""
    asks: tuple[str, ...] = ()
    """Classes of action that a person would have to allow for the others."""
    now: RestorePoint | None = None
    """The state of the run where a change is tried both ways: it goes on from there where the
    branch without the change is no better."""
    both: tuple[float, ...] = ()
    """Losses of the fixed batches under `now`."""
    compared: str = ""
    """How both ways compare."""
    cleared: bool = False
    """Whether the settings that the last trial put back are not to blame."""
    in_doubt: bool = False
    """Whether the record cannot say that they are, so that the run is the other branch."""

    @property
    def level(self) -> float:
        """Loss before the trouble."""
        return self.expected.level

    @property
    def origin(self) -> RestorePoint:
        """The state that goes on where nothing is kept."""
        return self.base if self.now is None else self.now


@dataclass(frozen=True)
class Verification:
    """A kept remedy that is being watched."""

    remedy: str
    until_step: int
    expected: Expectation
    step: int = 0
    """Step from which it is kept."""
    losses: tuple[float, ...] = ()
    """The last ones since."""
    alarmed: bool = False
    by_metric: bool = False
    """Whether a metric of the user's decided that it is kept: it then raises the alarm, too, and
    the level of the training loss says nothing (in RL it rises as the policy learns)."""
    put_back: tuple[SettingPutBack, ...] = ()
    """Settings that it holds."""

    def with_step(self, loss: float, *, alarmed: bool) -> Verification:
        """Return it with one more step."""
        losses = (*self.losses[-_VERDICT_STEPS + 1 :], loss)
        return replace(self, losses=losses, alarmed=self.alarmed or alarmed)

    def conclude(self, *, tolerance: float) -> tuple[str, dict[str, float]]:
        """Return worked, did not or unclear, with the figures it rests on."""
        tail = np.array(self.losses[-_VERDICT_STEPS:])
        mean = float(tail.mean()) if len(tail) else math.nan
        error = float(tail.std()) / math.sqrt(len(tail)) if len(tail) else math.nan
        worse = mean - self.expected.level
        of_level = self.expected.sigma / math.sqrt(_LEVEL_STEPS)
        significant = worse > 3 * (math.hypot(error, of_level) if of_level > 0 else error)
        size = worse > tolerance * self.expected.unit
        # A loss that is far below the level even now has been helped, whatever the alarm is about.
        below = len(tail) >= _FEWEST_STEPS and max(*tail[-_NEWEST:]) < self.expected.level
        failed = (self.alarmed and not below) or (len(tail) > 0 and not math.isfinite(mean))
        size = size and not self.by_metric
        # size without significance is noise, significance without size does not matter
        if failed or (size and significant and len(tail) >= _FEWEST_STEPS):
            verdict = "did not"
        else:
            verdict = "unclear" if size or len(tail) < _FEWEST_STEPS else "worked"
        return verdict, {
            "loss": mean,
            "expected": self.expected.level,
            "unit": self.expected.unit,
            "standard_error": error,
        }
