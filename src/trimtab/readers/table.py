"""Rows of named values, in whatever names and units a logger chose -> RunRecord.

JSONL and CSV share this. The keys are settled over the whole file, not line by line: which key
counts the steps, which of several keys that mean the same signal is the fullest, and, in columnar
files, whether `nan` means "not recorded" (`nan_policy`).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.loss_scaling import scale_slope
from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.numbers import BadNumberError, counted, parse_number, parse_step
from trimtab.readers.tags import signal_of_tag
from trimtab.record import Axis, Column, RecordBuilder, RunRecord
from trimtab.vocabulary import canonical, normalise, unit_scale

__all__ = ["BadValue", "Table", "is_known_key"]

_STEP_KEYS = (
    "step", "global step", "train/global step", "trainer/global step", "global step/max steps",
    "iteration", "iter", "train/step", "train/iteration", "num updates", "update", "updates",
    "optimizer step", "current steps", "train step", "training step", "steps", "iterations", "it",
    "num steps",
)  # fmt: skip
"""Names of the step, the best first, as `normalise` gives them; W&B's `_step` comes after all."""
_EPOCH_KEYS = ("epoch", "train/epoch", "epochs")
_RANK_KEYS = ("rank", "global rank", "local rank", "process index")
_NOT_A_TRAIN_LOSS = ("val", "eval", "test", "scale", "best", "min", "aux", "valid")
_MAX_REPEATED_STEPS = 0.2
_MAX_BAD_SHARE = 0.01
_MIN_STEP_SHARE = 0.9
_MIN_SLOPE_CHANGES = 3


@dataclass(frozen=True)
class BadValue:
    """A value that should be a number and is not."""

    line: int
    key: str
    value: str


@dataclass
class _Cells:
    role: str
    """signal, step, epoch, rank, maybe-loss or nothing."""
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def column(self, num_rows: int) -> Column:
        values = np.full(num_rows, np.nan)
        present = np.zeros(num_rows, dtype=np.bool_)
        index = np.array(self.rows, dtype=np.int64)
        values[index] = np.array(self.values, dtype=np.float64)
        present[index] = True
        return Column(values, present)


def is_known_key(key: str) -> bool:
    """Whether a key names a signal or a step, or might be a training loss."""
    return _role(key) != "nothing"


def _role(key: str) -> str:
    name = normalise(key)
    if name in _STEP_KEYS:
        return "step"
    if name in _EPOCH_KEYS:
        return "epoch"
    if name in _RANK_KEYS:
        return "rank"
    if signal_of_tag(key) is not None:
        return "signal"
    words = name.replace("/", " ").split()
    if any("loss" in w for w in words) and not any(w.startswith(_NOT_A_TRAIN_LOSS) for w in words):
        return "maybe-loss"
    return "nothing"


