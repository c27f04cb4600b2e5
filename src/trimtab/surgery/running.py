"""Whether a job may still be writing to a run: what this machine can see of it.

A guard's lock; files of the run that a process of this machine has open for writing; and whether
anything grows while one looks. A job on another node leaves only the last of the three, so what was
written moments ago is said even where nothing grew.
"""

import os
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trimtab.checkpoints.layouts import ASIDE
from trimtab.chronicle.rundir import RunDirectory

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["fresh_writes", "guard_holds", "open_for_writing"]

FRESH_S = 120.0
"""A write more recent than this is watched and told. Ours."""
WATCH_S = 1.0
"""How long it is watched."""
_MAX_FILES = 20_000
_OURS = frozenset({".lock", "journal.jsonl", "journal.head"})
_WRITING = 0o3
"""Of the flags in /proc: opened for writing, or for both."""


def guard_holds(root: Path) -> str:
    """Return which other process holds the lock of a run; empty where none does.

    Nothing is written.
    """
    path = RunDirectory(root).lock
    if path.is_symlink() or not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read(4096).decode("utf-8", "replace")
                pid = re.search(r'"pid": (\d+)', text)
                if pid and int(pid[1]) == os.getpid():
                    return ""  # whoever takes the lock next finds out
                return f"process {pid[1]}" if pid else "a process that it does not name"
    except OSError:
        return ""
    return ""


def open_for_writing(root: Path) -> str:
    """Return a file of the run that another process of this machine writes to; empty: none is seen.

    Processes of other users are not seen, nor are those of other machines.
    """
    here = os.path.realpath(root)
    own = {os.getpid(), os.getppid()} if os.getppid() == os.getpgrp() else {os.getpid()}
    for process in _numbered(Path("/proc")):
        if int(process.name) in own:
            continue
        for descriptor in _numbered(process / "fd"):
            try:
                leads = os.readlink(descriptor)  # noqa: PTH115 - may be no path at all
                if not leads.startswith(f"{here}/"):
                    continue
                told = (process / "fdinfo" / descriptor.name).read_text(encoding="ascii")
                flags = int(told.partition("flags:")[2].split()[0], 8)
            except (OSError, ValueError, IndexError):
                continue
            below = leads.removeprefix(f"{here}/")
            if flags & _WRITING and below not in _OURS:
                return f"{below} is open for writing in process {process.name}"
    return ""


def _numbered(folder: Path) -> Iterator[Path]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - /proc changes while it is read
    except OSError:
        return
    yield from (folder / name for name in names if name.isdecimal())


def fresh_writes(
    root: Path, *, watch_s: float = WATCH_S, ours: frozenset[str] = frozenset()
) -> tuple[str, str]:
    """Return what grew while one looked, and what was written last where that is moments ago.

    Args:
        root: The run.
        watch_s: How long to look; 0: not at all.
        ours: Files that an earlier rollback wrote.
    """
    before = {name: at for name, at in _seen(root).items() if name not in ours}
    newest = max(before.items(), key=lambda item: item[1][1], default=None)
    if newest is None:
        return "", ""
    age_s = time.time() - newest[1][1] / 1e9
    if not -FRESH_S < age_s < FRESH_S:
        return "", ""
    told = f"{newest[0]} was written {max(age_s, 0):.0f} s ago"
    if watch_s:
        time.sleep(watch_s)
        after = {name: at for name, at in _seen(root).items() if name not in ours}
        grown = sorted(name for name in after if after[name] != before.get(name))
        if grown:
            return f"{grown[0]} changed within {watch_s:g} s", told
    return "", told


def _seen(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of the files of a run, at most so many."""
    return dict(islice(_walk(root, ""), _MAX_FILES))


def _walk(root: Path, inside: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(root / inside))
    except OSError:
        return
    for entry in entries:
        name = f"{inside}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ASIDE:
                    yield from _walk(root, f"{name}/")
            elif name not in _OURS:
                status = entry.stat(follow_symlinks=False)
                yield name, (status.st_size, status.st_mtime_ns)
        except OSError:
            continue
