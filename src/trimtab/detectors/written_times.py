"""The times at which rows of an attempt were written, those out of order left out."""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord

__all__ = ["rows_in_order"]


def rows_in_order(record: RunRecord, attempt: int) -> NDArray[np.intp]:
    """Return the rows of an attempt with a time of writing; the most of them whose times never fall.

    A line of another writer or a clock set anew puts single times far ahead or behind: a gap on
    both sides of them is none.
    """
    column = record.columns["wall_time_s"]
    rows = column.finite_rows(record.rows_of(attempt))
    at = column.values[rows]
    if not np.any(np.diff(at) < 0):
        return rows
    return rows[_longest_rise(at.tolist())]


def _longest_rise(values: list[float]) -> NDArray[np.intp]:
    """Return the places of a longest subsequence that never falls (patience sorting)."""
    ends: list[float] = []
    last: list[int] = []
    before = [-1] * len(values)
    for i, value in enumerate(values):
        at = bisect_right(ends, value)
        before[i] = last[at - 1] if at else -1
        if at == len(ends):
            ends.append(value)
            last.append(i)
        else:
            ends[at], last[at] = value, i
    found: list[int] = []
    i = last[-1]
    while i >= 0:
        found.append(i)
        i = before[i]
    return np.array(found[::-1], dtype=np.intp)
