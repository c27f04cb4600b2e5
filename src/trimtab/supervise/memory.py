"""Host memory of a command that grows with its steps, told before the kernel ends it."""

import contextlib
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

__all__ = ["HostMemory", "anonymous_bytes", "free_bytes"]

_ROWS, _MAX_ROWS = 8, 64
_STEPS = 60
"""Fewer looks, or fewer steps, tell a leak from nothing. Ours."""
_WARM_UP = 0.25
"""Share of the looks that is passed over: caches and buffers fill first. Ours."""
_LEAST_BYTES, _LEAST_SHARE = 1 << 25, 0.02
"""Growth that counts: 32 MiB, and that share of what there was. Ours."""
_RISING = 0.8
"""Share of the looks that found more than the one before. Ours."""
_STEADY = 0.7
"""Growth of the later half over that of the earlier one: a cache that fills gets slower. Ours."""
_SOON = 1_000_000
"""Steps after which nobody minds. Ours."""
_BUSY_SHARE = 0.02
"""Most of the time that goes into finding the processes: /proc is read whole."""


class HostMemory:
    """Follows one attempt."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._rows: list[tuple[float, int]] = []
        self._apart = 0.0
        """Steps between two looks, at least."""
        self._pids: Sequence[int] = ()
        self._next = 0.0
        """When the processes are asked for again."""

    def look(self, step: float, pids: Callable[[], Sequence[int]]) -> str:
        """Return what a person should know; empty: nothing.

        Args:
            step: The newest step.
            pids: Gives the processes of the command.
        """
        began = time.monotonic()
        if began >= self._next:
            self._pids = pids()
            self._next = began + (time.monotonic() - began) / _BUSY_SHARE
        if self._rows and step <= self._rows[-1][0] + self._apart:
            return ""
        return self.take(step, anonymous_bytes(self._pids), free_bytes())

    def take(self, step: float, num_bytes: int, free: int) -> str:
        """Take one look; return as `look` does.

        Args:
            step: The newest step.
            num_bytes: Memory of the command that no file stands behind.
            free: What the host has left.
        """
        self._rows.append((step, num_bytes))
        if len(self._rows) > _MAX_ROWS:
            self._rows = self._rows[::2]
            self._apart = (step - self._rows[0][0]) / len(self._rows)
        rows = self._rows[int(len(self._rows) * _WARM_UP) :]
        first, last = rows[0], rows[-1]
        if len(rows) < _ROWS or last[0] - first[0] < _STEPS:
            return ""
        grown, middle = last[1] - first[1], rows[len(rows) // 2]
        if grown < max(_LEAST_BYTES, _LEAST_SHARE * first[1]):
            return ""
        if sum(a[1] < b[1] for a, b in pairwise(rows)) < _RISING * (len(rows) - 1):
            return ""
        if _slope(middle, last) < _STEADY * _slope(first, middle):
            return ""
        left = free / _slope(first, last)
        if left > _SOON:
            return ""
        return (
            f"host memory grows by {_slope(first, last) / 2**20:.2f} MiB a step, steadily since"
            f" step {first[0]:g}: {num_bytes / 2**30:.2f} GiB now, {free / 2**30:.1f} GiB free,"
            f" enough for about {left:.0f} steps; look for what the loop keeps, such as losses with"
            " their graph"
        )


def _slope(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) / (last[0] - first[0])


def anonymous_bytes(pids: Sequence[int]) -> int:
    """Return the memory of processes that no file stands behind; mapped data sets do not count."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
            total += int(text.split("RssAnon:")[1].split()[0]) << 10
    return total


def free_bytes() -> int:
    """Return what this host has left, or the control group that this process is in."""
    free = 1 << 60
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text("utf-8")
        free = int(text.split("MemAvailable:")[1].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text("utf-8"))
        free = min(free, most - int((group / "memory.current").read_text("utf-8")))
    return max(free, 0)
