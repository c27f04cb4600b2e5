"""Seconds per epoch of a text whose rows print none, from the times that its lines begin with."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.base import TextLines
from trimtab.readers.stamps import Clock
from trimtab.record import Column

__all__ = ["EPOCH_TIMES_NOTE", "SecondsPerEpoch", "seconds_per_epoch"]

EPOCH_TIMES_NOTE = "the seconds of an epoch are those between the times on its line and the last"
_MIN_SHARE = 0.9
"""Share of the rows with a time below which the times are of something else."""
_MIN_TICKS = 8.0
"""How many ticks of its clock an epoch takes at least; below, the rounding is most of it. Ours."""


class SecondsPerEpoch(Protocol):
    """`seconds_per_epoch` of one text."""

    def __call__(self, lines: NDArray[np.int64], epoch: NDArray[np.float64]) -> Column | None:
        """Return the seconds of each row, None where the text tells of none."""
        ...


def seconds_per_epoch(
    path: Path, lines: NDArray[np.int64], epoch: NDArray[np.float64]
) -> Column | None:
    """Return how long each row's epoch took, in seconds; None where the text has no such times.

    The time of a row is that on its line, else the last one on a line since the row before. A row
    behind a restart, where the epoch falls or the time does, has none: it is missing, and not NaN.

    Args:
        path: The text.
        lines: int64 [n_rows], numbers of the lines of the rows, from 1, in their order.
        epoch: float64 [n_rows], the epoch of each.

    Cost: one pass over the file.
    """
    if len(lines) < 2:
        return None
    clock, at = Clock(), np.full(len(lines), np.nan)
    row, last = 0, np.nan
    for number, line in enumerate(TextLines(path), 1):
        stamp = clock.read(line)
        last = last if stamp is None else stamp
        if number == lines[row]:
            at[row], last = last, np.nan
            row += 1
            if row == len(lines):
                break
    passed = np.diff(at, prepend=np.nan)
    turned = np.diff(epoch, prepend=np.nan)
    present = np.isfinite(passed) & (passed > 0) & (turned > 0)
    if np.count_nonzero(np.isfinite(at)) < _MIN_SHARE * len(lines) or not present.any():
        return None
    seconds = np.where(present, passed / np.where(turned > 0, turned, 1.0), np.nan)
    if clock.whole_seconds and np.median(passed[present]) < _MIN_TICKS:
        return None
    return Column(seconds, present)
