"""How fast a loss falls at the end of what two runs have in common, and how sure that is.

A line by least squares over the last third; what the slope may be off by is worked out of the
medians of its blocks, since neighboring rows of a log are alike.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["EndSlope", "clear_slope", "slope_at_end"]

Floats = NDArray[np.float64]

_MOST_BLOCKS = 16
_FEWEST = 5
"""Fewer points have no scatter to hold a slope against. Ours."""
_SIGMAS, _OF_FEW = 3.0, 4.0
"""Standard errors that a slope must stand out by, times one and this over the degrees of freedom:
3.9 of 16 blocks, 7 of 5. Ours."""


@dataclass(frozen=True)
class EndSlope:
    """A slope and what noise makes of one that is flat."""

    value: float
    noise: float
    """Largest size that noise explains."""

    @property
    def is_clear(self) -> bool:
        """Whether noise does not explain it."""
        return bool(abs(self.value) > self.noise)


def slope_at_end(
    level: tuple[Floats, Floats], rows: tuple[Floats, Floats], low: float, high: float, per: float
) -> EndSlope:
    """Return the slope over the last third of a stretch.

    Args:
        level: Positions and smoothed values, through which the line is laid.
        rows: The same as logged, which tell the noise.
        low: Begin of the stretch.
        high: Its end.
        per: Positions that the slope is told for.
    """
    begin = high - (high - low) / 3
    (x, y), (u, v) = ((p[k], q[k]) for p, q in (level, rows) for k in ((p >= begin) & (p <= high),))
    if len(x) < 3 or len(u) < _FEWEST:
        return EndSlope(_line(x, y)[0] * per if len(x) >= 3 else float("nan"), float("inf"))
    num = min(_MOST_BLOCKS, len(u))
    u, v = (
        np.array([np.median(part) for part in np.array_split(values, num)]) for values in (u, v)
    )
    free = num - 2
    _, error = _line(u, v)
    return EndSlope(_line(x, y)[0] * per, _SIGMAS * (1 + _OF_FEW / free) * error * per)


def clear_slope(x: Floats, y: Floats) -> float:
    """Return the slope of finite values over their positions; NaN where noise explains it.

    Args:
        x: float64 [n], rising.
        y: float64 [n].
    """
    if len(x) < _FEWEST:
        return float("nan")
    slope = slope_at_end((x, y), (x, y), -np.inf, float(x[-1]), 1.0)
    return slope.value if slope.is_clear else float("nan")


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return (the slope by least squares, its standard error)."""
    u, v = x - x.mean(), y - y.mean()
    size = float(u @ u)
    slope = float(u @ v) / size
    left = v - slope * u
    return slope, float(np.sqrt(float(left @ left) / max(1, len(x) - 2) / size))
