"""The newest step of a run, read from what it prints or writes, by the readers of `watch`."""

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trimtab.crash.lines import clean, is_finish, progress
from trimtab.errors import ReadError
from trimtab.readers import read_newest, read_run, too_many_files
from trimtab.readers.folders import files_under
from trimtab.record import RunRecord
from trimtab.supervise.streams import Output

__all__ = [
    "MOST_FILES",
    "MOST_TRIED",
    "LogProgress",
    "OutputProgress",
    "Seen",
    "last_told",
    "section_of",
]

_HEAD_BYTES = 1 << 13
_WINDOW_BYTES = 1 << 16
"""How much of the end of an output is read at each look; a few ms."""
_BUSY_SHARE = 0.1
"""Largest share of the time that goes into reading a log whole."""
MOST_FILES = 10_000
"""Files that a followed folder may hold. All are looked at again and again."""
MOST_TRIED = 64
"""Of them, those written last that are tried as logs."""
LISTED_S = 5.0
"""The longest that listing them may take, as on a slow network disk."""

_SECTIONS = (
    ("evaluation", ("evaluat", "validat", "running eval", "***** running prediction")),
    ("saving", ("saving", "checkpointing", "writing checkpoint", "save checkpoint", "saved ")),
    ("compile", ("compil", "torch.compile", "autotun", "warming up", "capturing cuda graph")),
)
"""Section -> what lines that begin one hold, in lower case. Wordings of Hugging Face, Megatron,
DeepSpeed, torchtitan, Lightning and PyTorch."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Where a run stands."""

    step: float
    """On the log's axis; the number of rows seen where it has none."""
    position: float
    """The same, or the epoch where the log counts nothing else that outlives a restart."""
    rate: float | None = None
    """The learning rate, where the log has it."""
    counted: bool = False
    """Whether the step is a count of rows."""
    first: float | None = None
    """The first step of the attempt; None: not known."""


_CLIMB_ROWS = 3
"""Rows, each above the one before, that show a step behind the newest to be a new count. Ours."""


class _Advance:
    """Tells rows that go on from rows that only come again: a thread may repeat the last step."""

    def __init__(self) -> None:
        self._newest = (-np.inf, -np.inf)
        self._before = self._newest
        self._climbed = 0
        self._num_rows = self._num_above = 0

    def take(self, places: Sequence[tuple[float, float]]) -> bool:
        """Tell whether one of the new rows goes on.

        Args:
            places: Epoch and step of each; NaN: the row has no epoch.
        """
        moved = False
        for epoch, step in places:
            # Within an epoch, a fraction of one says nothing beyond the step.
            place = (self._newest[0] if np.isnan(epoch) else float(np.floor(epoch)), step)
            self._num_rows += 1
            self._climbed = self._climbed + 1 if place > self._before else 1
            self._before = place
            above = place > self._newest
            self._num_above += above
            # A count that mostly comes again is none of steps: there any new row is progress.
            repeats = 2 * self._num_above < self._num_rows
            if above or repeats or self._climbed >= _CLIMB_ROWS:
                self._newest, moved = place, True
        return moved


class OutputProgress:
    """Follows the output of one attempt."""

    def __init__(self, output: Output) -> None:
        """Begin with what comes from now on."""
        self._output = output
        self._head = b""
        self._looked_at = output.num_bytes
        self._began_at = self._moved_at = output.num_bytes
        self._last: tuple[float, ...] | None = None
        self._advance = _Advance()
        self._num_rows = 0
        self._first: float | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="trimtab-", ignore_cleanup_errors=True)

    def look(self) -> Seen | None:
        """Return where the run stands if a new row came since the last look."""
        size = self._output.num_bytes
        if size == self._looked_at:
            return None
        before, self._looked_at = self._looked_at, size
        own = size - self._began_at
        # A bar writes each of its states over the one before: as the judge reads it, a row each.
        tail = self._output.tail(min(own, _WINDOW_BYTES + _HEAD_BYTES)).replace(b"\r", b"\n")
        if len(self._head) < _HEAD_BYTES and own <= len(tail):
            self._head = tail[:_HEAD_BYTES]
        # A table's header stands at the beginning; the middle is not needed for the newest row.
        whole = tail if own <= len(tail) else self._head + b"\n" + tail.partition(b"\n")[2]
        if own <= len(tail) or self._moved_at > size - len(tail):
            whole = _without(whole, self._moved_at - size, before - size)
        record = self._read(whole)
        seen = None if record is None else self._compare(record)
        self._moved_at = self._moved_at if seen is None else size
        return seen

    def _read(self, data: bytes) -> RunRecord | None:
        path = Path(self._folder.name) / "output"
        try:
            # A line without an end may still grow: 12 of step 123.
            path.write_bytes(data[: data.rfind(b"\n") + 1])
            return read_run(path)
        except (ReadError, OSError):
            return None

    def _compare(self, record: RunRecord) -> Seen | None:
        rows = _rows(record)
        if not rows or rows[-1] == self._last:
            return None
        known = [i for i, row in enumerate(rows) if row == self._last]
        self._num_rows += len(rows) - 1 - known[-1] if known else len(rows)
        new = _num_new(rows, self._last)
        self._last = rows[-1]
        if record.axis == "step" and not self._advance.take(_places(record, new)):
            return None
        if self._first is None and record.axis == "step":
            self._first = float(record.step[0])
        return replace(_seen(record, self._num_rows), first=self._first)

    def close(self) -> None:
        """Remove what is on disk."""
        self._folder.cleanup()


