"""Ctrl-C or SIGTERM in a guarded loop.

The step under way is finished, so that what is saved is whole.

A generator cannot see why its loop was left, so the signal itself is watched while a loop runs.
Between steps, or a second time, it ends the loop at once, as without a guard: SIGINT by
`KeyboardInterrupt`, SIGTERM by `SystemExit(143)`. Where several ranks train together, all stop
after the same step, whichever got the signal. A process forked out of the loop inherits the
handlers and none of the duties: there the signal does what it does without a guard.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Interrupts"]

_DEFAULTS: dict[int, Callable[[int, FrameType | None], object] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""What must be in place for us to take over."""


class Interrupts:
    """Watches SIGINT and SIGTERM, each where nobody else does and this is the main thread."""

    def __init__(self, say: Callable[[str], None], *, alone: bool = True) -> None:
        """Nothing is watched yet.

        Args:
            say: Shows one line.
            alone: Whether this process decides for itself when to stop.
        """
        self._alone = alone
        self._pid = os.getpid()
        self.seen = False
        """Whether the interrupt that is on its way came through here."""
        self.in_step = False
        """Whether a batch is under way: stopping now would leave half a step."""
        self._wanted: int | None = None
        self._watched: list[int] = []
        self._say = say

    def watch(self) -> None:
        """Begin; done again, it changes nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in _DEFAULTS.items():
            # A handler of the trainer or the cluster stays in place: it has its own way to stop.
            if signal.getsignal(number) == default:
                signal.signal(number, self._handle)
                self._watched.append(number)

    def release(self) -> None:
        """Put the handlers back, where ours are still in place."""
        for number in self._watched:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _DEFAULTS[number])
        self._watched.clear()

    def step_begins(self) -> None:
        """A batch is asked for; an interrupt that the loop caught is over."""
        self.in_step, self.seen = True, False

    def loop_left(self, *, in_step: bool) -> None:
        """Take note that the loop was left; `in_step`: a batch is still under way."""
        self.in_step = in_step

    def is_wanted(self) -> bool:
        """Whether an interrupt waits for the end of the step."""
        return self._wanted is not None

    def step_ends(self, *, together: bool) -> None:
        """Raise the interrupt that came in the meantime.

        Args:
            together: Whether any rank had been interrupted before the step's update.

        Raises:
            KeyboardInterrupt: There was one.
            SystemExit: It was SIGTERM.
        """
        self.in_step = False
        if together or (self._alone and self._wanted is not None):
            number, self._wanted = self._wanted or signal.SIGTERM, None
            self._raise(number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # In a forked worker: put the default back and send the signal once more.
        if os.getpid() != self._pid:
            signal.signal(number, _DEFAULTS[number])
            os.kill(os.getpid(), number)
            return
        # With several ranks also between two steps: all must stop after the same one.
        if (self.in_step or not self._alone) and self._wanted is None:
            self._wanted = number
            name = signal.Signals(number).name
            what = "interrupt" if number == signal.SIGINT else name
            self._say(f"{what}: finishing this step, then saving; once more stops at once")
            return
        self._wanted = None
        self._raise(number)

    def _raise(self, number: int) -> None:
        self.seen = True
        if number == signal.SIGTERM:
            raise SystemExit(128 + number)
        raise KeyboardInterrupt
