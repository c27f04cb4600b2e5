"""Messages handed on in the background: whoever sends one never waits for it.

One thread sends, oldest first. An exchange has one deadline for all of it; it is tried again with
growing waits. What is lost is told once for each reason in a row.
"""

import http.client
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from trimtab.limits import MAX_WEBHOOK_QUEUE, WEBHOOK_CLOSE_S, WEBHOOK_DEADLINE_S, WEBHOOK_WAITS_S
from trimtab.text import plain

_ABORT_S = 1.0
"""A try that was ended from outside gets so long, so that the next one can begin."""

__all__ = ["Delivery", "Exchange", "FinalError"]


class FinalError(Exception):
    """A failure that another try would only repeat."""


class Exchange(Protocol):
    """One try to hand a message on."""

    error: Exception | None
    """Why it failed, once it ran; None: it did not."""

    def run(self) -> None:
        """Try; an error is kept, not raised."""

    def abort(self) -> None:
        """End it from outside, whatever it waits for, as far as that can be done."""


class Delivery:
    """Hands messages on in a thread of its own, oldest first, each several times if need be."""

    def __init__(
        self,
        begin: Callable[[str], Exchange],
        *,
        say: Callable[[str], None],
        deadline_s: float = WEBHOOK_DEADLINE_S,
        waits_s: Sequence[float] = WEBHOOK_WAITS_S,
        name: str = "webhook",
        stuck: str = "the try before has not ended yet",
    ) -> None:
        """Keep how to send; nothing is sent, and no thread runs, before the first message.

        Args:
            begin: Makes the exchange of one message.
            say: Told what was not delivered and why, and when messages arrive again.
            deadline_s: Seconds for one try, all of it.
            waits_s: Seconds before the second try, the third, and so on.
            name: Of its threads.
            stuck: What is said where a try outlasts its end, so that no other can begin.
        """
        self._begin, self._say, self._deadline_s = begin, say, deadline_s
        self._waits_s, self._name, self._stuck = waits_s, name, stuck
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._try: threading.Thread | None = None
        self._closing = self._closed = self._busy = False
        self._num_lost = 0
        self._why_lost = ""

    def send(self, text: str) -> None:
        """Send a message later; of more than the queue holds, the oldest is dropped."""
        with self._changed:
            self._waiting.append(text)
            dropped = len(self._waiting) > MAX_WEBHOOK_QUEUE
            if dropped:
                self._waiting.popleft()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if dropped:
            self._lose(f"more than {MAX_WEBHOOK_QUEUE} messages wait; the oldest are dropped")

    def close(self, *, wait_s: float = WEBHOOK_CLOSE_S) -> None:
        """Try what waits once more, for at most `wait_s` seconds; say what is left."""
        end = time.monotonic() + wait_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._waiting or self._busy:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            num_left = len(self._waiting) + self._busy
            self._waiting.clear()
            self._closed = True
        if num_left:
            messages = "message" if num_left == 1 else "messages"
            self._say(f"{num_left} {messages} not delivered within {wait_s:g} s of the end")

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                message = self._waiting.popleft()
                self._busy = True
            try:
                self._deliver(message)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _deliver(self, message: str) -> None:
        """Send one message, several times if need be."""
        for wait_s in (*self._waits_s, None):
            last = wait_s is None or self._closing
            try:
                self._send_in_time(message)
            except FinalError as error:
                self._lose(str(error))
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = plain(error, limit=200) or type(error).__name__
                if not last:
                    self._pause(wait_s or 0.0)
                    continue
                self._lose(f"not delivered ({why})")
            else:
                self._found()
            return

    def _pause(self, wait_s: float) -> None:
        """Wait before the next try; the end of the watch cuts it short."""
        end = time.monotonic() + wait_s
        with self._changed:
            while not self._closing and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _lose(self, why: str) -> None:
        """Count a message that did not arrive; say so, once for each reason in a row."""
        self._num_lost += 1
        if why != self._why_lost and not self._closed:  # a try that outlasts its watch is silent
            self._why_lost = why
            self._say(why)

    def _found(self) -> None:
        if self._num_lost:
            self._say(f"messages arrive again; {self._num_lost} did not")
        self._num_lost, self._why_lost = 0, ""

    def _send_in_time(self, message: str) -> None:
        """Send once, in a thread of its own: the lookup of a name cannot be given a deadline.

        Raises:
            OSError: It failed, or took too long.
            FinalError: It failed for good.
        """
        if self._try is not None and self._try.is_alive():
            raise TimeoutError(self._stuck)
        exchange = self._begin(message)
        self._try = threading.Thread(target=exchange.run, name=f"{self._name}-post", daemon=True)
        self._try.start()
        self._try.join(self._deadline_s)
        if self._try.is_alive():
            exchange.abort()
            self._try.join(_ABORT_S)
            raise TimeoutError(f"no whole answer within {self._deadline_s:g} s")
        if exchange.error is not None:
            raise exchange.error
