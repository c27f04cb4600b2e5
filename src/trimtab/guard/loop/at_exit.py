"""Loops that nobody left by the end of the process are left then, while writing still works.

`batches = iter(guard)` at the top of a script lives until the interpreter is taken down, when the
verdict and the journal can no longer be written.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["left_at_exit"]

_LOOPS: weakref.WeakSet[Generator[object, None, None]] = weakref.WeakSet()


def left_at_exit(loop: Generator[object, None, None]) -> Generator[object, None, None]:
    """Return a loop that is closed when the process ends, as a `break` closes it."""
    if not _LOOPS:
        atexit.unregister(_leave)
        atexit.register(_leave)  # late: before what was registered earlier, such as thread pools
    _LOOPS.add(loop)
    return loop


def _leave() -> None:
    for loop in list(_LOOPS):
        with contextlib.suppress(ValueError):  # it is being run by another thread
            loop.close()
