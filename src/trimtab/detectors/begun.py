"""A loss that slides off a plateau: learning that begins, and nothing too good.

Models of language, of algorithms and of what is masked may stand for long on what a guess or the
shares of single tokens give, and then learn within a short time. What falls so is a note where
three things hold: over the last three quarters of the rows before, the loss had stood still, within
a twentieth where it had come down by less than a third since the first rows, within a fortieth on a
later plateau; it slides over many rows, where a leak is there at once, and off a later plateau over
five times as many; and it ends at a third of the plateau or more, at a tenth where the slide is as
long as that, at a fiftieth where the run began on the level of a guess, ln k.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.never_learns import classes_guessed
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median

__all__ = ["SLIDE_ROWS", "as_begun", "slide_of"]

Floats = NDArray[np.float64]

SOON = 0.1
"""Of the rows, within which a first plateau that is over was no wait. Ours."""
LEAST_ROWS = 24
LEARNED = 1 / 3
"""Of the first losses: a fresh net may be further off than a guess. All bars are ours."""
FLAT, FLAT_LATER = 0.05, 0.025
"""Of the plateau: the first one, and a later one, which a curve that flattens resembles."""
SLIDE_ROWS, SLIDE_ROWS_LATER = 8, 40
"""Rows off the first plateau and off a later one, between the first below 90 % of the way down and
the last above 10 %."""
SLIDE_ROWS_GUESS = 24
"""Off the level of a guess to next to nothing."""
LEFT, LEFT_SLOW, LEFT_OF_GUESS = 1 / 3, 0.1, 0.02
"""Of the plateau: at least so much is left where the loss ends; after a slide of `SLIDE_ROWS_LATER`
rows or more; and off the level of a guess. Below the last it is learned by heart or leaked, whatever
it began on."""


def as_begun(f: Finding, record: RunRecord) -> Finding:
    """Return a loss that begins to fall, or began to within few of its rows, as a note."""
    if f.detector == "never-learns-flat" and f.severity == "warning" and f.end_row is not None:
        span = record.rows_of(int(record.attempt[f.onset_row]))
        if f.end_row - f.onset_row < SOON * (span.stop - span.start):
            return replace(f, severity="info")
    if f.kind != "too-good" or f.signal != "loss" or not _begins(record, f):
        return f
    return replace(f, severity="info", text=f"{f.text}; it slides off a plateau")


def _begins(record: RunRecord, f: Finding) -> bool:
    column = record.columns["loss"]
    span = record.rows_of(int(record.attempt[f.onset_row]))
    rows = column.finite_rows(span)
    y, k = column.values[rows], int(np.searchsorted(rows, f.onset_row))
    if k < LEAST_ROWS or len(y) < k + SLIDE_ROWS:
        return False
    low = median(y[-max(8, len(y) // 10) :])
    # A slide is dated to where it is well under way: the plateau ends where it begins.
    begun, slide_rows = slide_of(y, median(y[k // 2 : k]), low)
    k = min(k, begun)
    if k < LEAST_ROWS:
        return False
    top, first = median(y[k // 2 : k]), float(y[: max(3, k // 50)].max())
    if not 0 < top <= (1 + FLAT_LATER) * first:
        return False
    begins = first - top <= LEARNED * first
    # Where the plateau is that of a guess, all that can be learned lies below it.
    # Its first half: towards the slide it sinks.
    level = y[k // 8 : k // 2]
    guess = (
        begins
        and slide_rows >= SLIDE_ROWS_GUESS
        and classes_guessed(median(level), _level_error(level)) is not None
    )
    slow = slide_rows >= SLIDE_ROWS_LATER
    left = LEFT_OF_GUESS if guess else LEFT_SLOW if slow else LEFT
    if not left * top <= low < top:
        return False
    if median(y[k // 4 : k // 2]) - top > (FLAT if begins else FLAT_LATER) * top:
        return False
    return slide_rows >= (SLIDE_ROWS if begins else SLIDE_ROWS_LATER)


def _level_error(y: Floats) -> float:
    return difference_sigma(np.diff(y)) / math.sqrt(len(y))


def slide_of(y: Floats, top: float, low: float) -> tuple[int, int]:
    """Return where a loss leaves one level, and the rows that it takes to the other; 0 for none."""
    gone = np.flatnonzero(y < low + 0.1 * (top - low))
    still = np.flatnonzero(y[: gone[0]] > low + 0.9 * (top - low)) if len(gone) else gone
    return (int(still[-1]), int(gone[0] - still[-1])) if len(still) else (0, 0)
