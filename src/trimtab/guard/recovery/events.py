"""What recovery hears: steps and probed batches, what people do, and answers to its questions.

An event carries every observation that the decision needs, so that the decision is a function of
the state and the event alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.expectation import Expectation
    from trimtab.guard.recovery.values import InForce, Key, RestorePoint
    from trimtab.guard.yardstick.reading import Reading
    from trimtab.incidents import Incident
    from trimtab.plan.expected import ExpectedChange
    from trimtab.plan.trials import SettingPutBack
    from trimtab.record import RunRecord

__all__ = [
    "Answer",
    "AnswerHeard",
    "BrokenStateFound",
    "Captured",
    "ChangeAnnounced",
    "ChangedByHand",
    "Confirmed",
    "Event",
    "FaultHeard",
    "IncidentFound",
    "IncidentInRecord",
    "OddRanksFound",
    "ProbeDone",
    "ReadingDone",
    "RestorePointFound",
    "RolledBackByHand",
    "RunEnded",
    "Standing",
    "StepDone",
    "Surveyed",
    "UpdateDone",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step was done, recorded and judged."""

    step: int
    row: int
    """Rows recorded so far, this one included."""
    sample: int
    """Sample id that comes next."""
    loss: float
    norm: float
    findings: tuple[Finding, ...] = ()
    last: bool = False
    """Whether the run would end here."""
    scaled: bool = False
    """Whether a loss scaler is in use, for which a gradient that overflows is normal."""
    failures: int = 0
    """Recoveries in a row that did not hold."""
    reads: bool = False
    """Whether the yardstick can be read."""
    is_worse: bool | None = None
    """Whether the fixed batches are worse than under an older state; None: they were not read."""
    script_lr: float = math.nan
    """Rate that the script asks for in the next step; NaN where nothing depends on it."""
    scheduled: bool = False
    """Whether a schedule gives the rate, where the findings hold a jump of it."""
    used_today: Mapping[str, int] = field(default_factory=dict)
    """Actions of each class within the last 24 hours, where it is asked about a cut of the rate."""
    by_design: Mapping[Key, str] = field(default_factory=dict)
    """What of the script explains an alarm among the findings."""
    unexplained: frozenset[Key] = frozenset()
    """Alarms that are not explained any longer: the loss rose too far, or did not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingDone:
    """The yardstick was read, or could not be."""

    step: int
    reading: Reading | None
    """None: it could not."""
    scale: Expectation
    """Spread and unit of the training loss before the trouble: what a rise is judged by."""
    freed_step: float = -math.inf
    """Newest step from which more parameters are trained; -Inf: none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDone:
    """One batch was run forward under the restored state."""

    step: int
    first: int
    last: int
    """Sample ids of the batch, both included."""
    loss: float
    executed_steps: int
    probed_batches: int
    """Those before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDone:
    """A calm step in act mode, before it is recorded: was its update left out?"""

    step: int
    row: int
    """Row that the step will have."""
    loss: float
    norm: float
    skipped: bool
    first: int
    last: int
    """Sample ids of the step, both included."""
    scaled: bool
    ranks: str = ""
    """Ranks on which it was not finite."""
    tensor: str = ""
    """First tensor whose gradient was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddRanksFound:
    """Some ranks hold other weights than the first one."""

    step: int
    ranks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenStateFound:
    """Tensors of the optimizer's state hold impossible values."""

    step: int
    tensors: str
    poisoned_step: int | None
    """Step whose gradient was not finite and entered the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedByHand:
    """Somebody changed a setting of the run."""

    step: int
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackByHand:
    """Somebody went back to an older state."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHeard:
    """The guard itself failed: nothing is acted on until it works again."""

    step: int
    attempt: str
    can_go_back: bool = True
    """Whether the state that a probe or trial began from can be put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHeard:
    """A person answered what is staged, or its deadline is over."""

    step: int
    id: str
    answer: str
    """approved, denied or deadline."""
    why: str = ""
    by: str = ""
    """Who said so; empty for the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAnnounced:
    """A change was announced: what it explains is not acted on."""

    step: int
    change: ExpectedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run has ended."""

    step: int
    row: int
    failures: int = 0


# -- answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class IncidentInRecord:
    """An incident that is not yet handled."""

    record: RunRecord = field(compare=False, repr=False)
    """The rows so far; read, never changed."""
    incident: Incident
    keys: frozenset[Key]
    """Its findings."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What was decided and spent so far, people's decisions included."""

    in_force: InForce
    rollbacks: int = 0
    failures: int = 0
    executed_steps: int = 0
    probed_batches: int = 0
    last_onsets: tuple[int, ...] = ()
    skips: tuple[tuple[int, int], ...] = ()
    """Sample ids left out, the trial's own among them."""
    clip: float | None = None
    """Clipping threshold as launched."""
    low_precision: str = ""
    """fp16 or bf16 where the forward pass runs in it and can be run in another."""
    changed: tuple[SettingPutBack, ...] = ()
    """Settings that changed without being announced, so far as remembered; oldest first."""
    script_lr: float = math.nan
    """Rate that the script asks for in the next step, before anything of ours."""
    lr_scheduled: bool = False
    """Whether a schedule gives that rate."""
    used_today: Mapping[str, int] = field(default_factory=dict)
    """Actions of each class that has a limit within the last 24 hours, count."""


@dataclass(frozen=True, kw_only=True)
class IncidentFound:
    """Answers `FindIncident`."""

    step: int
    found: IncidentInRecord | None
    """None: nothing is open that was not handled."""
    standing: Standing
    worked: tuple[str, ...] = ()
    """Arms that worked in earlier incidents of the kind, where that was asked for."""


@dataclass(frozen=True, kw_only=True)
class RestorePointFound:
    """Answers `FindRestorePoint`."""

    step: int
    point: RestorePoint | None


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """Answers `Survey`."""

    step: int
    standing: Standing
    oldest_step: int | None
    """Step of the oldest state that can be gone back to."""
    misfit: str = ""
    """Why the restore point does not fit what is trained now; empty where it does."""
    worked: tuple[str, ...] = ()
    """Arms that worked in earlier incidents of the kind."""
    beta2: float | None = None
    eps: float | None = None


@dataclass(frozen=True, kw_only=True)
class Captured:
    """Answers `Capture`."""

    step: int
    point: RestorePoint


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Answers `Confirm`."""

    step: int
    """Step that the run is at after the commands before it."""


Answer = IncidentFound | RestorePointFound | Surveyed | Captured | Confirmed
Event = (
    StepDone
    | ReadingDone
    | ProbeDone
    | UpdateDone
    | OddRanksFound
    | BrokenStateFound
    | ChangedByHand
    | RolledBackByHand
    | FaultHeard
    | AnswerHeard
    | ChangeAnnounced
    | RunEnded
    | Answer
)
