"""Shapes of the loss in hindsight: a stall at the end, a fall without a reason, a flat window.

A training loss is a smooth curve of x = ln(row + 1) under noise. Two shapes are sought by the same
test. With the rows folded into blocks, a shape s that begins at block k is fitted beside the curve
1, x, x^2 by least squares with Huber's weights:

    t = b / sigma_b,    sigma from `dependent_blocks_sigma` of the residuals

* **stall**: s is how far the curve itself would have fallen from block k on, so b = 1 is a standstill.
  What counts is a fit of the rows before k alone, carried on: at least `STALL_SHARE` of the fall that
  it promises did not come, by `STALL_SIGMA` of its error, over the last 8 to 60 % of the rows, at a
  learning rate above a tenth of its peak;
* **too low**: the loss falls by `LOW_SHARE` of its level within few rows (`DropDetector` needs 192
  rows before it) or over up to a third of the run, beyond what the curve before it promises, while
  neither the rate was cut nor a validation loss fell along.

A **flat window** is found on the rows: 4 to 200 of them stand at one height over the level of the
rows around, with an edge on both sides that takes a row or two. Data of another kind looks so; a
spike of the optimizer rises and decays.

All need 60 rows. Blind to a shape in a loss that is already flat.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import dependent_blocks_sigma, difference_sigma, mad_sigma, median

__all__ = ["flat_window_findings", "late_stall_findings", "too_low_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 60
NUM_BLOCKS = 60
STALL_SHARE = 0.7
"""Of the promised fall that must be missing. Ours."""
STALL_SIGMA = 5.0
STALL_SPANS = (0.08, 0.6)
LR_SHARE = 0.1
LOW_SHARE = 0.12
"""Of the level; the cut of a rate brings a language model down by some 5 %. Ours."""
LOW_SIGMA = 8.0
LOW_SPAN = 0.35
WINDOW_ROWS = (4, 200)
WINDOW_SIGMA = 6.0
EDGE_SHARE = 0.6
"""Of the height that the first row, and the row after the last, must take."""


@dataclass(frozen=True)
class _Curve:
    """The loss of an attempt in blocks."""

    rows: Rows
    """First row of each block, and one more."""
    x: Floats
    """ln(row + 1) at the middle of each block."""
    y: Floats


def _curve(record: RunRecord, rows: Rows) -> _Curve:
    loss = record.columns["loss"].values[rows]
    num = min(NUM_BLOCKS, len(rows))
    edges = np.linspace(0, len(rows), num + 1).astype(np.intp)
    y = np.array([median(loss[a:b]) for a, b in zip(edges, edges[1:], strict=False)])
    x = np.log((edges[:-1] + edges[1:]) / 2 + 1)
    return _Curve(rows[np.minimum(edges, len(rows) - 1)], x, y)


def _attempts(record: RunRecord) -> list[Rows]:
    if "loss" not in record.columns:
        return []
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    found = [record.columns["loss"].finite_rows(span) for span in spans]
    return [rows for rows in found if len(rows) >= MIN_ROWS]


def late_stall_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss stands still from somewhere to its end."""
    found = (_late_stall(record, rows) for rows in _attempts(record))
    return tuple(f for f in found if f is not None)


def _late_stall(record: RunRecord, rows: Rows) -> Finding | None:
    if not _rate_is_up(record, rows):
        return None
    c = _curve(record, rows)
    num = len(c.y)
    best: tuple[float, int, float] | None = None
    for k in range(int(num * (1 - STALL_SPANS[1])), int(num * (1 - STALL_SPANS[0]))):
        judged = _missing_fall(c, k)
        if judged is not None and (best is None or judged[0] > best[0]):
            best = judged[0], k, judged[1]
    if best is None:
        return None
    score, k, promised = best
    onset, last = int(c.rows[k]), int(rows[-1])
    level = median(c.y[k:])
    return finding_at(
        record,
        detector="late-stall",
        kind="plateau",
        signal="loss",
        severity="warning",
        row=last,
        onset_row=onset,
        value=level,
        expected=level - promised,
        score=min(99.0, score),
        closed=False,
        text=(
            f"loss {level:.4g} over the last {last - onset + 1} rows, where the rows before"
            f" promised a fall by {promised:.3g} (in hindsight)"
        ),
    )


