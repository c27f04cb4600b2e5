"""Both sides of every row of a series compared as wholes, whatever the noise follows.

The noise of a rise is taken from how far the partial sums of each side wander about their own
straight line, so that dependence between rows, a descent and heavy tails widen it by themselves:

    D = (mean of m rows after - mean of m rows before) sqrt(m / 8)
    V = (sum over the m rows before, and after, of (partial sum - its line)^2) / (2 m)^2
    G = D^2 / V

Source: self-normalized change points, Shao and Zhang, Testing for change points in time series,
JASA 105 (2010).
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["TwoSides", "best_parting"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


def best_parting(y: Floats, places: Rows) -> int:
    """Return the place, of some, that parts a series best into two levels, by least squares.

    Args:
        y: float64 [n], finite.
        places: int [n_places], from 1 to n - 1.
    """
    sums = np.cumsum(y)[places - 1]
    rest = float(y.sum()) - sums
    return int(places[np.argmax(sums**2 / places + rest**2 / (len(y) - places))])


class TwoSides:
    """Running sums of rows and of their partial sums, so that a window costs nothing by itself."""

    def __init__(self, y: Floats) -> None:
        self._middle = float(y.mean())
        self._scale = float(np.abs(y - self._middle).max()) or 1.0
        sums = np.concatenate(([0.0], np.cumsum((y - self._middle) / self._scale)))
        t = np.arange(len(sums), dtype=np.float64)
        self._sums = sums
        self._first = np.concatenate(([0.0], np.cumsum(sums)))
        self._squares = np.concatenate(([0.0], np.cumsum(sums * sums)))
        self._moment = np.concatenate(([0.0], np.cumsum(t * sums)))

    def mean(self, a: Rows, b: Rows) -> Floats:
        """Return the means of rows a to b."""
        means: Floats = (self._sums[b] - self._sums[a]) / (b - a)
        return self._middle + self._scale * means

    def change(self, at: Rows, m: int) -> tuple[Floats, Floats]:
        """Return rise and G of the m rows on each side of some rows."""
        rise = self.mean(at, at + m) - self.mean(at - m, at)
        wander = (self._wander(at - m, at) + self._wander(at, at + m)) / (2 * m) ** 2
        # Rows alike in every digit wander by nothing: by what a float can tell, then.
        g = (rise / self._scale) ** 2 * (m / 8) / np.maximum(wander, 1e-12)
        return rise, g

    def _wander(self, a: Rows, b: Rows) -> Floats:
        """Return the sum over t in (a, b] of (partial sum - its line from a to b) squared."""
        slope = (self._sums[b] - self._sums[a]) / (b - a)
        base = self._sums[a] - a * slope
        first = self._first[b + 1] - self._first[a + 1]
        squares = self._squares[b + 1] - self._squares[a + 1]
        moment = self._moment[b + 1] - self._moment[a + 1]
        steps = _of_steps(b) - _of_steps(a)
        steps_squared = _of_squares(b) - _of_squares(a)
        out: Floats = (
            squares
            - 2 * base * first
            - 2 * slope * moment
            + base**2 * (b - a)
            + 2 * base * slope * steps
            + slope**2 * steps_squared
        )
        return out


def _of_steps(n: Rows) -> Floats:
    return n * (n + 1) / 2


def _of_squares(n: Rows) -> Floats:
    return n * (n + 1) * (2 * n + 1) / 6
