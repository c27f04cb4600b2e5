"""A loss that falls out of its level for some rows and comes back to it: the fall is told, in hindsight.

A window of one class, of labels that leak or of batches that are empty is easy: the loss drops at an
edge, and where the window ends it leaps up, over the level for some rows at first, since the model has
taken the window in. Held against the rows of the window that leap is a spike that never recovers. It
is a note where

* the loss stood at a level before the fall: two halves of 64 rows differ by no more than their noise
  or a tenth of the fall;
* it fell by 4 sigma of single rows within `EDGE` rows, for at most `MOST_ROWS`, a half of all before;
* behind the leap it comes back to that level, and not above it by more than 3 sigma.

The rows of the window become one finding, `too-good`. A fall at a tooth of sorted data (`sawtooth`)
is no such window.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.sawtooth import teeth_of
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["as_troughs"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

KINDS = ("spike", "unrecovered-spike", "shift", "drift", "divergence")
PAST = 64
"""Rows before a fall that show the level. All of these are ours."""
LOW = 8
"""Rows before a leap that show how low it was."""
FEWEST_ROWS, MOST_ROWS = 4, 256
EDGE = 8
AFTER = 256
FEWEST_AFTER = 16
FALL_SIGMA, LEVEL_SIGMA, LEVEL_SHARE = 4.0, 3.0, 0.1


def as_troughs(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, leaps back from a window of low losses as notes beside that window."""
    rising = [f for f in findings if _rises(f)]
    saws = [s for f in findings if f.detector == "sawtooth" and (s := teeth_of(record, f))]
    found = (t for f in rising if (t := _trough(record, f)) is not None)
    troughs = {t.onset_row: t for t in found if not any(s.explains(t) for s in saws)}
    notes: dict[int, str] = {}
    for f in rising:
        for t in troughs.values():
            last = t.onset_row if t.end_row is None else t.end_row
            if t.onset_row <= f.onset_row <= last + f.grain_rows:
                notes[id(f)] = f"; back where it was before it fell at {t.onset:g}"
    told = (
        replace(f, severity="info", text=f.text + notes[id(f)]) if id(f) in notes else f
        for f in findings
    )
    return (*told, *troughs.values())


def _rises(f: Finding) -> bool:
    up = f.kind in KINDS and f.signal == "loss" and f.direction != "down"
    return up and f.severity != "info"


def _trough(record: RunRecord, f: Finding) -> Finding | None:
    span = record.rows_of(int(record.attempt[f.onset_row]))
    column = record.columns["loss"]
    rows = column.finite_rows(slice(span.start, min(span.stop, f.onset_row + AFTER)))
    at = int(np.searchsorted(rows, f.onset_row))
    y = column.values[rows]
    if at < PAST + FEWEST_ROWS or len(y) - at < FEWEST_AFTER:
        return None
    low, back = median(y[at - LOW : at]), median(y[at + (len(y) - at) * 3 // 4 :])
    first = _first_below(y[:at], (low + back) / 2)
    if first is None or not FEWEST_ROWS <= at - first <= min(MOST_ROWS, first // 2):
        return None
    past = y[first - PAST : first] if first >= PAST else y[:0]
    if len(past) < PAST:
        return None
    level, sigma = median(past[PAST // 2 :]), mad_sigma(np.diff(past)) / np.sqrt(2)
    fall = level - low
    steady = abs(median(past[: PAST // 2]) - level) <= max(LEVEL_SIGMA * sigma, LEVEL_SHARE * fall)
    edge = median(y[first : first + EDGE]) < level - fall / 2
    if not (steady and edge and fall > FALL_SIGMA * sigma > 0):
        return None
    if back > level + LEVEL_SIGMA * sigma:
        return None
    num = at - first
    return finding_at(
        record,
        detector="trough",
        kind="too-good",
        signal="loss",
        severity="warning",
        row=int(rows[at]),
        onset_row=int(rows[first]),
        peak_row=int(rows[first + int(np.argmin(y[first:at]))]),
        end_row=int(rows[at]),
        value=low,
        expected=level,
        score=float(min(99.0, fall / sigma)),
        direction="down",
        closed=True,
        text=(
            f"loss {level:.4g} → {low:.4g} for {num} rows, then back: data of another kind (one class,"
            " labels that leak or are empty)"
        ),
    )


def _first_below(y: Floats, middle: float) -> int | None:
    """Return the first row of the stretch at the end that stays below; None: it is all of them."""
    of_four = np.median(np.lib.stride_tricks.sliding_window_view(y, 4), axis=1)
    above = np.flatnonzero(of_four >= middle)
    if not len(above):
        return None
    # The window of four ends where at least two of its rows lie above.
    start = int(above[-1])
    return start + int(np.flatnonzero(y[start : start + 4] >= middle)[-1]) + 1
