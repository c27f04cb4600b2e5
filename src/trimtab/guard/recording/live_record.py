"""The record of a run in memory, as it grows: what the judge and the recovery look at.

`LiveRecord.record()` is the record that `read_run_directory` would read from the files of the run,
without a file being opened: the same rows, values, masks, attempts and facts. It is filled once
from the files when a run is resumed, and grows with every row that is written.

Rows keep their number for good. They are held in blocks of `BLOCK_ROWS`:

- The newest `WINDOW_ROWS` rows, and the first block, are kept whole: 8 bytes for the step and
  9 bytes for each signal, 233 bytes a row with 25 signals, 15 MB in all.
- Of older blocks every 16th row is kept, with 32 rows on each side of an onset or a peak that a
  finding names, the highest and the lowest value of each signal, and the first and the last row of
  an attempt. The values of the other rows are absent, as if they had not been logged; their steps
  and their attempt stay known.
- Where the kept rows of the older blocks exceed `THINNED_ROWS`, every 32nd row is kept, then every
  64th, and the marks of the oldest blocks are dropped: 15 MB in all with 25 signals.

What remains grows by about 2 kB for 4,096 rows: the place of a block, and what was worked out of it
as a whole (see `trimtab.signals.spans`), which stays that of all its rows.

Of the journal's events, actions and outcomes are kept, and the kind of each incident.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.ma  # NumPy loads it where a median is first taken: no step should
from numpy.lib.mixins import NDArrayOperatorsMixin

from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.rundir import RunDirectory, has_samples, is_there
from trimtab.detectors.contract import state_to_json
from trimtab.errors import ReadError, TrimtabError
from trimtab.readers.rundir import facts_among, read_facts, read_run_directory
from trimtab.record import Ancestor, Attempt, Column, RunRecord, nearest_parent
from trimtab.signals.spans import BLOCK_ROWS, fold_blocks
from trimtab.vocabulary import canonical, unit_scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["LiveArray", "LiveRecord"]

WINDOW_ROWS = 65_536
"""Newest rows that are kept whole."""
THINNED_ROWS = 65_536
"""Most rows that are kept of all before them."""
_FIRST_STRIDE = 16
_MARK_ROWS = 32
"""Rows on each side of an onset or a peak that are kept."""
_MOST_INCIDENTS = 16_384
"""Incidents whose kind is kept; the oldest half goes first."""

KEPT_EVENTS = ("action", "outcome", "incident")

NumberT = TypeVar("NumberT", bound=np.generic)


class _Block:
    """Consecutive rows: whole, or thinned out to some of them."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.steps = np.zeros(BLOCK_ROWS)
        self.columns: dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]] = {}
        self.kept: NDArray[np.intp] | None = None
        """Offsets of the rows that are kept; None: all are. Columns hold these rows alone."""
        self.marked: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Offsets that are kept whatever the stride."""

    def put(self, offset: int, step: float, values: Mapping[str, float]) -> None:
        """Set one row of a whole block."""
        self.steps[offset] = step
        columns = self.columns
        for name, value in values.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = (
                    np.full(BLOCK_ROWS, np.nan),
                    np.zeros(BLOCK_ROWS, dtype=np.bool_),
                )
            column[0][offset] = value
            column[1][offset] = True

    def values(self, name: str, first: int, stop: int) -> NDArray[np.float64]:
        """Return the values at offsets [first, stop); NaN where absent or not kept."""
        column = self.columns.get(name)
        if column is None:
            return np.full(stop - first, np.nan)
        if self.kept is None:
            return column[0][first:stop]
        found = np.full(stop - first, np.nan)
        part = slice(*np.searchsorted(self.kept, (first, stop)))
        found[self.kept[part] - first] = column[0][part]
        return found

    def present(self, name: str, first: int, stop: int) -> NDArray[np.bool_]:
        """Return which offsets [first, stop) hold a value."""
        column = self.columns.get(name)
        if column is None:
            return np.zeros(stop - first, dtype=np.bool_)
        if self.kept is None:
            return column[1][first:stop]
        found = np.zeros(stop - first, dtype=np.bool_)
        part = slice(*np.searchsorted(self.kept, (first, stop)))
        found[self.kept[part] - first] = column[1][part]
        return found

    def step(self, first: int, stop: int) -> NDArray[np.float64]:
        """Return the steps at offsets [first, stop)."""
        if len(self.steps) == BLOCK_ROWS:
            return self.steps[first:stop]
        return float(self.steps[0]) + np.arange(first, stop, dtype=np.float64)

    def thinned(self, stride: int, marked: NDArray[np.intp]) -> _Block:
        """Return a block with every `stride`-th row and those that are marked."""
        thin = _Block.__new__(_Block)
        thin.first, thin.marked = self.first, marked
        regular = len(self.steps) == 1 or bool((np.diff(self.steps) == 1).all())
        thin.steps = self.steps[:1].copy() if regular else self.steps
        wanted = np.zeros(BLOCK_ROWS, dtype=np.bool_)
        wanted[::stride] = True
        wanted[marked] = True
        if self.kept is None:
            thin.kept = index = np.flatnonzero(wanted)
        else:
            index = np.flatnonzero(wanted[self.kept])
            thin.kept = self.kept[index]
        thin.columns = {n: (v[index], p[index]) for n, (v, p) in self.columns.items()}
        return thin

    def extremes(self) -> NDArray[np.intp]:
        """Return the offsets of the highest and the lowest finite value of each signal."""
        found: list[int] = []
        for values, _ in self.columns.values():
            finite = np.flatnonzero(np.isfinite(values))
            if len(finite):
                here = values[finite]
                found += (int(finite[here.argmax()]), int(finite[here.argmin()]))
        return np.unique(np.array(found, dtype=np.intp))


class LiveArray(NDArrayOperatorsMixin):
    """One array of a live record: [n_rows] in blocks, read as a NumPy array is.

    A slice or an index gives a NumPy array of these rows alone, at their cost. What else NumPy
    arrays can do works too, on a copy of all rows.
    """

    def __init__(self, source: _Source, num_rows: int) -> None:
        """Show the first `num_rows` rows of a source."""
        self._source = source
        self._num_rows = num_rows

    @property
    def shape(self) -> tuple[int]:
        """[n_rows]."""
        return (self._num_rows,)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._num_rows

    def __getitem__(self, key: object) -> object:
        """Return one value, or an array of some."""
        if isinstance(key, slice):
            first, stop, stride = key.indices(self._num_rows)
            if stride > 0:
                return self._source.read(first, max(first, stop))[::stride]
            return np.asarray(self)[key]
        if isinstance(key, int | np.integer):
            row = int(key) + (self._num_rows if key < 0 else 0)
            if not 0 <= row < self._num_rows:
                raise IndexError(f"row {key} of {self._num_rows}")
            return self._source.read(row, row + 1)[0]
        index = np.asarray(key)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return self._take(index)

    def _take(self, index: NDArray[np.intp]) -> object:
        """Return the values at rows, in the shape of the rows; reads what lies between them."""
        if not index.size:
            return self._source.read(0, 0).reshape(index.shape)
        rows = np.where(index < 0, index + self._num_rows, index)
        if rows.min() < 0 or rows.max() >= self._num_rows:
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self._num_rows}")
        blocks = rows // BLOCK_ROWS
        found: NDArray[np.generic] | None = None
        for block in np.unique(blocks).tolist():
            here = blocks == block
            mine = rows[here]
            first = int(mine.min())
            part = self._source.read(first, int(mine.max()) + 1)
            if found is None:
                found = np.empty(rows.shape, dtype=part.dtype)
            found[here] = part[mine - first]
        return found

    def __array__(
        self,
        dtype: np.dtype[np.generic] | None = None,
        copy: bool | None = None,  # noqa: FBT001 - NumPy's protocol
    ) -> NDArray[np.generic]:
        """Return all rows."""
        whole = self._source.read(0, self._num_rows)
        if copy and not whole.flags.owndata:
            whole = whole.copy()
        return whole if dtype is None else whole.astype(dtype)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object
    ) -> object:
        """Compute on all rows."""
        whole = [np.asarray(x) if isinstance(x, LiveArray) else x for x in inputs]
        return getattr(ufunc, method)(*whole, **kwargs)

    def __getattr__(self, name: str) -> object:
        """Return what a NumPy array of all rows has under this name."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


