"""What the loss of a run should be at a step, and how large a difference is one.

Nothing here is a share of the loss itself: a level means nothing where a loss has no natural zero,
as a log likelihood, a reward or a contrastive loss has none. Differences are counted in the run's
own noise and in the descent it has behind it, so that a loss of `a x + b` (a > 0) is judged as `x`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.signals.robust import floored_sigma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trimtab.record import RunRecord

__all__ = ["Expectation", "expected_loss"]

_FIRST_ROWS = 16
"""Rows of the run that its descent is counted from: the largest median of three among them."""
_LEAST_UNIT, _MOST_UNIT = 30.0, 200.0
"""Bounds of the unit, in sigma of single rows. A language model's descent is 50 to 200 of them; the
lower bound stands in where the run has not learned yet, the upper one where its first rows had
exploded."""
_FEWEST_FITTED = 16
"""Rows below which no line is fitted."""
_END_OF_LINE = 1.5
"""Variance of the end of the line over that of the median of its last third."""
_NUMERIC = 1e-6
"""Least sigma, as a share of the largest loss: float32 does not resolve less."""


@dataclass(frozen=True)
class Expectation:
    """Where the loss stood, and the scales that differences from it are held against."""

    level: float = math.nan
    """Loss that the run had reached, its own units (nats per token for a language model)."""
    sigma: float = math.nan
    """Robust standard deviation of single rows about their trend, above 0."""
    unit: float = math.nan
    """What tolerances are shares of: the descent of the run so far, at least 30 and at most 200
    sigma."""
    error: float = 0.0
    """Standard error of the level."""


def expected_loss(
    record: RunRecord, step: int, *, window_rows: int = 64, onset: float = math.inf
) -> Expectation:
    """Return what the lineage's rows up to a step let expect of the rows that follow.

    The level is the mean of the last rows, or, where they fall by more than their noise, the end of
    the line through them: early in a run the mean of 64 rows lies far above the loss that the run
    had reached.

    Args:
        record: Its last attempt's lineage is read; finite losses only.
        step: Rows up to it count. Before the first row there is no past: the first losses of the
            record stand in for it.
        window_rows: Rows that level and spread are taken from.
        onset: First step of the trouble: without a past, the level is that of the rows before it.

    Returns:
        The expectation; all NaN where no finite loss is logged.

    Cost: linear in the rows that the record holds in memory.
    """
    rows = record.lineage_rows()
    column = record.columns["loss"]
    rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
    before = rows[record.step[rows] <= step]
    losses = column.values[before[-window_rows:] if len(before) else rows[:8]]
    if not len(losses):
        return Expectation()
    first = column.values[rows[:_FIRST_ROWS]]
    start = max(float(np.median(first[i : i + 3])) for i in range(max(len(first) - 2, 1)))
    level, sigma, rows_of_level = _line(losses, start)
    calm = losses[record.step[rows[: len(losses)]] < onset]
    if not len(before) and len(calm):
        level = float(calm.mean())
    sigma = max(sigma, _NUMERIC * float(np.abs(losses).max()), float(np.finfo(np.float64).tiny))
    unit = min(max(start - level, _LEAST_UNIT * sigma), _MOST_UNIT * sigma)
    return Expectation(level, sigma, unit, error=sigma / math.sqrt(rows_of_level))


def _line(losses: NDArray[np.float64], start: float) -> tuple[float, float, float]:
    """Return the level at the end of a window, and the robust spread about its trend.

    Third: the rows whose mean is as well known as the level.

    The line goes through the medians of the window's last two thirds, so that neither single
    outliers nor the steeper fall before them tilt it.

    References:
        Tukey, Exploratory Data Analysis, 1977, chapter 5: the resistant line.
    """
    mean, middle = float(losses.mean()), float(np.median(losses))
    spread = floored_sigma(losses - middle, fall=start - middle)
    if len(losses) < _FEWEST_FITTED:
        return mean, spread, len(losses)
    third = len(losses) // 3
    recent = losses[-2 * third :]
    slope = float(np.median(recent[third:]) - np.median(recent[:third])) / third
    place = np.arange(len(recent), dtype=np.float64) - (len(recent) - 1)
    rest = recent - slope * place
    center = float(np.median(rest))
    noise = floored_sigma(rest - center, fall=start - center)
    # 1.2533 sigma / sqrt(n) is the standard error of a median of n
    if -slope * third <= 3 * 1.2533 * noise * math.sqrt(2 / third):
        return mean, spread, len(losses)
    # A fall that slows down ends above its line, and never below all that was seen of it.
    end = max(float(np.median(rest[third:])), float(losses.min()))
    # The slope's own error moves the end of the line by the half of a third.
    return end, noise, third / (1.2533**2 * _END_OF_LINE)
