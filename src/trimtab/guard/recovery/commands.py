"""What recovery orders: frozen data that the executor carries out, in order.

A question (`Question`) is always the last of its list; the executor hands its answer back as an
event before anything else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.plan.expected_steps import told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import InForce, Key, RestorePoint
    from trimtab.plan.expected_steps import WeighedWay
    from trimtab.plan.trials import SettingPutBack, Trial

__all__ = [
    "AwaitAnswer",
    "BeginAttempt",
    "Capture",
    "ClearSettings",
    "Command",
    "Confirm",
    "CountProbedBatch",
    "CountRollback",
    "DropSnapshots",
    "FindIncident",
    "FindRestorePoint",
    "GoBackTo",
    "JournalAction",
    "JournalEvent",
    "NoteAction",
    "NoteOnset",
    "NoteRaisedRate",
    "PassBy",
    "PutInForce",
    "Question",
    "RaiseRate",
    "ReleaseSettings",
    "SaveCheckpoint",
    "Say",
    "SetAside",
    "SetFailures",
    "Survey",
    "TakeBack",
    "TakeSnapshot",
    "WatchPrecision",
    "at_step",
    "decision",
    "detail",
    "note",
    "weighed",
]


# -- written down and said ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """Append an event to the journal."""

    event: str
    step: int
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JournalAction:
    """Append an action, with the attempt it is kept in and all decisions in force."""

    step: int
    remedy: str
    values: Mapping[str, object]
    why: str


@dataclass(frozen=True, slots=True)
class Say:
    """Show one line to the user."""

    line: str


@dataclass(frozen=True, slots=True)
class NoteAction:
    """Add to the list of what was done; or revise the last action of that remedy in it."""

    step: int
    remedy: str
    values: Mapping[str, object]
    why: str
    revises: bool = False


# -- done -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GoBackTo:
    """Restore a state; `data_of`: with the position in the data of another one."""

    point: RestorePoint
    data_of: RestorePoint | None = None


@dataclass(frozen=True, slots=True)
class PassBy:
    """Go on in the data to the batch that holds a sample, or the last before it."""

    sample: int


@dataclass(frozen=True, slots=True)
class WatchPrecision:
    """Begin or stop to look which number format the forward passes run in."""

    on: bool


@dataclass(frozen=True, slots=True)
class PutInForce:
    """Change what a trial changes, on top of what was in force before it."""

    trial: Trial
    before: InForce


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Undo what a trial changed, except for the state that a restore brings back."""

    trial: Trial
    before: InForce


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """Hold settings no longer; what the script had set is in force again."""

    put_back: tuple[SettingPutBack, ...]


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Number and open a new attempt."""

    parent: str
    parent_step: int
    why: str
    trial: bool
    more: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ClearSettings:
    """Suspect changes of settings no longer, also when their steps are done again."""

    put_back: tuple[SettingPutBack, ...]
    why: str


@dataclass(frozen=True, slots=True)
class RaiseRate:
    """Multiply the learning rate from a step on by a factor above 1: a part of a cut given back."""

    step: int
    factor: float


@dataclass(frozen=True, slots=True)
class NoteRaisedRate:
    """Tell where going back undoes a rate that the user's own loop has lowered."""

    point: RestorePoint


@dataclass(frozen=True, slots=True)
class DropSnapshots:
    """Forget the snapshots in memory after a step: they hold what is rolled back."""

    after: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move the checkpoints after a state aside, and grade them by the first sign.

    A healthy one that is not after it is on disk first.
    """

    point: RestorePoint
    first_sign: int
    now: int
    why: str


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Copy the state into the ring of snapshots."""


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Save the state to disk."""

    why: str


@dataclass(frozen=True, slots=True)
class CountRollback:
    """Count a rollback, kept or not."""


@dataclass(frozen=True, slots=True)
class CountProbedBatch:
    """Count a forward pass without an update."""


@dataclass(frozen=True, slots=True)
class NoteOnset:
    """Remember the first sign of an incident that is acted on."""

    step: int


@dataclass(frozen=True, slots=True)
class SetFailures:
    """Set the number of recoveries in a row that did not hold."""

    count: int


@dataclass(frozen=True, slots=True)
class AwaitAnswer:
    """Begin to listen for a person's answer to what is staged, for so long."""

    deadline_s: float


# -- asked ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindIncident:
    """Which is the latest incident of the record that is not handled?"""

    findings: tuple[Finding, ...]
    handled: frozenset[Key]
    together: bool
    """Whether all ranks ask, and go by what the first one finds."""
    recall: bool = False
    """Whether what worked in earlier incidents of the kind is wanted too."""


@dataclass(frozen=True, slots=True)
class FindRestorePoint:
    """Which is the newest state at or before a step?"""

    step: int
    or_oldest: bool
    """Take the oldest state there is where none lies so far back."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What was decided and spent, and how far back can the run go?"""

    point: RestorePoint | None = None
    """Also: does this state fit, and what are the optimizer's settings?"""
    kind: str = ""
    """Also: what worked in earlier incidents of this kind?"""


@dataclass(frozen=True, slots=True)
class Capture:
    """Copy the state; under which name?"""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Are the commands before this one done?"""


Question = FindIncident | FindRestorePoint | Survey | Capture | Confirm
Command = (
    JournalEvent
    | JournalAction
    | Say
    | NoteAction
    | GoBackTo
    | PassBy
    | WatchPrecision
    | PutInForce
    | TakeBack
    | BeginAttempt
    | ClearSettings
    | NoteRaisedRate
    | RaiseRate
    | DropSnapshots
    | SetAside
    | TakeSnapshot
    | SaveCheckpoint
    | CountRollback
    | ReleaseSettings
    | CountProbedBatch
    | NoteOnset
    | SetFailures
    | AwaitAnswer
    | Question
)


def at_step(step: int, text: str) -> Say:
    """Return a line that begins with the step."""
    return Say(f"step {step:>6,}  {text}")


def detail(text: str) -> Say:
    """Return a line that belongs to the one above it."""
    return Say(f"             {text}")


def decision(
    step: int, what: str, why: str, evidence: tuple[str, ...] = (), **leaves: object
) -> JournalEvent:
    """Return a decision for the journal; `leaves`: what a later process leaves alone by it."""
    data: dict[str, object] = {"what": what, "why": why, "evidence": list(evidence)}
    return JournalEvent("decision", step, data | ({"leaves": leaves} if leaves else {}))


def findings_left(findings: Iterable[Finding]) -> list[list[object]]:
    """Return what findings are known by in a later process: rows are counted anew there."""
    return [[f.detector, f.signal, int(f.onset)] for f in findings]


def weighed(step: int, what: str, ways: Sequence[WeighedWay], *, because: str = "") -> JournalEvent:
    """Return a decision by what ways are expected to cost, with the sum.

    Args:
        step: At which.
        what: Was decided.
        ways: That were compared.
        because: Why the sum does not decide; empty: it does.
    """
    data = {
        "what": what,
        "why": f"{because}; {told(ways)}" if because else told(ways),
        "evidence": [w.text for w in ways],
        "sum": [w.as_json() for w in ways],
    }
    return JournalEvent("decision", step, data)


def note(step: int, text: str) -> JournalEvent:
    """Return a sentence of the guard's own for the journal."""
    return JournalEvent("note", step, {"author": "trimtab", "text": text})
