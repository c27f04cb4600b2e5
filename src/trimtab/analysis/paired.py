"""The values of two runs at equal steps, epochs or tokens."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.divergence import FirstDifference, common_rows
from trimtab.record import RunRecord, axis_word

__all__ = ["By", "Pairs", "Side", "axis_of", "make_side", "paired", "parted", "plural", "series"]

By = Literal["step", "tokens"]
Floats = NDArray[np.float64]
Pairs = tuple[Floats, Floats, Floats]
"""Positions, and the values of a and of b there."""

_FEW_COMMON, _COMMON_SHARE = 8, 0.5
"""Steps that both log, and their share of the rows of the one that has fewer, below which a signal
is read between steps."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two."""

    label: str
    record: RunRecord
    rows: NDArray[np.intp]
    """Rows compared: the final lineage, or those of one attempt."""
    settings: dict[str, str]


def make_side(
    label: str, record: RunRecord, settings: dict[str, str], *, attempt: str = ""
) -> Side:
    """Return one side: a whole run along its final lineage, or one attempt.

    KeyError for an unknown one.
    """
    rows = record.lineage_rows()
    if attempt:
        part = record.rows_of(record.attempt_index(attempt))
        rows = np.arange(part.start, part.stop)
    return Side(label=label, record=record, rows=rows, settings=settings)


def axis_of(a: Side, by: By) -> str:
    """Return what positions count: a word such as step, epoch or tokens."""
    return axis_word(a.record) if by == "step" else by


def plural(axis: str) -> str:
    """Return the plural of what positions count.

    Example:
        >>> plural("epoch"), plural("tokens")
        ('epochs', 'tokens')
    """
    return axis if axis == "tokens" else f"{axis}s"


def paired(a: Side, b: Side, by: By, name: str, *, between: bool = False) -> Pairs:
    """Return positions and the two values of a signal there, as logged; NaN and Inf stay.

    Args:
        a: One side.
        b: The other.
        by: What positions are.
        name: The signal.
        between: Where hardly a step is common to both, give values between those of the one that
            has more, at the positions of the other, so that none of its values counts twice.
    """
    one, two = (s.record.columns.get(name) for s in (a, b))
    if one is None or two is None:
        return (np.zeros(0),) * 3
    rows_a, rows_b = a.rows[one.present[a.rows]], b.rows[two.present[b.rows]]
    steps, rows_a, rows_b = common_rows(a.record, b.record, rows_a, rows_b)
    fewer = min(len(own[c.present[own]]) for own, c in ((a.rows, one), (b.rows, two)))
    few = len(steps) < max(_FEW_COMMON, _COMMON_SHARE * fewer)
    if by == "tokens" or (between and few):
        (xa, ya), (xb, yb) = (series(s, name, by, finite=False) for s in (a, b))
        if not len(xa) or not len(xb):
            return (np.zeros(0),) * 3
        grids = [own[(own >= x[0]) & (own <= x[-1])] for own, x in ((xa, xb), (xb, xa))]
        grid = min(grids, key=len)
        return grid, np.interp(grid, xa, ya), np.interp(grid, xb, yb)
    return steps, one.values[rows_a], two.values[rows_b]


def parted(x: Floats, by: By, first: FirstDifference | None) -> int:
    """Return the first position at which the runs may differ."""
    if first is None or first.identical_until is None or by != "step":
        return 0
    return int(np.searchsorted(x, first.identical_until, side="right"))


def series(side: Side, name: str, by: By, *, finite: bool = True) -> tuple[Floats, Floats]:
    """Return (position, value) of what is logged, or finite, positions rising."""
    column = side.record.columns.get(name)
    if column is None:
        return np.zeros(0), np.zeros(0)
    rows = side.rows[column.present[side.rows]]
    if finite:
        rows = rows[np.isfinite(column.values[rows])]
    x = _positions(side, by, rows)
    rows, x = rows[np.isfinite(x)], x[np.isfinite(x)]
    order = np.argsort(x, kind="stable")
    return x[order], column.values[rows][order]


def _positions(side: Side, by: By, rows: NDArray[np.intp]) -> Floats:
    if by == "step":
        return side.record.step[rows]
    tokens = side.record.columns.get("tokens_seen")
    if tokens is None:
        return np.full(len(rows), np.nan)
    return np.where(tokens.present[rows], tokens.values[rows], np.nan)
