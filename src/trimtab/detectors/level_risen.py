"""From which level on a median of eight losses lies above those of before: for rules of a change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BEFORE", "BLOCK", "ERRORS", "FIRST", "level_and_limit"]

BEFORE = 32
FIRST = 16
"""Losses that the descent of the run is counted from."""
BLOCK = 8
_LEAST_SIGMA, _MOST_SIGMA = 30.0, 200.0
"""Bounds of the descent in noise of single steps, as `guard.recovery.expectation` has them."""
ERRORS = 4.0
"""Standard errors of a mean of eight that a rise must exceed as well. Ours."""


def level_and_limit(
    first: Sequence[float], before: Sequence[float], rise_share: float
) -> tuple[float, float]:
    """Return the level of the losses before, and the median of eight above which they have risen.

    Args:
        first: The first losses of the run, one at least.
        before: Those before the change, two at least; finite.
        rise_share: Least rise, share of the descent of the run so far.
    """
    losses = np.array(before)
    level, numeric = float(np.median(losses)), 1e-6 * float(np.abs(losses).max())
    sigma = max(mad_sigma(np.diff(losses)) / math.sqrt(2), numeric)
    start = float(np.median(np.array(first)))
    unit = min(max(start - level, _LEAST_SIGMA * sigma), _MOST_SIGMA * sigma)
    return level, level + max(rise_share * unit, ERRORS * sigma / math.sqrt(BLOCK))
