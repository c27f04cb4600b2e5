"""The rows of the training loss among the shapes of a text, and the lines around them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.key_values import FIRST_OF_SEVERAL, Field
from trimtab.readers.freetext.keys import is_of_critic
from trimtab.readers.freetext.shapes import Shape
from trimtab.readers.rank_values import COMPARED, RankColumns, part_ranks
from trimtab.readers.tags import is_of_entropy
from trimtab.record import Column

__all__ = ["TextRows", "choose_main", "gather"]

_SIDE_SHARE = 0.3
"""A key that more than this share of the surest key's rows has is not rare."""
_FEWEST_STATED = 5
"""Means from which they are read in place of lists. As rewards that make a record."""
_SWEPT_ROWS, _SWEPT, _ONE_FACTOR = 16, 100.0, 0.15
"""Rows of a range test, times that its rate grows, and spread of its steps. As in `explained_rises`,
and wider for the digits of a text."""
_COUNTS = ("step", "counter")


@dataclass
class TextRows:
    """Lines of several shapes in the order of the file."""

    lines: NDArray[np.int64]
    columns: dict[tuple[str, str], Column]
    """By (kind, key)."""
    fields: dict[tuple[str, str], Field]
    num_skeletons: int = 1
    notes: list[str] = field(default_factory=list)
    ranks: RankColumns | None = None
    """What other ranks print, beside these rows."""
    run: NDArray[np.intp] | None = None
    """Number of the run of each row, where there are several; never falls."""
    run_names: tuple[str, ...] = ()

    @property
    def num(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def keep(self, mask: NDArray[np.bool_]) -> "TextRows":
        """Return the rows where the mask is set."""
        columns = {k: Column(c.values[mask], c.present[mask]) for k, c in self.columns.items()}
        ranks = None if self.ranks is None else self.ranks.rows(mask)
        return TextRows(
            self.lines[mask],
            columns,
            self.fields,
            self.num_skeletons,
            self.notes,
            ranks,
            None if self.run is None else self.run[mask],
            self.run_names,
        )

    def run_starts(self) -> tuple[tuple[int, str], ...]:
        """Return (first row, name) of each run but the first."""
        if self.run is None:
            return ()
        starts = np.flatnonzero(np.diff(self.run)) + 1
        return tuple((int(row), self.run_names[self.run[row]]) for row in starts)

    def of_kind(self, *kinds: str) -> list[tuple[Field, Column]]:
        """Return the columns of some kinds."""
        return [
            (self.fields[key], column)
            for key, column in self.columns.items()
            if key[0] in kinds and column.present.any()
        ]


def gather(shapes: Sequence[Shape]) -> TextRows:
    """Join the lines of shapes into rows in the order of the file."""
    tables = [shape.table() for shape in shapes]
    lines = np.concatenate([t[0] for t in tables]) if tables else np.zeros(0, np.int64)
    order = np.argsort(lines, kind="stable")
    columns: dict[tuple[str, str], Column] = {}
    fields: dict[tuple[str, str], Field] = {}
    first = 0
    for shape, (numbers, values) in zip(shapes, tables, strict=True):
        here = slice(first, first + len(numbers))
        first += len(numbers)
        for j, f in enumerate(shape.fields):
            key = (f.kind, f.key)
            fields.setdefault(key, f)
            if key not in columns:
                empty = np.full(len(lines), np.nan), np.zeros(len(lines), dtype=np.bool_)
                columns[key] = Column(*empty)
            known = np.isfinite(values[:, j]) | (f.kind == "signal")  # no count is infinite
            columns[key].values[here] = np.where(known, values[:, j], np.nan)
            columns[key].present[here] = known
    ordered = {k: Column(c.values[order], c.present[order]) for k, c in columns.items()}
    return TextRows(lines[order], ordered, fields, sum(s.num_skeletons for s in shapes))


def choose_main(shapes: Sequence[Shape], name: str = "loss") -> tuple[str, list[Shape]] | None:
    """Return the key of a signal, the training loss if no other is named, and the shapes with it.

    Of the keys that may be one, those with hardly any rows are left aside; then the surest wins, a
    step on its line counts for it, then the most rows, then the first in the file.
    """
    counts: dict[str, int] = {}
    doubts: dict[str, int] = {}
    with_step: dict[str, int] = {}
    for shape in shapes:
        counting = any(f.kind in _COUNTS for f in shape.fields)
        for f in shape.fields:
            if f.kind == "signal" and f.name == name:
                num = len(shape.lines)
                counts[f.key] = counts.get(f.key, 0) + num
                doubts[f.key] = min(doubts.get(f.key, 99), f.doubt)
                with_step[f.key] = with_step.get(f.key, 0) + counting * num
    if not counts:
        return None
    most = max(counts.values())
    frequent = [k for k, n in counts.items() if n >= _SIDE_SHARE * most]
    # The mean over the samples of a step, however rarely it is stated, says what their list is for.
    stated = [k for k, n in counts.items() if doubts[k] < FIRST_OF_SEVERAL and n >= _FEWEST_STATED]
    if stated and all(doubts[k] == FIRST_OF_SEVERAL for k in frequent):
        frequent = stated

    def merit(key: str) -> tuple[bool, bool, int, bool, bool, bool, int]:
        stepless = 2 * with_step[key] < counts[key]
        # Both gather columns, so they are asked only where there is a choice.
        flat = len(frequent) > 1 and _is_flat(shapes, key)
        sweeps = len(frequent) > 1 and _is_range_test(shapes, key)
        of_whole = is_of_entropy(key), sweeps, doubts[key]
        return *of_whole, stepless, flat, is_of_critic(key), -counts[key]

    best = min(frequent, key=merit)
    found = [s for s in shapes if any(f.key == best and f.name == name for f in s.fields)]
    return best, [s for s in found if not _is_foreign(s, best, found)]


def _is_range_test(shapes: Sequence[Shape], key: str) -> bool:
    """Whether the rows of a key stand beside a rate that grows by one factor, a hundredfold and more."""
    mine = [s for s in shapes if any(f.key == key for f in s.fields)]
    if not any(f.name == "lr" for s in mine for f in s.fields):
        return False
    side = gather(mine)
    rates = [c for (_, name), c in side.columns.items() if side.fields[_, name].name == "lr"]
    rate = rates[0].values[rates[0].present] if rates else np.zeros(0)
    if len(rate) < _SWEPT_ROWS or not rate.min() > 0 or rate[-1] < _SWEPT * rate[0]:
        return False
    moves = np.diff(np.log(rate))
    middle = float(np.median(moves))
    return bool((np.abs(moves - middle) <= _ONE_FACTOR * middle).all())


def _is_foreign(shape: Shape, key: str, shapes: Sequence[Shape]) -> bool:
    """Whether lines are of another writer, such as a monitor that knows of no loss.

    They never have one, and count by another name than the lines that do.
    """
    if not _counters(shape) or not _never_finite(shape, key):
        return False
    own = [_counters(s) for s in shapes if not _never_finite(s, key)]
    return any(own) and not any(_counters(shape) & names for names in own)


def _counters(shape: Shape) -> set[str]:
    return {f.key for f in shape.fields if f.kind in _COUNTS}


def _never_finite(shape: Shape, key: str) -> bool:
    places = [j for j, f in enumerate(shape.fields) if f.key == key]
    return not np.isfinite(shape.table()[1][:, places]).any()


def _is_flat(shapes: Sequence[Shape], key: str) -> bool:
    """Whether a signal never moves, as a part of the loss that is switched off."""
    values = gather([s for s in shapes if any(f.key == key for f in s.fields)]).columns.get(
        ("signal", key)
    )
    return values is not None and len(np.unique(values.logged())) == 1


def one_rank(rows: TextRows, loss: str) -> TextRows:
    """Keep one rank where several print: the lowest that computes a loss; the others beside it."""
    for _, column in (*rows.of_kind("rank"), *_labels(rows)):
        ranks = np.unique(column.values[column.present])
        # As many numbers as rows are counts of rows, not ranks.
        if np.count_nonzero(np.isfinite(ranks)) < 2 or len(ranks) > rows.num / 2:
            continue
        signals: dict[str, Column] = {}
        for f, values in sorted(rows.of_kind("signal"), key=lambda item: item[0].doubt):
            if f.name in COMPARED and (f.name != "loss" or f.key == loss):
                signals.setdefault(f.name, values)
        counts = [c for _, c in rows.of_kind("step", "epoch", "counter")]
        found = part_ranks(column, counts, signals)
        if found is None:
            continue
        rows.ranks = found
        kept = rows.keep(found.keep)
        kept.notes += found.notes
        return kept
    return rows


def _labels(rows: TextRows) -> list[tuple[Field, Column]]:
    """Numbers in front of lines (`3: ...`) that return again and again: the labels of ranks."""
    return [
        (f, c)
        for f, c in rows.of_kind("lead")
        if f.key == "label in front of the line"
        and np.count_nonzero(np.diff(c.values[c.present]) < 0) > 0.1 * rows.num
    ]
