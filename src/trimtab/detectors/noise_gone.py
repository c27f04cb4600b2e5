"""Rows that stop scattering: the loss goes on along a smooth line, where each batch had moved it.

The noise between rows is that of the batches. With s the noise of a block of 16 rows or more, by
their second differences, which no slope moves, it is gone from block t on where

    every s from t to the end  <=  median of the `PAST` blocks before / `TIMES`,

where none of the blocks before was as calm as a fifth of their median, and the loss did not go with
it: it keeps `KEPT` of its level. The same batch, or the same few, are fed again and again, or means
are logged from there on.

In hindsight. Blind in the first `LEAST_BEFORE` and the last `LEAST_AFTER` blocks, to values that are
printed with too few digits to scatter, where rows come to stand for more steps, and where the log
states a change.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.stated_changes import states_a_change
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import number

__all__ = ["noise_gone_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

BLOCK_ROWS, MOST_BLOCKS = 16, 256
LEAST_BEFORE, LEAST_AFTER, PAST = 4, 4, 8
TIMES, STEADY, KEPT = 12.0, 0.2, 0.25
DIGITS, MOVED = 8.0, 0.75
"""Least steps of the printed digits, that the noise before comes to; share of the rows since, that
differ from the one before."""
SPACED = 2.0
"""Times as many steps a row, from which on it may be a mean. All ours."""


def noise_gone_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding for each attempt whose loss scatters no more, from a row to its end."""
    column = record.columns.get("loss")
    if column is None or record.axis == "epoch":  # rows of epochs are means
        return ()
    spans = map(record.rows_of, range(len(record.attempts)))
    found = (_judge(record, column.finite_rows(span), column.values) for span in spans)
    return tuple(f for f in found if f is not None)


def _judge(record: RunRecord, rows: Rows, values: Floats) -> Finding | None:
    size = max(BLOCK_ROWS, -(-len(rows) // MOST_BLOCKS))
    num = len(rows) // size
    if num < LEAST_BEFORE + LEAST_AFTER + 1:
        return None
    y = values[rows[len(rows) - num * size :]]
    noise = np.array([difference_sigma(np.diff(b, 2), order=2) for b in y.reshape(num, size)])
    at = _gone(noise)
    if at is None:
        return None
    past = median(noise[max(0, at - 1 - PAST) : at - 1])
    first = _first_calm(y, (at - 1) * size, size, past)
    before, since = y[max(0, first - PAST * size) : first], y[first:]
    known = np.unique(before)
    coarse = len(known) < 2 or past < DIGITS * float(np.diff(known).min())
    if coarse or np.mean(np.diff(since) != 0) < MOVED:
        return None
    if abs(median(since)) < KEPT * abs(median(before)):
        return None
    own = rows[len(rows) - num * size :]
    onset = int(own[first])
    if _spaced(record.step[own], first):
        return None
    seen = record.columns.get("tokens_seen")
    if seen is not None and seen.present[own].all() and _spaced(seen.values[own], first):
        return None
    if states_a_change(record, onset, size):
        return None
    now = median(noise[at:])
    return finding_at(
        record,
        detector="noise-gone",
        kind="repeated-data",
        signal="loss",
        severity="warning",
        row=int(own[-1]),
        onset_row=onset,
        value=now,
        expected=past,
        score=min(99.0, past / max(now, past / 99.0)),
        direction="down",
        closed=False,
        text=(
            f"the loss scatters by {number(now)} from row to row, where {number(past)} was usual:"
            " the same batch again and again, or means from here on (in hindsight)"
        ),
    )


def _spaced(count: Floats, first: int) -> bool:
    """Whether rows come to stand for more steps, or for more data."""
    moves = np.diff(count)
    return median(moves[first:]) >= SPACED * median(moves[:first]) > 0


def _gone(noise: Floats) -> int | None:
    """Return the first block from which on all are calm; the one before it may be half and half."""
    calm = np.maximum.accumulate(noise[::-1])[::-1]
    for at in range(LEAST_BEFORE + 1, len(noise) - LEAST_AFTER + 1):
        past = noise[max(0, at - 1 - PAST) : at - 1]
        usual = median(past)
        if calm[at] <= usual / TIMES and past.min() >= STEADY * usual:
            return at
    return None


def _first_calm(y: Floats, start: int, size: int, past: float) -> int:
    """Return the place from which on rows keep to their line: in the block from `start` on, or the next.

    A row that stands out later is one batch, and no sign of what was before.
    """
    bends = np.abs(np.diff(y[start : start + size + size // 2], 2))
    rough = np.flatnonzero(bends > past / 2)
    return start + (int(rough[-1]) + 2 if len(rough) else 0)
