"""Sliding-window statistics of the rows before each row."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.peers.contract import Floats

__all__ = ["mean", "median_and_spread", "sample_std", "std", "trailing"]

_CHUNK_ROWS = 4096

Statistic = Callable[[Floats], Floats]


def mean(windows: Floats) -> Floats:
    """Return the means of float64 [m, w] along w."""
    return np.asarray(windows.mean(axis=1))


def std(windows: Floats) -> Floats:
    """Return population standard deviations along the second axis."""
    return np.asarray(windows.std(axis=1))


def sample_std(windows: Floats) -> Floats:
    """Return standard deviations with Bessel's correction along the second axis.

    0 for one value.
    """
    return np.asarray(windows.std(axis=1, ddof=1 if windows.shape[1] > 1 else 0))


def median_and_spread(windows: Floats) -> Floats:
    """Return float64 [m, 2]: median and 1.4826 median absolute deviation."""
    middle = np.median(windows, axis=1)
    spread = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
    return np.stack([middle, spread], axis=1)


def trailing(
    values: Floats, width: int, statistics: Sequence[Statistic], *, least: int = 1
) -> tuple[Floats, ...]:
    """Return each statistic of up to `width` values before each row, the row itself left out.

    Args:
        values: float64 [n]; NaN and Inf go into the statistics, as they do in the rules.
        width: Longest window, in rows.
        statistics: From float64 [m, w] to [m] or [m, k].
        least: Rows that a window must hold; where it holds fewer the answer is NaN.

    Returns:
        One float64 [n] or [n, k] per statistic.

    Cost: O(n * width), in chunks of 4096 rows.
    """
    n = len(values)
    least = max(least, 1)
    found: list[list[Floats]] = [[] for _ in statistics]
    with np.errstate(all="ignore"):
        for t in range(least, min(width, n)):
            for part, of in zip(found, statistics, strict=True):
                part.append(of(values[None, :t]))
        if n > width:
            windows = sliding_window_view(values, width)[:-1]
            for first in range(max(least - width, 0), len(windows), _CHUNK_ROWS):
                chunk = windows[first : first + _CHUNK_ROWS]
                for part, of in zip(found, statistics, strict=True):
                    part.append(of(chunk))
    return tuple(_padded(part, n) for part in found)


def _padded(parts: list[Floats], n: int) -> Floats:
    """Put NaN before the first rows, which have no window."""
    if not parts:
        return np.full(n, np.nan)
    known = np.concatenate(parts)
    head = np.full((n - len(known), *known.shape[1:]), np.nan)
    return np.concatenate([head, known])
