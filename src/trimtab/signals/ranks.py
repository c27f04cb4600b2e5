"""Whether signals move together (rank correlation), and whether one is flat."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord

__all__ = ["is_flat", "rank_correlations", "spearman"]

Floats = NDArray[np.float64]


def spearman(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation of two finite float64 [n], ties shared.

    0 for a constant.
    """
    rx, ry = _ranks(x), _ranks(y)
    sx, sy = float(rx.std()), float(ry.std())
    # A constant has no order: NaN would pass no test and stand in the report.
    if sx == 0 or sy == 0:
        return 0.0
    return float(((rx - rx.mean()) * (ry - ry.mean())).mean() / (sx * sy))


def rank_correlations(
    record: RunRecord, names: Sequence[str], rows: slice, *, least: float = 0.8, min_rows: int = 12
) -> tuple[tuple[str, str, float], ...]:
    """Return the pairs of signals with |rho| >= `least` over rows where both are finite."""
    logged = [n for n in names if n in record.columns]
    pairs: list[tuple[str, str, float]] = []
    for i, a in enumerate(logged):
        for b in logged[i + 1 :]:
            x, y = record.columns[a].values[rows], record.columns[b].values[rows]
            both = np.isfinite(x) & np.isfinite(y)
            rho = spearman(x[both], y[both]) if both.sum() >= min_rows else 0.0
            if abs(rho) >= least:
                pairs.append((a, b, rho))
    return tuple(pairs)


def is_flat(levels: Floats, *, share: float = 0.02, num_few: int = 8) -> bool:
    """Tell whether finite float64 [n] stay on one level.

    Fewer than `num_few` values: all within `share` of their median. More: the medians of the first
    and the second half are within `share` of each other. One value is no level.
    """
    if len(levels) < 2:
        return False
    middle = abs(float(np.median(levels)))
    # Medians of halves need a few values each; below that every value must fit.
    if len(levels) < num_few:
        return float(np.ptp(levels)) <= share * middle
    half = len(levels) // 2
    return abs(float(np.median(levels[:half]) - np.median(levels[half:]))) <= share * middle


def _ranks(x: Floats) -> Floats:
    order = np.argsort(x, kind="stable")
    ranks = np.empty(len(x))
    ranks[order] = np.arange(len(x), dtype=np.float64)
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(inverse, weights=ranks) / counts)[inverse]
