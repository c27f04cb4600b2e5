"""How much memory of the host a new snapshot may take: what the system and its container leave."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["free_host_bytes"]

_CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes(*, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Return the memory that processes can still take, bytes; None where the system does not tell.

    The least of what the kernel calls available and what the control group leaves; its page cache
    counts as free.
    """
    known = [x for x in (_available(meminfo), _group_leaves(cgroup)) if x is not None]
    if not known and hasattr(os, "sysconf"):
        with contextlib.suppress(OSError, ValueError):
            known = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return min(known, default=None)


def _available(meminfo: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group_leaves(cgroup: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        cache = 0
        for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith("inactive_file "):
                cache = int(line.split()[1])
        return max(int(limit) - used + cache, 0)
    with contextlib.suppress(OSError, ValueError):  # the first version of control groups
        folder = cgroup / "memory"
        limit_v1 = int((folder / "memory.limit_in_bytes").read_text(encoding="ascii"))
        used = int((folder / "memory.usage_in_bytes").read_text(encoding="ascii"))
        return max(limit_v1 - used, 0) if limit_v1 < 1 << 60 else None
    return None
