"""What a series does, without a model of its noise.

Whether values rise or fall in their order (Kendall's test), and where one that is held is changed.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["changes_of_held", "kendall_score"]

_MOST_CHANGES = 8
_LEAST_HELD = 8
"""Values in a row. Both are ours: what changes more often is measured, not set."""
_LEAST_CHANGE = 0.05
"""Of the value: a sensor, or one node of sixty, moves by less. Ours."""


def kendall_score(values: NDArray[np.float64]) -> float:
    """Return the normal score of Kendall's S, with its correction for continuity: a test of trend.

    S counts the pairs of values that rise less those that fall. Where there is no trend, the score
    is about normal from 8 values on.

    Args:
        values: float64 [n >= 2], finite, in their order. Costs n^2.

    Returns:
        Without unit; above 0 where the values rise, 0 where they are all alike.

    Source: Kendall, A new measure of rank correlation, Biometrika 30 (1938).

    Example:
        >>> round(kendall_score(np.arange(8.0)), 2), kendall_score(np.ones(8))
        (3.34, 0.0)
    """
    n = len(values)
    s = float(np.sign(np.subtract.outer(values, values))[np.tril_indices(n, -1)].sum())
    return math.copysign(max(abs(s) - 1, 0), s) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def changes_of_held(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return where a value that is held is changed, as a setting is; nothing for what is measured.

    Args:
        values: float64 [n], those that are logged. NaN is no setting: nothing is returned.

    Returns:
        int64 [k], each the place of a first new value, of 8 at most; each value before it was held
        for 8 rows or more, and changes by a twentieth or more. Costs n.

    Example:
        >>> changes_of_held(np.repeat([0.0, 0.1, 0.2], 10)), changes_of_held(np.arange(30.0))
        (array([10, 20]), array([], dtype=int64))
    """
    if not np.isfinite(values).all():
        return np.zeros(0, dtype=np.intp)
    at = np.flatnonzero(np.diff(values) != 0) + 1
    held = np.diff(at, prepend=0)
    if len(at) > _MOST_CHANGES or (held < _LEAST_HELD).any():
        return at[:0]
    size = np.maximum(np.abs(values[at]), np.abs(values[at - 1]))
    return at[np.abs(values[at] - values[at - 1]) >= _LEAST_CHANGE * size]
