"""The time of a step, on the host's clock or on the device's where values are read late."""

from __future__ import annotations

import math
import time

__all__ = ["StepClock"]


class StepClock:
    """Measures from the end of one step to the end of the next."""

    def __init__(self) -> None:
        """Start both measurements now."""
        self._started = self._shared_at = time.perf_counter()
        self._done_at: float | None = None
        self._row_done_at: float | None = None
        self._left_at: float | None = None
        self._fetch_at: float | None = None
        self._batch_at: float | None = None
        self._data_s = self._forward_s = self._between_s = math.nan

    def note_left(self) -> None:
        """Take note that a step is over: what follows is the loop's own, until it asks for more."""
        self._left_at = time.perf_counter()

    def note_asked(self) -> None:
        """Take note that the loop asks for the next batch."""
        if self._left_at is not None:
            self._between_s, self._left_at = time.perf_counter() - self._left_at, None

    def note_fetch(self) -> None:
        """Take note that the next batch is being fetched."""
        self._fetch_at = time.perf_counter()

    def note_batch(self) -> None:
        """Take note that a batch is there: the forward pass begins."""
        self._batch_at = time.perf_counter()
        if self._fetch_at is not None:
            before = 0.0 if math.isnan(self._data_s) else self._data_s
            self._data_s, self._fetch_at = before + self._batch_at - self._fetch_at, None

    def note_forward(self) -> None:
        """Take note that the loss of a part of the step is there."""
        if self._batch_at is not None:
            before = 0.0 if math.isnan(self._forward_s) else self._forward_s
            self._forward_s = before + time.perf_counter() - self._batch_at
            self._batch_at = None

    def take_own(self) -> tuple[float, float, float]:
        """Return the seconds to fetch, of the forward pass, and of the loop's own before them.

        NaN where not known.
        """
        own = self._data_s, self._forward_s, self._between_s
        self._data_s = self._forward_s = self._between_s = math.nan
        return own

    def start(self) -> None:
        """Begin to measure anew: what came before belongs to no step."""
        self._started = self._shared_at = time.perf_counter()

    def restart_step(self) -> None:
        """Begin the step under way now, after a state was put back."""
        self._started = time.perf_counter()

    def lap(self, *, late: bool) -> float:
        """Return the seconds since the last call: the time of a step before its update.

        Args:
            late: Values are read late. The device may still be at this step, so the end of the
                last step that was read is taken in place of now.
        """
        now = time.perf_counter()
        if late and self._done_at is not None:
            now = self._done_at
        took, self._shared_at = now - self._shared_at, now
        return took

    def note_done(self, done_at: float) -> None:
        """Take note of when the device finished the step that is recorded next."""
        self._row_done_at = done_at

    def end_row(self) -> float:
        """Return the seconds that the recorded step took, and begin the next one."""
        now = time.perf_counter() if self._row_done_at is None else self._row_done_at
        self._done_at, self._row_done_at = now, None
        took, self._started = now - self._started, now
        return took