class _Source:
    """Where the rows of one array are read."""

    def __init__(self, blocks: Sequence[_Block], name: str = "") -> None:
        self.blocks = blocks
        self.name = name

    def part(self, block: _Block, first: int, stop: int) -> NDArray[np.generic]:
        """Return the rows at offsets [first, stop) of a block."""
        raise NotImplementedError

    def read(self, first: int, stop: int) -> NDArray[np.generic]:
        """Return rows [first, stop); they must not be written to."""
        begin = first // BLOCK_ROWS
        if stop <= first:
            return self.part(_NO_ROWS, 0, 0)
        if (stop - 1) // BLOCK_ROWS == begin:
            base = begin * BLOCK_ROWS
            return self.part(self.blocks[begin], first - base, stop - base)
        parts = []
        for block in self.blocks[begin : (stop - 1) // BLOCK_ROWS + 1]:
            offset = max(first - block.first, 0)
            parts.append(self.part(block, offset, min(stop - block.first, BLOCK_ROWS)))
        return np.concatenate(parts)


class _Values(_Source):
    def part(self, block: _Block, first: int, stop: int) -> NDArray[np.generic]:
        return block.values(self.name, first, stop)


class _Present(_Source):
    def part(self, block: _Block, first: int, stop: int) -> NDArray[np.generic]:
        return block.present(self.name, first, stop)


class _Steps(_Source):
    def part(self, block: _Block, first: int, stop: int) -> NDArray[np.generic]:
        return block.step(first, stop)


class _Attempts(_Source):
    """The index of the attempt of each row, from where the attempts begin."""

    def __init__(self, first_rows: Sequence[int]) -> None:
        super().__init__(())
        self.first_rows = first_rows

    def read(self, first: int, stop: int) -> NDArray[np.generic]:
        if stop - first == 1:
            return np.array([bisect_right(self.first_rows, first) - 1], dtype=np.int32)
        rows = np.arange(first, max(first, stop))
        return (np.searchsorted(self.first_rows, rows, side="right") - 1).astype(np.int32)


_NO_ROWS = _Block(0)


@dataclass(frozen=True, kw_only=True)
class _Next:
    """An attempt that begins with the next row."""

    number: str
    parent: str | None
    parent_step: float | None
    why: str
    trial: bool
    settings: Mapping[str, str] = field(default_factory=dict)


class LiveRecord:
    """See the module. One writer; the records that it gives do not change afterwards."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        window_rows: int = WINDOW_ROWS,
        thinned_rows: int = THINNED_ROWS,
    ) -> None:
        """Start without rows.

        Args:
            directory: Of the run; nothing is read before `fill`.
            window_rows: Newest rows that are kept whole, to a block.
            thinned_rows: Most rows that are kept of those before them.
        """
        self._root = directory.root
        self._journal = directory.journal
        self._num_window_blocks = max(-(-window_rows // BLOCK_ROWS), 1)
        self._thinned_rows = thinned_rows
        self._num_rows = 0
        self._blocks: list[_Block] = []
        self._num_thin = 0
        """Blocks from the second on that are thinned; the first never is."""
        self._stride = _FIRST_STRIDE
        self._marks: list[int] = []
        """Rows named by findings, of blocks that are still whole."""
        self._names: dict[str, None] = {}
        self._keys: dict[str, str] = {}
        self._resolved: dict[str, tuple[str, float] | None] = {}
        self._attempts: list[Attempt] = []
        """The last one's end is that of the rows when it was asked for."""
        self._next: _Next | None = None
        self._without_rows: dict[str, Ancestor] = {}
        self._facts: dict[str, float] = {}
        self._notes: tuple[str, ...] = ()
        self._memo: dict[object, object] = {}
        self._events: list[Event] = []
        self._past: list[tuple[Event, ...]] = []
        self._num_incidents = 0
        self._last: RunRecord | None = None
        self.unread = ""
        """Why the rows of before are not in the record; empty where they are."""

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return self._num_rows

    def last_step_before(self, step: int) -> int | None:
        """Return the last recorded step at or before one, of any attempt; None without rows."""
        if not self._num_rows:
            return None
        steps = np.asarray(self.record().step)
        steps = steps[steps <= step]
        return int(steps.max()) if len(steps) else None

    # -- it grows ---------------------------------------------------------------------------

    def fill(self) -> None:
        """Take in what the files of the run hold; once, before the first row.

        A run without rows begins without them, and so does one with a row that makes no sense,
        which `unread` then tells.

        Raises:
            ChronicleError: The journal is there and cannot be read.
            ReadError: The disk refuses the rows, which may come back.
        """
        for event in read_journal(self._journal)[0] if is_there(self._journal) else ():
            self._keep_event(event)
        try:
            record = read_run_directory(self._root)
        except ReadError as error:
            if isinstance(error.__cause__, OSError):
                raise
            if has_samples(RunDirectory(self._root)):
                self.unread = str(error)
            return
        self._notes, self._facts = record.notes, dict(record.facts)
        self._keys.update(record.keys)
        self._names.update(dict.fromkeys(record.columns))
        self._attempts = list(record.attempts)
        for first in range(0, record.num_rows, BLOCK_ROWS):
            stop = min(first + BLOCK_ROWS, record.num_rows)
            block, here = _Block(first), slice(0, stop - first)
            block.steps[here] = record.step[first:stop]
            for name, column in record.columns.items():
                if column.present[first:stop].any():
                    values = np.full(BLOCK_ROWS, np.nan)
                    present = np.zeros(BLOCK_ROWS, dtype=np.bool_)
                    values[here] = column.values[first:stop]
                    present[here] = column.present[first:stop]
                    block.columns[name] = (values, present)
            self._blocks.append(block)
            self._num_rows = stop
            self._thin_out()

    def read_past(self, runs: Iterable[str]) -> None:
        """Take in what was done in other runs; once, before the first row.

        A run that cannot be read counts as one without experience.
        """
        for run in runs:
            with contextlib.suppress(TrimtabError):
                events, _ = read_journal(RunDirectory(Path(run)).journal)
                self._past.append(tuple(e for e in events if e.event in KEPT_EVENTS))

    def start_attempt(
        self,
        number: str,
        *,
        parent: str | None,
        parent_step: float | None,
        why: str,
        trial: bool,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Let the next row begin an attempt."""
        known = _as_written(dict(settings or {}))
        if self._next is not None:
            self._without_rows[self._next.number] = self._next.parent, self._next.parent_step
        step = None if parent_step is None else float(parent_step)
        parent, step = nearest_parent(parent, step, self._without_rows)
        self._next = _Next(
            number=number,
            parent=parent,
            parent_step=step,
            why=why,
            trial=trial,
            settings={k: str(v) for k, v in known.items()},
        )

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row, by the names that it is written with; steps rise within an attempt.

        The labels of a row are text and no signals: a record does not hold them.
        """
        row: dict[str, float] = {}
        for key, value in values.items():
            place = self._place_of(key)
            if place is not None:
                row[place[0]] = float(value) * place[1]
        offset = self._num_rows % BLOCK_ROWS
        if not offset:
            self._thin_out()
            self._blocks.append(_Block(self._num_rows))
        if self._next is not None or not self._attempts:
            self._begin()
        self._blocks[-1].put(offset, float(step), row)
        for name in row:
            self._names.setdefault(name)
        self._num_rows += 1
        self._last = None

    def _place_of(self, key: str) -> tuple[str, float] | None:
        """Return the signal that a key means and the factor to its unit; None for the others."""
        if key not in self._resolved:
            name = None if key == "step" else canonical(key)
            self._resolved[key] = (
                None if name is None else (name, unit_scale(key) if name == "step_time_s" else 1.0)
            )
        place = self._resolved[key]
        if place is not None:
            self._keys.setdefault(place[0], key)
        return place

    def _begin(self) -> None:
        begun, self._next = self._next, None
        self._close_attempt()
        previous = self._attempts[-1].number if self._attempts else None
        if begun is None:
            begun = _Next(number="1.0", parent=None, parent_step=None, why="", trial=False)
        self._attempts.append(
            Attempt(
                number=begun.number,
                parent=begun.parent or previous,
                parent_step=begun.parent_step,
                first_row=self._num_rows,
                end_row=self._num_rows,
                settings=begun.settings,
                why=begun.why,
                trial=begun.trial,
            )
        )

    def _close_attempt(self) -> None:
        if self._attempts:
            self._attempts[-1] = replace(self._attempts[-1], end_row=self._num_rows)

    def note_fact(self, key: str, value: object) -> None:
        """Take in a setting that was written to `run.toml`; the first of a name counts."""
        for name, number in facts_among({key: value}).items():
            self._facts.setdefault(name, number)
        self._last = None

    def read_facts(self, path: Path) -> None:
        """Take in the settings in `run.toml`; at the start of a run."""
        self._facts = read_facts(path, [])
        self._last = None

    def mark(self, rows: Iterable[int]) -> None:
        """Keep the rows around these whole for longer: a finding names them."""
        self._marks += rows

    def note_event(self, event: str, attempt: str, step: int, data: Mapping[str, object]) -> None:
        """Take in an event that was written to the journal."""
        if event in KEPT_EVENTS:
            if event == "incident":
                data = {"kind": data.get("kind")}
            self._keep_event(Event("", event, attempt, step, _as_written(data)))

    def _keep_event(self, event: Event) -> None:
        if event.event not in KEPT_EVENTS:
            return
        if event.event == "incident":
            event = replace(event, data={"kind": event.data.get("kind")})
            self._num_incidents += 1
        self._events.append(event)
        if self._num_incidents > _MOST_INCIDENTS:
            drop = self._num_incidents - _MOST_INCIDENTS // 2
            kept: list[Event] = []
            for known in self._events:
                if known.event == "incident" and drop:
                    drop -= 1
                else:
                    kept.append(known)
            self._events, self._num_incidents = kept, _MOST_INCIDENTS // 2

    # -- it is read -------------------------------------------------------------------------

    def events(self, *names: str) -> tuple[Event, ...]:
        """Return the events of these kinds so far, in order; of all kept kinds without names."""
        return tuple(e for e in self._events if not names or e.event in names)

    def past_events(self) -> tuple[tuple[Event, ...], ...]:
        """Return the events of these kinds of each other run that was read."""
        return tuple(self._past)

    def record(self) -> RunRecord:
        """Return the record of all rows so far; it stays as it is while the run goes on.

        Cost: that of the names of the signals and of the attempts, whatever the number of rows.

        Raises:
            ReadError: There are no rows yet.
        """
        if self._last is not None:
            return self._last
        if not self._num_rows:
            raise ReadError(f"{self._root}: no rows yet; the run has not recorded a step")
        self._close_attempt()
        num, blocks = self._num_rows, self._blocks
        attempts = tuple(self._attempts)
        record = RunRecord(
            source=str(self._root),
            format="trimtab",
            axis="step",
            attempt=_as_array(_Attempts([a.first_row for a in attempts]), num, np.int32),
            step=_as_array(_Steps(blocks), num, np.float64),
            columns={
                name: Column(
                    _as_array(_Values(blocks, name), num, np.float64),
                    _as_array(_Present(blocks, name), num, np.bool_),
                )
                for name in self._names
            },
            attempts=attempts,
            keys=dict(self._keys),
            notes=self._notes,
            facts=dict(self._facts),
        )
        object.__setattr__(record, "memo", self._memo)  # blocks are full for all records of the run
        self._last = record
        return record

    # -- it is thinned out ------------------------------------------------------------------

    def _thin_out(self) -> None:
        """Thin out the block that leaves the window, and all of them where they are too many."""
        place = 1 + self._num_thin
        if len(self._blocks) - place < self._num_window_blocks:
            return
        blocks = list(self._blocks)  # records that were given out go on with the old list
        fold_blocks(self.record(), blocks[place].first, blocks[place].first + BLOCK_ROWS)
        blocks[place] = blocks[place].thinned(self._stride, self._marked_in(blocks[place]))
        self._num_thin += 1
        thin = slice(1, 1 + self._num_thin)
        while _num_kept(blocks[thin]) > self._thinned_rows and self._stride < BLOCK_ROWS:
            self._stride *= 2
            blocks[thin] = [b.thinned(self._stride, b.marked) for b in blocks[thin]]
            for k in range(1, 1 + self._num_thin):  # the oldest marks give way first
                if _num_kept(blocks[thin]) <= self._thinned_rows // 2:
                    break
                blocks[k] = blocks[k].thinned(self._stride, np.zeros(0, dtype=np.intp))
        self._blocks = blocks
        self._last = None

    def _marked_in(self, block: _Block) -> NDArray[np.intp]:
        """Return the offsets that are kept of a block whatever the stride."""
        first, stop = block.first, block.first + BLOCK_ROWS
        wanted = np.zeros(BLOCK_ROWS, dtype=np.bool_)
        wanted[block.extremes()] = True
        for attempt in self._attempts:
            for row in (attempt.first_row, attempt.end_row - 1):
                if first <= row < stop:
                    wanted[row - first] = True
        for row in self._marks:
            if first - _MARK_ROWS <= row < stop + _MARK_ROWS:
                begin = max(row - _MARK_ROWS - first, 0)
                wanted[begin : max(row + _MARK_ROWS + 1 - first, 0)] = True
        self._marks = [row for row in self._marks if row >= stop - _MARK_ROWS]
        return np.flatnonzero(wanted)


def _num_kept(blocks: Iterable[_Block]) -> int:
    return sum(0 if b.kept is None else len(b.kept) for b in blocks)


def _as_array(source: _Source, num_rows: int, _: type[NumberT]) -> NDArray[NumberT]:
    """Return rows as what a record holds; a `LiveArray` reads like the array that it stands for."""
    return cast("NDArray[NumberT]", LiveArray(source, num_rows))


def _as_written(data: Mapping[str, object]) -> dict[str, object]:
    """Return fields of an event as the journal gives them back."""
    found: dict[str, object] = json.loads(json.dumps(state_to_json(dict(data))))
    return found
