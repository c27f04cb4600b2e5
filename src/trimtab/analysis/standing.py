"""Whether the loss stands where it is, or where it began: what a calm log then leaves open.

A flat loss is no alarm: a run that has converged looks the same as one that stalled, and a trained
model that goes on as one that learns nothing. But it is not health either, and is said.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.stand_in import is_distance
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import number
from trimtab.trend import kendall_score

__all__ = ["StandingLoss", "standing_of"]

_BLOCKS, _FEWEST_ROWS = 32, 64
_FEW = 8
"""Rows from which on a loss that has not fallen at all since the run began is said so."""
_LEAST_SHARE = 0.5
"""Of the rows, over which a loss must stand to be said so. All of these are ours."""
_FALLS = -1.6
"""Normal score of Kendall's S from which on blocks fall: one chance in 20."""
_SHARE = 0.003
"""Of the level, by which a loss that stands may fall from its first third to its last, or by noise."""
_HARDLY = 0.02
"""Of where it began, by which a loss that moves must have come down in all to show that it learns."""
_NOISE = 3.0
_FIRST, _FAR = 3, 6.0
"""First blocks that are of one that stands where they lie no farther from it, in the noise of one."""
_BETTER = {"val_loss": -1.0, "yardstick_loss": -1.0, "eval_score": 1.0, "accuracy": 1.0}
_LEARNS = 3.0
"""Normal score of a held-out signal that goes the right way."""


@dataclass(frozen=True)
class StandingLoss:
    """A loss that stands over the last rows of an attempt."""

    rows: int
    """For which it stands."""
    of: int
    """Rows of the attempt."""
    level: float
    from_start: bool
    """Whether it does from the first row of a run on, and nothing else shows that it learns."""
    first: float | None = None
    """Where it began, of a loss that does not stand and is hardly lower at its end; None: it stands."""

    @property
    def text(self) -> str:
        """Say it in a clause."""
        if self.first is not None:
            moved = f"({number(self.first)} → {number(self.level)} in {number(self.rows)} rows)"
            if self.level >= self.first:
                return f"the loss is no lower than where it began {moved}"
            hardly = f"the loss is hardly lower than where it began {moved}"
            return f"{hardly}: learned before, or hardly anything, they do not say"
        at = f"the loss has stood at {number(self.level)} for"
        if self.from_start:
            return (
                f"{at} all {number(self.rows)} rows: learned before, or not at all, they do not say"
            )
        of = f"the last {number(self.rows)} of {number(self.of)} rows"
        return f"{at} {of}: converged or stalled, they do not say"


def standing_of(record: RunRecord, *, until: int | None = None) -> StandingLoss | None:
    """Return how long the loss of the newest attempt has stood; None where it moves, or has no rows.

    Costs a few hundred comparisons. A loss beside a reward says nothing, and is not looked at.

    Args:
        record: What was logged.
        until: Look at the rows before this one alone; None: at all.
    """
    column = record.columns.get("loss")
    if column is None or "reward" in record.columns or not is_distance(record):
        return None
    last = len(record.attempts) - 1
    rows = column.finite_rows(record.rows_of(last))
    rows = rows if until is None else rows[rows < until]
    loss = column.values[rows]
    if len(loss) < _FEW or np.ptp(loss) == 0:
        return None
    begins = _begins(record, last, rows) and not _learns(record, last)
    third = len(loss) // 3
    first, end = median(loss[:third]), median(loss[-third:])
    if len(loss) < _FEWEST_ROWS and _stands(loss):
        return StandingLoss(len(loss), len(loss), median(loss), from_start=True) if begins else None
    if begins and end > first and float(loss[-third:].min()) >= float(loss[0]) > 0:
        return StandingLoss(len(loss), len(loss), end, from_start=True, first=float(loss[0]))
    began = float(loss[:2].max())  # by chance one row is low, two seldom are
    if begins and end >= began > 0:
        return StandingLoss(len(loss), len(loss), end, from_start=True, first=began)
    hardly = _hardly_lower(loss) if begins else None
    if len(loss) < _FEWEST_ROWS:
        return hardly
    edges = np.linspace(0, len(loss), _BLOCKS + 1).astype(np.intp)
    blocks = np.array([float(np.median(loss[a:b])) for a, b in pairwise(edges)])
    most = int(_BLOCKS * (1 - _LEAST_SHARE))
    k = next((k for k in range(most + 1) if _stands(blocks[k:])), None)
    if k is None:
        return hardly
    level, noise = median(blocks[k:]), difference_sigma(np.diff(blocks[k:]))
    if k <= _FIRST and bool((np.abs(blocks[:k] - level) <= _FAR * noise).all()):
        k = 0
    whole = k == 0 and begins
    if hardly is not None and not whole:
        return hardly
    if k == 0 and not whole and (record.axis != "row" or _learns(record, last)):
        return None  # an excerpt of later steps, or learning that held-out data show
    return StandingLoss(int(len(loss) - edges[k]), len(loss), level, from_start=whole)


def _hardly_lower(loss: NDArray[np.float64]) -> StandingLoss | None:
    """Return a loss that nowhere came to lie clearly lower than it began."""
    eighths = [median(part) for part in np.array_split(loss, 8)]
    first, end = max(median(loss[:3]), eighths[0]), median(loss[-(len(loss) // 3) :])
    if min(*eighths, end) < (1 - _HARDLY) * first or first <= 0 or end > first:
        return None
    return StandingLoss(len(loss), len(loss), end, from_start=True, first=first)


def _stands(blocks: NDArray[np.float64]) -> bool:
    level, third = median(blocks), len(blocks) // 3
    noise, least = difference_sigma(np.diff(blocks)), _SHARE * abs(level)
    fall = median(blocks[:third]) - median(blocks[-third:])
    small = abs(fall) <= max(least, _NOISE * noise / math.sqrt(third))
    # Its first two blocks stand there already.
    at_level = abs(float(blocks[:2].mean()) - level) <= max(least, _NOISE * noise / math.sqrt(2))
    # By next to nothing is not at all, however steady.
    return small and at_level and (kendall_score(blocks) > _FALLS or abs(fall) <= least)


def _begins(record: RunRecord, index: int, rows: NDArray[np.intp]) -> bool:
    """Whether the rows are the first of a run, and not taken out of its middle."""
    if record.attempts[index].parent is not None or record.axis == "row":
        return False
    steps = record.step[rows]
    return float(steps[0]) <= max(1.0, 0.02 * float(steps[-1]), float(np.median(np.diff(steps))))


def _learns(record: RunRecord, index: int) -> bool:
    """Whether held-out data get better meanwhile."""
    span = record.rows_of(index)
    for name, sign in _BETTER.items():
        column = record.columns.get(name)
        if column is None:
            continue
        values = column.values[column.finite_rows(span)]
        values = values[:: len(values) // 64 + 1]
        if len(values) > 3 and kendall_score(sign * values) >= _LEARNS:
            return True
    return False
