"""Compares stated confidence with the share that was right."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.scoring import RunScore

__all__ = ["Bin", "calibration_error", "reliability"]

_EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Alarms whose confidence lies in [low, high); the last bin holds 1, too."""

    low: float
    high: float
    num_alarms: int
    confidence: float | None
    """Mean of what was stated; None in an empty bin, as is the share."""
    share_true: float | None
    """Share that a label accounts for."""


def reliability(scores: Sequence[RunScore]) -> tuple[Bin, ...]:
    """Return the bins of confidence; alarms that state none are left out."""
    said = [
        (c.confidence, good) for r in scores for c, good in r.judged if c.confidence is not None
    ]
    stated = np.array([c for c, _ in said], dtype=np.float64)
    came_true = np.array([good for _, good in said], dtype=np.float64)
    bins: list[Bin] = []
    for low, high in pairwise(_EDGES):
        inside = (stated >= low) & ((stated < high) | (high == _EDGES[-1]))
        some = bool(inside.any())
        bins.append(
            Bin(
                low=low,
                high=high,
                num_alarms=int(inside.sum()),
                confidence=float(stated[inside].mean()) if some else None,
                share_true=float(came_true[inside].mean()) if some else None,
            )
        )
    return tuple(bins)


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Return the mean distance between confidence and share, weighted by alarms.

    None without any.
    """
    known = [
        (b.num_alarms, abs(b.confidence - b.share_true))
        for b in bins
        if b.confidence is not None and b.share_true is not None
    ]
    num = sum(n for n, _ in known)
    return sum(n * gap for n, gap in known) / num if num else None
