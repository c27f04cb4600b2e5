"""Two runs, or two attempts of one, beside each other at equal steps or equal tokens.

Losses are smoothed by a running median before they are compared, so that a spike of one is not the
difference of both. The gap at the end is the median over the last tenth of the stretch that both
have; slopes are fitted over its last third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.settings_diff import SettingChange, diff
from trimtab.record import RunRecord
from trimtab.signals.robust import running_median
from trimtab.text import number

__all__ = ["Comparison", "Gap", "Means", "Side", "compare_sides", "make_side", "mean_text"]

By = Literal["step", "tokens"]

USELESS_GAP = 1.0
"""A run this many nats per token above another at the same step learns nothing useful: the 104B
model stood at 6.3 where 13B had stood at 4.5 (BigScience tr8-104B chronicles)."""
ORDER_KEY = "data_order"
"""Setting that holds the hash of the order of the data; the guard writes it."""
_WINDOW = 21
_SHOWN = 8
_SIGNALS = ("loss", "val_loss", "grad_norm", "activation_norm", "loss_scale", "lr", "step_time_s")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two."""

    label: str
    record: RunRecord
    rows: NDArray[np.intp]
    """Rows compared: the final lineage, or those of one attempt."""
    settings: dict[str, str]


@dataclass(frozen=True)
class Gap:
    """Losses at one position."""

    position: float
    a: float
    b: float

    @property
    def gap(self) -> float:
        """How far b is above a, nats per token."""
        return self.b - self.a


@dataclass(frozen=True)
class Means:
    """Means of one signal over the stretch that both have; NaN where one has none."""

    signal: str
    a: float
    b: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs."""

    a: Side
    b: Side
    by: By
    common: tuple[float, float] | None
    """First and last position that both have; None where there is none."""
    gaps: tuple[Gap, ...] = ()
    end_gap: float | None = None
    """Median of b - a over the last tenth of the common stretch, nats per token."""
    widest: Gap | None = None
    slopes: tuple[float, float] | None = None
    """Nats per token and 1 000 steps (10^9 tokens) over the last third, of a and of b."""
    means: tuple[Means, ...] = ()
    changed: tuple[SettingChange, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is known to be alike, where that matters for what differs."""

    @property
    def slope_ratio(self) -> float | None:
        """Slope of b over that of a; None where a is flat or nothing is in common."""
        if self.slopes is None or not abs(self.slopes[0]) > 1e-12:
            return None
        return self.slopes[1] / self.slopes[0]


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


def mean_text(value: float) -> str:
    """Return a mean for people: a dash where nothing finite was logged."""
    return number(value) if np.isfinite(value) else "—"


def compare_sides(a: Side, b: Side, *, by: By = "step") -> Comparison:
    """Return how b differs from a.

    NaN and Inf are left out of every mean, slope and gap. Cost: O(n log n) in the rows.
    """
    (xa, ya), (xb, yb) = _losses(a, by), _losses(b, by)
    changed = diff(a.settings, b.settings)
    same_order, reordered = _orders(a, b)
    if not len(xa) or not len(xb) or max(xa[0], xb[0]) >= min(xa[-1], xb[-1]):
        why = f"nothing in common: no {by} at which both log a loss"
        said = (*(t for t in (_unfit(a), _unfit(b)) if t), why, *reordered)
        return Comparison(
            a=a, b=b, by=by, common=None, changed=changed, warnings=said, notes=same_order
        )
    low, high = float(max(xa[0], xb[0])), float(min(xa[-1], xb[-1]))
    grid = np.unique(np.concatenate([xa, xb]))
    grid = grid[(grid >= low) & (grid <= high)]
    la, lb = np.interp(grid, xa, ya), np.interp(grid, xb, yb)
    gap = lb - la
    tail = grid >= high - 0.1 * (high - low)
    end_gap = float(np.median(gap[tail]))
    widest = int(np.argmax(np.abs(gap)))
    shown = np.unique(np.linspace(0, len(grid) - 1, min(_SHOWN, len(grid))).round().astype(int))
    unit = 1e9 if by == "tokens" else 1e3
    slopes = (_slope(xa, ya, low, high) * unit, _slope(xb, yb, low, high) * unit)
    return Comparison(
        a=a,
        b=b,
        by=by,
        common=(low, high),
        gaps=tuple(Gap(float(grid[i]), float(la[i]), float(lb[i])) for i in shown),
        end_gap=end_gap,
        widest=Gap(float(grid[widest]), float(la[widest]), float(lb[widest])),
        slopes=slopes,
        means=_means(a, b, by, low, high),
        changed=changed,
        warnings=(
            *(t for t in (_unfit(a), _unfit(b)) if t),
            *_warnings(a, b, end_gap, slopes, by),
            *reordered,
        ),
        notes=same_order,
    )


