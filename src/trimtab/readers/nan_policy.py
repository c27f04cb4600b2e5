"""Decide whether `nan` in a columnar file is a logged NaN or a value that was not recorded.

CSV writers fill cells with `nan` that were never measured: a norm computed every tenth row, the
first row before there is a gradient. A divergence also writes `nan`. The pattern tells them apart.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column

__all__ = ["nan_means_missing"]

_MIN_SEGMENTS = 3
_MIN_REPEATS = 5
_REGULAR_SHARE = 0.9
_BESIDE = 0.9
"""Share of the rows of NaN in which the value beside it is a number, from which it was measured."""


def nan_means_missing(
    column: Column, *, is_loss: bool, beside: Column | None = None
) -> tuple[NDArray[np.bool_], str]:
    """Return which NaN cells were not recorded rather than not a number, and why.

    - No number anywhere, in a column that is not the loss: never recorded, unless another value of
      the same evaluations is a number there.
    - Numbers at regular distances with nan between, or nan at regular distances: recorded every
      so often. For columns other than the loss it is enough that most cells are nan and numbers
      come back at least three times.
    - A first stretch of nan in a column that is not the loss: the value did not exist yet.
    All other NaN counts as logged by the run: one in the middle, a stretch, a tail.

    Args:
        column: Values [n_rows]; absent cells take no part.
        is_loss: Whether it is the training loss, where a NaN must not be explained away.
        beside: What is measured in the same breath, as a score on the data of a held-out loss.

    Returns:
        bool [n_rows] and a clause; all False and "" where every NaN is believed.
    """
    missing = np.zeros(len(column.values), dtype=np.bool_)
    rows = np.flatnonzero(column.present)
    nan = np.isnan(column.values[rows])
    if not nan.any():
        return missing, ""
    known = beside is not None and float(np.isfinite(beside.values[rows]).mean()) >= _BESIDE
    why = _whole_column(nan, is_loss=is_loss or (known and bool(nan.all())))
    if why:
        missing[rows[nan]] = True
    elif nan[0] and not is_loss:
        first = int(np.argmin(nan))
        missing[rows[:first]] = True
        why = "the first rows, before there was a value"
    return missing, why


def _whole_column(nan: NDArray[np.bool_], *, is_loss: bool) -> str:
    # A loss that is NaN throughout is a run that was never finite, and the worst to hide.
    if nan.all():
        return "" if is_loss else "no row has a number"
    numbers = np.flatnonzero(~nan)
    # A divergence has no period, so regular numbers come from the writer, even in a loss.
    if _is_regular(numbers) and nan.mean() > 0.5:
        return "the numbers come at regular distances"
    # Two NaN next to each other are no gap of a writer that skips single rows.
    if _is_regular(np.flatnonzero(nan)) and np.diff(np.flatnonzero(nan)).min() > 1:
        return "they come at regular distances"
    segments = 1 + int(np.count_nonzero(np.diff(numbers) > 1))
    if not is_loss and nan.mean() > 0.5 and segments >= _MIN_SEGMENTS:
        return "most rows say nan and numbers come back between them"
    return ""


def _is_regular(places: NDArray[np.intp]) -> bool:
    """Whether at least five distances are, but for a tenth, the same and not 1."""
    gaps = np.diff(places)
    if len(gaps) < _MIN_REPEATS:
        return False
    typical = int(np.median(gaps))
    return typical > 1 and bool(np.mean(gaps == typical) >= _REGULAR_SHARE)
