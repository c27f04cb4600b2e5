"""A model that does not move: its losses repeat, digit for digit, as the same batches come round.

With y the losses of an attempt, finite, the last of them at row n: a period p >= `LEAST_PERIOD` for
which y[t] = y[t - p] exactly for all of the last max(p, `LEAST_ROWS`) rows or more, where half of a
period or more are different numbers. From half a period on, fewer rows will do, where the digits
that repeat are too many for chance (`LEAST_DIGITS`) and the losses of a period do not fall. Weights that change by one bit give other digits; so they do
not change, be it for a rate of 0 that is not logged, parameters that the optimizer does not hold,
or gradients that never come.

A rate that is logged as 0 there explains it: a note. Blind to batches in another order each time,
and to losses of which few digits are printed where those move. In hindsight.
"""

import math

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.trend import kendall_score

__all__ = ["unmoved_findings"]

LEAST_PERIOD = 3
FEW_DIGITS = 8
"""Different numbers of a period, where three digits behind the point are all that is printed."""
LEAST_ROWS = 12
FEWEST_ROWS, LEAST_DIGITS = 6, 15.0
"""Rows that repeat, and digits of theirs that could have been others: one chance in 10^12, were each
of `MOST_TRIED` periods tried."""
MOST_TRIED = 256
"""Periods: of a loss with few digits many rows are equal to the last."""
_MOST_DIGITS = 8
"""Behind the point: more would be those of the number format."""
_FALLS = -2.0
"""Normal score of Kendall's S: where losses of a period fall, a log may have been written twice."""
MOST_ROWS = 8192
"""Of the end of an attempt, that are searched. All bars are ours."""


def unmoved_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose losses come to repeat exactly.

    Cost: a comparison of the last rows for each earlier row that is equal to the last.
    """
    if "loss" not in record.columns:
        return ()
    spans = (record.rows_of(i) for i in range(len(record.attempts)))
    found = (_judge(record, span) for span in spans)
    return tuple(f for f in found if f is not None)


def _judge(record: RunRecord, span: slice) -> Finding | None:
    column = record.columns["loss"]
    rows = column.finite_rows(span)[-MOST_ROWS:]
    loss = column.values[rows]
    num = len(loss)
    if num < LEAST_PERIOD + FEWEST_ROWS:
        return None
    periods = num - 1 - np.flatnonzero(loss[:-1] == loss[-1])[::-1]
    for period in periods[periods >= LEAST_PERIOD][:MOST_TRIED].tolist():
        differs = np.flatnonzero(loss[period:] != loss[:-period])
        first = int(differs[-1]) + 1 if len(differs) else 0  # loss[first:] repeats from here on
        again = num - period - first
        kinds = len(np.unique(loss[-period:]))
        few = LEAST_PERIOD if (np.round(loss[-period:], 3) != loss[-period:]).any() else FEW_DIGITS
        enough = again >= max(period, LEAST_ROWS) or _beyond_chance(loss[first:], period)
        if not enough or kinds < max(few, period / 2):
            continue
        return _finding(record, rows, period, first + period)
    return None


def _beyond_chance(loss: np.ndarray, period: int) -> bool:
    """Whether a period and some rows that repeat it hold too many digits for chance.

    Not where the losses of the period fall: that may be a log that was written twice.
    """
    once, again = loss[:period], loss[period:]
    if len(again) < max(FEWEST_ROWS, period / 2) or kendall_score(once) < _FALLS:
        return False
    spread = np.ptp(once)
    behind = next(
        (d for d in range(_MOST_DIGITS) if (np.round(loss, d) == loss).all()), _MOST_DIGITS
    )
    digits = math.log10(spread) + behind if spread > 0 else 0.0  # that differ between losses
    return len(np.unique(again)) * digits >= LEAST_DIGITS


def _finding(record: RunRecord, rows: np.ndarray, period: int, repeats: int) -> Finding:
    rate = record.columns.get("lr")
    rates = np.ones(1)
    if rate is not None:
        here = rate.finite_rows(slice(int(rows[repeats]), int(rows[-1]) + 1))
        rates = rate.values[here] if len(here) else rates
    at, value = int(rows[repeats - period]), float(record.columns["loss"].values[rows[-1]])
    return finding_at(
        record,
        detector="unmoved",
        kind="never-learns",
        signal="loss",
        severity="warning" if rates.any() else "info",
        row=int(rows[min(repeats + max(period, LEAST_ROWS), len(rows)) - 1]),
        onset_row=at,
        peak_row=at,
        value=value,
        expected=value,
        score=min(99.0, float(len(rows) - repeats)),
        closed=True,
        text=(
            f"the losses repeat digit for digit every {period} rows, {len(rows) - repeats} rows so"
            " far: the weights do not change while the same batches come round (in hindsight)"
        ),
    )
