"""Placeholder values, -1 for a loss or 0 for a norm, and rows that repeat an earlier one."""

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import counted
from trimtab.record import Column

__all__ = ["NOT_COMPUTED_HERE", "ZERO_NORM", "drop_zero_norm", "placeholder_rows", "repeated_rows"]

NOT_COMPUTED_HERE = "the loss is -1 in every row: this rank does not compute it; read another's log"
ZERO_NORM = "grad norm is 0 in every row: it was not computed; left out"
_MIN_REPEATED = 0.2
"""Share of rows from which repeats are printed by several ranks, and not by a resumed run."""


def drop_zero_norm(
    signals: MutableMapping[str, Column], keys: MutableMapping[str, str], notes: list[str]
) -> None:
    """Leave out a grad norm that is 0 in every row, unless the loss shows no learning either."""
    norm = signals.get("grad_norm")
    if norm is not None and not np.any(norm.values[norm.present]) and _falls(signals.get("loss")):
        del signals["grad_norm"], keys["grad_norm"]
        notes.append(ZERO_NORM)


def _falls(loss: Column | None) -> bool:
    """Whether a loss falls by a fiftieth from its first quarter to its last, or is too short."""
    values = np.zeros(0) if loss is None else loss.values[loss.present]
    values = values[np.isfinite(values)]
    # A gradient of 0 beside a loss that goes down was not measured; beside a flat one it may be.
    if len(values) < 8:
        return True
    quarter = len(values) // 4
    first, last = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
    return first - last > 0.02 * abs(first)


def placeholder_rows(
    loss: Column, step: NDArray[np.float64], notes: list[str]
) -> NDArray[np.bool_]:
    """Return the rows with -1 for a loss where another row has one for the same step.

    Ranks print it that do not compute a loss. Where all say -1 a note is all there is to say.

    Args:
        loss: Losses [n_rows].
        step: Their place, as logged.
        notes: What was found is added here.
    """
    placeholder = loss.present & (loss.values == -1.0)
    if placeholder.any() and np.array_equal(placeholder, loss.present):
        notes.append(NOT_COMPUTED_HERE)
    if not placeholder.any() or np.array_equal(placeholder, loss.present):
        return np.zeros(len(step), dtype=np.bool_)
    # A loss of -1 alone at its step may be real: some objectives are negative.
    computed: NDArray[np.bool_] = np.isin(step, step[loss.present & ~placeholder])
    drop: NDArray[np.bool_] = placeholder & computed
    if drop.any():
        notes.append(f"{counted(int(drop.sum()), 'row')} with -1 for a loss left out")
    return drop


def repeated_rows(
    keep: NDArray[np.bool_],
    counts: Sequence[Column],
    signals: Mapping[str, Column],
    notes: list[str],
) -> NDArray[np.bool_]:
    """Return the rows that say the same as the row before, all that counts included.

    Several ranks print into one file. Rare repeats are left alone: they say nothing of ranks.

    Args:
        keep: Rows that count [n_rows]; "before" is among them.
        counts: Columns of steps and batches.
        signals: The signals by name.
        notes: What was found is added here.
    """
    rows = np.flatnonzero(keep)
    same = counts[0].present[rows[1:]].copy()
    for column in (*counts, *signals.values()):
        values, present = column.values[rows], column.present[rows]
        # NaN is unequal to itself, but two ranks that print it say the same.
        equal = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        same &= equal & (present[1:] == present[:-1])
    repeated = np.zeros(len(keep), dtype=np.bool_)
    if np.count_nonzero(same) > _MIN_REPEATED * len(rows):
        repeated[rows[1:][same]] = True
        number = counted(int(same.sum()), "row")
        notes.append(f"{number} printed again, by other ranks, left out")
    return repeated
