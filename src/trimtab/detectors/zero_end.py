"""A loss that is exactly 0 in the last rows of an attempt, as some trainers print NaN.

A loss comes to 0 by steps; one that stood at its level and is 0 in the next row, and in every row
from there on, is no loss. In hindsight, of an attempt that has ended or is as it is now, `FEWEST`
rows are enough, and one where the row before them had left the level by `LEAP` times; behind a few
first rows alone it takes `MIN_ROWS`. Where `frozen` tells it, too, this is a note beside that.

Blind to losses that had come near 0, or were 0 before, and to those below it.
"""

import re

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import signal_label

__all__ = ["zero_end_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 16
"""Zeros behind a few first rows. Those may be of any loss that is not small."""
FEWEST = 3
PAST_ROWS, FEWEST_PAST = 16, 6
LEAP, DIGITS = 10.0, 10.0
STEADY = 0.5
"""Of the level, that the lowest of the rows before comes to at least."""
_COMES_TO_NOTHING = re.compile(
    r"hinge|triplet|margin|contrast|rank|percep|dpo|pair|mistake|err(?:or)?s?(?![a-z])"
)
_GOES_ON = (
    "val_loss",
    "accuracy",
    "eval_score",
    "reward_margin",
    "preference_accuracy",
    "grad_norm",
)
"""Where one of these is measured on over the zeros, the weights are whole."""
EARLY_LEAST = 0.5
LEAST = 0.1
"""Loss of the first rows, where they are all there is, and loss below which 0 may be what is left of it
when printed. All ours."""


def zero_end_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding for each attempt that ends in losses of exactly 0."""
    column = record.columns.get("loss")
    key = record.keys.get("loss", "").lower()
    if column is None or "reward" in record.columns or _COMES_TO_NOTHING.search(key):
        return ()
    found = (
        _judge(record, column.finite_rows(record.rows_of(i))) for i in range(len(record.attempts))
    )
    return tuple(f for f in found if f is not None)


def _judge(record: RunRecord, rows: Rows) -> Finding | None:
    loss = record.columns["loss"].values[rows]
    other = np.flatnonzero(loss != 0)
    at = int(other[-1]) + 1 if len(other) else 0
    num = len(loss) - at
    if not num or not at or not loss[:at].min() > 0:
        return None
    if at <= FEWEST_PAST:
        return _from_the_first(record, rows, loss, at)
    past = loss[max(0, at - 1 - PAST_ROWS) : at - 1]
    level, last = median(past), float(loss[at - 1])
    known = np.unique(past)
    if len(known) < FEWEST_PAST or level < DIGITS * float(np.diff(known).min()):
        return None  # printed to a digit or two, 0 is what is left of it
    if level < LEAST or past.min() < STEADY * level or last < STEADY * level:
        return None
    leapt = last >= LEAP * level
    if not leapt and num < FEWEST:
        return None
    behind = f"{level:.4g} → {last:.4g} → exactly 0" if leapt else f"{last:.4g} → exactly 0"
    return _finding(record, rows, (at - 1 if leapt else at, at), level, behind, leapt=leapt)


def _from_the_first(record: RunRecord, rows: Rows, loss: Floats, at: int) -> Finding | None:
    """Return what tells that hardly a loss was logged before all of them are 0."""
    if len(loss) - at < MIN_ROWS or loss[:at].min() < EARLY_LEAST:
        return None
    # What comes down to 0 in some rows may have been learned; whole numbers are counts.
    if (at > 1 and (np.diff(loss[:at]) < 0).all()) or not (loss[:at] % 1).any():
        return None
    if any(_goes_on(record, name, rows[at:]) for name in _GOES_ON):
        return None
    last = float(loss[at - 1])
    return _finding(record, rows, (at, at), last, f"{last:.4g} → exactly 0", leapt=False)


def _goes_on(record: RunRecord, name: str, rows: Rows) -> bool:
    """Whether a signal has finite values other than 0 in some of these rows."""
    column = record.columns.get(name)
    if column is None:
        return False
    values = column.values[rows][column.present[rows]]
    return bool((np.isfinite(values) & (values != 0)).any())


def _is_unfilled(record: RunRecord, rows: Rows, at: int) -> bool:
    """Whether another column is 0 in just these rows, too: of a table that nobody filled."""
    for name, column in record.columns.items():
        if name == "loss" or not column.present[rows[at]]:
            continue
        before, since = (
            column.values[part][column.present[part]] for part in (rows[:at], rows[at:])
        )
        if len(since) and not since.any() and before.any():
            return True
    return False


def _finding(
    record: RunRecord,
    rows: Rows,
    places: tuple[int, int],
    level: float,
    behind: str,
    *,
    leapt: bool,
) -> Finding:
    """Return the finding of an onset and a first 0, by their place among the rows."""
    onset, at = places
    num = len(rows) - at
    return finding_at(
        record,
        detector="zero-end",
        kind="non-finite",
        signal="loss",
        severity="info"
        if _is_unfilled(record, rows, at)
        else "critical"
        if at > FEWEST_PAST
        else "warning",
        row=int(rows[-1]),
        onset_row=int(rows[onset]),
        peak_row=int(rows[onset]),
        value=0.0,
        expected=level,
        score=99.0,
        direction="up" if leapt else "down",
        closed=True,
        text=(
            f"{signal_label('loss')} {behind}, to the end ({num} row{'s'[: num > 1]}): some trainers"
            " print NaN so (in hindsight)"
        ),
    )
