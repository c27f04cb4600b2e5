"""Ctrl-C in a guarded loop: the step under way is finished, so that what is saved is whole.

A generator is not told why its loop was left, so the signal itself is watched while a loop runs.
Pressed between steps, or a second time, it raises `KeyboardInterrupt` at once, as without a guard.
Where several ranks train together, all stop after the same step, whichever was interrupted.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """Watches SIGINT where it has Python's own handler and this is the main thread; else nothing."""

    def __init__(self, say: Callable[[str], None], *, alone: bool = True) -> None:
        """Nothing is watched yet.

        Args:
            say: Shows one line.
            alone: Whether this process decides for itself when to stop.
        """
        self._alone = alone
        self.seen = False
        """Whether the interrupt that is on its way came through here."""
        self.in_step = False
        """Whether a batch is under way: stopping now would leave half a step."""
        self._wanted = False
        self._watching = False
        self._say = say

    def watch(self) -> None:
        """Begin; done again, it changes nothing."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._watching = True

    def release(self) -> None:
        """Put Python's handler back, where ours is still in place."""
        if self._watching and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._watching = False

    def step_begins(self) -> None:
        """A batch is asked for; an interrupt that the loop caught is over."""
        self.in_step, self.seen = True, False

    def is_wanted(self) -> bool:
        """Whether an interrupt waits for the end of the step."""
        return self._wanted

    def step_ends(self, *, together: bool) -> None:
        """Raise the interrupt that came in the meantime.

        Args:
            together: Whether any rank had been interrupted before the step's update.

        Raises:
            KeyboardInterrupt: There was one.
        """
        self.in_step = False
        if together or (self._alone and self._wanted):
            self._wanted, self.seen = False, True
            raise KeyboardInterrupt

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if (self.in_step or not self._alone) and not self._wanted:
            self._wanted = True
            self._say("interrupt: finishing this step, then saving; once more stops at once")
            return
        self.seen, self._wanted = True, False
        raise KeyboardInterrupt
