"""The state of recovery as a value: what is open, what is under way, what was decided.

Plain data only. A snapshot of the training state is named by a `RestorePoint`; the copy itself
lies with the executor. Nothing here is changed in place: `update` returns a new state, so a test
or a later session can keep, compare and replay states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trimtab.guard.recovery.change_effects import ChangeEffects
from trimtab.guard.recovery.grace_period import GracePeriod
from trimtab.guard.recovery.notices import Notices
from trimtab.guard.recovery.recurrence import RecurringSpikes
from trimtab.guard.recovery.shadow import Shadow
from trimtab.guard.recovery.triage import puts_in_doubt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.detectors.contract import Finding
    from trimtab.diagnosis.probes import DataProbe, TrialResult
    from trimtab.guard.recovery.case import Approach, Case, Verification
    from trimtab.guard.recovery.early_cut import EarlyCut
    from trimtab.guard.recovery.events import IncidentInRecord, RunEnded, Standing, StepDone
    from trimtab.guard.recovery.values import JobNoise, Key, RestorePoint
    from trimtab.incidents import Incident
    from trimtab.plan.expected import ExpectedChange
    from trimtab.plan.ladder import Commit, GiveUp, GoBack, Wait
    from trimtab.plan.policy import Policy
    from trimtab.plan.trials import Trial

__all__ = [
    "Advancing",
    "Capturing",
    "FindingOlderState",
    "GoingFurtherBack",
    "Grant",
    "Leaving",
    "LeftAlone",
    "LeftCase",
    "Opening",
    "Pending",
    "Phase",
    "ReadingWanted",
    "RecoveryState",
    "Reporting",
    "Responding",
    "StagedRequest",
    "StartingProbe",
    "StartingTrial",
    "Surveying",
    "SuspectedChange",
    "TryingBothWays",
]

Phase = Literal["calm", "probe", "trial"]

_HOPELESS_STEPS = 16
"""Steps in a row that are not finite, with nothing left to try, after which none will be. Ours."""
_MOST_DOUBLINGS = 8
"""Of the pause after recovery had to stop: 16,384 steps at the defaults."""


# -- what waits for an answer ---------------------------------------------------------------


@dataclass(frozen=True)
class Reporting:
    """Alarms that opened are looked up in the record; the event goes on afterwards."""

    keys: frozenset[Key]
    then: StepDone | RunEnded


@dataclass(frozen=True)
class Responding:
    """The incident behind an alarm that outlasted the patience is looked up."""

    event: StepDone


@dataclass(frozen=True)
class Opening:
    """A state to go back to is searched."""

    event: StepDone
    found: IncidentInRecord
    approach: Approach


@dataclass(frozen=True)
class Surveying:
    """A state to go back to is there; what the first decision needs besides is asked for."""

    event: StepDone
    found: IncidentInRecord
    approach: Approach
    base: RestorePoint


@dataclass(frozen=True)
class StartingProbe:
    """The base of the case is being restored, to look at the data ahead of it."""


@dataclass(frozen=True)
class Capturing:
    """The end of a trial that held is copied."""


@dataclass(frozen=True)
class Advancing:
    """A probe or trial is over; what the next step is decided on is asked for."""

    after_probe: bool


@dataclass(frozen=True)
class GoingFurtherBack:
    """No trial held; an older state is searched."""

    step: GoBack
    standing: Standing


@dataclass(frozen=True)
class FindingOlderState:
    """A trial wants to begin from an older state than the base."""

    trial: Trial


@dataclass(frozen=True)
class StartingTrial:
    """A branch is being restored and changed."""

    trial: Trial
    point: RestorePoint
    goes_on: bool
    """Whether it goes on from the end of an earlier trial instead of the restore point."""
    kept: Commit | None
    """The decision to keep it, where that is made already."""


@dataclass(frozen=True)
class Leaving:
    """No remedy is kept; the base of the case is being restored."""

    ending: Wait | GiveUp
    asks: tuple[str, ...] = ()
    """Classes of action that a person is asked for then."""


@dataclass(frozen=True)
class TryingBothWays:
    """The state as it is is being copied, to come back to."""

    case: Case
    trial: Trial
    """Without the change."""


Pending = (
    Reporting
    | TryingBothWays
    | Responding
    | Opening
    | Surveying
    | StartingProbe
    | Capturing
    | Advancing
    | GoingFurtherBack
    | FindingOlderState
    | StartingTrial
    | Leaving
)


# -- what a person is asked -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StagedRequest:
    """An action that waits for a person."""

    id: str = ""
    kind: str
    """Of the incident."""
    classes: tuple[str, ...]
    """Classes of action that are asked for."""
    step: int
    """At which it was staged."""
    target_step: int
    after_trials: bool = False
    """Whether what may act by itself was tried before, and did not hold."""
    found: IncidentInRecord | None = None
    event: StepDone | None = None
    approach: Approach | None = None
    """None, all three: it was staged before a restart, or raises the rate."""
    raise_by: float = 1.0
    """Factor by which the learning rate is to rise; 1: it asks for something else."""

    @property
    def blocks(self) -> bool:
        """Whether nothing else is done while it waits."""
        return self.raise_by == 1.0


@dataclass(frozen=True)
class Grant:
    """What a person has allowed for the next incident of a kind."""

    kind: str
    classes: tuple[str, ...]
    only: bool = False
    """Whether nothing else is tried with it: the rest was, and did not hold."""


# -- the state ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadingWanted:
    """A reading of the yardstick, on which what comes next is decided."""

    event: StepDone
    """The step after which it is asked for; what comes next goes on with it."""
    target_step: int
    """Also read the newest state in memory at or before this step."""
    point: RestorePoint | None = None
    """Read this state instead; None: the one above."""
    of_change: bool = False
    """Whether it is about a suspected change, and not about trouble."""
    healed: Finding | None = None
    """The rise of the loss that is over and that it is about; None: another."""


@dataclass(frozen=True, kw_only=True)
class SuspectedChange:
    """A measured change of a setting; how the run learns since is looked at."""

    finding: Finding
    step: int
    """At which it was told."""
    due_step: int
    """At which the fixed batches are read again."""
    looks: int = 0
    losses: tuple[float, ...] = ()
    """Of the fixed batches when it was told; empty: not read yet."""
    speed: float = math.nan
    """By how much they fell in a step before."""
    now: tuple[float, ...] = ()
    """Of the fixed batches when it was decided to try both ways."""
    is_due: bool = False
    """Whether it is to be tried both ways."""


@dataclass(frozen=True)
class LeftAlone:
    """Trouble that was left alone: the fixed batches are read again, each time after twice as long.

    What goes on (data that is bad for some time yet) may still do harm.
    """

    keys: frozenset[Key]
    """Of the alarms that were left alone."""
    target_step: int
    """The older state is that at or before this step."""
    losses: tuple[float, ...]
    """Of the fixed batches when they were left alone."""
    base: tuple[float, ...]
    """Of the older state then."""
    due_step: int
    wait_steps: int
    loss: float = math.nan
    """Of the step at which they were left alone; NaN: not known."""


@dataclass(frozen=True)
class LeftCase:
    """What the experiments of a case have shown, of which no remedy was kept."""

    kind: str
    """Of its incident: what was seen of one says nothing of another."""
    probe: DataProbe | None
    trials: tuple[TrialResult, ...]


_AS_RAISED = 0.1
"""Of a rate, by which it may differ from what its rise alone makes of it: schedules move, too. Ours."""


@dataclass(frozen=True, kw_only=True)
class RecoveryState:
    """Everything that recovery decides on and that is not observed anew with each event.

    The transitions::

        calm --trouble--> probe --all batches seen--> trial ... trial --one held--> calm, verifying
          ^                                             | none held: further back, or give up
          +---------------------------------------------+
    """

    policy: Policy
    final_step: int | None = None
    """Last step of the whole run, where known; no trial goes past it."""
    chief: bool = True
    """Whether this rank reports incidents; the others only decide alike."""
    phase: Phase = "calm"
    case: Case | None = None
    """The incident being dealt with."""
    pending: Pending | None = None
    """What goes on once the last command is answered."""
    open: Mapping[Key, Finding] = field(default_factory=dict)
    """Findings of this branch by key, as last reported; replaced as a whole, never changed."""
    handled: frozenset[Key] = frozenset()
    """Findings that were acted on or advised about."""
    said: frozenset[str] = frozenset()
    """What of the script explained an alarm, as was said."""
    incidents: tuple[Incident, ...] = ()
    """Incidents acted on or advised about in this process, in order."""
    verification: Verification | None = None
    """The kept remedy that is being watched."""
    wait_until: int = 0
    """Step before which only a loss that is not finite is acted on."""
    rises: tuple[tuple[int, float], ...] = ()
    """First steps of a rate that was raised on purpose, each with the factor; NaN: by hand."""
    early_cut: EarlyCut | None = None
    """A cut of the rate that a person is asked about once the run has been calm."""
    last_action_step: int | None = None
    """Step from which the last kept remedy went on."""
    num_trials: int = 0
    """Trials begun in this process."""
    advising_only: bool = False
    given_up: str = ""
    """Why nothing is tried any more; empty as long as something is."""
    forward_fails: bool = False
    """Whether the forward pass was seen to fail under a sound state with any batch."""
    wants: ReadingWanted | None = None
    """A reading that is waited for; until it is there, no step is done."""
    suspected: SuspectedChange | None = None
    """A change that may be tried both ways."""
    healed_step: float = -math.inf
    """At which the fixed batches were last asked about a rise of the loss that was over."""
    watch: LeftAlone | None = None
    """Trouble that was left alone, as long as it is looked after."""
    left_before: tuple[tuple[str, str, int], ...] = ()
    """Detector, signal and onset of what was left alone before a restart."""
    times_left_alone: int = 0
    """How often the fixed batches had not got worse, and trouble was left alone."""
    slow_until: int = 0
    """Step up to which a slow rise is left alone: a replay repeated it, and no cut was better."""
    recounted_until: int = 0
    """Step up to which a rise is left alone: the loop counts the loss otherwise."""
    left: LeftCase | None = None
    """What the last case that was left without a remedy has shown."""
    times_stood_down: int = 0
    """How often recovery stopped to act; each time it pauses for longer."""
    calm_since: int = 0
    """Step after which no alarm was heard, while recovery only advises."""
    forgives: bool = False
    """Whether recovery has just begun to act again, so that earlier rollbacks no longer count."""
    rollbacks_forgiven: int = 0
    """Rollbacks that no longer count against the limit of the policy."""
    grace: GracePeriod = field(default_factory=GracePeriod)
    recurrence: RecurringSpikes = field(default_factory=RecurringSpikes)
    effects: ChangeEffects = field(default_factory=ChangeEffects)
    notices: Notices = field(default_factory=Notices)
    request: StagedRequest | None = None
    """What waits for a person; but for a rise of the rate, nothing is acted on meanwhile."""
    num_requests: int = 0
    """Staged so far in the run, count."""
    granted: Grant | None = None
    broken_steps: int = 0
    """Last calm steps in a row whose loss or gradient was not finite, count."""
    expected: tuple[ExpectedChange, ...] = ()
    """Announced changes."""
    noise: JobNoise | None = None
    """How far this job repeats itself; None: not measured since the process began."""
    shadow: Shadow = field(default_factory=Shadow)
    """What `act` would have done, where nothing is done."""

    @property
    def pause_steps(self) -> int:
        """Calm steps after which recovery acts again: doubled each time it had to stop."""
        doublings = min(max(self.times_stood_down - 1, 0), _MOST_DOUBLINGS)
        return max(self.policy.verify_steps, 1) << doublings

    @property
    def hopeless(self) -> bool:
        """Whether nothing is left to try and no update will be finite.

        Every one has long been left out, or the forward pass fails under a sound state, too.
        """
        least = max(_HOPELESS_STEPS, 2 * self.policy.patience_steps)
        lasts = self.forward_fails or self.broken_steps >= least
        return self.advising_only and self.policy.mode == "act" and lasts

    @property
    def is_blocked(self) -> bool:
        """Whether something waits for a person, and nothing else is done meanwhile."""
        return self.request is not None and self.request.blocks

    def raised_on_purpose(self, f: Finding) -> bool:
        """Tell whether a finding is the rise of a rate that was raised on purpose, and no more."""
        return f.signal == "lr" and any(
            f.onset == step and not abs(f.value - factor * f.expected) > _AS_RAISED * f.value
            for step, factor in self.rises
        )

    def reviews_cut(self, step: int) -> bool:
        """Tell whether a cut of the rate may be reviewed at a step."""
        return self.early_cut is not None and step >= self.early_cut.due_step

    @property
    def asks_rate(self) -> bool:
        """Whether the script's own rate is wanted: it jumped, and may be put back."""
        case = self.case
        return self.grace.rate_sound > 0 or (case is not None and case.lr_jump is not None)

    @property
    def busy(self) -> bool:
        """Whether a probe or a trial is under way."""
        return self.phase != "calm"

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is open: not a time to call a state healthy."""
        return any(
            f.severity != "info" and not f.closed and f.key not in self.handled
            for f in self.open.values()
        )

    @property
    def unsettled(self) -> bool:
        """Whether an alarm is open, or what was done about it is still being verified."""
        return self.verification is not None or self.alarmed

    @property
    def doubt(self) -> str:
        """Why a state that is saved now is suspect; empty where it is not."""
        for f in self.open.values():
            if puts_in_doubt(f) and not f.closed and f.key not in self.handled:
                return f"{f.kind} since step {f.onset:g}, not over yet"
        return ""

    @property
    def points(self) -> tuple[RestorePoint, ...]:
        """Restore points that this state refers to: their snapshots must be kept."""
        found: list[RestorePoint] = []
        if self.case is not None:
            found += [self.case.base, *(end for _, end in self.case.ends)]
            found += [] if self.case.now is None else [self.case.now]
        if self.wants is not None and self.wants.point is not None:
            found.append(self.wants.point)
        if isinstance(self.pending, StartingTrial):
            found.append(self.pending.point)
        elif isinstance(self.pending, Surveying):
            found.append(self.pending.base)
        elif isinstance(self.pending, TryingBothWays):
            found.append(self.pending.case.base)
        return tuple(found)
