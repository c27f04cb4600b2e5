"""Gradient norms that grow while the loss falls on: a note, and no trouble.

The norm of a sound run may grow many times over as its loss falls: a density that becomes sharper,
a loss that is a logarithm. What a norm (or the share of clipped steps) did is an alarm of its own
only where the loss does not go on as before. The loss from the onset on, to `AFTER_ROWS` rows
behind the row that told, is compared with as many rows before it, by their last thirds:

    fall > `SIGMA` standard errors of two medians, and
    fall > `SLOWER` of what the rows before promise at their own pace

A curve that flattens as curves do has a half to two thirds of that pace.

A norm that is `AT_ONCE` times as large from one row to the next does not grow: the alarm stays. So
do those of `lasting`, which sees only what is there at once, and of `norm_climbs`.
"""

import math
from dataclasses import replace

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["as_it_falls_on"]

KINDS = ("grad-drift", "shift")
SIGNALS = ("grad_norm", "clipped")
AFTER_ROWS = 128
LEAST_ROWS = 24
SIGMA = 3.0
SLOWER = 0.25
"""All bars are ours."""
AT_ONCE, EDGE = 10.0, 4
"""Times its level, and rows within which no density becomes as much sharper."""
_OF_MEDIAN = 1.25


def as_it_falls_on(f: Finding, record: RunRecord) -> Finding:
    """Return a norm that grows as a note where the loss falls on; others as they are."""
    grows = f.kind in KINDS and f.signal in SIGNALS and f.direction == "up"
    if (
        f.severity == "info"
        or not grows
        or f.detector in ("lasting", "norm-climbs")
        or _leaps(f, record)
        or not _falls_on(f, record)
    ):
        return f
    return replace(f, severity="info", text=f"{f.text}; the loss falls on")


def _leaps(f: Finding, record: RunRecord) -> bool:
    """Whether a norm became many times as large at once, at the onset or within a block of it."""
    column = record.columns.get(f.signal)
    if f.signal != "grad_norm" or column is None:
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    reach = f.grain_rows + 2 * EDGE
    rows = column.finite_rows(
        slice(max(span.start, f.onset_row - reach), min(span.stop, f.onset_row + reach))
    )
    y = column.values[rows]
    if len(y) < 2 * EDGE or not y.min() > 0:
        return False
    windows = np.median(np.lib.stride_tricks.sliding_window_view(y, EDGE), axis=1)
    return bool((windows[EDGE:] > AT_ONCE * windows[:-EDGE]).any())


def _falls_on(f: Finding, record: RunRecord) -> bool:
    column = record.columns.get("loss")
    if column is None:
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    rows = column.finite_rows(slice(f.onset_row, min(span.stop, f.row + 1 + AFTER_ROWS)))
    # The first rows come down steeply, whatever follows.
    begun = max(span.start, f.onset_row - (f.row + AFTER_ROWS - f.onset_row))
    before = column.finite_rows(slice(begun, f.onset_row))
    if min(len(rows), len(before)) < LEAST_ROWS:
        return False
    old, new = column.values[before], column.values[rows]
    third, of_new = len(old) // 3, len(new) // 3
    last = median(old[-third:])
    fall = last - median(new[-of_new:])
    noise = mad_sigma(np.diff(np.concatenate([old, new]))) / math.sqrt(2)
    error = _OF_MEDIAN * noise * math.sqrt(1 / third + 1 / of_new)
    # From middle to middle of the thirds: two thirds of the rows before, all of those after.
    pace = (median(old[:third]) - last) / (2 / 3 * len(old))
    return fall > max(SIGMA * error, SLOWER * pace * len(new))
