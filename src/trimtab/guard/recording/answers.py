"""What people say to a staged action, and how often each class of action was used today."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from trimtab.chronicle.approvals import Mailbox, mailbox_of
from trimtab.plan.authority import ARM_CLASS
from trimtab.plan.memory import ARM_REMEDIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trimtab.chronicle.journal import Event
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.plan.authority import Authority

__all__ = ["DailyUse", "Heard", "Inbox"]

Heard = tuple[str, str, str]
"""approved, denied or deadline; the reason that was given, and by whom."""

_DAY_S = 86400.0
_POLL_STEPS = 8
"""Steps between two looks where several ranks must agree on what was heard. Ours."""
_MOST_KEPT = 256
"""Answers to other ids that are kept: a person may answer before it is staged again."""

_CLASS_OF_REMEDY = {
    "roll-back": "restore",
    "raise-lr": "raise-rate",
    **{remedy: ARM_CLASS[arm] for arm, remedy in ARM_REMEDIES.items() if arm in ARM_CLASS},
}
WENT_BACK = "go back to step"
"""How a decision to go back begins in the journal."""


class Inbox:
    """Listens for answers: one `fstat` a step while something is staged, nothing otherwise."""

    def __init__(self, root: Path, ranks: Ranks, *, asks: bool) -> None:
        """Open the mailbox of a run where its policy may ask for anything.

        Args:
            root: Run directory.
            ranks: The first one reads; all go by what it found.
            asks: Whether anything may be staged at all.
        """
        self._ranks = ranks
        self._mailbox = Mailbox(mailbox_of(root)) if asks and ranks.chief else None
        self._answers: dict[str, Heard] = {}
        self._until = 0.0
        self._steps = 0

    def listen(self, deadline_s: float, *, anew: bool = False) -> None:
        """Begin a deadline.

        Args:
            deadline_s: From now on, seconds.
            anew: Whether the request is made now: what was said before is no answer to it.
        """
        if anew and self._mailbox is not None:
            self._answers.clear()
            while self._mailbox.read():
                pass
        self._until = time.monotonic() + deadline_s

    def hear(self, request: str) -> Heard | None:
        """Return what was said to a request, once; None as long as nothing was.

        A collective of several ranks, which all must ask in the same steps.
        """
        self._steps += 1
        if self._ranks.count > 1:
            if self._steps % _POLL_STEPS:
                return None
            return self._ranks.agree(lambda: self._look(request))
        return self._look(request)

    def _look(self, request: str) -> Heard | None:
        if self._mailbox is not None:
            for answer in self._mailbox.read():
                while len(self._answers) >= _MOST_KEPT:
                    self._answers.pop(next(iter(self._answers)))
                self._answers[answer.id] = (
                    "approved" if answer.approved else "denied",
                    answer.why,
                    answer.author,
                )
        said = self._answers.pop(request, None)
        if said is None and time.monotonic() >= self._until:
            return "deadline", "", ""
        return said

    def close(self) -> None:
        """Close the mailbox."""
        if self._mailbox is not None:
            self._mailbox.close()


class DailyUse:
    """Counts actions of the classes that have a limit, within the last 24 hours."""

    def __init__(self, authority: Authority) -> None:
        """Count what has a limit; the memory is bounded by the limits."""
        self._times: dict[str, deque[float]] = {
            name: deque(maxlen=max(limit, 1)) for name, limit in authority.per_day.items()
        }

    def take_in(self, events: Iterable[Event]) -> None:
        """Count what a journal tells of the time before this process."""
        for event in events:
            try:
                at = datetime.fromisoformat(event.t).timestamp()
            except ValueError:
                continue
            if event.event == "decision" and str(event.data.get("what")).startswith(WENT_BACK):
                self._count("restore", at)
            elif event.event == "action":
                self.count_remedy(str(event.data.get("remedy", "")), at)

    def count_restore(self) -> None:
        """Count going back, whether or not anything is kept afterwards."""
        self._count("restore", time.time())

    def count_remedy(self, remedy: str, at: float | None = None) -> None:
        """Count what a kept remedy changed; going back was counted when it was done."""
        at = time.time() if at is None else at
        if not remedy.startswith(("roll-back", "raise-lr")):
            return  # by hand
        for name in {_CLASS_OF_REMEDY.get(part, "") for part in remedy.split("+")}:
            if name != "restore":
                self._count(name, at)

    def _count(self, name: str, at: float) -> None:
        if name in self._times:
            self._times[name].append(at)

    def counts(self) -> Mapping[str, int]:
        """Return how often each class with a limit was used within the last 24 hours."""
        since = time.time() - _DAY_S
        return {name: sum(t > since for t in times) for name, times in self._times.items()}
