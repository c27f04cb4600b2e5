"""A loss that is too good, and that held-out data share: learning, and no leak.

Targets in the input, data that is fed again or a loss that is computed otherwise bring the training
loss down and leave what is held out where it was: the validation set, or else the guard's fixed
batches in eval mode. What such a reading has fallen by, once the training loss around it has come
down at least half of the way, is compared with what the training loss fell by since a reading
before: `SHARE` of it makes the fall a note. Without two such readings nothing is said, nor of a
fall that is there at once: learning takes rows, and a leak or another loss may be of both.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.begun import SLIDE_ROWS, slide_of
from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import median

__all__ = ["as_shared"]

Floats = NDArray[np.float64]

HELD_OUT = ("val_loss", "yardstick_loss")
SHARE = 0.5
"""Of the relative fall of the training loss. Ours, as in `drop`."""
NEAR_ROWS = 8
"""On both sides of a reading, that tell the training loss there."""
BEFORE_ROWS = 64
"""By which the fall may have begun before it was dated. Ours."""


def as_shared(f: Finding, record: RunRecord) -> Finding:
    """Return a loss that is too good as a note where held-out data share its fall."""
    if f.kind != "too-good" or f.signal != "loss" or f.severity == "info":
        return f
    if not 0 <= f.value < f.expected:
        return f
    name = next((n for n in HELD_OUT if n in record.columns), None)
    if name is None or not _shared(f, record, name):
        return f
    held = "validation" if name == "val_loss" else "the fixed batches"
    return replace(f, severity="info", text=f"{f.text}; {held} fell with it")


def _shared(f: Finding, record: RunRecord, name: str) -> bool:
    span = record.rows_of(int(record.attempt[f.onset_row]))
    loss, held = record.columns["loss"], record.columns[name]
    rows, readings = loss.finite_rows(span), held.finite_rows(span)
    if not len(rows) or not len(readings):
        return False
    at = rows.searchsorted(readings)
    y = loss.values[rows]
    if slide_of(y, f.expected, f.value)[1] < SLIDE_ROWS:
        return False
    around = np.array([median(loss.values[_near(rows, int(k))]) for k in at])
    low = around <= (f.value + f.expected) / 2
    after = np.flatnonzero(low & (readings >= f.onset_row - BEFORE_ROWS))
    if not len(after):
        return False
    before = np.flatnonzero(~low[: after[0]])
    if not len(before):
        return False
    old, new = int(before[-1]), int(after[-1])
    values = held.values[readings]
    if min(values[old], around[old]) <= 0:
        return False
    fell, of_train = 1 - values[new] / values[old], 1 - around[new] / around[old]
    return bool(fell > SHARE * of_train)


def _near(rows: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    return rows[max(0, min(k, len(rows) - 1) - NEAR_ROWS) : k + NEAR_ROWS]
