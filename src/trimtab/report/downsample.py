"""Fewer points, same extremes: a spike is never hidden by drawing less."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["extreme_rows"]


def extreme_rows(
    values: NDArray[np.float64], *, budget: int, keep: NDArray[np.bool_] | None = None
) -> NDArray[np.intp]:
    """Return the rows to draw: of each bucket the lowest and the highest, and what is not finite.

    The rows are cut into budget // 2 buckets of equal length; the first and the last row and those
    in `keep` always stay. Global minimum and maximum are therefore always among the rows returned.
    Up to budget // 4 non-finite rows all stay; of more, the first of each bucket.

    Args:
        values: float64 [n_rows]; NaN and Inf take part in no comparison.
        budget: About how many rows to return; all of them where there are no more.
        keep: bool [n_rows], rows to return in any case.

    Returns:
        intp [n_kept], rising.

    Example:
        >>> y = np.zeros(10_000); y[4321] = 9.0
        >>> 4321 in extreme_rows(y, budget=100), len(extreme_rows(y, budget=100)) <= 110
        (True, True)
    """
    n = len(values)
    if n <= max(budget, 4):
        return np.arange(n, dtype=np.intp)
    size = -(-n // max(budget // 2, 1))
    num_buckets = -(-n // size)
    padded = np.full(num_buckets * size, np.nan)
    padded[:n] = values
    grid = padded.reshape(num_buckets, size)
    finite = np.isfinite(grid)
    start = np.arange(num_buckets) * size
    low = start + np.where(finite, grid, np.inf).argmin(axis=1)
    high = start + np.where(finite, grid, -np.inf).argmax(axis=1)
    chosen = np.zeros(num_buckets * size, dtype=np.bool_)
    chosen[low] = chosen[high] = True
    bad = ~finite
    bad.reshape(-1)[n:] = False
    if int(bad.sum()) <= budget // 4:
        chosen |= bad.reshape(-1)
    has_bad = bad.any(axis=1)
    chosen[(start + bad.argmax(axis=1))[has_bad]] = True
    chosen[0] = chosen[n - 1] = True
    chosen = chosen[:n]
    if keep is not None:
        chosen = chosen | keep
    return np.flatnonzero(chosen)
