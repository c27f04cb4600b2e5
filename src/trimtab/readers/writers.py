"""Several writers of one file: whose rows are whose, by steps that rise within each of them.

Writers that log the same signal are several runs; one that logs other signals, such as a callback
beside its trainer, adds to the rows of the first.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PARTLY",
    "UNREAD_NOTE",
    "WRITERS_NOTE",
    "beside_main",
    "other_writers",
    "other_writers_of_epochs",
]

WRITERS_NOTE = (
    "several processes wrote into this file in turn, each with steps of its own; the first is read,"
    " {rows} of the others left out: give each a file of its own"
)
UNREAD_NOTE = "part of this file is not read: "
PARTLY = ("several processes wrote into this file", "ranks differ", UNREAD_NOTE)
"""How notes begin after which the absence of alarms says nothing of the whole file."""
_MAX_WRITERS = 16
_MIN_FALLS = 8
_MIN_FALL_SHARE = 0.05
"""Falls of the step, as a share of the rows, below which they are restarts."""
_MIN_TURNS_SHARE = 0.1
"""How often writers take turns, as a share of the rows of the smaller one."""
_MIN_ROWS = 8
_MIN_TURNS_OF_EPOCH = 4
_MAX_TURN_ROWS = 8
"""Falls of an epoch, and rows between two of them, from and up to which two writers take turns.
Ours."""


def other_writers(
    step: NDArray[np.float64], loss: NDArray[np.float64] | None = None
) -> NDArray[np.bool_]:
    """Return which rows are of another writer than that of the first row.

    Each row continues the writer whose last step is nearest below its own; where there is none, it
    begins one. A restart begins one as well, but those before it write no more: only writers that
    take turns write at the same time.

    Args:
        step: float64 [n_rows], finite, in file order.
        loss: float64 [n_rows]; where two writers are at the same step, the one whose last loss is
            nearer goes on.

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
    owner = _owners(step, step if loss is None else loss)
    if owner is None:
        return none
    first = owner == owner[0]
    others = np.bincount(owner[~first]) if not first.all() else np.zeros(1, dtype=np.intp)
    turns = int(np.count_nonzero(np.diff(owner) != 0))
    smaller = min(int(first.sum()), int(others.max()))
    if smaller < _MIN_ROWS or turns < max(_MIN_FALLS, _MIN_TURNS_SHARE * smaller):
        return none
    return np.asarray(~first)


def other_writers_of_epochs(
    epoch: NDArray[np.float64], step: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which rows are of a second writer, by an epoch that goes back and forth.

    Two processes in different epochs take turns: few rows show it, where steps that begin again in
    each epoch rise nearly by chance. A job that crashes again and again falls back as often, but
    begins from its start each time.

    Args:
        epoch: float64 [n_rows], in file order.
        step: float64 [n_rows], steps or batches of the epoch.

    Returns:
        bool [n_rows]; all False where there is one writer, or a value is not finite.

    Example:
        >>> epoch = np.array([1.0, 2, 1, 2, 1, 2, 1, 2, 1, 2])
        >>> other_writers_of_epochs(epoch, np.arange(10.0)).tolist()[:4]
        [False, False, True, False]
    """
    none = np.zeros(len(epoch), dtype=np.bool_)
    falls = np.flatnonzero(np.diff(epoch) < 0)
    if len(falls) < _MIN_TURNS_OF_EPOCH or not np.isfinite([epoch, step]).all():
        return none
    with np.errstate(over="ignore"):
        place = epoch * (float(np.max(np.abs(step))) + 1.0) + step
    if not np.isfinite(place).all():
        return none
    # From where they take turns on: what stands before is one of them, or an earlier attempt.
    near = np.diff(falls, prepend=falls[0] - 1) <= _MAX_TURN_ROWS
    first = int(falls[np.flatnonzero(~near)[-1]] if not near.all() else falls[0])
    if np.count_nonzero(falls >= first) < _MIN_TURNS_OF_EPOCH:
        return none
    owner = _owners(place[first:], step[first:])
    if owner is None or owner.max() != 1:
        return none
    none[first:] = owner != 0
    return none


def _owners(step: NDArray[np.float64], loss: NDArray[np.float64]) -> NDArray[np.intp] | None:
    """Return the writer of each row, int [n_rows]; None where there are too many."""
    last: list[float] = []
    last_loss: list[float] = []
    owner = np.empty(len(step), dtype=np.intp)
    for row, (here, value) in enumerate(zip(step.tolist(), loss.tolist(), strict=True)):
        best, best_step = -1, -np.inf
        for index, before in enumerate(last):
            if best_step < before < here or (
                before == best_step and abs(last_loss[index] - value) < abs(last_loss[best] - value)
            ):
                best, best_step = index, before
        if best < 0:
            if len(last) >= _MAX_WRITERS:
                return None
            best = len(last)
            last.append(here)
            last_loss.append(value)
        last[best], last_loss[best] = here, value
        owner[row] = best
    return owner


def beside_main(step: NDArray[np.float64], main: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return an order of rows in which only a fall of the main rows' step is a fall.

    Other rows, with signals of their own, go to their step among the main rows of their attempt:
    a callback may count from 1 where its trainer counts from 0, and write first.

    Args:
        step: float64 [n_rows], finite, in file order.
        main: bool [n_rows], the rows with a training loss; their order is kept.

    Returns:
        int [n_rows]; as in the file where no other row falls back.

    Example:
        >>> main = np.array([False, True] * 3)
        >>> beside_main(np.array([1.0, 0, 2, 1, 3, 2]), main).tolist()
        [1, 0, 3, 2, 5, 4]
    """
    in_order = np.arange(len(step))
    falls = np.flatnonzero(np.diff(step) < 0) + 1
    if main.all() or not main.any() or (main[falls].all() and main[falls - 1].all()):
        return in_order
    places = np.flatnonzero(main)
    attempt_of_main = np.concatenate(([0], np.cumsum(np.diff(step[places]) < 0)))
    before = np.searchsorted(places, in_order, side="right") - 1
    after = np.minimum(before + 1, len(places) - 1)
    attempt = attempt_of_main[np.maximum(before, 0)]
    # Written ahead of the first loss of the next attempt: nearer to it than to the one before.
    begins_next = attempt_of_main[after] > attempt
    nearer = np.abs(step - step[places[after]]) < np.abs(step - step[places[np.maximum(before, 0)]])
    attempt = np.where(~main & begins_next & nearer, attempt_of_main[after], attempt)
    return np.asarray(np.lexsort((in_order, step, attempt)))
