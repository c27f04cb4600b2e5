"""Stretches of the loss that lie above the rows around them, by the run's own measure.

Rules on single rows, on edges and on blocks each see one shape. Here a stretch of w = 8 to 256 rows
is compared with the rows beside it, whatever the way up or down:

    bump = mean of w rows - mean of the two stretches of w rows, half of w before and behind it
    step = rise of w rows over the w before, less `DAMP` times that from the w before those

A curve that falls and flattens lies below its chords and falls less and less, so neither is above 0
by learning. What such a number is worth is read from the run itself:

    z = number / max(1.4826 median |number - median|, what white noise would give)

over all places; of a loss above 0 in logarithms as well, and the smaller z counts. Noise that
follows itself, wanders or has heavy tails widens the bar. A stretch is told where z is above
`SIGMAS`, here and by the spread of its neighborhood alone; where it is `OVER_OTHERS` times any
other of that width (of up to `MOST_TOLD`, any but those), is `LEAST_SHARE` of the level high, and
lies above what came before by half of that; and where no other alarm tells of it, nor did before it
was found to be a note. Long logs are judged by the medians of `MOST` equal stretches; in hindsight.

Blind in the first tenth, to a rise that takes more than 256 points, and in a run that swells often.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.two_sides import best_parting
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import sigmas

__all__ = ["excess_findings", "with_excess"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

WIDTHS = (8, 16, 32, 64, 128, 256)
MOST = 2048
STRETCHES = 6
"""Widths of which a run must have this many."""
SIGMAS = 7.0
OVER_OTHERS = 1.5
DAMP = 0.7
LEAST_SHARE = 0.02
NEGLIGIBLE = 5e-3
"""Of the first losses: below that a change does not matter."""
MEASURED = 0.5
"""Of the rows, that differ from the one before. As in `lasting`."""
BEGIN_SHARE = 0.1
LEAST_OF_MEAN = 0.5
"""Of the height, by which half of the rows lie above."""
NEAR_ROWS = 16
RISES = ("spike", "unrecovered-spike", "shift", "drift", "divergence", "too-good", "resume-jump")
"""What tells of a stretch already: within so many rows."""
MOST_TOLD = 3
NEAR_WIDTHS = 12
SIGN_SHARE = 0.25
"""Of the rows, at which a loss changes its sign. As in `risen`."""
SOON = 64
"""Points, and four widths, within which a stretch is over, or lasts."""
BACK = 0.25
"""Of the height, below which a stretch is over. All bars are ours, see the origins."""


@dataclass(frozen=True)
class _Stretch:
    z: float
    first: int
    """Points."""
    width: int
    height: float
    level: float


def with_excess(record: RunRecord, told: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the stretches that no alarm tells, nor one that was found to be a note since.

    Args:
        record: As it is judged.
        told: Findings, those before they became notes among them.
    """
    spans = [
        (f.onset_row - NEAR_ROWS, max(f.row, f.end_row or f.row) + NEAR_ROWS)
        for f in told
        if f.signal == "loss" and f.severity != "info" and f.kind in RISES
    ]
    return tuple(
        replace(f, in_hindsight=True)
        for f in excess_findings(record)
        if not any(first <= (f.end_row or f.row) and f.onset_row <= last for first, last in spans)
    )


