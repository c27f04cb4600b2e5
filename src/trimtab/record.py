"""What a run logged: columns of values keyed by (attempt, step).

Missing is not NaN: a value that was not logged is absent (`Column.present` is False there), while
NaN in a record means that the run itself logged NaN. Steps that fall back start a new attempt, so
no two attempts ever overlap on one axis.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "HELD_OUT",
    "MAX_UNREAD_KEYS",
    "Ancestor",
    "Attempt",
    "Axis",
    "Column",
    "RecordBuilder",
    "RunRecord",
    "axis_word",
    "most_values",
    "nearest_parent",
]

Axis = Literal["step", "epoch", "row"]
HELD_OUT = frozenset({"val_loss", "perplexity", "val_perplexity", "eval_score", "eval_error"})
"""Signals of evaluations; a log may print them after rows of later steps, and without a step."""
MAX_UNREAD_KEYS = 200
"""Keys without a signal that a record names."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stretch of rising steps with fixed settings."""

    number: str
    """`major.minor`, such as `12.16`."""
    parent: str | None = None
    """Number of the attempt that it continues; None for the first."""
    parent_step: float | None = None
    """Step of the parent that it resumed from, where the log says so."""
    first_row: int
    end_row: int
    """Rows [first_row, end_row) of the record belong to it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the log says of its settings (seed, nodes, learning rate ...)."""
    why: str = ""
    """Why it was started, where known."""
    trial: bool = False
    """A short branch that tests one remedy; on no lineage unless it was kept."""


