"""The runs of a text that holds several, one after the other."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.axis import epoch_lines
from trimtab.readers.freetext.rows import TextRows, gather
from trimtab.readers.freetext.shapes import Shape
from trimtab.readers.runs_in_file import MOST_ROWS, RUNS_NOTE, Marks, runs_by_count, runs_by_name

__all__ = ["part_runs"]

_COUNTS = ("epoch", "step", "counter", "maybe-step")


def part_runs(rows: TextRows, key: str, others: Sequence[Shape], marks: Marks) -> None:
    """Number the runs of the rows, where there are several.

    Args:
        rows: The rows of the loss; the numbers are put there.
        key: Its key.
        others: Shapes of other lines, which may count what stands below them.
        marks: Where the text names another run.
    """
    if not 2 * 3 <= rows.num <= MOST_ROWS:
        return
    column = rows.columns["signal", key]
    loss = np.where(column.present, column.values, np.nan)
    counts = _counts(rows, others)
    for word, seen in marks().items():
        lines, numbers = np.array(seen, dtype=np.int64).T
        at = np.searchsorted(lines, rows.lines, side="right") - 1
        labels = np.where(at < 0, np.nan, numbers[np.maximum(at, 0)].astype(np.float64))
        starts = runs_by_name(labels, loss, counts)
        if starts is not None:
            names = tuple(f"{word} {labels[row]:g}" for row in starts)
            _put(rows, starts, names)
            return
    starts = runs_by_count(loss, counts)
    if starts is not None:
        _put(rows, starts, tuple(f"run {k + 1} of this file" for k in range(len(starts))))


def _put(rows: TextRows, starts: NDArray[np.intp], names: tuple[str, ...]) -> None:
    begins = np.zeros(rows.num, dtype=np.intp)
    begins[starts[1:]] = 1
    rows.run, rows.run_names = np.cumsum(begins), names
    rows.notes.append(RUNS_NOTE.format(runs=len(starts)))


def _counts(rows: TextRows, others: Sequence[Shape]) -> list[NDArray[np.float64]]:
    """Return what may count the rows of a run: on their lines, or on headings above them."""
    found = [np.where(c.present, c.values, np.nan) for _, c in rows.of_kind(*_COUNTS)]
    side = gather(epoch_lines(others))
    for _, column in side.of_kind("epoch"):
        at = np.searchsorted(side.lines, rows.lines, side="right") - 1
        found.append(np.where(at < 0, np.nan, column.values[np.maximum(at, 0)]))
    return found
