"""When the rows of a run are made to outlive a power cut.

Each row is handed to the system as it is recorded, so a killed process loses none. To have it on
disk costs an fsync; rows share one, by number and by time. Events do not wait: before one is
written, the rows that it may speak of are on disk.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RowSync"]


class RowSync:
    """Counts rows that are not on disk yet, and brings them there when it is time."""

    def __init__(
        self,
        *,
        every_steps: int = 50,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is waiting yet.

        Args:
            every_steps: Most rows that wait, optimizer steps.
            every_s: Age of the oldest waiting row at which the next row brings all to disk,
                seconds.
            clock: Gives seconds.
        """
        self._every_steps = every_steps
        self._every_s = every_s
        self._clock = clock
        self._num_waiting = 0
        self._since = 0.0

    def wrote(self, descriptor: int, num_rows: int = 1) -> None:
        """Take note of rows that were handed to the system.

        Raises:
            OSError: The disk fails; the rows stay waiting.
        """
        now = self._clock()
        if not self._num_waiting:
            self._since = now
        self._num_waiting += num_rows
        if self._num_waiting >= self._every_steps or now - self._since >= self._every_s:
            self.sync(descriptor)

    def sync(self, descriptor: int) -> None:
        """Wait until all rows are on disk.

        Raises:
            OSError: The disk fails; the rows stay waiting.
        """
        if self._num_waiting:
            os.fsync(descriptor)
            self._num_waiting = 0