class Table:
    """Collects rows, then becomes a record."""

    def __init__(self, source: str, format_name: str) -> None:
        """Start with no rows."""
        self.source = source
        self.format_name = format_name
        self.num_rows = 0
        self.notes: list[str] = []
        self.bad: list[BadValue] = []
        self._cells: dict[str, _Cells] = {}

    def role(self, key: str) -> str:
        """Return what a key is for; `nothing` for one that can be left out."""
        cells = self._cells.get(key)
        if cells is None:
            cells = self._cells[key] = _Cells(_role(key))
        return cells.role

    def put(self, key: str, value: object, line: int) -> None:
        """Store one value of the current row; missing ones are left out."""
        role = self.role(key)
        if role == "nothing":
            return
        cells = self._cells[key]
        try:
            number = parse_step(value) if role == "step" else parse_number(value)
        except BadNumberError as error:
            if role in ("signal", "step"):
                self.bad.append(BadValue(line, key, str(error)))
            return
        if number is not None and not (cells.rows and cells.rows[-1] == self.num_rows):
            cells.rows.append(self.num_rows)
            cells.values.append(number)

    def end_row(self) -> None:
        """Close the current row."""
        self.num_rows += 1

    def settle_problems(self, broken: Sequence[tuple[int, str]], expected: str) -> None:
        """Raise for the first bad line or value, or note how many were left out if under 1 %.

        Args:
            broken: (line, what is wrong) of lines that gave no row.
            expected: What a value should be, for the message.

        Raises:
            ReadError: 1 % of the lines or more are bad.
        """
        values = [(b.line, f"{b.key} is {b.value[:60]}, expected {expected}") for b in self.bad]
        problems = sorted([*broken, *values])
        if not problems:
            return
        num_lines = self.num_rows + len(broken)
        where = f"{self.source}:{problems[0][0]}: {problems[0][1]}"
        if len(problems) >= _MAX_BAD_SHARE * num_lines:
            raise ReadError(
                f"{where}; {len(problems)} such in {num_lines} lines: correct or remove them"
            )
        self.notes.append(f"{counted(len(problems), 'bad value')} left out, the first: {where}")

    def to_record(self, *, columnar: bool) -> RunRecord:
        """Settle the keys and return the record.

        Args:
            columnar: Whether `nan` may stand for a cell that was not recorded.

        Raises:
            ReadError: No key of the file is known.
        """
        columns = {k: c.column(self.num_rows) for k, c in self._cells.items() if len(c.rows)}
        signals, keys = self._signals(columns, columnar=columnar)
        if not signals:
            raise ReadError(
                f"{self.source}: no known signal; looked for a loss, grad norm or learning rate, "
                f"found {_some(self._cells)}; rename a column, e.g. to 'loss'"
            )
        keep = self._first_rank(columns)
        keep &= _any_present(signals, self.num_rows)
        axis, step = self._axis(columns, signals, keep)
        keep &= np.isfinite(step)
        builder = RecordBuilder(self.source, self.format_name, axis=axis)
        builder.keys.update(keys)
        builder.notes.extend(self.notes)
        kept = {n: Column(c.values[keep], c.present[keep]) for n, c in signals.items()}
        _extend(builder, step[keep], kept)
        return _with_slope_note(builder.build())

    def _signals(
        self, columns: dict[str, Column], *, columnar: bool
    ) -> tuple[dict[str, Column], dict[str, str]]:
        """Return the fullest column of each canonical signal, in its unit, and its key."""
        found: dict[str, list[str]] = {}
        for key in columns:
            name = signal_of_tag(key)
            if self._cells[key].role == "signal" and name is not None:
                found.setdefault(name, []).append(key)
        if "loss" not in found:
            stand_in = [k for k in columns if self._cells[k].role == "maybe-loss"]
            if stand_in:
                found["loss"] = stand_in[:1]
                self.notes.append(
                    f"no column is called a training loss; {stand_in[0]!r} is taken for it"
                )
        signals: dict[str, Column] = {}
        keys: dict[str, str] = {}
        for name, candidates in found.items():
            means = [k for k in candidates if name == "val_loss" and canonical(k) == name]
            best = max(means or candidates, key=lambda k: _rank(k, name, columns[k]))
            column = self._scaled(best, name, columns[best])
            if columnar:
                column = self._nan_settled(best, name, column)
            if column.present.any():
                signals[name], keys[name] = column, best
            self._note_others(name, best, candidates)
        return signals, keys

    def _scaled(self, key: str, name: str, column: Column) -> Column:
        factor = unit_scale(key) if name == "step_time_s" else 1.0
        return column if factor == 1.0 else Column(column.values * factor, column.present)

    def _nan_settled(self, key: str, name: str, column: Column) -> Column:
        missing, why = nan_means_missing(column, is_loss=name == "loss")
        if not missing.any():
            return column
        self.notes.append(
            f"{key}: nan in {counted(int(missing.sum()), 'cell')}, taken as not recorded ({why})"
        )
        return Column(column.values, column.present & ~missing)

    def _note_others(self, name: str, best: str, candidates: Sequence[str]) -> None:
        others = [k for k in candidates if k != best]
        if others:
            self.notes.append(f"{name} is read from {best!r}; left out: {_some(others)}")

    def _first_rank(self, columns: dict[str, Column]) -> NDArray[np.bool_]:
        for key, cells in self._cells.items():
            if cells.role != "rank" or key not in columns:
                continue
            ranks = columns[key].logged()
            lowest = float(ranks.min())
            if np.all(ranks == lowest):
                continue
            column = columns[key]
            keep: NDArray[np.bool_] = ~column.present | np.equal(column.values, lowest)
            self.notes.append(
                f"{counted(int((~keep).sum()), 'row')} of ranks other than {lowest:g} left out"
            )
            return keep
        return np.ones(self.num_rows, dtype=np.bool_)

    def _axis(
        self, columns: dict[str, Column], signals: dict[str, Column], keep: NDArray[np.bool_]
    ) -> tuple[Axis, NDArray[np.float64]]:
        """Return what the rows are counted by, and the position of each row on it (NaN: none)."""
        main = signals.get("loss") or next(iter(signals.values()))
        rows = np.flatnonzero(main.present & keep)
        for key in sorted(self._step_candidates(columns), key=_step_rank):
            if _counts(columns[key], rows):
                return "step", self._placed(columns[key], signals, key)
        for key in columns:
            if self._cells[key].role == "epoch" and _counts(columns[key], rows, share=0.0):
                self.notes.append(f"no step is logged; rows are counted by {key!r}")
                return "epoch", self._placed(columns[key], signals, key)
        self.notes.append("no step is logged; rows are counted by their place in the file, from 0")
        return "row", np.arange(self.num_rows, dtype=np.float64)

    def _step_candidates(self, columns: dict[str, Column]) -> list[str]:
        return [k for k in columns if self._cells[k].role == "step"]

    def _placed(self, step: Column, signals: dict[str, Column], key: str) -> NDArray[np.float64]:
        """Give validation rows without a step the step of the row before; others stay without."""
        place = step.values.copy()
        place[~step.present] = np.nan
        lacks = ~step.present & _any_present(signals, self.num_rows)
        for row in np.flatnonzero(lacks).tolist():
            here = {n for n, c in signals.items() if c.present[row]}
            if row and here <= {"val_loss", "perplexity"}:
                place[row] = place[row - 1]
        lost = int((lacks & np.isnan(place)).sum())
        if lost:
            self.notes.append(f"{counted(lost, 'row')} without {key!r} left out")
        return place


