"""Whether values rise or fall in their order: Kendall's test, which asks for no shape and no noise."""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["kendall_score"]


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
