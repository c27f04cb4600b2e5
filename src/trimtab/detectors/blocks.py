"""Rows folded into blocks of equal size: what several detectors judge instead of single rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import RowPlace, Series
from trimtab.signals.robust import medians

__all__ = ["Block", "fold", "joined"]


@dataclass(slots=True)
class Block:
    """A finished block: its median, its rows [size], where it began, and which row finished it."""

    value: float
    first_row: int
    first_step: float
    row: int
    step: float
    rows: Sequence[float] = ()


def fold(
    waiting: tuple[float, ...], first: RowPlace, series: Series, size: int
) -> tuple[list[Block], tuple[float, ...], RowPlace]:
    """Return the finished blocks, the rows of the unfinished one, and where that one began.

    Args:
        waiting: Values of the block under way.
        first: Where it began; without waiting values, where the last block began.
        series: What comes next, with one value at least.
        size: Rows in a block.
    """
    y = (*waiting, *series.y)
    if not waiting:
        first = series.place(0)
    full = len(y) // size
    if not full:
        return [], y, first
    # All blocks in one sort: a call of `median` for each costs more than the sort.
    values = medians(np.array(y[: full * size]).reshape(full, size))
    blocks: list[Block] = []
    for k, value in enumerate(values):
        begin = k * size - len(waiting)
        # The first block may have begun in rows of an earlier call; `first` holds that place.
        if begin > 0:
            first = series.place(begin)
        last = series.place(begin + size - 1)
        part = y[k * size : (k + 1) * size]
        blocks.append(Block(value, first.index, first.step, last.index, last.step, part))
    rest = y[full * size :]
    return blocks, rest, series.place(len(series.y) - len(rest)) if rest else first


def joined(blocks: NDArray[np.float64], block: float, most: int) -> NDArray[np.float64]:
    """Return the blocks with one more at the end, the oldest beyond `most` left out."""
    kept = blocks[1 - most :]
    longer = np.empty(len(kept) + 1)
    longer[:-1] = kept
    longer[-1] = block
    return longer