def _missing_fall(c: _Curve, k: int) -> tuple[float, float] | None:
    """Return (score, promised fall) where the blocks from k on stand still; else None."""
    # The last two thirds before it: the steep start bends any fit.
    before = slice(k // 3, k)
    x, y = c.x[before], c.y[before]
    if len(y) < 8 or len(c.y) - k < 4:
        return None
    # A line in the row and one in its logarithm: of the two, the one that promises less.
    num = len(c.y)
    promises: list[tuple[float, float]] = []
    for axis in (c.x, np.arange(num, dtype=np.float64)):
        design = np.stack([np.ones(len(y)), axis[before]], axis=1)
        weights = _robust_fit(design, y)
        rest = y - design @ weights
        noise = max(dependent_blocks_sigma(rest), 1e-12)
        ahead = np.stack([np.ones(num - k), axis[k:]], axis=1)
        gap = median(c.y[k:] - ahead @ weights)
        # Error of the carried-on line at the middle of what lies ahead, and of the level there.
        cov = np.linalg.inv(design.T @ design)
        middle = ahead[len(ahead) // 2]
        error = noise * math.sqrt(float(middle @ cov @ middle) + 1.57 / (num - k))
        promised = float(-weights[1] * (axis[-1] - axis[k - 1]))
        promises.append((gap / error, promised))
    score, promised = min(promises)
    tail = c.y[k:]
    slope = np.polyfit(np.arange(len(tail)), tail, 1)[0] * len(tail)
    stands = -slope <= (1 - STALL_SHARE) * promised and slope <= promised
    if promised <= 0 or score < STALL_SIGMA or not stands:
        return None
    return score, promised


def _robust_fit(design: Floats, y: Floats) -> Floats:
    """Return the least-squares weights with Huber's loss: a spike must not bend the curve."""
    weights = np.linalg.lstsq(design, y, rcond=None)[0]
    for _ in range(4):
        rest = y - design @ weights
        scale = 1.5 * max(mad_sigma(rest), 1e-12)
        root = np.sqrt(np.minimum(1.0, scale / np.maximum(np.abs(rest), 1e-300)))
        weights = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
    return np.asarray(weights)


def _rate_is_up(record: RunRecord, rows: Rows) -> bool:
    """Whether the rate is known and is above a tenth of its peak, and not far down, at the end."""
    lr = record.columns.get("lr")
    if lr is None:
        return False
    values = lr.values[rows]
    values = values[np.isfinite(values)]
    if not len(values) or values.max() <= 0:
        return False
    return float(values[-max(1, len(values) // 20) :].min()) > LR_SHARE * float(values.max())


def too_low_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss falls by an eighth without a reason."""
    found = (_too_low(record, rows) for rows in _attempts(record))
    return tuple(f for f in found if f is not None)


def _too_low(record: RunRecord, rows: Rows) -> Finding | None:
    c = _curve(record, rows)
    # A ratio of levels says nothing where a loss may be negative.
    if float(c.y.min()) <= 0:
        return None
    num = len(c.y)
    best: tuple[float, int, int, float] | None = None
    for k in range(num // 5, num - 4):
        before = slice(max(k // 3, k - 20), k)
        y = c.y[before]
        if len(y) < 8:
            continue
        for width in (1, 2, max(3, num // 10), int(num * LOW_SPAN) // 2, int(num * LOW_SPAN)):
            end = k + width
            if end + 3 > num:
                break
            judged = _unexplained_fall(c, before, end)
            if judged is not None and (best is None or judged[0] > best[0]):
                best = judged[0], k, end, judged[1]
    if best is None:
        return None
    score, k, end, fall = best
    first, stop = int(c.rows[k]), int(c.rows[end])
    if _rate_was_cut(record, rows, first, stop) or _validation_fell(record, rows, first, stop):
        return None
    onset = _edge(record, rows, first, stop, median(c.y[k - 4 : k]), median(c.y[end : end + 3]))
    low = median(c.y[end:])
    return finding_at(
        record,
        detector="too-low",
        kind="too-good",
        signal="loss",
        severity="warning",
        row=stop,
        onset_row=onset,
        peak_row=stop,
        value=low,
        expected=low + fall,
        score=min(99.0, score),
        direction="down",
        closed=True,
        text=(
            f"loss {fall / (low + fall):.0%} below what the rows before promise within"
            f" {stop - onset + 1} rows, at the same rate (in hindsight)"
        ),
    )


def _unexplained_fall(c: _Curve, before: slice, end: int) -> tuple[float, float] | None:
    """Return (score, fall) of the blocks after `end` below the line carried on; else None."""
    y = c.y[before]
    found: list[tuple[float, float]] = []
    for axis in (c.x, np.arange(len(c.y), dtype=np.float64)):
        design = np.stack([np.ones(len(y)), axis[before]], axis=1)
        weights = _robust_fit(design, y)
        # A line that rises promises nothing: the level stands in for it.
        weights = weights if weights[1] < 0 else np.array([median(y), 0.0])
        noise = max(dependent_blocks_sigma(y - design @ weights), 1e-12)
        ahead = np.stack([np.ones(3), axis[end : end + 3]], axis=1)
        promise = ahead @ weights
        cov = np.linalg.inv(design.T @ design)
        error = noise * math.sqrt(float(ahead[1] @ cov @ ahead[1]) + 0.5)
        fall = float(median(promise - c.y[end : end + 3]))
        if fall < LOW_SHARE * float(promise[1]):
            return None
        # It must stay low to the end of the rows, or the run has left it again.
        later = float(median(promise[-1] - c.y[end:]))
        if later < 0.5 * fall:
            return None
        found.append((fall / error, fall))
    score, fall = min(found)
    return (score, fall) if score >= LOW_SIGMA else None


def _edge(
    record: RunRecord, rows: Rows, first: int, stop: int, high: float, low: float
) -> int:
    """Return the row from which the loss is nearer to the low level, or has left the high one."""
    loss = record.columns["loss"].values
    width = max(1, (stop - first) // 4)
    around = rows[(rows >= first - width) & (rows <= stop)]
    half = high - 0.25 * (high - low)
    below = np.flatnonzero(loss[around] < half)
    return int(around[below[0]]) if len(below) else first


def _rate_was_cut(record: RunRecord, rows: Rows, first: int, stop: int) -> bool:
    """Whether the rate fell by more than a third around the fall: a schedule brings a loss down."""
    lr = record.columns.get("lr")
    if lr is None:
        return False
    reach = max(8, (stop - first) // 2)
    near = rows[(rows >= first - reach) & (rows <= stop)]
    values = lr.values[near]
    values = values[np.isfinite(values) & (values > 0)]
    steps = np.diff(np.log(values)) if len(values) > 1 else np.zeros(0)
    # In one step, or over the whole: a decay to its end.
    return bool(len(steps)) and (
        float(steps.min()) < math.log(2 / 3) or float(values[-1]) < 0.35 * float(values[0])
    )


def _validation_fell(record: RunRecord, rows: Rows, first: int, stop: int) -> bool:
    val = record.columns.get("val_loss")
    if val is None:
        return False
    span = slice(int(rows[0]), int(rows[-1]) + 1)
    checks = val.finite_rows(span)
    before, after = checks[checks < first][-3:], checks[checks > stop][:3]
    if not len(before) or not len(after):
        return False
    old, new = median(val.values[before]), median(val.values[after])
    return new < old - 0.5 * LOW_SHARE * abs(old)


def flat_window_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the windows of rows that stand at one height between two sharp edges."""
    found: list[Finding] = []
    for rows in _attempts(record):
        found += _flat_windows(record, rows)
    return tuple(found)


def _flat_windows(record: RunRecord, rows: Rows) -> list[Finding]:
    loss = record.columns["loss"].values[rows]
    steps = np.diff(loss)
    noise = max(difference_sigma(steps), 1e-12)
    ups = np.flatnonzero(steps > WINDOW_SIGMA * noise)
    downs = np.flatnonzero(steps < -WINDOW_SIGMA * noise)
    found: list[Finding] = []
    at = 0
    # Logs with an edge at every other row have no windows; the search stays linear.
    for up in ups[:256].tolist():
        if up < at:
            continue
        near = downs[(downs >= up + WINDOW_ROWS[0]) & (downs <= up + WINDOW_ROWS[1])]
        for down in near[:4].tolist():
            inside = loss[up + 1 : down + 1]
            side = max(8, min(len(inside), 32))
            left, right = loss[max(0, up + 1 - side) : up + 1], loss[down + 1 : down + 1 + side]
            if len(left) < 6 or len(right) < 6:
                continue
            level = max(median(left), median(right))
            height = median(inside) - level
            if height < WINDOW_SIGMA * noise or not _is_flat_top(inside, left, right, height, noise):
                continue
            found.append(
                finding_at(
                    record,
                    detector="flat-window",
                    kind="spike",
                    signal="loss",
                    severity="warning",
                    row=int(rows[min(down + 6, len(rows) - 1)]),
                    onset_row=int(rows[up + 1]),
                    peak_row=int(rows[up + 1 + int(np.argmax(inside))]),
                    end_row=int(rows[down]),
                    value=median(inside),
                    expected=level,
                    score=min(99.0, height / noise),
                    closed=True,
                    text=(
                        f"loss {level:.4g} → {median(inside):.4g} for {len(inside)} rows between"
                        " two sharp edges (in hindsight)"
                    ),
                )
            )
            at = down + 1
            break
    return found


def _is_flat_top(
    inside: Floats, left: Floats, right: Floats, height: float, noise: float
) -> bool:
    """Whether a window has one height, and the rows on both sides are on one level below it."""
    third = max(1, len(inside) // 3)
    ends = abs(median(inside[:third]) - median(inside[-third:]))
    spread = mad_sigma(inside)
    sides = abs(median(left) - median(right))
    edges = min(median(inside) - left[-1], median(inside) - right[0])
    return (
        ends < 0.25 * height
        and spread < max(2 * noise, 0.2 * height)
        and sides < 0.25 * height
        and float(edges) > EDGE_SHARE * height
    )
