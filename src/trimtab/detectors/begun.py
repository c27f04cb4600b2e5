"""A loss that slides off the plateau on which it began: learning that begins, and nothing too good.

Models of language and of algorithms may stand for long on what the shares of single tokens give,
and then learn within a short time. What falls so is a note where three things hold: the loss had
come down by less than a fifth since the first rows, and by a twentieth in the last three
quarters of them; it slides over many rows, where a leak is there at once; and it ends at a third of
the plateau or more. A loss that had been learned before stays what it is.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import median

__all__ = ["as_begun"]

Floats = NDArray[np.float64]

LEAST_ROWS = 24
LEARNED = 0.2
"""Of the first losses. All bars are ours."""
FLAT = 0.05
SLIDE_ROWS = 8
"""Rows between the first below 90 % of the way down and the last above 10 %."""
LEFT = 1 / 3


def as_begun(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, those of a loss that begins to fall as notes."""
    return tuple(
        replace(f, severity="info", text=f"{f.text}; it slides off the plateau it began on")
        if f.kind == "too-good" and f.signal == "loss" and _begins(record, f)
        else f
        for f in findings
    )


def _begins(record: RunRecord, f: Finding) -> bool:
    column = record.columns["loss"]
    span = record.rows_of(int(record.attempt[f.onset_row]))
    rows = column.finite_rows(span)
    y, k = column.values[rows], int(np.searchsorted(rows, f.onset_row))
    if k < LEAST_ROWS or len(y) < k + SLIDE_ROWS:
        return False
    top = median(y[k // 2 : k])
    first = float(y[: max(3, k // 50)].max())
    if not 0 < top <= first or first - top > LEARNED * first:
        return False
    if median(y[k // 4 : k // 2]) - top > FLAT * top:
        return False
    low = median(y[-max(8, len(y) // 10) :])
    return LEFT * top <= low < top and _slides(y, top, low)


def _slides(y: Floats, top: float, low: float) -> bool:
    """Whether it takes many rows from the one level to the other."""
    gone = np.flatnonzero(y < low + 0.1 * (top - low))
    if not len(gone):
        return False
    still = np.flatnonzero(y[: gone[0]] > low + 0.9 * (top - low))
    return len(still) > 0 and bool(gone[0] - still[-1] >= SLIDE_ROWS)
