"""What updates can do to Adam's second moments: never leave less of them than beta2 to the power k.

Each is a mean of squares, v <- beta2 v + (1 - beta2) g^2, so that after k updates at least
beta2^k of it is left, whatever the gradients are. Less was lost otherwise: a state that was loaded
without it, a tensor that was zeroed, a damaged word. Moments that are reset as a whole have their
count of updates reset with them, and are no loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trimtab.guard.probes.moments import Moments

__all__ = ["SecondMomentLaw", "least_beta2"]

_LEAST = 0.5
"""Share of the least that updates leave, below which it is told: round-off of low precision takes
less. Ours."""


_SEEN = 1e-6
"""Share of the sum below which what is left of it is lost in round-off. Ours."""


def least_beta2(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the smallest beta2 of all groups; None where one of them has none."""
    found = [group.get("betas") for group in optimizer.param_groups]
    pairs = [b for b in found if isinstance(b, tuple | list) and len(b) == 2]
    if len(pairs) < len(found) or not pairs:
        return None
    least = min(float(b[1]) for b in pairs)
    return least if 0 < least <= 1 else None


class SecondMomentLaw:
    """Compares the second moments of two readings."""

    def __init__(self) -> None:
        """Know of no reading."""
        self._before: tuple[float, float, int, float] | None = None
        """Sum, count of updates, elements, beta2."""

    def left(self, moments: Moments, total: float, beta2: float | None) -> float:
        """Return the sum over the least that the updates since the last reading leave of it.

        Args:
            moments: As read now.
            total: Sum of the second moments over all ranks; NaN and Inf are no reading.
            beta2: The smallest of all groups; None: the law does not hold.

        Returns:
            Below 1/2 where that much was lost by no update; else 1, also where nothing can be said.
        """
        before, self._before = self._before, None
        if beta2 is None or moments.updates is None or not math.isfinite(total):
            return 1.0
        self._before = (total, moments.updates, moments.v_elements, beta2)
        if before is None:
            return 1.0
        old, count, elements, old_beta2 = before
        passed = moments.updates - count
        least = old * min(beta2, old_beta2) ** passed if passed > 0 else 0.0
        if elements != moments.v_elements or not least > _SEEN * old:
            return 1.0
        share = max(total, 0.0) / least
        return share if share < _LEAST else 1.0
