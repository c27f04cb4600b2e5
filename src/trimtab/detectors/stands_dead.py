"""A model, or a head of it, that gives one answer to everything.

**A loss that stands flat above what it had come to.** Batches differ, so a loss that is trained
scatters; one of a model whose units are dead, or that predicts a constant, does not. With low the
lowest median of three rows in a row, and the tail the rows to the end that keep within `FLAT` of
their median, it is told where the tail is `LEAST_TAIL` rows and `TAIL_SHARE` of all, its level lies
`ABOVE` low, and the rows before moved by `MOVED` times as much. One that stands at its lowest has
converged.

**A part of the loss at ln k in every row**, k from 2 to `MOST_CLASSES`, to six digits: a softmax
whose inputs are all alike.

Not told of a full batch, which never scattered, where the rate has ended, where the log states a
change at that row, and where every column repeats its last value, as in a table that is padded.

In hindsight. Blind to losses at or below 0, and to what is printed with too few digits.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.stated_changes import SETTINGS, states_a_change
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import signal_label

__all__ = ["dead_findings"]

Floats = NDArray[np.float64]

FLAT, ABOVE, MOVED = 1e-3, 1.05, 10.0
LEAST_TAIL, TAIL_SHARE, LEAST_BEFORE = 16, 0.25, 8
SCATTERS, NEAR, ENDED = 0.2, 4, 1e-3
"""Share of the moves before that turn, rows about the first flat one, and share of the highest rate."""
LEAST_PART, MOST_CLASSES, DIGITS = 24, 1000, 1e-6
"""Rows of a part, classes, and how near ln k it lies. All ours."""


def dead_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss died above its lowest, and per part at ln k."""
    if "loss" not in record.columns:
        return ()
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    found = [_flat_above(record, span) for span in spans]
    found += [_at_chance(record, name) for name in record.columns if name.startswith("loss/")]
    return tuple(f for f in found if f is not None)


def _flat_above(record: RunRecord, span: slice) -> Finding | None:
    column = record.columns["loss"]
    rows = column.finite_rows(span)
    y = column.values[rows]
    if len(y) < LEAST_BEFORE + LEAST_TAIL or not y.min() > 0:
        return None
    level = median(y[-LEAST_TAIL:])
    off = np.flatnonzero(np.abs(y - level) > FLAT * level)
    first = int(off[-1]) + 1 if len(off) else 0
    num = len(y) - first
    if first < LEAST_BEFORE or num < max(LEAST_TAIL, TAIL_SHARE * len(y)):
        return None
    before = y[:first]
    low = float(np.median(np.lib.stride_tricks.sliding_window_view(before, 3), axis=1).min())
    usual = median(np.abs(np.diff(before)))
    if _by_design(record, rows, y, first):
        return None
    if level < ABOVE * low or not usual > MOVED * float(np.ptp(y[first:])) / num:
        return None
    return finding_at(
        record,
        detector="flat-above",
        kind="unrecovered-spike",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[first]),
        value=level,
        expected=low,
        score=min(99.0, float(num)),
        closed=False,
        text=(
            f"loss {low:.4g} before, and {level:.4g} in each of the last {num} rows, to a part in a"
            " thousand: the model gives one answer to everything (in hindsight)"
        ),
    )


def _by_design(record: RunRecord, rows: NDArray[np.intp], y: Floats, first: int) -> bool:
    """Whether a loss may stand flat though the model is alive.

    A full batch never scattered; a rate that ended moves nothing; a stated change asks for something
    else; and in a table that is padded every column repeats its last value.
    """
    moves = np.diff(y[first - max(first // 3, 4) : first])
    turns = np.mean(np.diff(np.sign(moves)) != 0) if len(moves) > 1 else 0.0
    if turns < SCATTERS or states_a_change(record, int(rows[first]), NEAR, of=SETTINGS):
        return True
    rate = record.columns.get("lr")
    if rate is not None:
        logged = np.abs(rate.values[rate.finite_rows(slice(0, int(rows[-1]) + 1))])
        here = np.abs(rate.values[rows[first:]][rate.present[rows[first:]]])
        if len(here) and float(here.max()) <= ENDED * float(logged.max()):
            return True
    others = [c.values[rows[first:]] for n, c in record.columns.items() if n != "loss"]
    others = [v for v in others if np.isfinite(v).all()]
    return bool(others) and all(np.ptp(v) == 0 for v in (*others, y[first:]))


def _at_chance(record: RunRecord, name: str) -> Finding | None:
    column = record.columns[name]
    rows = column.finite_rows(slice(None))
    if len(rows) < LEAST_PART:
        return None
    values = column.values[rows]
    value = float(values[0])
    num = round(math.exp(value)) if 0 < value < math.log(MOST_CLASSES) else 0
    if num < 2 or (values != value).any() or abs(value - math.log(num)) > DIGITS:
        return None
    return finding_at(
        record,
        detector="part-at-chance",
        kind="frozen-signal",
        signal=name,
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=value,
        expected=value,
        score=min(99.0, float(len(rows))),
        closed=False,
        text=(
            f"{signal_label(name)} is exactly {value:.7g} in all {len(rows)} rows, ln {num}: each of"
            f" {num} classes gets the same probability (in hindsight)"
        ),
    )
