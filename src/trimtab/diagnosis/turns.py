"""Turns at once: what no learning does, on the training loss or on validation, as numbers.

* **validation turns at once**: from its lowest to the next evaluation it rises many times, and to
  the end it does not come back. Who overfits goes up over several evaluations.
* **training leaves its course there**: in the interval of that rise, or in the one behind it, the
  training loss falls many times as fast as before, or steps in one row as it never did.
* **the loss steps up**: one row, or two of means, takes it to many times its level, and from there it stands or falls.
  A run that diverges climbs, and goes on from its first high row.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.signals.spans import Span, finite_values, last_finite

__all__ = ["held_out_goes_on", "stepped_up", "turned_at_once"]

Floats = NDArray[np.float64]

_FEWEST_BEFORE, _FEWEST_AFTER = 3, 2
"""Evaluations. All bars are ours."""
_LEAST_TURN = 3.0
"""Times its lowest, that validation rises to in the next evaluation."""
_KEPT = 0.5
"""Of that rise, in logarithms, that every later evaluation keeps."""
_NEAR_LOWEST = 0.2
"""Of that rise, in logarithms, that the last evaluation before it lies above the lowest."""
_OVER_EARLIER = 2.0
"""Times the largest rise before, in logarithms."""
_NEAR_ROWS = 8
_FASTER = 4.0
"""Times as fast as before, that training falls behind the turn."""
_STEP_SIGMA = 10.0
_STEP_ROWS, _SHAPE_ROWS, _QUIET_ROWS = 48, 24, 64
_LEAST_STEP = 3.0
"""Times its level, that one row takes a loss to."""
_FIRST_SHARE = 0.7
"""Of the highest loss of the next rows, that the first of them has."""
_FLAT = 1.1
"""Times its first row, up to which the level behind a step may lie: one row is noise."""
_CLIMBS = 1.15
"""Times the level behind a step, above which it climbs on."""
_STANDS = 1.5
"""Times its level, that the loss has at least where it has come down to."""


def turned_at_once(record: RunRecord, span: Span) -> dict[str, object]:
    """Return by how much validation turned between two evaluations, and whether training did, too.

    Args:
        record: What the run logged.
        span: First row of the attempt, and the one behind its last.
    """
    val, loss = record.columns.get("val_loss"), record.columns.get("loss")
    if val is None or loss is None:
        return {}
    rows, checks = loss.finite_rows(slice(*span)), val.finite_rows(slice(*span))
    values, train = val.values[checks], loss.values[rows]
    few = len(values) < _FEWEST_BEFORE + 1 + _FEWEST_AFTER or len(rows) < len(checks)
    if few or values.min() <= 0 or train.min() <= 0:
        return {}
    logs_of_checks = np.log(values)
    steps = np.diff(logs_of_checks)
    k = int(np.argmax(steps))
    lowest = float(logs_of_checks[: k + 1].min())
    rise, later = float(steps[k]), logs_of_checks[k + 1 :]
    if k < _FEWEST_BEFORE or len(later) < _FEWEST_AFTER:
        return {}
    # By chance the very lowest may lie an evaluation or two before.
    if logs_of_checks[k] - lowest > _NEAR_LOWEST * rise:
        return {}
    if rise < max(math.log(_LEAST_TURN), _OVER_EARLIER * float(steps[:k].max())):
        return {}
    if float(later.min() - logs_of_checks[k]) < _KEPT * rise:
        return {}
    ends = np.searchsorted(rows, checks, "right")
    logs = np.log(train)
    level = [median(logs[max(0, at - _NEAR_ROWS) : max(1, at)]) for at in ends]
    before = max(level[k - 1] - level[k], 0.0)
    after = max(level[k] - level[k + 1], level[k + 1] - level[k + 2])
    inside, past = logs[ends[k] - 1 : ends[k + 1]], logs[ends[k - 1] : ends[k]]
    noise = difference_sigma(np.diff(past)) if len(past) > _NEAR_ROWS else math.inf
    step = float(np.abs(np.diff(inside)).max()) if len(inside) > 1 else 0.0
    faster = after > max(_FASTER * before, math.log(2)) or step > _STEP_SIGMA * max(noise, 0.02)
    return {"turn": math.exp(rise), "turn_of_both": faster}


_READINGS, _FEWEST_READINGS, _AS_GOOD = 4, 2, 1.15
"""Readings of validation on each side; and times the level before, up to which it went on. Ours."""


def stepped_up(record: RunRecord, before: Sequence[Span], during: Span) -> float | None:
    """Return to how many times its level one row took the loss, for good; None: it did not.

    Args:
        record: What the run logged.
        before: Spans of rows that led to the onset.
        during: From the onset to the end.
    """
    quiet = last_finite(record, "loss", before, _QUIET_ROWS)[1]
    loss = finite_values(record, "loss", during[0], during[1])
    if len(quiet) < _SHAPE_ROWS or len(loss) < _STEP_ROWS or min(quiet.min(), loss.min()) <= 0:
        return None
    # A row that is a mean may hold steps from both sides of it.
    loss = loss[1:] if loss[1] > loss[0] else loss
    level, first = median(quiet[-_SHAPE_ROWS:]), float(loss[0])
    later, end = median(loss[_NEAR_ROWS:_SHAPE_ROWS]), median(loss[-_SHAPE_ROWS:])
    highest = float(loss.max())
    if first < _LEAST_STEP * max(level, float(quiet[-3:].max())) or first < _FIRST_SHARE * highest:
        return None
    # It stands there, or falls from there, and stays above what it was.
    stays = later <= _FLAT * first and end <= _CLIMBS * later and end >= _STANDS * level
    return first / level if stays else None


def held_out_goes_on(record: RunRecord, before: Sequence[Span], during: Span) -> bool:
    """Whether validation is after an onset as good as before it, by its last readings on each side.

    Args:
        record: What the run logged.
        before: Spans of rows that led to the onset.
        during: From the onset to the end.
    """
    was = last_finite(record, "val_loss", before, _READINGS)[1]
    now = finite_values(record, "val_loss", during[0], during[1])[: 2 * _READINGS]
    if len(was) < _FEWEST_READINGS or len(now) < _FEWEST_READINGS or not median(was) > 0:
        return False
    return median(now[-_READINGS:]) <= _AS_GOOD * median(was)
