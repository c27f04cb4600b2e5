"""The guard's edge: the one place that catches `Exception`, so that a fault of ours stops no run.

A fault takes the guard down to `observe` for the rest of the process: nothing is acted on any more.
Where several ranks train together, all of them stand down at the next step, in step with each
other. The part that failed is left out from then on; writing to disk is tried again at the next
step or interval, because a full disk may be freed. What depends on a failed part is left out with
it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Literal

from trimtab.errors import OwnerLost

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Edge", "Part", "to_stderr"]

Part = Literal["probes", "record", "judge", "recovery", "checkpoint", "journal"]

_LEAVE_OUT: dict[Part, tuple[Part, ...]] = {
    "probes": ("probes",),
    "record": ("judge",),  # rows are lost: what the judge says no longer matches the record
    "judge": ("judge",),
    "recovery": (),
    "checkpoint": (),
    "journal": (),
}


class Edge:
    """Runs the guard's own work and survives it."""

    def __init__(
        self,
        *,
        journal: Callable[[str, Part], None],
        stand_down: Callable[[], None] = lambda: None,
        note: Callable[[], bool] = lambda: True,
    ) -> None:
        """Watch over the parts of a guard.

        Args:
            journal: Writes a fault down.
            stand_down: Ends a probe or trial that is under way.
            note: Called at the first fault; returns whether to stand down at once.
        """
        self._stood_down = False
        self._journal = journal
        self._end_case = stand_down
        self._note = note
        self._left_out: set[Part] = set()
        self._told: set[tuple[Part, str]] = set()

    @property
    def stood_down(self) -> bool:
        """Whether nothing is acted on any more."""
        return self._stood_down

    def on_first_fault(self, note: Callable[[], bool]) -> None:
        """Call `note` at the first fault; it returns whether to stand down at once."""
        self._note = note

    def on_stand_down(self, end_case: Callable[[], None]) -> None:
        """Call `end_case` when the guard stands down: it ends what is under way."""
        self._end_case = end_case

    def run(self, part: Part, work: Callable[[], object]) -> bool:
        """Do work of our own; return whether it was done without a fault."""
        if part in self._left_out:
            return False
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a fault of ours never stops a run
            self.note(part, error)
            return False
        return True

    def note(self, part: Part, error: Exception) -> None:
        """Write a fault down, once; at the first, stand down."""
        if isinstance(error, OwnerLost):  # whatever part sees it, it is one thing
            part = "journal"
        self._left_out.update(_LEAVE_OUT[part])
        text = f"{type(error).__name__}: {error}"
        if (part, text) in self._told:
            return
        first = not self._told
        self._told.add((part, text))
        to_stderr(f"trimtab: a fault of its own ({part}); the run goes on, only observed: {text}")
        try:
            self._journal(text, part)
        except Exception:  # noqa: BLE001 - the same edge
            to_stderr("trimtab: the fault could not be journalled")
        if first and self._note():
            self.stand_down()

    def stand_down(self) -> None:
        """Act on nothing any more; done again, it changes nothing."""
        if self._stood_down:
            return
        self._stood_down = True
        try:
            self._end_case()
        except Exception as further:  # noqa: BLE001 - the same edge
            to_stderr(f"trimtab: while standing down: {type(further).__name__}: {further}")


def to_stderr(line: str) -> None:
    """Show one line; where there is no standard error, or it is broken, do without."""
    with contextlib.suppress(Exception):
        sys.stderr.write(line + "\n")