class LogProgress:
    """Follows a log file or a directory of logs (TensorBoard's) that the command writes."""

    def __init__(self, path: Path) -> None:
        """Keep what to follow; it need not exist yet."""
        self.path = path
        self.trouble = ""
        """Why it cannot be read; empty: it can, or is not there yet."""
        self.appeared = False
        self._next = 0.0
        self._begun = False

    def begin(self) -> None:
        """Begin with an attempt: what the log holds already is no progress of it."""
        self._begun = True
        self._signature: object = self._state()
        self.appeared = self.appeared or self._signature is not None
        self._last: tuple[float, ...] | None = None
        self._advance = _Advance()
        if self._signature is not None and (record := self._read()) is not None:
            self._last = next(iter(_rows(record)[-1:]), None)

    def _state(self) -> object:
        """Return what changes where something is written; None: there is nothing to follow."""
        try:
            return _signature(self.path)
        except ReadError as error:
            self.trouble, self.appeared = str(error), True
            return None

    def _read(self) -> RunRecord | None:
        try:
            record = read_newest(self.path, most=MOST_FILES, tried=MOST_TRIED)
        except ReadError as error:
            self.trouble = str(error)
            return None
        self.trouble = ""
        return record

    def look(self, now: float) -> Seen | None:
        """Return where the run stands if a new row came since the last look.

        Args:
            now: By the monotonic clock.
        """
        if not self._begun:
            self.begin()  # the command was taken over
        if now < self._next:
            return None
        began = time.monotonic()
        signature = self._state()
        self._next = now + (time.monotonic() - began) / _BUSY_SHARE
        if signature is None or signature == self._signature:
            return None
        self._signature, self.appeared = signature, True
        record = self._read()
        self._next = now + (time.monotonic() - began) / _BUSY_SHARE
        rows = [] if record is None else _rows(record)
        if record is None or not rows or rows[-1] == self._last:
            return None
        new = _num_new(rows, self._last)
        self._last = rows[-1]
        if record.axis == "step" and not self._advance.take(_places(record, new)):
            return None
        return _seen(record, record.num_rows)


def section_of(lines: list[str]) -> str:
    """Return the slow section that the last line of an output begins; empty for none.

    After the end of training comes an evaluation, another save, or the way out: what is printed
    there may follow the line that says so, but no record of training.
    """
    told = [line for line in lines if line.strip()][-_FINISH_LINES:]
    text = "".join(told[-1:]).lower()[:400]
    named = next((name for name, words in _SECTIONS if any(w in text for w in words)), "")
    if named:
        return named
    ends = next((i for i, line in enumerate(reversed(told)) if is_finish(line)), None)
    behind = [] if ends is None else told[len(told) - ends :]
    goes_on = any(progress(line) or _unfinished(line) for line in behind)
    return "" if ends is None or goes_on else "end"


_FINISH_LINES = 8
"""How far behind a line that says that training is done it may stand. Ours."""
_COUNT = re.compile(r"(?<![\w./:,-])(\d{1,12})\s{0,2}(?:/|of)\s{0,12}(\d{1,12})(?![\d./:-]*\w)")
"""So many of so many, as `step 5/120`, `60/60 [00:12<00:00` and `iteration   5/   120`."""
_EPOCH = re.compile(r"\bepochs?\W{0,3}(\d{1,9})\s{0,2}(?:/|of)\s{0,12}(\d{1,9})\b", re.IGNORECASE)


def _counts(line: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in _COUNT.findall(line[:400])]


def _unfinished(line: str) -> bool:
    return any(done < whole for done, whole in _counts(line))