def _extend(builder: RecordBuilder, step: NDArray[np.float64], signals: dict[str, Column]) -> None:
    """Add all rows; a step logged again with another loss begins an attempt, as a fallen one does."""
    cuts = [0, *_again(step, signals), len(step)]
    for first, end in pairwise(cuts):
        if first:
            builder.start_attempt(why=f"step {step[first]:g} is logged again with another loss")
        part = slice(first, end)
        builder.extend(
            step[part], {n: Column(c.values[part], c.present[part]) for n, c in signals.items()}
        )


def _again(step: NDArray[np.float64], signals: dict[str, Column]) -> list[int]:
    """Return the rows that log the step and all the signals of the loss row before, differently."""
    loss = signals.get("loss")
    if loss is None:
        return []
    rows = np.flatnonzero(loss.present)
    differs = ~np.isclose(loss.values[rows[1:]], loss.values[rows[:-1]], rtol=0, equal_nan=True)
    again = differs & (np.diff(step[rows]) == 0)
    for column in signals.values():
        again &= column.present[rows[1:]] | ~column.present[rows[:-1]]
    return [int(row) for row in rows[1:][again]]


def _rank(key: str, name: str, column: Column) -> tuple[int, bool, bool]:
    return _fullness(column), canonical(key) == name, normalise(key) == name


def _fullness(column: Column) -> int:
    """Cells with a number; NaN counts for less than any number."""
    return 2 * int(np.isfinite(column.values[column.present]).sum()) + int(column.present.sum())


def _any_present(signals: dict[str, Column], num_rows: int) -> NDArray[np.bool_]:
    result = np.zeros(num_rows, dtype=np.bool_)
    for column in signals.values():
        result |= column.present
    return result


def _step_rank(key: str) -> tuple[bool, int]:
    return key.rpartition("/")[2].startswith("_"), _STEP_KEYS.index(normalise(key))


def _counts(column: Column, rows: NDArray[np.intp], *, share: float = _MAX_REPEATED_STEPS) -> bool:
    """Whether a column counts these rows: nearly always there, hardly ever the same twice."""
    here = rows[column.present[rows]]
    if len(here) == 0 or len(here) < _MIN_STEP_SHARE * len(rows):
        return False
    repeated = np.count_nonzero(np.diff(column.values[here]) == 0)
    return bool(repeated <= (max(1.0, share * len(here)) if share else 0.0))


def _some(keys: Sequence[str] | dict[str, _Cells]) -> str:
    names = [repr(k) for k in keys]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _with_slope_note(record: RunRecord) -> RunRecord:
    norm, scale = record.columns.get("grad_norm"), record.columns.get("loss_scale")
    if norm is None or scale is None:
        return record
    both = norm.present & scale.present
    slope, changes = scale_slope(norm.values[both], scale.values[both], record.attempt[both])
    if changes >= _MIN_SLOPE_CHANGES and slope > 0.75:
        text = (
            f"grad norm moves with the loss scale (log-log slope {slope:.2f} over {changes} changes): "
            "it may be the norm of scaled gradients; it is left as logged"
        )
        return replace(record, notes=(*record.notes, text))
    return record
