"""How likely a fault of a given size is seen, from a few trials at chosen sizes.

    P(seen | k) = c / (1 + exp(-(ln k - ln k50) / w))

with a threshold k50, a width w and a ceiling c (what is missed whatever its size: too early in the
log, too near to its end). All three are unknown; each trial weighs a grid of them by how well they
foretell it, and what is stated is the mean over the grid (a Bayesian psychometric function). So
few trials give a cautious answer, and a curve from many comes near to the shares themselves.

References:
    Watson & Pelli (1983), QUEST: a Bayesian adaptive psychometric method, Perception &
    Psychophysics 33(2).
    Kontsevich & Tyler (1999), Bayesian adaptive estimation of psychometric slope and threshold,
    Vision Research 39(16).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["SEEN_SHARE", "PowerCurve"]

Floats = NDArray[np.float64]

SEEN_SHARE = 0.95
"""Share of faults of a size that must be seen for that size to be named, of those that any size
reaches."""

_LEAST, _MOST = 0.5, 200.0
"""Sizes that are looked at, in standard deviations of the noise."""
_SIZES = np.geomspace(_LEAST, _MOST, 49)
_THRESHOLDS = np.log(np.geomspace(_LEAST / 2, 2 * _MOST, 33))
_WIDTHS = np.array([0.04, 0.1, 0.2, 0.4])
_CEILINGS = np.array([0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.93, 1.0])
# Half of the weight on a judge that misses nothing large: else twelve hits of twelve say 0.93.
_CEILING_PRIOR = np.array([1, 1, 1, 1, 1, 1, 2, 8]) / 16
_CHANCES = (0.5, 0.8, 0.95)
"""Chances of being seen at which the next trial is placed, in turn."""


def _grid(log_sizes: Floats) -> Floats:
    """Return P(seen) [sizes, thresholds, widths, ceilings]."""
    distance = log_sizes[:, None] - _THRESHOLDS[None]
    rising = 1 / (1 + np.exp(-np.clip(distance[:, :, None] / _WIDTHS, -60, 60)))
    return np.asarray(rising[..., None] * _CEILINGS)


class PowerCurve:
    """Probability of being seen by size, learned from trials."""

    def __init__(self, trials: Iterable[tuple[float, bool]] = ()) -> None:
        """Weigh the grid by trials: (size, whether it was seen), sizes above 0."""
        shape = (len(_THRESHOLDS), len(_WIDTHS), len(_CEILINGS))
        self._log = np.broadcast_to(np.log(_CEILING_PRIOR), shape).copy()
        done = list(trials)
        if done:
            self._weigh(done)

    def _weigh(self, trials: Sequence[tuple[float, bool]]) -> None:
        chance = _grid(np.log(np.array([max(size, 1e-9) for size, _ in trials])))
        hit = np.array([seen for _, seen in trials])[:, None, None, None]
        # Kept off 0 and 1: one trial must not rule out a curve for ever.
        chance = np.clip(chance, 0.01, 0.995)
        self._log += np.log(np.where(hit, chance, 1 - chance)).sum(axis=0)

    @property
    def _weights(self) -> Floats:
        weights = np.exp(self._log - self._log.max())
        return np.asarray(weights / weights.sum())

    def power(self, size: float) -> float:
        """Return the probability that a fault of this size is seen."""
        chance = _grid(np.log(np.array([max(size, 1e-9)])))[0]
        return float((chance * self._weights).sum())

    def smallest_seen(self, most: float) -> tuple[float, float]:
        """Return (size, its power): the smallest size that is seen nearly as often as `most` is.

        That is with 95 % where the largest size is always seen; in a short log, where some places
        are blind to any size, with 95 % of the share that it can reach.
        """
        sizes = np.append(_SIZES[most > _SIZES], most)
        power = (_grid(np.log(sizes)) * self._weights).sum(axis=(1, 2, 3))
        at = int(np.argmax(power >= SEEN_SHARE * min(1.0, power[-1] / 0.99)))
        return float(sizes[at]), float(power[at])

    def next_size(self, number: int, most: float) -> float:
        """Return a size to try next: about where one in two, four in five, all would be seen."""
        weights = self._weights
        threshold = float((weights.sum(axis=(1, 2)) * _THRESHOLDS).sum())
        width = float((weights.sum(axis=(0, 2)) * _WIDTHS).sum())
        chance = _CHANCES[number % len(_CHANCES)]
        size = math.exp(threshold + width * math.log(chance / (1 - chance)))
        return float(np.clip(size, _LEAST, most))
