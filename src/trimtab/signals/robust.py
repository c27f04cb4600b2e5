"""Robust statistics: the one home of medians, spreads and running medians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RUNNING_WINDOW_STEPS", "running_median"]

RUNNING_WINDOW_STEPS = 21
"""Default window of a running median, steps: longer than the noise, shorter than a fault. Ours."""


def running_median(
    y: NDArray[np.float64], window: int = RUNNING_WINDOW_STEPS
) -> NDArray[np.float64]:
    """Return the median of `window` values around each, fewer at the ends; NaN stays NaN.

    Example:
        >>> running_median(np.array([1.0, 9.0, 1.0, 2.0, 2.0]), window=3).tolist()
        [5.0, 1.0, 2.0, 2.0, 2.0]
    """
    half = window // 2
    median = np.empty(len(y), dtype=np.float64)
    if len(y) >= 2 * half + 1:
        whole = np.lib.stride_tricks.sliding_window_view(y, 2 * half + 1)
        median[half : len(y) - half] = np.median(whole, axis=1)
    for i in range(len(y)):
        if not half <= i < len(y) - half:
            median[i] = np.median(y[max(0, i - half) : i + half + 1])
    return median
