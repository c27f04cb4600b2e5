"""Scores that only their course tells from a loss."""

import numpy as np

from trimtab.record import Column

__all__ = ["rises"]

_FEWEST_OF_SCORE = 5
_SCORE_RISES = -0.7
"""Rank correlation with the loss up to which values that are shares are a score. Ours."""
_FAR_BETTER = 1.5
"""Times the first value, of shares of which it is the lowest. Ours."""
_AS_HIGH = 2.0
"""Times the other, up to which one loss begins as high as another. Ours."""


def rises(values: Column, loss: Column) -> bool:
    """Whether values are shares, of 1 or of 100, that rise as a loss falls: a score, and no loss.

    By Spearman's rank correlation over the rows that have both; too few rows say nothing. What
    begins where the loss does and goes beyond 1 is the same loss of data that is learned by heart.
    """
    rows = np.flatnonzero(values.present & loss.present)
    rows = rows[np.isfinite(values.values[rows]) & np.isfinite(loss.values[rows])]
    y, x = values.values[rows], loss.values[rows]
    if len(rows) < _FEWEST_OF_SCORE or y.min() < 0 or y.max() > 100:
        return False
    if np.ptp(y) == 0 or np.ptp(x) == 0:
        return False
    if y.max() > 1 and x[0] / _AS_HIGH <= y[0] <= x[0] * _AS_HIGH:
        return False
    # A score that has come to its best may sink from there; a loss is not lowest before it learns.
    apart = not x[0] / _AS_HIGH <= y[0] <= x[0] * _AS_HIGH
    better = np.median(y[-(len(y) // 3) :]) > _FAR_BETTER * y[:3].min()
    if apart and better and y.max() <= 1 and np.argmin(y) <= max(len(y) // 10, 2):
        return True
    middle = (len(rows) - 1) / 2
    a, b = (np.argsort(np.argsort(v, kind="stable"), kind="stable") - middle for v in (x, y))
    return float((a * b).sum() / (a * a).sum()) <= _SCORE_RISES
