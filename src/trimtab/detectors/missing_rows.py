"""A loss that is lower behind a stretch of steps that the log does not hold: learned meanwhile.

A fall from one row to the next is too good to be true; one over thousands of steps of which no row
was written, as of a resume whose first log is lost, is what was learned there. It is a note where
the log leaves out `MANY` of its usual distances between rows and the steps of the run come to
r >= `GROWN` times those before, as long as the loss keeps 1 / sqrt(r) of its level: few fall faster.
"""

import math
from dataclasses import replace

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import number

__all__ = ["MANY", "as_missed", "gap_before"]

MANY = 16.0
"""Usual distances between two rows, from which on rows are missing between them."""
GROWN = 1.5
BEFORE_ROWS, BEHIND_ROWS = 2, 3
"""Around an onset, within which the gap lies. All bars are ours."""


def as_missed(f: Finding, record: RunRecord) -> Finding:
    """Return a loss that is too good as a note where it fell while no rows were written."""
    if f.kind != "too-good" or f.signal != "loss" or f.severity == "info":
        return f
    gap = gap_before(record, f.onset_row)
    if gap is None:
        return f
    first, behind, grown = gap
    if not f.expected / math.sqrt(grown) < f.value < f.expected:
        return f
    told = f"no rows from step {number(first)} to {number(behind)}, it may be learned there"
    return replace(f, severity="info", text=f"{f.text}; {told}")


def gap_before(record: RunRecord, row: int) -> tuple[float, float, float] | None:
    """Return between which steps rows are missing around one, and times how many steps there were.

    None: there is no such gap.
    """
    span = record.rows_of(int(record.attempt[row]))
    steps = record.step[span]
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.diff(steps)
    if record.axis == "row" or not len(gaps):
        return None
    usual = median(gaps[gaps > 0]) if (gaps > 0).any() else 0.0
    at = row - span.start
    here = gaps[max(0, at - BEFORE_ROWS) : at + BEHIND_ROWS]
    k = max(0, at - BEFORE_ROWS) + int(here.argmax()) if len(here) else 0
    if not len(here) or usual <= 0 or gaps[k] < MANY * usual:
        return None
    before, after = float(steps[k]), float(steps[k + 1])
    begun = float(steps[0]) - float(usual)
    grown = (after - begun) / max(before - begun, usual)
    return (before, after, grown) if grown >= GROWN else None
