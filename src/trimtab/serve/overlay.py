"""One signal of several runs over one axis, with what a picture needs of each and no more."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.serve.curves import Curves, MappedStretch, extremes, interleaved

__all__ = ["Overlay", "overlay"]

Floats = NDArray[np.float64]

WHOLE_ROWS = 6_000
"""Rows of all runs together that are drawn one by one. Ours: a picture of them takes 20 ms."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What is drawn."""

    x: Floats
    """float64 [n], places on the axis that all runs share, rising."""
    y: Mapping[str, Floats]
    """float64 [n] of each run; NaN where it has no value there."""
    whole: bool
    """Whether each row is a point; else columns have their lowest and highest value."""
    limits: tuple[float, float]
    """First and last place at which any of the runs has a value."""
    range: tuple[float, float]
    """What was asked for, within the limits."""
    left_out: tuple[str, ...] = ()
    """Runs that do not have the signal, or do not know the axis."""


def overlay(
    runs: Mapping[str, Curves],
    signal: str,
    *,
    by: str = "step",
    first: float | None = None,
    last: float | None = None,
    columns: int = 1_200,
    smooth_rows: int = 0,
) -> Overlay:
    """Return the main lines of some runs.

    Args:
        runs: By id.
        signal: Which signal.
        by: step, tokens or time (seconds of training).
        first: First place on the axis; None: where the first run begins.
        last: Last place; None: where the last run ends.
        columns: Pixel columns of the picture.
        smooth_rows: Draw the mean of so many neighbouring rows instead; 0: the rows. Values that
            are not finite enter no mean.

    Cost: O(columns) a run; with smoothing O(rows in the range).
    """
    limits = {i: found for i, c in runs.items() if (found := _limits(c, signal, by)) is not None}
    left_out = tuple(i for i in runs if i not in limits)
    if not limits:
        none = np.zeros(0)
        return Overlay(
            x=none, y={}, whole=True, limits=(0.0, 1.0), range=(0.0, 1.0), left_out=left_out
        )
    low, high = min(a for a, _ in limits.values()), max(b for _, b in limits.values())
    begin = low if first is None else max(min(first, high), low)
    end = high if last is None else max(min(last, high), begin)
    if not end > begin:
        begin, end = begin - 0.5, end + 0.5
    lines = {i: _Line(runs[i], signal, by, begin, end) for i in limits}
    whole = sum(line.num_rows for line in lines.values()) <= WHOLE_ROWS
    if whole:
        x, y = _whole(lines, smooth_rows)
    else:
        x, y = _gathered(lines, np.linspace(begin, end, columns + 1), smooth_rows)
    return Overlay(x=x, y=y, whole=whole, limits=(low, high), range=(begin, end), left_out=left_out)


def _limits(curves: Curves, signal: str, by: str) -> tuple[float, float] | None:
    return curves.limits(signal, by) if by in curves.axes() else None


class _Line:
    """The main line of one run in a range."""

    def __init__(self, curves: Curves, signal: str, by: str, begin: float, end: float) -> None:
        self._curves, self._by = curves, by
        self.parts = [p for p in curves.parts(signal, by=by) if p.live and len(p.x)]
        steps = curves.back(by, np.array([begin, end]))
        # one row beyond on either side, so that lines reach the edge
        self.cuts = [
            (
                max(int(np.searchsorted(p.x, steps[0])) - 1, 0),
                min(int(np.searchsorted(p.x, steps[1], side="right")) + 1, len(p.x)),
            )
            for p in self.parts
        ]
        self.num_rows = sum(max(b - a, 0) for a, b in self.cuts)

    def rows(self, margin: int = 0) -> tuple[Floats, Floats, int, int]:
        """Return the rows in the range with some on either side, and which of them are within."""
        pieces: list[tuple[MappedStretch, int, int]] = [
            (p, a, b) for p, (a, b) in zip(self.parts, self.cuts, strict=True) if b > a
        ]
        if not pieces:
            return np.zeros(0), np.zeros(0), 0, 0
        (first, a, _), (last, _, b) = pieces[0], pieces[-1]
        before, after = min(margin, a), min(margin, len(last.x) - b)
        pieces[0] = (first, a - before, pieces[0][2])
        pieces[-1] = (last, pieces[-1][1], b + after)
        if len(pieces) == 1:  # nothing to copy
            part, i, j = pieces[0]
            return part.x[i:j], part.y[i:j], before, j - i - after
        x = np.concatenate([p.x[i:j] for p, i, j in pieces])
        y = np.concatenate([p.y[i:j] for p, i, j in pieces])
        return x, y, before, len(x) - after

    def places(self, steps: Floats) -> Floats:
        return self._curves.along(self._by, steps)

    def steps(self, places: Floats) -> Floats:
        return self._curves.back(self._by, places)


def _smoothed(y: Floats, rows: int, at: NDArray[np.intp]) -> Floats:
    """Return the mean of the finite ones of `rows` neighbors of some rows; NaN where none is."""
    low, high = np.maximum(at - rows // 2, 0), np.minimum(at + (rows + 1) // 2, len(y))
    total = np.concatenate([[0.0], np.cumsum(y)])
    count = high - low
    if not np.isfinite(total[-1]):  # seldom: a hole is not summed, and not counted
        usable = np.isfinite(y)
        total = np.concatenate([[0.0], np.cumsum(np.where(usable, y, 0.0))])
        held = np.concatenate([[0], np.cumsum(usable)])
        count = held[high] - held[low]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray((total[high] - total[low]) / count)


def _whole(lines: Mapping[str, _Line], smooth: int) -> tuple[Floats, dict[str, Floats]]:
    found = {}
    for i, line in lines.items():
        x, y, a, b = line.rows(smooth)
        shown = _smoothed(y, smooth, np.arange(a, b)) if smooth > 1 else y[a:b]
        found[i] = line.places(x[a:b]), shown
    shared = np.unique(np.concatenate([x for x, _ in found.values()]))
    values = {}
    for i, (x, y) in found.items():
        spread = np.full(len(shared), np.nan)
        spread[np.searchsorted(shared, x)] = y
        values[i] = spread
    return shared, values


def _gathered(
    lines: Mapping[str, _Line], edges: Floats, smooth: int
) -> tuple[Floats, dict[str, Floats]]:
    columns = len(edges) - 1
    places, _ = interleaved(edges, np.zeros(columns), np.zeros(columns))
    values = {}
    for i, line in lines.items():
        own = line.steps(edges)
        if smooth > 1:
            x, y, _, _ = line.rows(smooth)
            at = line.steps(places)
            values[i] = np.full(len(at), np.nan)
            if len(x):
                inside = (at >= x[0]) & (at <= x[-1])
                values[i][inside] = _smoothed(y, smooth, np.searchsorted(x, at[inside]))
            continue
        floor, top = np.full(columns, np.nan), np.full(columns, np.nan)
        for part in line.parts:
            low, high = extremes(part, own)
            floor, top = np.fmin(floor, low), np.fmax(top, high)
        values[i] = interleaved(edges, floor, top)[1]
    return places, values
