"""What the record says of the scheduled learning rate: jumps, rises, and the rate at a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.detectors.explained_rises import ABOVE
from trimtab.diagnosis.history import comes_back
from trimtab.guard.state.decisions import lr_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.incidents import Incident
    from trimtab.record import RunRecord

__all__ = ["LrJump", "find_lr_jump", "lr_at", "lr_rise", "sound_lr"]

_RISE_STEPS = 16
"""Steps before the onset over which the rate is compared."""
_RISE = 1.02
"""Ratio over them from which the rate counts as rising; schedules that fall or stay are below 1."""
_PROVEN_ROWS = 32
"""Rows before a rise from which the rate that it rose from counts as one that worked."""


@dataclass(frozen=True)
class LrJump:
    """A rise of the scheduled learning rate from one step to the next, the guard's factors divided out."""

    step: int
    """First step at the new rate."""
    before: float
    """What the schedule before it would have given there, or the highest rate that it came back to.
    """
    after: float


def find_lr_jump(
    incident: Incident, record: RunRecord, cuts: Sequence[tuple[int, float]]
) -> LrJump | None:
    """Return the jump of the rate in force that led to the incident; None without one.

    A rate that came back to one in force before is none. In a schedule whose rate comes back, the
    rate just before a jump may be one at which nothing is learned: the highest rate before it is
    the sound one there.

    Args:
        incident: Its findings name the jump.
        record: Its last attempt's lineage is read.
        cuts: The guard's own factors, by first step; they are divided out.
    """
    for f in incident.findings:
        alarm = f.signal == "lr" and f.severity != "info"
        if alarm and f.onset <= incident.onset and f.expected > 0:
            was = f.expected / lr_factor(cuts, f.onset - 1)
            after = f.value / lr_factor(cuts, f.onset)
            if not was < after:  # the guard's own
                continue
            back = _highest_that_came_back(record, f.onset, cuts)
            before = back if was < back < after else was
            return LrJump(step=int(f.onset), before=before, after=after)
    return None


def _highest_that_came_back(
    record: RunRecord, step: float, cuts: Sequence[tuple[int, float]]
) -> float:
    """Return the highest rate before a step; 0 where none came back before it."""
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return 0.0
    rows = rows[(record.step[rows] < step) & column.present[rows]]
    factors = np.array([lr_factor(cuts, t) for t in record.step[rows].tolist()]) if cuts else 1.0
    rates = column.values[rows] / factors
    rates = rates[np.isfinite(rates)]
    return float(rates.max()) if comes_back(rates) else 0.0


def lr_at(record: RunRecord, step: float, cuts: Sequence[tuple[int, float]]) -> float:
    """Return the scheduled rate at the newest row up to `step`; NaN where none was logged.

    Args:
        record: Its last attempt's lineage is read.
        step: An optimizer step.
        cuts: The guard's own factors, by first step; they are divided out.
    """
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return math.nan
    rows = rows[(record.step[rows] <= step) & column.present[rows]]
    if not len(rows):
        return math.nan
    return float(column.values[rows[-1]]) / lr_factor(cuts, float(record.step[rows[-1]]))


def sound_lr(
    record: RunRecord, step: float, now: float, cuts: Sequence[tuple[int, float]]
) -> float:
    """Return the scheduled rate at a step; the rate `now` where that is one that came back by then.

    At the low end of a schedule with restarts nothing is learned, so nothing goes wrong there.
    """
    if now <= ABOVE * _highest_that_came_back(record, step, cuts):
        return now
    return lr_at(record, step, cuts)


def lr_rise(
    record: RunRecord, onset: float, cuts: Sequence[tuple[int, float]]
) -> tuple[bool, float | None]:
    """Return whether the scheduled rate was still rising at `onset`, and the rate it rose from.

    It was not where it only came back to a rate that was in force before, as at a restart of a
    schedule that has had one before. That rate is None where the rise began with the run, as a
    warm-up does: none was proven before it.
    """
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return False, None
    rows = rows[(record.step[rows] <= onset) & column.present[rows]]

    def rate(i: int) -> float:
        return float(column.values[rows[i]]) / lr_factor(cuts, float(record.step[rows[i]]))

    last = first = len(rows) - 1
    if last < 1 or not 0 < _RISE * lr_at(record, onset - _RISE_STEPS, cuts) < rate(last):
        return False, None
    # walk back row by row: only the rise itself is looked at, however long the run is
    while first and rate(first - 1) < rate(first):
        first -= 1
    came_back = _highest_that_came_back(record, float(record.step[rows[first]]), cuts)
    if rate(last) <= ABOVE * came_back:
        return False, None
    return True, rate(first) if first >= _PROVEN_ROWS else None
