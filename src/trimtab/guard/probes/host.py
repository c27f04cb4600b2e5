"""The host: memory of this process."""

from __future__ import annotations

import contextlib
import os

__all__ = ["host_memory_gib"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class _Statm:
    """`/proc/self/statm`, opened once: a step opens no file."""

    def __init__(self) -> None:
        self._pid = -1
        self._file = -1
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._file = -1
        with contextlib.suppress(OSError):  # not on Linux
            self._file = os.open("/proc/self/statm", os.O_RDONLY)

    def read(self) -> bytes:
        if os.getpid() != self._pid:  # a forked process: the descriptor is that of its parent
            self._open()
        return os.pread(self._file, 256, 0)


_STATM = _Statm()


def host_memory_gib() -> float | None:
    """Return the resident memory of this process, GiB; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_STATM.read().split()[1]) * _PAGE / 2**30
    return None
