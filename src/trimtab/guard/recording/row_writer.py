"""Rows of signals on their way to disk: in order, whole lines, in memory while the disk fails."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from trimtab.durable import make_folder, sync_folder
from trimtab.guard.recording.row_sync import RowSync

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MOST_HELD_ROWS", "RowWriter"]

MOST_HELD_ROWS = 10_000
"""Rows that are kept in memory: about 5 MB with 25 signals."""
_ROWS_AT_ONCE = 256


class _Row(NamedTuple):
    path: Path
    step: int
    line: bytes


class RowWriter:
    """Appends lines to one file after another.

    A line that the disk took only in part is cut off again before anything else is written, so a
    file holds whole lines in their order, each once. Its only writer is this one.
    """

    def __init__(self, row_sync: RowSync | None = None) -> None:
        """Hold nothing.

        Args:
            row_sync: Says when rows are brought to disk; None: by its defaults.
        """
        self._row_sync = RowSync() if row_sync is None else row_sync
        self._held: deque[_Row] = deque()
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._size = 0
        """Bytes of the open file that are whole lines."""
        self._torn = False
        self._thinned: list[int] = []

    @property
    def num_held(self) -> int:
        """Rows that are not on disk."""
        return len(self._held)

    @property
    def held_steps(self) -> tuple[int, ...]:
        """Their steps, in order."""
        return tuple(row.step for row in self._held)

    def add(self, path: Path, step: int, line: bytes) -> None:
        """Hold a row; where there are too many, every second one of the older half goes."""
        self._held.append(_Row(path, step, line))
        if len(self._held) > MOST_HELD_ROWS:
            rows = list(self._held)
            half = len(rows) // 2
            self._thinned += [row.step for row in rows[1:half:2]]
            self._held = deque([*rows[0:half:2], *rows[half:]])

    def take_thinned(self) -> tuple[int, ...]:
        """Return the steps whose rows were given up, each once."""
        thinned, self._thinned = self._thinned, []
        return tuple(thinned)

    def open(self, path: Path) -> None:
        """Open a file for appending, and make its folder.

        Raises:
            OSError: It cannot be opened; the one before stays open.
        """
        if self._path == path:
            return
        make_folder(path.parent)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if is_new:
                sync_folder(path.parent)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._path, self._descriptor, self._torn = path, descriptor, False
        self._size = os.fstat(descriptor).st_size

    def write(self) -> None:
        """Write the rows that are held.

        Raises:
            OSError: The disk refuses; the rows that it has not taken whole are still held.
        """
        while self._held:
            path = self._held[0].path
            self.open(path)
            rows: list[bytes] = []
            for row in self._held:
                if row.path != path or len(rows) == _ROWS_AT_ONCE:
                    break
                rows.append(row.line)
            self._append(b"".join(rows))
            for _ in rows:
                self._held.popleft()
            # After they are let go of: a sync that fails must not have them written twice.
            assert self._descriptor is not None
            self._row_sync.wrote(self._descriptor, len(rows))

    def sync(self) -> None:
        """Wait until the rows that were written are on disk.

        Raises:
            OSError: The disk fails.
        """
        if self._descriptor is not None:
            self._row_sync.sync(self._descriptor)

    def _append(self, lines: bytes) -> None:
        assert self._descriptor is not None
        if self._torn:
            self._cut()
        self._torn = True
        try:
            rest = memoryview(lines)
            while rest:
                num_written = os.write(self._descriptor, rest)
                if num_written == 0:
                    raise OSError(errno.EIO, "nothing more is taken")
                rest = rest[num_written:]
        except OSError:
            with contextlib.suppress(OSError):  # else it is cut off before the next write
                self._cut()
            raise
        self._size += len(lines)
        self._torn = False

    def _cut(self) -> None:
        """Cut off what follows the last whole line."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, self._size)
        self._torn = False

    def close(self) -> None:
        """Close the file; what is held stays held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # what it held was written or is held
                self._row_sync.sync(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._path = self._descriptor = None
