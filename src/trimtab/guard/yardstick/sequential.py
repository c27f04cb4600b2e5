"""The sequential test of the yardstick: has the loss on the fixed batches risen?

Each evaluation is paired with the ones before it on the same batches, so that what makes one batch
harder than another cancels. A sum of log likelihood ratios (CUSUM, Page 1954) adds up small rises
over evaluations; it starts anew at 0 where the evidence speaks for no rise.

The noise is in the unit of the loss. Of a loss that has come down by orders of magnitude it is what
the descent was, and hides a rise to many times the level of now: there a second scale, the
logarithm, in which noise and descent follow the level, speaks for large rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.signals.robust import floored_sigma, mad_sigma

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["ALARM", "PairedTest", "RiseEvidence"]

ALARM = 7.0
"""Evidence from which the batches have got worse, log likelihood ratio. On a level run with normal
noise about one alarm in 1,000 evaluations (tests/guard/test_yardstick_sequential.py)."""
_SHIFT_SIGMA = 2.0
"""Rise that the test is made for, in the noise of one evaluation."""
_COMPARED = 4
"""Evaluations that make the reference, the newest ones."""
_FEWEST_FOR_NOISE = 6
"""Evaluations from which the run's own spread between them is known."""
_FEW = 2.0
"""Share by which a spread of n evaluations is taken larger, times n: few show it too small."""
_DOUBT = 1.5
"""Evidence above which an evaluation is no reference for the next ones."""
_MOST_KEPT = 32
_ACCEPTED = 6
"""Evaluations over the limit in a row, after which the level counts as the new one."""
_FALLEN = 4.0
"""Factor of the largest kept mean to the reference, from which the logarithm speaks, too. Ours."""
_RISEN = 1.5
"""Least factor of an evaluation to the reference that counts on the logarithm: what is less may be
noise that does not shrink with the level (an error rate on few examples). Chosen on simulated
descents of eight kinds of noise: false alarms stay those of the unit of the loss."""
_LATELY, _NOW = 8, 6
"""Newest evaluations whose spread on the logarithm, and in the unit of the loss, counts. Ours."""
_NUMERIC = 1e-6
"""Least noise, share of the largest loss: float32 does not resolve less."""


@dataclass(frozen=True)
class RiseEvidence:
    """What one evaluation adds."""

    total: float
    """Log likelihood ratio for a rise so far, at least 0; inf where a loss is not finite."""
    rise: float
    """Mean paired difference to the reference, above 0 where it is worse; NaN without one."""
    noise: float
    """Standard deviation of that difference on a run that does not get worse; NaN without one."""

    @property
    def alarms(self) -> bool:
        """Whether the batches have got worse."""
        return self.total >= ALARM


