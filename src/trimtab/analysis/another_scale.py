"""A training loss that is a constant factor or offset of another: the same on another scale.

A sum in place of a mean, a weight, a term that is added: the weights learn as before, and what is
held out is the same. Over blocks of common rows, from where the losses part:

    factor:  median log(b / a), at least log 1.5    90 of 100 blocks within a quarter of it, and 0.35
    offset:  median (b - a)                         90 of 100 blocks within a quarter of it

Where nothing held out says so, the factor must hold from the first row on, within a tenth, while
the loss falls by a third: a run that learns worse begins at the same loss.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LossScaling", "find_scale", "is_scaled_throughout"]

Floats = NDArray[np.float64]

_LEAST = float(np.log(1.5))
_SPREAD, _MOST_SPREAD = 0.25, 0.35
_STRICT, _FALL = 0.1, 1.5
_SHARE = 90.0
"""Percent of the blocks that must lie within."""
_FEWEST_BLOCKS, _MOST_BLOCKS = 4, 30
_OFFSET_ODDS = 0.5
"""Share of the misfit of the factor below which it is an offset: of level losses both fit. Ours."""


@dataclass(frozen=True)
class LossScaling:
    """What one loss is of another."""

    factor: float | None = None
    """The higher over the lower."""
    offset: float | None = None
    """The higher less the lower, where it is no factor."""


def find_scale(a: Floats, b: Floats) -> LossScaling | None:
    """Return what the one loss is of the other; None where it is neither a factor nor an offset.

    Args:
        a: float64 [n], losses of the one run from where they part.
        b: float64 [n], of the other at the same positions.
    """
    levels = _levels(a, b)
    if levels is None:
        return None
    one, two = levels
    gap = two - one
    offset, misfit = _fit(gap)
    fits_offset = misfit <= _SPREAD
    if min(one.min(), two.min()) > 0:
        log_factor, off = _fit(np.log(two / one))
        fits = abs(log_factor) >= _LEAST and off <= min(_SPREAD, _MOST_SPREAD / abs(log_factor))
        if fits and not (fits_offset and misfit < _OFFSET_ODDS * off):
            return LossScaling(factor=float(np.exp(abs(log_factor))))
    return LossScaling(offset=abs(offset)) if fits_offset else None


def is_scaled_throughout(a: Floats, b: Floats) -> float | None:
    """Return the factor between two losses that holds from the first row on while they fall.

    The higher over the lower; None where there is none, or where they hardly fall.
    """
    levels = _levels(a, b)
    if levels is None or min(level.min() for level in levels) <= 0:
        return None
    one, two = levels
    log_factor, misfit = _fit(np.log(two / one), share=100.0)
    falls = all(level[0] >= _FALL * level[-1] for level in levels)
    if not falls or abs(log_factor) < _LEAST or misfit > _STRICT:
        return None
    return float(np.exp(abs(log_factor)))


def _levels(a: Floats, b: Floats) -> tuple[Floats, Floats] | None:
    """Return the medians of blocks of rows in which both are finite; None of too few."""
    good = np.isfinite(a) & np.isfinite(b)
    num = min(_MOST_BLOCKS, int(good.sum()) // 4)
    if num < _FEWEST_BLOCKS:
        return None
    one, two = (
        np.array([np.median(part) for part in np.array_split(values[good], num)])
        for values in (a, b)
    )
    return one, two


def _fit(values: Floats, share: float = _SHARE) -> tuple[float, float]:
    """Return (the level of values, how far most of them are from it, as a share of it)."""
    level = float(np.median(values))
    off = float(np.percentile(np.abs(values - level), share))
    return level, off / abs(level) if level else float("inf")
