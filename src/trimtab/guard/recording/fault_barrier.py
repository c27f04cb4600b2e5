"""The guard's edge: the one place that catches `Exception`, so that a fault of ours stops no run.

Each part of the guard is armed or degraded. A fault degrades its part: it is told and journalled as
a `fault`, its work is tried again after 1, 2, 4 ... steps, `MOST_WAIT_STEPS` at most, and a step
in which the work succeeds arms the part again, which is journalled as `rearmed`. A part that fails
again soon goes on with the longer wait. Rows are recorded and judged at every step all the same.

Nothing is acted on while a part is degraded that recovery rests on. Where several ranks train
together, the faults of all travel with the pooled step: all stand down at the same step, wait
alike, and come back at the same step. What the wait of a part decides (whether a save is tried) is
therefore the same on all of them.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from trimtab.chronicle.coverage import PROTECTING
from trimtab.errors import OwnerLost
from trimtab.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.chronicle.coverage import Fault

__all__ = ["MOST_WAIT_STEPS", "Edge", "FaultJournal", "Part", "reason_of", "to_stderr"]

Part = Literal[
    "probes",
    "record",
    "rows",
    "judge",
    "recovery",
    "snapshot",
    "checkpoint",
    "journal",
    "verdict",
    "callback",
]
"""record: the row of a step, made and taken into memory; rows: those rows on disk; journal: events
on disk; callback: a user's function."""

_PARTS: tuple[Part, ...] = tuple(part for part in get_args(Part) if part != "callback")
"""Those that are degraded; the place of each is its bit in what the ranks tell each other."""
_RECOVERY_RESTS_ON: frozenset[Part] = frozenset({"record", "judge", "recovery", "journal"})
_NEVER_PUT_OFF: frozenset[Part] = frozenset({"record", "judge"})
"""What is put off here is lost: a row that waits is a step that was not judged."""
_JUDGING: tuple[Part, ...] = ("record", "rows", "judge", "journal")
MOST_WAIT_STEPS = 64
"""Longest wait until a part is tried again; a fault within so many steps of the last counts on."""
_MOST_REASON_CHARS = 120
_MOST_PAST = 100
"""Faults that are over and kept, the newest."""

_ERRNO_WORDS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EROFS: "file system is read-only",
    errno.EIO: "disk I/O error",
    errno.ESTALE: "stale file handle",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.ENOMEM: "out of memory",
    errno.EINTR: "interrupted system call",
}


class FaultJournal(Protocol):
    """Writes down what becomes of a part."""

    def fault(self, part: Part, error: str, *, why: str) -> None:
        """Write down that a part failed; `why`: in a few words."""

    def rearmed(self, part: Part, *, since_step: int, why: str) -> None:
        """Write down that it works again."""


@dataclass
class _Fault:
    """A degraded part, as this rank knows it."""

    since_step: int
    why: str
    failed_at: int
    """Tick of its last fault."""
    well_at: int = -1
    """Tick in which its work last succeeded."""


@dataclass
class _Wait:
    """The wait of a part, as all ranks know it."""

    failures: int
    retry_at: int
    tried: bool = False
    over_at: int | None = None
    """Tick at which no rank named it any more; None while one does."""