def excess_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the stretches of the loss that stand out in their attempt."""
    column = record.columns.get("loss")
    if column is None:
        return ()
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        rows = column.finite_rows(record.rows_of(index))
        y = column.values[rows]
        if len(y) < STRETCHES * min(WIDTHS) or np.mean(np.diff(np.signbit(y))) >= SIGN_SHARE:
            continue
        if np.mean(np.diff(y) != 0) < MEASURED:
            continue
        size = -(-len(y) // MOST)
        num = len(y) // size
        points = np.asarray(np.median(y[: num * size].reshape(num, size), axis=1))
        least = NEGLIGIBLE * float(np.abs(y[:8]).max())
        found += [
            _finding(record, rows[::size][:num], points, s) for s in _stretches(points, least)
        ]
    return tuple(found)


def _stretches(y: Floats, least: float) -> list[_Stretch]:
    """Return the stretches that stand out, those that overlap a larger one left out."""
    # Noise of a share of the level is even in logarithms, other noise as it stands.
    scales = [y, np.log(y)] if float(y.min()) > 0 else [y]
    noises = [_noise(x) for x in scales]
    over: list[_Stretch] = []
    for width in WIDTHS:
        if len(y) < STRETCHES * width:
            break
        for shapes in zip(*(_heights(x, width) for x in scales), strict=True):
            first, level, height, rise, _ = shapes[0]
            z = np.min(
                [
                    h / max(1.4826 * median(np.abs(h - median(h))), noise * white)
                    for (_, _, h, _, white), noise in zip(shapes, noises, strict=True)
                ],
                axis=0,
            )
            late = (first > BEGIN_SHARE * len(y)) & (rise > LEAST_OF_MEAN * height)
            matters = height > np.maximum(LEAST_SHARE * np.abs(level), least)
            for k in _outstanding(np.where(late, z, 0.0), width):
                # A row or two far out are a matter of `spike`.
                inside = y[int(first[k]) : int(first[k]) + width]
                if not matters[k] or median(inside) - level[k] < LEAST_OF_MEAN * height[k]:
                    continue
                # Noise that a run grows out of is small for its later rows alone.
                if height[k] > SIGMAS * _spread_near(height, k, width):
                    over.append(
                        _Stretch(
                            float(z[k]), int(first[k]), width, float(height[k]), float(level[k])
                        )
                    )
    over.sort(key=lambda s: -s.z)
    apart: list[_Stretch] = []
    for s in over:
        if all(s.first >= o.first + 3 * o.width or s.first + 3 * s.width <= o.first for o in apart):
            apart.append(s)
    return apart[:MOST_TOLD]


def _noise(x: Floats) -> float:
    return max(difference_sigma(np.diff(x, 2), order=2), 1e-12, 1e-9 * float(np.abs(x).max()))


def _heights(y: Floats, w: int) -> list[tuple[Rows, Floats, Floats, Floats, float]]:
    """Return of bumps and steps: places, level before, height, rise, its noise if noise is white."""
    middle = float(y.mean())
    sums = np.concatenate(([0.0], np.cumsum(y - middle)))

    def mean(at: Rows, num: int) -> Floats:
        return np.asarray((sums[at + num] - sums[at]) / num + middle)

    half = w // 2
    at = np.arange(w + half, len(y) - 2 * w - half + 1)
    inside, before = mean(at, w), mean(at - half - w, w)
    behind = mean(at + w + half, w)
    bump = (at, before, inside - (before + behind) / 2, inside - before, float(np.sqrt(1.5 / w)))
    at = np.arange(2 * w, len(y) - w + 1)
    before = mean(at - w, w)
    rise = mean(at, w) - before
    trend = before - mean(at - 2 * w, w)
    step = (at, before, rise - DAMP * trend, rise, float(np.sqrt(2.5 / w)))
    return [bump, step]


def _outstanding(z: Floats, width: int) -> list[int]:
    """Return the places of the few heights that stand out from all others, the highest first."""
    left, peaks = z.copy(), list[int]()
    for _ in range(MOST_TOLD + 1):
        k = int(np.argmax(left))
        peaks.append(k)
        left[max(k - 3 * width, 0) : k + 3 * width + 1] = 0.0
    tops = [max(float(z[k]), 1.0) for k in peaks]
    for num in range(MOST_TOLD, 0, -1):
        if tops[num - 1] > SIGMAS and tops[num - 1] > OVER_OTHERS * tops[num]:
            return peaks[:num]
    return []


def _spread_near(height: Floats, k: int, width: int) -> float:
    """Return the spread of heights near a place, without those that hold a part of it."""
    reach, apart = NEAR_WIDTHS * width, 2 * width
    near = np.concatenate(
        (height[max(k - reach, 0) : max(k - apart, 0)], height[k + apart : k + reach])
    )
    return 1.4826 * median(np.abs(near - median(near))) if len(near) else 0.0


def _finding(record: RunRecord, rows: Rows, y: Floats, s: _Stretch) -> Finding:
    first = _edge(y, s)
    line = s.level + BACK * s.height
    half = max(s.width // 2, 8)
    means = np.convolve(y[first:], np.ones(half) / half, "valid")
    over = np.flatnonzero(means > s.level + 0.5 * s.height)
    back = np.flatnonzero(means[over[0] :] < line) + over[0] if len(over) else np.zeros(0, np.intp)
    # A level that stays comes below that as well in the end, since the run learns on.
    over_soon = len(back) > 0 and int(back[0]) <= SOON + 4 * s.width
    end = first + int(back[0]) if over_soon else None
    peak = first + int(np.argmax(y[first : end or len(y)]))
    top = s.level + s.height
    tail = "back" if end is not None else "lasting"
    last = min(first + s.width, len(y) - 1) if end is None else end
    return finding_at(
        record,
        detector="excess",
        kind="shift" if end is None else "spike",
        signal="loss",
        severity="warning",
        row=int(rows[last]),
        onset_row=int(rows[first]),
        peak_row=int(rows[peak]),
        end_row=None if end is None else int(rows[end]),
        value=top,
        expected=s.level,
        score=min(99.0, s.z),
        closed=True,
        text=(
            f"loss {s.level:.4g} → {top:.4g} over {s.width * _grain(rows)} rows"
            f" ({sigmas(s.z)} together), {tail} (in hindsight)"
        ),
    )


def _grain(rows: Rows) -> int:
    return int(rows[1] - rows[0]) if len(rows) > 1 else 1


def _edge(y: Floats, s: _Stretch) -> int:
    """Return the point near the start of a stretch that parts low points from high ones best."""
    begin, end = max(s.first - s.width, 0), min(s.first + s.width, len(y))
    line = s.level + LEAST_OF_MEAN * s.height
    around = y[begin:end]
    # The parting may fall beside it by what noise is.
    first = begin + best_parting(around, np.arange(2, len(around) - 1)) - 2
    above = np.flatnonzero(y[first : first + s.width] > line)
    return first + int(above[0]) if len(above) else first + 2