def _orders(a: Side, b: Side) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (what to note, what to warn of) about the order of the data.

    Where both have its hash.
    """
    first, second = (side.settings.get(ORDER_KEY, "") for side in (a, b))
    if not first or not second:
        return (), ()
    if first == second:
        return (f"data order identical ({first})",), ()
    return (), (
        (
            f"the data order changed: {first} in {a.label}, {second} in {b.label}; part of what"
            " differs is the data"
        ),
    )


def _unfit(side: Side) -> str:
    """Return what makes the losses of a side unfit to compare; empty where they are fit."""
    column = side.record.columns.get("loss")
    rows = side.rows if column is None else side.rows[column.present[side.rows]]
    if column is None or not len(rows):
        return f"{side.label} logs no loss"
    finite = np.isfinite(column.values[rows])
    if not finite.any():
        return f"{side.label} never had a finite loss: NaN or Inf in all {len(rows)} rows"
    if not finite[-1]:
        last = int(np.flatnonzero(finite)[-1])
        at = f"{side.record.axis} {side.record.step[rows[last + 1]]:.12g}"
        return f"{side.label} has no finite loss from {at} on; it is compared up to there"
    return ""


def _positions(side: Side, by: By, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    if by == "step":
        return side.record.step[rows]
    tokens = side.record.columns.get("tokens_seen")
    if tokens is None:
        return np.full(len(rows), np.nan)
    return np.where(tokens.present[rows], tokens.values[rows], np.nan)


def _series(side: Side, name: str, by: By) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (position, value) of what is finite, positions rising."""
    column = side.record.columns.get(name)
    if column is None:
        return np.zeros(0), np.zeros(0)
    rows = side.rows[column.present[side.rows] & np.isfinite(column.values[side.rows])]
    x = _positions(side, by, rows)
    rows, x = rows[np.isfinite(x)], x[np.isfinite(x)]
    order = np.argsort(x, kind="stable")
    return x[order], column.values[rows][order]


def _losses(side: Side, by: By) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = _series(side, "loss", by)
    return x, running_median(y, _WINDOW) if len(y) > 3 * _WINDOW else y


def _slope(x: NDArray[np.float64], y: NDArray[np.float64], low: float, high: float) -> float:
    """Return the slope by least squares over the last third of the stretch.

    NaN below three points.
    """
    part = (x >= high - (high - low) / 3) & (x <= high)
    if part.sum() < 3:
        return float("nan")
    u = x[part] - x[part].mean()
    return float((u @ (y[part] - y[part].mean())) / (u @ u))


def _means(a: Side, b: Side, by: By, low: float, high: float) -> tuple[Means, ...]:
    found = []
    for name in _SIGNALS:
        values = []
        for side in (a, b):
            x, y = _series(side, name, by)
            inside = y[(x >= low) & (x <= high)]
            values.append(float(inside.mean()) if len(inside) else float("nan"))
        if np.isfinite(values).any():
            found.append(Means(name, *values))
    return tuple(found)


def _warnings(
    a: Side, b: Side, end_gap: float, slopes: tuple[float, float], by: By
) -> Sequence[str]:
    """Return what a person should know before anything else."""
    said = []
    if abs(end_gap) > USELESS_GAP:
        worse, better = (b, a) if end_gap > 0 else (a, b)
        said.append(
            f"{worse.label} is {abs(end_gap):.3g} nats above {better.label} at the same {by}: "
            "it is learning nothing useful"
        )
    flat, steep = sorted(slopes, key=abs)
    if np.isfinite(flat) and np.isfinite(steep) and steep < 0 and abs(flat) < 0.5 * abs(steep):
        slower = a if flat == slopes[0] else b
        said.append(
            f"{slower.label} falls {abs(steep) / max(abs(flat), 1e-12):.3g} times more slowly at"
            " the end"
            if abs(flat) > 1e-3 * abs(steep)
            else f"{slower.label} no longer falls where the other does"
        )
    return said
