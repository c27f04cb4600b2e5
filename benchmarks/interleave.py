"""Interleaves training loops step by step, whoever owns the loop.

A trainer runs its own loop and comes back when it is done. Here each loop has a thread that is let
go for one step and then waits, so that loops of any trainer are timed step by step beside each
other. Never two at once: what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Paced", "time_in_turns"]

_PATIENCE_S = 600.0


# Not an Exception: trainers catch those, to save a checkpoint or to try again.
class _LoopIsOverError(BaseException):
    """Raised inside a loop to end it; no trainer takes it for an error of its own."""


class Paced:
    """One loop, a step at a time."""

    def __init__(self, loop: Callable[[Callable[[], None]], None], *, threads: int = 1) -> None:
        """Take a loop; nothing of it is run yet.

        Args:
            loop: Trains for ever, and calls what it is given at the end of each step.
            threads: Of torch, in the loop.
        """
        self._loop = loop
        self._threads = threads
        self._may_go, self._has_come = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = self._has_ended = False
        self._failed: BaseException | None = None
        # A daemon: a trainer that never comes back must not keep the process alive.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def step(self) -> None:
        """Let the loop do one step; the first one sets it up too.

        Raises:
            RuntimeError: The loop failed, or ended by itself.
        """
        if self._thread.ident is None:
            self._thread.start()
        self._may_go.release()
        if not self._has_come.acquire(timeout=_PATIENCE_S):
            raise RuntimeError(f"a step took more than {_PATIENCE_S:.0f} s")
        if self._has_ended:
            raise RuntimeError("a loop ended before it was told to") from self._failed

    def close(self) -> None:
        """End the loop."""
        self._is_over = True
        if self._thread.ident is not None:
            self._may_go.release()
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        # Within the thread: OpenMP keeps this number for each thread that calls it.
        torch.set_num_threads(self._threads)
        self._may_go.acquire()
        try:
            self._loop(self._pause)
        except _LoopIsOverError:
            pass
        except BaseException as error:  # noqa: BLE001 - told in the thread that waits
            self._failed = error
        finally:
            self._has_ended = True
            self._has_come.release()

    def _pause(self) -> None:
        if self._is_over:
            raise _LoopIsOverError
        self._has_come.release()
        self._may_go.acquire()
        if self._is_over:
            raise _LoopIsOverError


def time_in_turns(
    loops: Mapping[str, Paced], *, rounds: int, warm_up: int = 5
) -> dict[str, list[float]]:
    """Return the seconds of each step by loop, float64 [rounds] each; the order is drawn every round.

    Args:
        loops: By name; ended in any case.
        rounds: Steps of each that count.
        warm_up: Steps of each before them, the first of which sets the loop up.
    """
    names = list(loops)
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        for paced in loops.values():
            stack.callback(paced.close)
        for i in range(rounds + warm_up):
            # None always follows the same one: it finds the caches as another loop left them.
            for name in order.sample(names, len(names)):
                started = time.perf_counter()
                loops[name].step()
                if i >= warm_up:
                    times[name].append(time.perf_counter() - started)
    return times
