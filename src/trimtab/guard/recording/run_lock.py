"""One run directory, one writer: a lock that the system releases when the process dies.

`.lock` in the run directory is held with `flock` for as long as a guard is open, and names the
process that holds it. A killed process leaves the file behind but not the lock. A process that is
forked from the holder releases its copy at once, so that it cannot keep the lock after the guard
has closed. Where a file system has no locks (some network file systems), the run goes on without
one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import weakref
from functools import cache
from typing import TYPE_CHECKING

from trimtab.errors import ChronicleError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RunLock"]


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Holds a run directory until `release` or the end of the process."""

    def __init__(self, root: Path) -> None:
        """Take the lock; the directory is made where it does not exist.

        Raises:
            ChronicleError: Another guard holds it, or the directory cannot be written.
        """
        self.path = root / ".lock"
        self._fd: int | None = None
        try:
            root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644
            )
        except OSError as error:
            raise ChronicleError(
                f"{root}: cannot be written ({error.strerror}); choose another run directory"
            ) from error
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                who = _read_holder(descriptor)
                os.close(descriptor)
                raise ChronicleError(
                    f"{root}: another guard is writing to this run directory ({who}); wait for it"
                    " or stop it (in the same process: call its close()), or choose another"
                    " directory"
                ) from error
            except OSError:
                pass  # no locks on this file system
        self._fd = descriptor
        _HELD.add(self)
        _watch_forks()
        # a lock that was garbage-collected must not hold the directory: a retry in this process
        # would be refused
        self._finalizer = weakref.finalize(self, _close, descriptor)
        holder = json.dumps({"pid": os.getpid(), "host": platform.node()})
        with contextlib.suppress(OSError):  # a full disk: the lock holds, but names nobody
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode() + b"\n", 0)

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._fd is not None:
            self._finalizer()
            self._fd = None


def _release_all() -> None:
    """Close the copies of a forked process; the process that took the lock keeps it."""
    for lock in list(_HELD):
        lock.release()


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=_release_all)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _read_holder(descriptor: int) -> str:
    try:
        data = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {data['pid']} on {data['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its process is not known"