def last_told(lines: list[str], step: float, *, counted: bool, from_zero: bool) -> float | None:
    """Return the last step as a log itself tells it with the newest row, `120/120`; None: it goes on.

    Args:
        lines: The end of the output.
        step: Of the newest row.
        counted: Whether it is a count of rows: then it is the longest count that tells.
        from_zero: Whether the first row was step 0: a count in a line may end one below its whole.

    A count of batches that begins again, or stands in an epoch that is not the last, is none.
    """
    found = [(line, _counts(line)) for line in map(clean, lines)]
    wholes = [whole for _, counts in found for _, whole in counts]
    if not wholes:
        return None
    off = 1 if from_zero else 0
    last = max(wholes) if counted else next((w for w in wholes if 0 <= w - step <= off), None)
    if last is None or last < max(step, 2):
        return None
    full = False
    for line, counts in found:
        here = [done for done, whole in counts if whole == last]
        below = 0 if counted or "%|" in line else off
        if full and any(done < last - below for done in here):
            return None
        others = all(done >= whole for done, whole in counts if whole != last)
        full = full or (others and any(done >= last - below for done in here))
    epochs = [pair for line, _ in found for pair in _EPOCH.findall(line)]
    inner = bool(epochs) and int(epochs[-1][0]) < int(epochs[-1][1])
    return float(last) if full and not inner else None


def _rows(record: RunRecord) -> list[tuple[float, ...]]:
    """Return what tells the last rows from each other; NaN is 0 there, as it equals none."""
    names = [n for n in ("loss", "lr", "grad_norm", "epoch") if n in record.columns]
    first = max(record.num_rows - 2_000, 0)
    columns = [np.nan_to_num(record.columns[n].values[first:]) for n in names]
    if record.axis != "row":
        columns.append(record.step[first:])
    return [tuple(map(float, row)) for row in zip(*columns, strict=True)]


def _without(data: bytes, first: int, last: int) -> bytes:
    """Leave out the lines from one place to another, counted from the end: they showed no new step.

    However often a thread says the same again, the steps before stay most of what is read.
    """
    first = data.rfind(b"\n", 0, len(data) + first) + 1
    last = data.rfind(b"\n", 0, len(data) + last) + 1
    return data[:first] + data[last:] if 0 < first < last else data


def _num_new(rows: list[tuple[float, ...]], last: tuple[float, ...] | None) -> int:
    """Return how many rows came after the last one known; where that is gone, the newest alone.

    A reader leaves rows of one step out that say the same.
    """
    gone = len(rows) if last is None else 1
    return next((n for n, row in enumerate(reversed(rows)) if row == last), gone)


def _places(record: RunRecord, num: int) -> list[tuple[float, float]]:
    """Return epoch, NaN where there is none, and step of the last rows."""
    steps = record.step[record.num_rows - num :].tolist()
    column = record.columns.get("epoch")
    if column is None:
        return [(np.nan, step) for step in steps]
    known = np.where(column.present, column.values, np.nan)[record.num_rows - num :]
    return list(zip(known.tolist(), steps, strict=True))


def _seen(record: RunRecord, num_rows: int) -> Seen:
    last = float(record.step[-1])
    column = record.columns.get("lr")
    rate = None
    if column is not None and column.present.any():
        newest = float(column.logged()[-1])
        rate = newest if np.isfinite(newest) else None
    if record.axis == "step":
        return Seen(step=last, position=last, rate=rate)
    epoch = record.columns.get("epoch")
    if record.axis == "epoch":
        at = last
    elif epoch is not None and epoch.present[-1]:
        at = float(epoch.values[-1])
    else:
        at = float(num_rows)
    return Seen(step=float(num_rows), position=at, rate=rate, counted=True)


def _signature(path: Path) -> object:
    """Return name, size and time of every file; None: nothing is there, or it cannot be listed.

    Raises:
        ReadError: It is neither a file nor a folder, or holds too much.
    """
    found: list[tuple[str, int, int]] = []
    until = time.monotonic() + LISTED_S
    try:
        if not (path.is_file() or path.is_dir() or not path.exists()):
            raise ReadError(f"{path}: a pipe or a device, which is not read; give a file")
        for file in [path] if path.is_file() else files_under(path):
            told = file.stat()
            found.append((str(file), told.st_size, told.st_mtime_ns))
            if len(found) > MOST_FILES:
                raise ReadError(too_many_files(path, MOST_FILES))
            if time.monotonic() > until:
                took = f"to list its files takes more than {LISTED_S:g} s"
                raise ReadError(f"{path}: {took}; give the log, or a folder of this run alone")
    except OSError:
        return None
    return tuple(sorted(found)) or None
