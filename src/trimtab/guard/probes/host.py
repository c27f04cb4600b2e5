"""The host: memory of this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["host_memory_gib"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def host_memory_gib() -> float | None:
    """Return the resident memory of this process, GiB; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**30
    return None
