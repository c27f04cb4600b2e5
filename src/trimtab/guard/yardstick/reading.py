"""What a reading of the yardstick says: is this state worse than that one, on the same batches?

Values only. Both states are measured by the user's loop as it is now, so what the loop itself does
to the loss (another weight, label smoothing, another number of tokens) is in both and cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BatchComparison", "Reading", "compare", "recount_of"]

_TOLERATED_SIGMA = 1.0
"""Noise of single training rows that a fixed batch may differ by: its own is smaller, as the batch
does not change."""
_MOST_NOISE_SHARE = 0.1
"""Most that noise may lift what counts as no worse, share of the unit."""
_SAME_FACTOR = 0.01
"""Most that batches differ in what their loss is multiplied by: low precision rounds. Ours."""
_OF_DIFFERENCE = 0.1
"""Of what their losses differ by, as logarithms: else it may be no factor. Ours."""
_SIGNS = 2.0
"""Standard errors over the batches that a rise must exceed where there are three or more."""


@dataclass(frozen=True)
class Reading:
    """The fixed batches under the state of now, and under an older one."""

    step: int
    losses: tuple[float, ...]
    """Loss of each batch, its unit that of the training loss; NaN and Inf as they are."""
    base_step: int | None = None
    """Step of the older state; None: none was measured."""
    base: tuple[float, ...] = ()
    """Loss of each batch under it."""
    recount: float | None = None
    """By what the loop multiplies the loss now, and did not at a step; see `recount_of`."""
    recounted_since: int = 0
    """That step."""
    foreign: bool = False
    """Whether the batches are of another kind of data than what is fed: they accuse no state."""
    sigma: float | None = None
    """Spread of one evaluation, where it is not of the training loss's kind; None: it is."""

    @property
    def mean(self) -> float:
        """Mean over the batches; NaN where one is not finite."""
        return _mean(self.losses)

    @property
    def base_mean(self) -> float:
        """Mean over the batches under the older state; NaN without one."""
        return _mean(self.base)


def recount_of(losses: Sequence[float], known: Sequence[float]) -> float | None:
    """Return by what the loop multiplies the loss now, and did not then; None: not known.

    The weights are those of then, the batches are copies, dropout is off: only the loop itself can
    have changed. A factor it is where all batches agree on it, to within a per cent and a tenth of
    what their losses differ by: batches that cost the same agree on whatever is done to them.

    Args:
        losses: Of the fixed batches under an older state, as the loop counts now.
        known: Of the same state and batches as they were read at its time; empty: they were not.

    Non-finite: None. Example:
        >>> recount_of([32.0, 16.16], [2.0, 1.01]), recount_of([2.5, 2.2], [2.0, 1.7])
        (16.0, None)
        >>> recount_of([6.2, 6.25], [2.0, 2.01])  # is it a factor?
    """
    if not known or len(known) != len(losses) or 0.0 in known:
        return None
    ratios = np.array(losses) / np.array(known)
    factor = float(np.median(ratios))
    if not (np.isfinite(ratios).all() and factor > 0):
        return None
    apart = np.log(abs(np.array(known)))
    most = min(_SAME_FACTOR, _OF_DIFFERENCE * float(apart.max() - apart.min()))
    return factor if bool((abs(ratios / factor - 1) < most).all()) else None


@dataclass(frozen=True)
class BatchComparison:
    """Whether a state is worse than another on the same batches."""

    worse: bool
    rise: float
    """Mean of the paired differences, above 0 where it is worse; NaN where one is not finite."""
    limit: float
    """Largest rise that is no worse."""


def compare(
    losses: Sequence[float],
    base: Sequence[float],
    *,
    sigma: float,
    unit: float,
    tolerance: float = 0.01,
) -> BatchComparison:
    """Return whether the losses are worse than those of a base on the same batches.

    The rise d = mean(losses - base) is worse than nothing where it exceeds
    tolerance * unit + min(sigma, unit / 10), and, with three batches or more, two of its own
    standard errors. Invariant under a * loss + b (a > 0) where sigma and unit are scaled alike.

    Args:
        losses: One for each batch, after; any real values.
        base: The same batches before.
        sigma: Spread of single rows of the training loss, above 0.
        unit: What the tolerance is a share of: the descent of the run so far.
        tolerance: Share of the unit that is no worse.

    Raises:
        ValueError: They are not of one length, or there are none.

    Non-finite: a loss that is not finite is worse than a finite base; a base that is not finite is
    worse than nothing, so that nothing is worse than it.
    """
    if len(losses) != len(base) or not losses:
        raise ValueError(f"{len(losses)} losses and {len(base)} of the base, expected as many")
    limit = tolerance * unit + min(_TOLERATED_SIGMA * sigma, _MOST_NOISE_SHARE * unit)
    before, after = np.array(base, dtype=np.float64), np.array(losses, dtype=np.float64)
    if not np.isfinite(before).all():
        return BatchComparison(worse=False, rise=math.nan, limit=limit)
    if not np.isfinite(after).all():
        return BatchComparison(worse=True, rise=math.nan, limit=limit)
    d = after - before
    rise = float(d.mean())
    error = float(d.std(ddof=1)) / math.sqrt(len(d)) if len(d) > 2 else 0.0
    return BatchComparison(worse=rise > max(limit, _SIGNS * error), rise=rise, limit=limit)


def _mean(losses: tuple[float, ...]) -> float:
    mean = sum(losses) / len(losses) if losses else math.nan
    return mean if math.isfinite(mean) else math.nan
