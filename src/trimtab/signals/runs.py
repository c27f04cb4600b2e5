"""Several runs in one file: a log that was appended to again and again from the first step on.

An attempt begins anew where its steps begin where those of the first did, its loss is back at the
first one's start, away from where the attempt before left it, and its learning rate, if it had
moved, is back as well. Once may be a restart without a checkpoint; from the second time on the file
holds separate runs.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.runs_in_file import MIN_RUN_ROWS, RUNS_NOTE, is_back
from trimtab.record import RunRecord

__all__ = ["root_of", "separate_runs"]

Floats = NDArray[np.float64]

START_ROWS = 8
"""Rows whose median is where an attempt starts, or ends."""
SAME_SHARE = 0.1
"""Starts within this share of each other are the same."""
LEAST_RESTARTS = 2
FEW_ROWS = 64
"""Rows below which the first ones alone are where an attempt starts."""


def separate_runs(record: RunRecord) -> RunRecord:
    """Return the record with each run that starts anew as one without a parent, and a note on it.

    Attempts that state where they resumed stay as they are; so does a file with one restart. A loss
    of NaN at a start is no evidence. Cost: a look at the ends of each attempt.
    """
    anew = [
        i
        for i, attempt in enumerate(record.attempts)
        if i and attempt.parent is not None and attempt.parent_step is None and _is_anew(record, i)
    ]
    if len(anew) < LEAST_RESTARTS:
        return record
    attempts = tuple(
        replace(a, parent=None) if i in anew else a for i, a in enumerate(record.attempts)
    )
    note = RUNS_NOTE.format(runs=len(anew) + 1)
    return replace(record, attempts=attempts, notes=(*record.notes, note))


def _is_anew(record: RunRecord, index: int) -> bool:
    first, here, before = (record.attempts[i] for i in (0, index, index - 1))
    if min(a.end_row - a.first_row for a in (first, here, before)) < MIN_RUN_ROWS:
        return False
    begins = float(record.step[first.first_row])
    # One logging interval of slack: a restarted run may log its first row one interval later.
    spacing = abs(float(record.step[first.first_row + 1]) - begins)
    if abs(float(record.step[here.first_row]) - begins) > spacing:
        return False
    # The loss must say so; the rate must only not contradict it, as many logs have none.
    return _starts_again(record, index) and _is_back(record, "lr", index, 1) is not False


def _starts_again(record: RunRecord, index: int) -> bool:
    if _is_back(record, "loss", index, START_ROWS):
        return True
    # Of a short run the median of the first rows is no start: it falls from row to row.
    parts = [_finite(record, "loss", i) for i in (0, index - 1, index)]
    if min(map(len, parts)) >= FEW_ROWS:
        return False
    edges = np.cumsum([0, *map(len, parts[:-1])])
    return is_back(np.concatenate(parts), np.asarray(edges), 2) is True


def _is_back(record: RunRecord, name: str, index: int, num: int) -> bool | None:
    """Whether a signal is back at its first start, away from its end before; None if unknown."""
    start, here, before = (_finite(record, name, i) for i in (0, index, index - 1))
    if min(len(start), len(here), len(before)) < num:
        return None
    origin, now, left = (float(np.median(v)) for v in (start[:num], here[:num], before[-num:]))
    # A loss that never left its start is always back at it, so it tells nothing.
    if abs(left - origin) <= 2 * SAME_SHARE * abs(origin):
        return None
    return abs(now - origin) <= SAME_SHARE * abs(origin)


def _finite(record: RunRecord, name: str, index: int) -> Floats:
    if name not in record.columns:
        return np.zeros(0)
    values = record.columns[name].values[record.rows_of(index)]
    return np.asarray(values[np.isfinite(values)])


def root_of(record: RunRecord, index: int) -> int:
    """Return the attempt at the root of an attempt's lineage; itself where it has no parent."""
    by_number = {a.number: i for i, a in enumerate(record.attempts)}
    seen = {index}
    # A damaged log may name parents in a circle.
    while (parent := by_number.get(record.attempts[index].parent or "", -1)) not in (-1, *seen):
        seen.add(parent)
        index = parent
    return index