class Edge:
    """Runs the guard's own work and survives it."""

    def __init__(self, journal: FaultJournal, *, alone: bool, step: Callable[[], int]) -> None:
        """Watch over the parts of a guard.

        Args:
            journal: Writes faults down.
            alone: Whether no other rank trains with this one: then it stands down at once.
            step: Gives the step of the run.
        """
        self._journal = journal
        self._alone = alone
        self._step = step
        self._tick = 0
        self._faults: dict[Part, _Fault] = {}
        self._waits: dict[Part, _Wait] = {}
        self._elsewhere: dict[Part, int] = {}
        """Parts that are degraded on other ranks alone, with the step at which it was heard."""
        self._past: deque[Fault] = deque(maxlen=_MOST_PAST)
        self._told: set[tuple[str, str]] = set()
        self._failures: Counter[tuple[Part, str]] = Counter()
        """How often a part failed in so many words."""
        self._stood_down = False
        self._came_back = False

    # -- how things stand -------------------------------------------------------------------

    @property
    def stood_down(self) -> bool:
        """Whether nothing is acted on for now."""
        return self._stood_down

    @property
    def degraded(self) -> str:
        """What is degraded on this rank, since when and why; empty where nothing is."""
        return "; ".join(
            f"{part} since step {fault.since_step} ({fault.why})"
            for part, fault in self._faults.items()
        )

    @property
    def past_faults(self) -> tuple[Fault, ...]:
        """Parts of the protection that did not work for a time, on any rank, and do again."""
        return tuple(self._past)

    def _was_off(self, part: Part, since_step: int, why: str) -> None:
        if part not in PROTECTING:
            return
        last = self._past[-1] if self._past else ("", 0, 0, "")
        if (last[0], last[3]) == (part, why) and since_step - last[2] <= MOST_WAIT_STEPS:
            since_step = min(self._past.pop()[1], since_step)  # it came and went
        self._past.append((part, since_step, self._step(), why))

    @property
    def is_blind(self) -> bool:
        """Whether what is judged now, or was, may not be on record."""
        return any(part in self._faults for part in _JUDGING)

    def reason(self, part: Part) -> str:
        """Return why a part is degraded on this rank; empty where it is not."""
        fault = self._faults.get(part)
        return "" if fault is None else fault.why

    def is_due_again(self, part: Part) -> bool:
        """Whether the work of a degraded part is to be tried again now; alike on all ranks."""
        wait = self._waits.get(part)
        return wait is not None and wait.over_at is None and self._tick >= wait.retry_at

    def take_return(self) -> bool:
        """Whether the guard has come back since this was last asked; alike on all ranks."""
        came, self._came_back = self._came_back, False
        return came and not self._stood_down

    # -- from step to step ------------------------------------------------------------------

    def begin_step(self) -> int:
        """Arm what the last step showed to work; return this rank's faults, one bit a part."""
        self.end_step()
        self._tick += 1
        return sum(1 << _PARTS.index(part) for part in self._faults)

    def end_step(self) -> None:
        """Arm what this step has shown to work."""
        for part, fault in tuple(self._faults.items()):
            if fault.well_at == self._tick > fault.failed_at:
                self._arm(part)

    def hear(self, faults: int) -> None:
        """Take in the faults of all ranks, as pooled with the step; stand down, or come back."""
        now = self._tick
        for i, part in enumerate(_PARTS):
            wait = self._waits.get(part)
            if not faults >> i & 1:
                if wait is not None and wait.over_at is None:
                    wait.over_at = now
                    self._hear_of_return(part)
            elif wait is None:
                # Recovery is tried again by acting: first all ranks end what is under way.
                self._waits[part] = _Wait(failures=1, retry_at=now + (part == "recovery"))
                self._hear_of(part)
            elif wait.over_at is not None or wait.tried:
                again = wait.over_at is None or now - wait.over_at <= MOST_WAIT_STEPS
                if wait.over_at is not None:
                    self._hear_of(part)
                failures = min(wait.failures + 1 if again else 1, 32)
                steps = min(2 ** (failures - 1), MOST_WAIT_STEPS) + (part == "recovery")
                # counted from the step that failed, which was the last one
                self._waits[part] = _Wait(failures=failures, retry_at=now - 1 + steps)
        if any(self._holds_back(part) for part in _RECOVERY_RESTS_ON):
            self._stood_down = True
            return
        recovery = self._waits.get("recovery")
        if recovery is not None:
            recovery.tried = True
        if self._stood_down:
            self._stood_down, self._came_back = False, True

    def _hear_of(self, part: Part) -> None:
        """Journal a fault of another rank: only the first one writes."""
        if part not in self._faults:
            self._elsewhere[part] = self._step()
            told = "another rank reports a fault; its own output says which"
            self._tell(part, told, why="a fault on another rank")

    def _hear_of_return(self, part: Part) -> None:
        since_step = self._elsewhere.pop(part, None)
        if since_step is not None:
            why = "a fault on another rank"
            self._was_off(part, since_step, why)
            self._write_down(lambda: self._journal.rearmed(part, since_step=since_step, why=why))

    def _holds_back(self, part: Part) -> bool:
        """Whether nothing may be acted on because of a part; alike on all ranks."""
        fault, wait = self._faults.get(part), self._waits.get(part)
        if self._alone and fault is not None and fault.failed_at == self._tick:
            return True  # it failed just now, and is heard of at the next step
        if wait is None or wait.over_at is not None:
            return False
        # Recovery is tried again by acting; the others must have worked first.
        return part != "recovery" or self._tick < wait.retry_at

    # -- work -------------------------------------------------------------------------------

    def run(
        self, part: Part, work: Callable[[], object], *, retried: bool = False, now: bool = False
    ) -> bool:
        """Do work of our own; return whether it was done without a fault.

        Args:
            part: To which a fault in it belongs.
            work: What to do.
            retried: It is the work that shows whether the part is well: while the part is degraded
                it is put off until the wait is over, and where it succeeds the part is armed.
            now: Wait for nothing: there is no later step.
        """
        if retried and not now and not self._may_try(part):
            return False
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a fault of ours never stops a run
            self.note(part, error)
            return False
        if retried and part in self._faults:
            self._faults[part].well_at = self._tick
            if now:
                self._arm(part)
        return True

    def _may_try(self, part: Part) -> bool:
        wait = self._waits.get(part)
        if wait is None or wait.over_at is not None or part in _NEVER_PUT_OFF:
            return True
        if self._tick < wait.retry_at:
            return False
        wait.tried = True
        return True

    def note(self, part: Part, error: BaseException) -> None:
        """Take in a fault: tell it where it is a new one, and stand down where that is called for.

        With other ranks beside this one, they all stand down together at the next step.
        """
        if isinstance(error, OwnerLost):  # whatever part sees it, it is one thing
            part = "journal"
        fault = self._faults.get(part)
        if fault is not None:
            fault.failed_at = self._tick
        else:
            why = reason_of(error)
            self._faults[part] = _Fault(self._step(), why, self._tick)
            self._tell(part, f"{type(error).__name__}: {error}", why=why)
        if self._alone and part in _RECOVERY_RESTS_ON:
            self._stood_down = True

    def tell_callback(self, name: str, error: BaseException, after: str) -> None:
        """Tell and journal that a user's function raised, each of its errors once.

        Args:
            name: Of the function, as the user knows it.
            error: What it raised.
            after: What follows from it.
        """
        text = f"{name} raised {type(error).__name__}: {error}; {after}"
        if (name, str(error)) in self._told or len(self._told) > 1000:
            return
        self._told.add((name, str(error)))
        to_stderr(f"trimtab: {text}; protection goes on")
        self._write_down(lambda: self._journal.fault("callback", text, why=reason_of(error)))

    def _tell(self, part: Part, text: str, *, why: str) -> None:
        self._failures[part, why] += 1
        times, at = self._failures[part, why], f"at step {self._step()}"
        if times == 1 or (part, text) not in self._told:
            self._told.add((part, text))
            halted = part in _RECOVERY_RESTS_ON
            what = "nothing is acted on until it works again" if halted else "it is tried again"
            to_stderr(f"trimtab: a fault of its own ({part}) {at}: {text}; {what}")
        elif _is_counted(times):
            to_stderr(f"trimtab: {part} failed again {at}, {times} times by now ({why})")
        self._write_down(lambda: self._journal.fault(part, text, why=why))

    def _arm(self, part: Part) -> None:
        fault = self._faults.pop(part)
        self._was_off(part, fault.since_step, fault.why)
        times = self._failures[part, fault.why]
        if _is_counted(times):
            line = f"step {self._step()}: {part} works again"
            since = f", degraded since step {fault.since_step} ({fault.why})" * (times == 1)
            to_stderr(f"trimtab: {line}{since}")
        self._write_down(
            lambda: self._journal.rearmed(part, since_step=fault.since_step, why=fault.why)
        )

    def _write_down(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception:  # noqa: BLE001 - the same edge
            to_stderr("trimtab: this could not be journalled")


def _is_counted(times: int) -> bool:
    """Whether something is told that happens so often: at 1, 2, 4, 8 … times."""
    return times & (times - 1) == 0


def reason_of(error: BaseException) -> str:
    """Return in a few words why something failed; the system's words where it is the system."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _ERRNO_WORDS:
            return _ERRNO_WORDS[cause.errno]
        if isinstance(cause, MemoryError):
            return "out of memory"
        cause = cause.__cause__
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MOST_REASON_CHARS else text[:_MOST_REASON_CHARS] + " …"


def to_stderr(line: str) -> None:
    """Show one line; where there is no standard error, or it is broken, do without."""
    with contextlib.suppress(Exception):
        sys.stderr.write(visible(line, keep="\n\t") + "\n")
