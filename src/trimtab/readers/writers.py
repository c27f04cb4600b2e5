"""Several writers of one file: whose rows are whose, by steps that rise within each of them."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["other_writers"]

_MAX_WRITERS = 16
_MIN_FALLS = 8
_MIN_FALL_SHARE = 0.05
"""Falls of the step, as a share of the rows, below which they are restarts."""
_MIN_TURNS_SHARE = 0.1
"""How often writers take turns, as a share of the rows of the smaller one."""
_MIN_ROWS = 8


def other_writers(step: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows are of another writer than that of the first row.

    Each row continues the writer whose last step is nearest below its own; where there is none, it
    begins one. A restart begins one as well, but those before it write no more: only writers that
    take turns write at the same time.

    Args:
        step: float64 [n_rows], finite, in file order.

    Returns:
        bool [n_rows]; all False where there is one writer, restarts or not.

    Cost: O(n_rows), and O(n_rows * 16) where the step falls often.

    Example:
        >>> two = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 8, 10.0, 9])
        >>> int(other_writers(two).sum()), int(other_writers(np.arange(20.0)).sum())
        (11, 0)
    """
    none = np.zeros(len(step), dtype=np.bool_)
    change = np.diff(step)
    num_falls = int(np.count_nonzero(change < 0))
    num_ties = int(np.count_nonzero(change == 0))
    if num_falls < min(_MIN_FALLS, len(step)) and not 0 < num_falls < num_ties:
        return none
    if num_falls < _MIN_FALL_SHARE * len(step):
        return none
    owner = _owners(step)
    if owner is None:
        return none
    first = owner == owner[0]
    others = np.bincount(owner[~first]) if not first.all() else np.zeros(1, dtype=np.intp)
    turns = int(np.count_nonzero(np.diff(owner) != 0))
    smaller = min(int(first.sum()), int(others.max()))
    if smaller < _MIN_ROWS or turns < max(_MIN_FALLS, _MIN_TURNS_SHARE * smaller):
        return none
    return np.asarray(~first)


def _owners(step: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """Return the writer of each row, int [n_rows]; None where there are too many."""
    last: list[float] = []
    owner = np.empty(len(step), dtype=np.intp)
    for row, here in enumerate(step.tolist()):
        best, best_step = -1, -np.inf
        for index, before in enumerate(last):
            if best_step < before < here:
                best, best_step = index, before
        if best < 0:
            if len(last) >= _MAX_WRITERS:
                return None
            best = len(last)
            last.append(here)
        last[best] = here
        owner[row] = best
    return owner