class PairedTest:
    """Takes in evaluations in their order; keeps the newest 32."""

    def __init__(self) -> None:
        """Begin without a reference."""
        self._kept: list[tuple[int, tuple[float, ...]]] = []
        self._means: list[tuple[int, float]] = []
        """Of the newest evaluations, those in doubt among them: noise without its highest values is
        too small."""
        self._total = 0.0
        self._over = 0
        self._newest = -1
        self._highest = -math.inf
        """Largest mean of the series: what the batches have come down from."""

    @property
    def last_good_step(self) -> int | None:
        """Step of the newest evaluation that counts as no worse; None without any."""
        return self._kept[-1][0] if self._kept else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of one evaluation's mean about its trend; None: not known yet.

        From second differences: the descent, which is nearly straight from one evaluation to the
        next, cancels; of independent noise they have 6 times the variance. Where most evaluations
        are equal, at least a share of what the series has fallen by.
        """
        found = self._spread()
        return None if found is None else found[0]

    def _spread(self) -> tuple[float, bool] | None:
        """Return the spread, and whether it is the evaluations' own: most of them are not equal."""
        if len(self._kept) < _FEWEST_FOR_NOISE:
            return None
        means = np.array([mean for _, mean in self._means])
        bends = np.diff(means, n=2)
        deviation = mad_sigma(bends, center=0.0)
        fall = math.sqrt(6.0) * (self._highest - float(np.median(means)))
        least = floored_sigma(bends, fall=fall)
        own = _spread_of(means)
        floor = max(_NUMERIC * float(np.abs(means).max()), float(np.finfo(np.float64).tiny))
        if least > deviation or own == 0:
            return max(own, least / math.sqrt(6.0), floor), False
        return max(own, floor), True

    def forget_after(self, step: int, *, keep_total: bool = False) -> None:
        """Forget what was measured after a step, to which the run has gone back.

        Args:
            step: The newest one that counts.
            keep_total: Keep the evidence where nothing was measured after the step.
        """
        if keep_total and self._newest <= step:
            return
        self._kept = [k for k in self._kept if k[0] <= step]
        self._means = [m for m in self._means if m[0] <= step]
        self._total, self._over, self._newest = 0.0, 0, min(self._newest, step)

    def restart(self, *, others: bool = False) -> None:
        """Forget what was measured.

        Args:
            others: The batches, or what is measured on them, are others.
        """
        self._kept, self._means, self._total, self._over = [], [], 0.0, 0
        if others:
            self._highest = -math.inf

    def take_in(self, step: int, losses: Sequence[float], *, sigma: float) -> RiseEvidence:
        """Return what an evaluation adds.

        Args:
            step: Of the state that was evaluated.
            losses: One for each batch, the same batches each time.
            sigma: Spread of single rows of the training loss, above 0: what one evaluation may
                differ by until six of them show their own spread, which is smaller, and where most
                of them are equal; inf: nothing is said until then.

        Cost: O(batches) for each of at most 32 evaluations; memory does not grow.
        """
        now = tuple(float(x) for x in losses)
        self._newest = step
        if self._kept and len(self._kept[-1][1]) != len(now):
            self.restart(others=True)
        if not all(map(math.isfinite, now)):
            self._over += 1
            return RiseEvidence(math.inf if self._kept else 0.0, math.nan, math.nan)
        self._highest = max(self._highest, float(np.mean(now)))
        if not self._kept:
            self._keep(step, now)
            return RiseEvidence(0.0, math.nan, math.nan)
        recent = np.array([x for _, x in self._kept[-_COMPARED:]])
        d = np.array(now) - recent.mean(axis=0)
        rise, noise = float(d.mean()), self._noise(now, d, sigma)
        z = max(rise / noise, self._factor_z(now, d))
        self._total = max(0.0, self._total + _SHIFT_SIGMA * z - _SHIFT_SIGMA**2 / 2)
        found = RiseEvidence(self._total, rise, noise)
        # What may be worse is no reference; a level that lasts is accepted in the end.
        self._over = self._over + 1 if self._total > _DOUBT else 0
        if self._over:
            self._note(step, now)
        if self._over == 0:
            self._keep(step, now)
        elif self._over >= _ACCEPTED:
            self.restart()
            self._keep(step, now)
        return found

    def _keep(self, step: int, losses: tuple[float, ...]) -> None:
        self._kept = [*self._kept[-_MOST_KEPT + 1 :], (step, losses)]
        self._note(step, losses)

    def _note(self, step: int, losses: tuple[float, ...]) -> None:
        self._means = [*self._means[-_MOST_KEPT + 1 :], (step, float(np.mean(losses)))]

    def _noise(self, now: tuple[float, ...], d: NDArray[np.float64], sigma: float) -> float:
        numeric = max(_NUMERIC * max(map(abs, now)), float(np.finfo(np.float64).tiny))
        spread, own = self._spread() or (max(sigma, numeric), True)
        if not own and math.isfinite(sigma):
            spread = max(spread, sigma)
        return _of_difference(spread, d)

    def _factor_z(self, now: tuple[float, ...], d: NDArray[np.float64]) -> float:
        """Return how far a large rise is out on the logarithm, in its noise; -inf: it says nothing.

        The noise is the largest of that of all kept evaluations and of the newest ones, and of what
        the newest ones show in the unit of the loss: noise that does not shrink with the level
        shows there first.
        """
        means = np.array([np.mean(x) for _, x in self._kept])
        level, mean = float(means[-_COMPARED:].mean()), float(np.mean(now))
        if len(means) < _FEWEST_FOR_NOISE or not min(float(means.min()), mean) > 0:
            return -math.inf
        if not float(means.max()) > _FALLEN * level or not mean > _RISEN * level:
            return -math.inf
        logs = np.log(means)
        share = max(_spread_of(logs), _spread_of(logs[-_LATELY:]))
        spread = level * max(share, _NUMERIC), _spread_of(means[-_NOW:])
        return level * math.log(mean / level) / _of_difference(max(spread), d)


def _spread_of(means: NDArray[np.float64]) -> float:
    """Return the standard deviation of a series about its trend, from second differences."""
    bends = np.diff(means, n=2)
    far = 3 * mad_sigma(bends, center=0.0)
    # Clipped, so that one odd evaluation does not count; more exact than the deviation alone.
    own = math.sqrt(float((np.clip(bends, -far, far) ** 2).mean()) / 6.0)
    return own * (1 + _FEW / len(means))


def _of_difference(spread: float, d: NDArray[np.float64]) -> float:
    """Return the noise of the mean of paired differences to a mean of four evaluations.

    Args:
        spread: Of one evaluation.
        d: The differences; over batches: what the mean of so few says of others.
    """
    error = float(d.std(ddof=1)) / math.sqrt(len(d)) if len(d) > 2 else 0.0
    return math.hypot(spread * math.sqrt(1 + 1 / _COMPARED), error)