@dataclass(frozen=True)
class Column:
    """One signal: values float64 [n_rows] and present bool [n_rows]; absent values read as NaN."""

    values: NDArray[np.float64]
    present: NDArray[np.bool_]

    def finite_rows(self, rows: slice | NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of some rows, in their order, where a finite value was logged.

        Example:
            >>> column = Column(np.array([2.0, np.nan, np.inf, 3.0]), np.ones(4, dtype=bool))
            >>> column.finite_rows(slice(0, 4)).tolist()
            [0, 3]
        """
        usable = self.present[rows] & np.isfinite(self.values[rows])
        if isinstance(rows, slice):
            return np.asarray(np.flatnonzero(usable) + (rows.start or 0))
        return np.asarray(rows[usable])

    def logged(self) -> NDArray[np.float64]:
        """Return the values that were logged, in row order; NaN and Inf included."""
        return self.values[self.present]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything one log says, as columns."""

    source: str
    """Path as given."""
    format: str
    """Name of the reader that understood it."""
    axis: Axis
    attempt: NDArray[np.int32]
    """int32 [n_rows], index into `attempts`."""
    step: NDArray[np.float64]
    """float64 [n_rows], position on `axis`; rises strictly within an attempt."""
    columns: Mapping[str, Column]
    """By canonical name; keys that no alias knows stay out."""
    attempts: tuple[Attempt, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> key as logged."""
    notes: tuple[str, ...] = ()
    """What the reader had to assume, convert or leave out; shown to people."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Settings that the log states, such as `clip`."""
    tail: tuple[str, ...] = ()
    """Last lines of a text log, at most 400 and 64 KiB, as printed; empty for other formats."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Key -> number of values, for numbers that were logged and that no signal took; at most 200
    keys, those with most values first."""
    memo: dict[object, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out of whole blocks of rows, see `trimtab.signals.spans`."""

    @property
    def num_rows(self) -> int:
        """Number of rows, validation-only rows included."""
        return len(self.step)

    @property
    def num_loss_rows(self) -> int:
        """Number of records with a train loss, NaN included."""
        column = self.columns.get("loss")
        return 0 if column is None else int(column.present.sum())

    def loss_row(self, row: int) -> int:
        """Return how many train-loss records precede `row`: its index among them."""
        column = self.columns.get("loss")
        return row if column is None else int(column.present[:row].sum())

    def rows_of(self, attempt: int) -> slice:
        """Return the slice of rows of the attempt with this index."""
        a = self.attempts[attempt]
        return slice(a.first_row, a.end_row)

    def attempt_index(self, number: str) -> int:
        """Return the index of the attempt with this number; KeyError if there is none."""
        for i, a in enumerate(self.attempts):
            if a.number == number:
                return i
        raise KeyError(number)

    def rows(
        self, names: Sequence[str]
    ) -> Iterator[tuple[int, float, NDArray[np.float64], NDArray[np.bool_]]]:
        """Yield (row, step, values [n_names], present [n_names]) in row order.

        Unknown names are absent.
        """
        values = np.full((self.num_rows, len(names)), np.nan)
        present = np.zeros((self.num_rows, len(names)), dtype=np.bool_)
        for j, name in enumerate(names):
            column = self.columns.get(name)
            if column is not None:
                values[:, j] = column.values
                present[:, j] = column.present
        for i in range(self.num_rows):
            yield i, float(self.step[i]), values[i], present[i]

    def final_lineage(self) -> tuple[int, ...]:
        """Return the indices of the attempts that lead to the last one, oldest first."""
        by_number = {a.number: i for i, a in enumerate(self.attempts)}
        chain: list[int] = []
        current: int | None = len(self.attempts) - 1 if self.attempts else None
        while current is not None and current not in chain:
            chain.append(current)
            parent = self.attempts[current].parent
            current = by_number.get(parent) if parent is not None else None
        return tuple(reversed(chain))

    def lineage_rows(self) -> NDArray[np.intp]:
        """Return the rows on the final lineage, in step order, dead branches left out."""
        chain = self.final_lineage()
        parts: list[NDArray[np.intp]] = []
        for here, index in enumerate(chain):
            a = self.attempts[index]
            rows = np.arange(a.first_row, a.end_row)
            if here + 1 < len(chain):
                child = self.attempts[chain[here + 1]]
                limit = child.parent_step
                # the log does not say where the child resumed: just before its own first step
                if limit is None:
                    limit = (
                        self.step[child.first_row] - 1
                        if child.first_row < child.end_row
                        else math.inf
                    )
                # what the parent logged after its child resumed is a dead branch
                rows = rows[self.step[rows] <= limit]
            parts.append(rows)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.intp)


Ancestor = tuple[str | None, float | None]
"""Number of the attempt that one went on from, and the step; None where the log does not say."""


def nearest_parent(
    parent: str | None, parent_step: float | None, without_rows: Mapping[str, Ancestor]
) -> Ancestor:
    """Return the nearest ancestor that has rows, and the last step that counts of it.

    An attempt whose rows were lost is none of the record's. Its child goes on from what it went on
    from, and no later than either resumed.

    Args:
        parent: Number of the attempt that this one went on from.
        parent_step: Step that it resumed from.
        without_rows: What `nearest_parent` returned of the attempts before that have no rows.
    """
    above = without_rows.get(parent or "")
    if above is None:
        return parent, parent_step
    steps = [s for s in (parent_step, above[1]) if s is not None]
    return above[0], min(steps, default=None)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What is known of an attempt when it starts."""

    row: int = 0
    number: str | None = None
    parent: str | None = None
    parent_step: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    trial: bool = False
    anew: bool = False


_MIN_STRETCH = 64
"""Rows below which row numbers cost less than a stretch of their own."""


class _Cells:
    """One growing column: (row, value) pairs in row order, and the few that came late."""

    __slots__ = ("end_row", "late", "rows", "stretches", "values")

    def __init__(self) -> None:
        self.rows = array("q")
        self.values = array("d")
        self.late: dict[int, float] = {}
        self.stretches: list[tuple[int, NDArray[np.float64]]] = []
        """(first row, values) of rows that all have one; these need no row numbers."""
        self.end_row = 0
        """Row behind the last one with a value."""

    def put(self, row: int, value: float) -> bool:
        """Store a value; False where the row has one already."""
        rows = self.rows
        # the usual case, kept short: rows come in order
        if row >= self.end_row:
            rows.append(row)
            self.values.append(value)
            self.end_row = row + 1
            return True
        at = bisect_left(rows, row)
        if (at < len(rows) and rows[at] == row) or row in self.late or self._in_stretch(row):
            return False
        self.late[row] = value
        return True

    def extend(self, first: int, column: Column) -> None:
        """Store the values of rows behind all others."""
        index = np.flatnonzero(column.present)
        if not len(index):
            return
        self.end_row = first + int(index[-1]) + 1
        if len(index) == len(column.values) >= _MIN_STRETCH:
            self.stretches.append((first, np.asarray(column.values, dtype=np.float64)))
            return
        self.rows.frombytes((index.astype(np.int64) + first).tobytes())
        self.values.frombytes(column.values[index].astype(np.float64).tobytes())

    def _in_stretch(self, row: int) -> bool:
        at = bisect_right(self.stretches, row, key=lambda s: s[0]) - 1
        return at >= 0 and row < self.stretches[at][0] + len(self.stretches[at][1])

    def column(self, num_rows: int) -> Column:
        if len(self.stretches) == 1 and len(self.stretches[0][1]) == num_rows:
            return Column(self.stretches[0][1], np.ones(num_rows, dtype=np.bool_))
        values = np.full(num_rows, np.nan)
        present = np.zeros(num_rows, dtype=np.bool_)
        for first, stretch in self.stretches:
            values[first : first + len(stretch)] = stretch
            present[first : first + len(stretch)] = True
        index = np.frombuffer(self.rows, dtype=np.int64) if self.rows else np.zeros(0, np.int64)
        values[index] = np.frombuffer(self.values, dtype=np.float64) if self.rows else 0.0
        present[index] = True
        for row, value in self.late.items():
            values[row], present[row] = value, True
        return Column(values, present)


class RecordBuilder:
    """Collects rows in file order and turns falling steps into attempts.

    A row at the same step as the last one is merged into it (a validation line, a second rank);
    where both name the same signal the first value is kept and the row is counted as a duplicate.
    A row at a lower step starts a new attempt, unless it is only a validation value that came
    late. `start_attempt` starts one on purpose.
    """

    def __init__(self, source: str, format_name: str, *, axis: Axis = "step") -> None:
        """Start with no rows.

        Args:
            source: Path as given by the user.
            format_name: Name of the reader.
            axis: What the steps count.
        """
        self.source = source
        self.format_name = format_name
        self.axis: Axis = axis
        self.keys: dict[str, str] = {}
        self.notes: list[str] = []
        self.facts: dict[str, float] = {}
        self.unread: dict[str, int] = {}
        self.num_duplicates = 0
        self._steps = array("d")
        self._data: dict[str, _Cells] = {}
        self._starts: list[_Start] = []
        self._pending: _Start | None = None

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._steps)

    @property
    def last_step(self) -> float | None:
        """Step of the last row; None before the first."""
        return self._steps[-1] if self._steps else None

    def start_attempt(
        self,
        *,
        number: str | None = None,
        parent: str | None = None,
        parent_step: float | None = None,
        settings: Mapping[str, str] | None = None,
        why: str = "",
        trial: bool = False,
        anew: bool = False,
    ) -> None:
        """Let the next row start a new attempt, with what is known of it.

        `anew`: it goes on from nothing before it, as another run of the same file.
        """
        self._pending = _Start(
            number=number,
            parent=parent,
            parent_step=parent_step,
            settings=dict(settings or {}),
            why=why,
            trial=trial,
            anew=anew,
        )

    def add(self, step: float, values: Mapping[str, float]) -> None:
        """Add one row; `values` are by canonical name, in canonical units; NaN means logged NaN."""
        row = self._row_for(step, values)
        for name, value in values.items():
            cells = self._data.get(name)
            if cells is None:
                cells = self._data[name] = _Cells()
            if not cells.put(row, value):
                self.num_duplicates += 1

    def extend(self, steps: NDArray[np.float64], columns: Mapping[str, Column]) -> None:
        """Add many rows; the same as `add` for each of them, and fast where the steps rise.

        Args:
            steps: float64 [n].
            columns: By canonical name, each [n].
        """
        # rising steps need no look-up per row: whole columns are appended
        begins_attempt = self._pending is not None or not self._steps
        rises = len(steps) > 0 and bool(np.all(np.diff(steps) > 0))
        if rises and (begins_attempt or steps[0] > self._steps[-1]):
            self._extend_rising(steps, columns)
            return
        for i, step in enumerate(steps.tolist()):
            self.add(step, {n: float(c.values[i]) for n, c in columns.items() if c.present[i]})

    def _extend_rising(self, steps: NDArray[np.float64], columns: Mapping[str, Column]) -> None:
        first = len(self._steps)
        if self._pending is not None or not first:
            self._begin(self._pending)
        self._steps.frombytes(np.ascontiguousarray(steps, dtype=np.float64).tobytes())
        for name, column in columns.items():
            if column.present.any():
                self._data.setdefault(name, _Cells()).extend(first, column)

    def _begin(self, start: _Start | None) -> None:
        self._starts.append(replace(start or _Start(), row=len(self._steps)))
        self._pending = None

    def _row_for(self, step: float, values: Mapping[str, float]) -> int:
        steps = self._steps
        if self._pending is not None or not steps:
            self._begin(self._pending)
        elif step == steps[-1]:
            return len(steps) - 1
        elif step < steps[-1]:
            first = self._starts[-1].row
            if (
                HELD_OUT.issuperset(values) and step >= steps[first]
            ):  # no restart: a late validation
                return bisect_left(steps, step, first)
            self._begin(None)
        steps.append(step)
        return len(steps) - 1

    def build(self) -> RunRecord:
        """Return the record of all rows added so far."""
        n = len(self._steps)
        attempts = tuple(self._attempts(n))
        notes = list(self.notes)
        if self.num_duplicates:
            notes.append(f"values repeated at the same step: {self.num_duplicates} left out")
        # restarts are rare; a step that falls back this often means several writers
        if len(attempts) > max(10, n // 10):
            notes.append(
                f"the step falls back {len(attempts) - 1} times in {n} rows: several runs or ranks "
                "may be mixed in one file"
            )
        lengths = [a.end_row - a.first_row for a in attempts]
        return RunRecord(
            source=self.source,
            format=self.format_name,
            axis=self.axis,
            attempt=np.repeat(np.arange(len(attempts), dtype=np.int32), lengths),
            step=np.array(self._steps, dtype=np.float64),
            columns={name: cells.column(n) for name, cells in self._data.items()},
            attempts=attempts,
            keys=dict(self.keys),
            notes=tuple(notes),
            facts=dict(self.facts),
            unread=most_values(self.unread),
        )

    def _attempts(self, num_rows: int) -> Iterator[Attempt]:
        bounds = [s.row for s in self._starts] + [num_rows]
        taken = {s.number for s in self._starts if s.number}
        previous: str | None = None
        for start, end_row in zip(self._starts, bounds[1:], strict=True):
            number = start.number or _next_number(previous, taken)
            taken.add(number)
            yield Attempt(
                number=number,
                parent=start.parent or (None if start.anew else previous),
                parent_step=start.parent_step,
                first_row=start.row,
                end_row=end_row,
                settings=start.settings,
                why=start.why,
                trial=start.trial,
            )
            previous = number


def most_values(unread: Mapping[str, int]) -> dict[str, int]:
    """Return the keys with most values, at most `MAX_UNREAD_KEYS`; keys without values left out."""
    counts = sorted((k for k, n in unread.items() if n > 0), key=lambda k: -unread[k])
    return {key: unread[key] for key in counts[:MAX_UNREAD_KEYS]}


def _next_number(previous: str | None, taken: Set[str | None]) -> str:
    """Return the number after `previous` (`2.0` -> `2.1`) that no attempt carries."""
    if previous is None:
        return "1.0"
    major, _, minor = previous.partition(".")
    following = int(minor) + 1 if minor.isdecimal() else 1
    while f"{major}.{following}" in taken:
        following += 1
    return f"{major}.{following}"


def axis_word(record: RunRecord) -> str:
    """Return what the axis counts, singular."""
    return record.axis
