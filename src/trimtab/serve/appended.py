"""What was appended to a log since it was read whole: read alone, as far as it reads alike.

The new lines are read with the first line of the log and some lines from before them, by the same
readers. What those lines give must be what the whole log gave there, step by step and value by
value; where anything differs (another format, a restart, units told by what stands further up) the
log is read whole again.
"""

import os
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.panels import SPECS

__all__ = ["Appended", "ReadMark", "read_appended"]

Floats = NDArray[np.float64]

MAX_BYTES = 1 << 20
"""Appended bytes that are read alone, at most; of more the log is read whole."""
_CONTEXT_LINES, _CONTEXT_BYTES = 64, 1 << 16
_FIRST_BYTES = 1 << 12
_ROWS = 1 << 10
"""Rows before the end that are kept to compare with: a log may have grown while it was read."""
_LEAST_ALIKE = 8
_RECENT_S = 3_600.0
"""A log that did not change for so long has no mark: a server lists thousands of them."""
_SIGNALS = (*(spec.name for spec in SPECS), "val_loss")


@dataclass(frozen=True, kw_only=True)
class ReadMark:
    """How far a log was read, and what its last rows held."""

    path: str
    inode: int
    end: int
    """Bytes up to the end of the last whole line."""
    lines: bytes
    """Its first line and the last ones before `end`."""
    format: str = ""
    step: Floats
    values: Mapping[str, Floats]
    """Of the same rows, of every signal that has a panel; NaN where it has none."""

    @classmethod
    def before(cls, path: str) -> "ReadMark | None":
        """Return where a log ends now; None where it is no file, quiet, or not one of lines."""
        try:
            with Path(path).open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_mtime < time.time() - _RECENT_S:
                    return None
                first = file.readline(_FIRST_BYTES)
                begin = max(status.st_size - _CONTEXT_BYTES, len(first))
                file.seek(begin)
                last = file.read(status.st_size - begin)
        except OSError:
            return None
        whole = last[: last.rfind(b"\n") + 1]
        if not first.endswith(b"\n") or not whole or b"\0" in whole:
            return None
        lines = whole.splitlines(keepends=True)
        lines = lines[-_CONTEXT_LINES:] if len(lines) > _CONTEXT_LINES else lines[1:]
        return cls(
            path=path,
            inode=status.st_ino,
            end=begin + len(whole),
            lines=first + b"".join(lines),
            step=np.zeros(0),
            values={},
        )

    def after(self, record: RunRecord) -> "ReadMark | None":
        """Return it with the last rows of what was read; None where nothing can be compared."""
        rows = record.rows_of(len(record.attempts) - 1) if record.attempts else slice(0, 0)
        rows = slice(max(rows.start, rows.stop - _ROWS), rows.stop)
        if rows.stop - rows.start < _LEAST_ALIKE or rows.stop != record.num_rows:
            return None
        return ReadMark(
            path=self.path,
            inode=self.inode,
            end=self.end,
            lines=self.lines,
            format=record.format,
            step=np.array(record.step[rows]),
            values=_values(record, rows),
        )


@dataclass(frozen=True, kw_only=True)
class Appended:
    """Rows of the last attempt behind those that were read whole, and the last of these."""

    num_rows: int
    """New ones."""
    step: float
    """The last."""
    rows: Mapping[str, tuple[Floats, Floats]]
    """Steps and values of each signal that has any."""


def read_appended(mark: ReadMark) -> Appended | None:
    """Read what a log has behind a mark; None where it must be read whole.

    Cost: O(appended bytes).
    """
    try:
        with Path(mark.path).open("rb") as file:
            status = os.fstat(file.fileno())
            grown = status.st_size - mark.end
            if status.st_ino != mark.inode or not 0 <= grown <= MAX_BYTES:
                return None
            tail = mark.lines[mark.lines.find(b"\n") + 1 :]
            file.seek(mark.end - len(tail))
            data = file.read(len(tail) + grown)
    except OSError:
        return None
    fresh = data[: data.rfind(b"\n") + 1]
    if not fresh.startswith(tail):  # written anew
        return None
    with tempfile.NamedTemporaryFile(suffix=Path(mark.path).suffix) as piece:
        piece.write(mark.lines[: mark.lines.find(b"\n") + 1] + fresh)
        piece.flush()
        try:
            record = read_run(piece.name)
        except (ReadError, OSError):
            return None
    found = _compared(mark, record)
    # Lines that add no row may be of another table: what they are, a whole reading says.
    return None if found and not found.num_rows and len(fresh) > len(tail) else found


def _compared(mark: ReadMark, record: RunRecord) -> Appended | None:
    step = record.step
    if record.format != mark.format or len(record.attempts) != 1 or (np.diff(step) <= 0).any():
        return None
    known = int(np.searchsorted(step, mark.step[-1], side="right"))
    if not any(_alike(mark, record, first, known) for first in (0, 1)):  # the first line may be one
        return None
    rows = {}
    for name in _SIGNALS:
        column = record.columns.get(name)
        if column is not None:
            held = np.flatnonzero(column.present)
            held = held[held >= known - 1]
            if len(held):
                rows[name] = np.array(step[held]), np.array(column.values[held])
    return Appended(num_rows=len(step) - known, step=float(step[-1]), rows=rows)


def _alike(mark: ReadMark, record: RunRecord, first: int, known: int) -> bool:
    """Tell whether rows [first, known) are the last ones that were read whole."""
    count = known - first
    if not _LEAST_ALIKE <= count <= len(mark.step):
        return False
    then, now = slice(len(mark.step) - count, None), _values(record, slice(first, known))
    return np.array_equal(mark.step[then], record.step[first:known]) and all(
        np.array_equal(mark.values[n][then], now[n], equal_nan=True) for n in _SIGNALS
    )


def _values(record: RunRecord, rows: slice) -> dict[str, Floats]:
    none = np.full(rows.stop - rows.start, np.nan)
    found = {name: record.columns.get(name) for name in _SIGNALS}
    return {
        name: none if c is None else np.where(c.present[rows], c.values[rows], np.nan)
        for name, c in found.items()
    }
