"""Shapes of the loss in hindsight: a stall at the end, a fall without a reason, a flat window.

The rows are folded into 60 blocks. Curves c + A row^-a, from a line to a steep bend, are fitted to
the blocks before a place (least squares with Huber's weights), and those that fit as well as the
best are carried on. What comes is held against what the most cautious of them promises; the error
has the noise of the blocks (`dependent_blocks_sigma`) and that of the fit.

* **stall**: at least `STALL_SHARE` of the fall that every such curve promises did not come, by
  `STALL_SIGMA` of its error, over the last 8 to 60 % of the rows, at a learning rate above a tenth
  of its peak;
  Where an exponential fall to a floor fits the same blocks as well as "a curve that stops", the
  loss has converged: a note;
* **too low**: the loss falls by `LOW_SHARE` of its level within few rows (`DropDetector` needs 192
  rows before it) or over up to a third of the run, beyond what the curve before it promises, while
  neither the rate was cut nor a validation loss fell along;
* **at once**: one step takes the loss to a tenth, four times as deep as any other, and it stays
  there. Learning does not do that, whatever validation says: what leaks is in both sets;
* **a step**: from one flat stretch to another of half its level or less, within two rows, where the
  run had learned, no row before was as low and none later comes back. Neither was the rate cut nor
  a stage changed, nor did validation fall along, and no other step is a third of it.

A **flat window** is found on the rows: 4 to 200 of them stand at one height over the level of the
rows around, with an edge on both sides that takes a row or two. Data of another kind looks so; a
spike of the optimizer rises and decays.

The **start is thrown up** where `THROWN_ROWS` or more of the first rows, and those alone, stand
`THROWN` times above the first loss or higher, the run comes back below it, and no other row stands
out as far: updates at a start may do that, whatever rate is logged.

All but a fall at once, a step and a start need 60 rows. Blind to a shape in a loss that is already flat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.epochs import round_findings, staircase_findings
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import (
    MAD_TO_SIGMA,
    dependent_blocks_sigma,
    difference_sigma,
    mad_sigma,
    median,
    medians,
    printed_unit,
)

__all__ = [
    "flat_window_findings",
    "late_stall_findings",
    "thrown_start_findings",
    "too_low_findings",
]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 60
THROWN, THROWN_ROWS, THROWN_BY = 8.0, 3, 12
"""Times the first loss, rows so high in a row, and the row of an attempt before which they begin.
Ours."""
CUT_ROWS, CUT = 4, 2 / 3
"""Rows before a cut that show where the loss was; and what is left of a rate that was cut. Ours."""
ONCE_ROWS = 12
"""Fewest rows that can show a fall at once: half of them before it, a third of them after. Ours."""
ONCE_SHARE = 0.1
"""Of the level before, that the loss stays below after such a fall. Ours."""
ONCE_OTHERS = 4.0
"""Times as deep as any other step, in logarithms. Ours."""
STEP_ROWS = 12
"""On each side of a step, flat both. These bars are ours."""
STEP_SHARE, STEP_SIGMA = 0.5, 10.0
"""Of the level before, that is left at most; noise of single rows on either side."""
STEP_TREND, STEP_OTHERS = 0.25, 1 / 3
"""Of a step, that either side may itself fall by, and that any other step may have."""
STEP_LEARNED = 2 / 3
"""Of the first losses, at which a run has learned: off its first plateau it may come down at once.
"""
STEP_BACK = 0.05
"""Of the rows behind it, that may lie above its middle."""
NUM_BLOCKS = 60
STALL_SHARE = 0.7
"""Of the promised fall that must be missing. Ours."""
STALL_SIGMA = 7.0
SHORT_STALL_SIGMA = 4.5
"""The same in logs of up to `SHORT_ROWS` rows. Chosen on everyday seeds 0-7; on 120 sound runs of
100 and 300 rows of seeds 0-29 nothing came to 3."""
SHORT_ROWS = 512
STALL_ROWS_SIGMA = 2.0
"""Least promised fall, in the noise of single rows: less of a fall nobody would miss. Ours."""
STALL_SPANS = (0.08, 0.6)
LEAST_LEVEL = 0.1
LR_SHARE = 0.1
AS_WELL = 1.1
"""Ratio of root mean squares up to which one curve fits as well as another. Ours."""
TIME_SPANS = (1 / 64, 1 / 4)
"""Time constants of a fall to a floor, as shares of the rows: slower ones have not come to it."""
_POWERS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
LOW_SHARE = 0.12
"""Of the level; the cut of a rate brings a language model down by some 5 %. Ours."""
LOW_REST, STILL_SHARE = 0.1, 0.25
"""Share of the run behind a fall within which the end of the log cuts it, and of the fall that goes
on there. Ours."""
SLOW_LOW_SHARE = 0.3
"""The same for a fall over more than two blocks: healthy runs have bends. Ours."""
VALIDATED_LOW_SHARE = 0.28
"""The same where validation is logged and does not fall along. Chosen on everyday seeds 0-9."""
LOW_SIGMA = 10.0
LOW_FIRST = 1 / 3
"""Of the rows; before it a run still finds its way down. Ours."""
LOW_CONTRAST = 0.4
"""Largest part of the fall that the curve before may itself have fallen over as many blocks. Not
asked where validation is logged, which tells a bend of learning from a loss that is too good."""
LOW_SPAN = 0.35
RETURN_SHARE = 0.25
"""Of the fall that must lead below the lowest block before it. Ours."""
WINDOW_ROWS = (5, 64)
WINDOW_SIGMA = 6.0
SIDES_SHARE = 0.45
"""Of the height that the levels of both sides may differ: the loss falls meanwhile. Ours."""
EDGE_SHARE = 0.6
"""Of the height that the first row, and the row after the last, must take."""


@dataclass(frozen=True)
class _Curve:
    """The loss of an attempt in blocks."""

    rows: Rows
    """First row of each block, and one more."""
    x: Floats
    """ln(place + 1) at the middle of each block, by the steps (`_places`)."""
    y: Floats

    @cached_property
    def shapes(self) -> Floats:
        """Shapes of all powers over the blocks: [n_powers, n_blocks]."""
        x = self.x
        rows = [-x if power == 0 else np.sign(power) * np.exp(-power * x) for power in _POWERS]
        return np.stack(rows)


def _curve(record: RunRecord, rows: Rows) -> _Curve:
    loss = record.columns["loss"].values[rows]
    num = min(NUM_BLOCKS, len(rows))
    edges = np.linspace(0, len(rows), num + 1).astype(np.intp)
    y = np.array([median(loss[a:b]) for a, b in pairwise(edges)])
    place = _places(record, rows)
    x = np.log(np.array([median(place[a:b]) for a, b in pairwise(edges)]) + 1.5)
    return _Curve(rows[np.minimum(edges, len(rows) - 1)], x, y)


def _places(record: RunRecord, rows: Rows) -> Floats:
    """Return where rows lie in a run: by their steps, in the usual distance of two rows.

    Where rows are missing, or are logged less often from somewhere on, more was learned between
    two of them. Where steps do not rise from row to row they say nothing, and the rows count.
    """
    every = np.arange(len(rows), dtype=np.float64)
    if record.axis == "row" or len(rows) < 2:
        return every
    with np.errstate(over="ignore", invalid="ignore"):  # damaged logs hold steps of 1e308
        gaps = np.diff(record.step[rows])
        place = np.concatenate(([0.0], np.cumsum(gaps / median(gaps))))
    return place if (gaps > 0).all() and np.isfinite(place).all() else every


def _attempts(record: RunRecord) -> list[Rows]:
    if "loss" not in record.columns:
        return []
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    found = [record.columns["loss"].finite_rows(span) for span in spans]
    return [rows for rows in found if len(rows) >= MIN_ROWS]


def late_stall_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss stands still from somewhere to its end."""
    found = ((rows, _late_stall(record, rows)) for rows in _attempts(record))
    # Behind a fall without a reason there is nothing left to fall.
    return tuple(f for rows, f in found if f is not None and _too_low(record, rows) is None)


def _late_stall(record: RunRecord, rows: Rows) -> Finding | None:
    c = _curve(record, rows)
    num = len(c.y)
    best: tuple[float, int, float] | None = None
    bar = SHORT_STALL_SIGMA if len(rows) <= SHORT_ROWS else STALL_SIGMA
    for k in range(int(num * (1 - STALL_SPANS[1])), int(num * (1 - STALL_SPANS[0]))):
        judged = _missing_fall(c, k, bar)
        if judged is not None and (best is None or judged[0] > best[0]):
            best = judged[0], k, judged[1]
    if best is None:
        return None
    score, k, promised = best
    loss = record.columns["loss"].values[rows]
    if promised < STALL_ROWS_SIGMA * difference_sigma(np.diff(loss)):
        return None
    onset, last = int(c.rows[k]), int(rows[-1])
    if not _rate_is_up(record, rows, onset):
        return None
    level = median(c.y[k:])
    if level == 0:  # not flat but gone: see `frozen`
        return None
    # A non-negative loss that has come down to a tenth of its start has little left to learn.
    if 0 < level < LEAST_LEVEL * float(c.y[0]) and float(c.y.min()) >= 0:
        return None
    # Nor can it fall by more than there is of it: what promised so much was a bend, and is over.
    if float(c.y.min()) > 0 and promised >= level:
        return None
    floor = _floor(c, k)
    text = f"loss {level:.4g} over the last {last - onset + 1} rows, "
    if floor is None:
        text += f"where the rows before promised a fall by {promised:.3g} (in hindsight)"
    else:
        text += f"converged: all rows follow an exponential fall to {floor:.4g} (in hindsight)"
    return finding_at(
        record,
        detector="late-stall" if floor is None else "converged",
        kind="plateau",
        signal="loss",
        severity="warning" if floor is None else "info",
        row=last,
        onset_row=onset,
        value=level,
        expected=level - promised if floor is None else floor,
        score=min(99.0, score),
        closed=False,
        text=text,
    )


def _floor(c: _Curve, k: int) -> float | None:
    """Return the floor of an exponential fall that fits as well as a curve that stops at block k.

    Both are fitted from k // 3 on, where the fits of the stall begin: before that a run has falls
    of other kinds. A power law that stops leaves an exponential an error of its own shape.
    """
    y, t = c.y[k // 3 :], np.exp(c.x[k // 3 :])
    fits = _fit(c, slice(k // 3, k))
    if fits is None:
        return None
    tail = c.y[k:] - median(c.y[k:])
    stopped = min(
        _rms(np.concatenate((before - c.y[k // 3 : k], tail)))
        for before in fits.levels[:, k // 3 : k]
    )
    best, floor = math.inf, 0.0
    for tau in np.geomspace(*TIME_SPANS, 25) * float(np.exp(c.x[-1])):
        shape = np.stack((np.ones_like(t), np.exp(-(t - t[0]) / tau)), axis=1)
        (low, height), *_ = np.linalg.lstsq(shape, y, rcond=None)
        error = _rms(y - shape @ np.array((low, height)))
        if height > 0 and error < best:
            best, floor = error, float(low)
    # Printed digits: a curve that is fitted exactly has no noise to compare with.
    return floor if best <= max(AS_WELL * stopped, 1e-3 * float(np.ptp(y))) else None


def _rms(rest: Floats) -> float:
    return math.sqrt(float(np.mean(rest**2)))


def _missing_fall(c: _Curve, k: int, bar: float) -> tuple[float, float] | None:
    """Return (score, promised fall) where the blocks from k on stand still; else None."""
    tail = c.y[k:]
    if len(tail) < 4:
        return None
    place = np.arange(len(tail)) - (len(tail) - 1) / 2
    slope = float(place @ tail / (place @ place)) * len(tail)
    # The cheap test first: what falls as far as the blocks before it does not stand.
    fits = None if -slope > 0.5 * float(np.ptp(c.y[k // 3 : k])) else _fit(c, slice(k // 3, k))
    if fits is None:
        return None
    above: list[tuple[float, float]] = []
    for promise in fits.levels[:, k:]:
        promised = float(promise[0] - promise[-1])
        # What rises is another trouble.
        if promised <= 0 or not -0.5 * promised < -slope <= (1 - STALL_SHARE) * promised:
            return None
        above.append((median(tail - promise), promised))
    return _surest(above, fits.errors(k, len(c.y)), bar)


def _surest(
    found: Sequence[tuple[float, float]], errors: Sequence[float], bar: float
) -> tuple[float, float] | None:
    """Return (score, size) of the fit that speaks least for it; None where that is below the bar.

    Args:
        found: (distance from the promise, what is returned as the size), by fit.
        errors: Of each fit's promise.
        bar: Least score.
    """
    judged = [(far / error, size) for (far, size), error in zip(found, errors, strict=True)]
    worst = min(judged, default=(0.0, 0.0))
    return worst if worst[0] >= bar else None


@dataclass(frozen=True)
class _Fits:
    """Curves that fit some blocks: [n_fits, n_blocks] levels, carried on over the whole attempt."""

    levels: Floats
    rests: Floats
    """What the fitted blocks are off: [n_fits, num]."""
    lever: Floats
    """Squared distance of each block from the middle of the fit, in its own unit: [n_fits, n]."""
    num: int

    @cached_property
    def noise(self) -> Floats:
        """Of one block, [n_fits]."""
        return np.array([max(dependent_blocks_sigma(rest), 1e-12) for rest in self.rests])

    def errors(self, first: int, stop: int) -> list[float]:
        """Return the error of the middle of the levels of blocks [first, stop), by fit."""
        own = 1 / self.num + self.lever[:, (first + stop) // 2] + 1.57 / (stop - first)
        return [float(e) for e in self.noise * np.sqrt(own)]


def _fit(c: _Curve, before: slice) -> _Fits | None:
    """Return the curves that fit some blocks nearly as well as the best; None of fewer than 8.

    Curves c + A row^-a are fitted for a from -1, a line, to 1.5, a steep bend. The blocks cannot
    tell apart what fits as well as the best.
    """
    y = c.y[before]
    if len(y) < 8:
        return None
    shapes = c.shapes
    s = shapes[:, before]
    weights = np.ones_like(s)
    mean_s, mean_y, slope, spread = _lines(s, y, weights)
    for _ in range(2):
        rest = np.abs(y - mean_y - slope * (s - mean_s))
        scale = 1.5 * MAD_TO_SIGMA * np.array(medians(rest))[:, None]
        weights = np.minimum(1.0, np.maximum(scale, 1e-12) / np.maximum(rest, 1e-300))
        mean_s, mean_y, slope, spread = _lines(s, y, weights)
    rest = y - mean_y - slope * (s - mean_s)
    errors = np.sqrt((weights * rest**2).sum(axis=1) / weights.sum(axis=1))
    # By the likelihood of normal noise: 2 ln L falls by less than 4 for what cannot be excluded.
    chosen = np.flatnonzero(errors <= max(float(errors.min()), 1e-12) * math.exp(2 / len(y)))
    all_centered = shapes[chosen] - mean_s[chosen]
    levels = mean_y[chosen] + slope[chosen] * all_centered
    return _Fits(levels, rest[chosen], all_centered**2 / spread[chosen], len(y))


def _lines(s: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return means of s and y, slopes, and spreads of s of weighted lines, [n_fits, 1] each."""
    total = weights.sum(axis=1, keepdims=True)
    mean_s = (weights * s).sum(axis=1, keepdims=True) / total
    mean_y = (weights * y).sum(axis=1, keepdims=True) / total
    centered = s - mean_s
    spread = np.maximum((weights * centered**2).sum(axis=1, keepdims=True), 1e-300)
    slope = (weights * centered * (y - mean_y)).sum(axis=1, keepdims=True) / spread
    return mean_s, mean_y, slope, spread


def _rate_is_up(record: RunRecord, rows: Rows, onset: int) -> bool:
    """Whether the rate is known, was near its peak at the onset, and is above a tenth of it after.

    Under a rate that still warms up, a loss has no past to go by.
    """
    lr = record.columns.get("lr")
    if lr is None:
        return False
    values = lr.values[rows]
    before = values[(rows <= onset) & np.isfinite(values)]
    after = values[(rows > onset) & np.isfinite(values)]
    if not len(before) or not len(after) or before.max() <= 0:
        return False
    peak = float(before.max())
    return float(after.min()) > LR_SHARE * peak and peak >= 0.8 * float(after.max())


def too_low_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss falls by an eighth without a reason."""
    # Passes over the same data have reasons of their own.
    known = {f.onset_row for rule in (staircase_findings, round_findings) for f in rule(record)}
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    # A step is dated to its row, so it is told before what blocks say of the same fall.
    steps = [None if _known(known, span) else _step(record, span) for span in spans]
    found = [f for f in steps if f is not None]
    for rows in _attempts(record):
        stepped = any(rows[0] <= f.onset_row <= rows[-1] for f in found)
        if not stepped and not any(rows[0] <= row <= rows[-1] for row in known):
            told = _too_low(record, rows)
            found += [] if told is None else [told]
    if not found:
        found = [f for f in (_at_once(record, span) for span in spans) if f is not None]
    return tuple(found)


def _at_once(record: RunRecord, span: slice) -> Finding | None:
    """Return a finding where one step of the loss, unlike all others, takes it to a tenth."""
    column = record.columns.get("loss")
    rows = np.zeros(0, np.intp) if column is None else column.finite_rows(span)
    if column is None or len(rows) < ONCE_ROWS or column.values[rows].min() <= 0:
        return None
    loss = column.values[rows]
    steps = np.diff(np.log(loss))
    k = int(np.argmin(steps)) + 1
    others = np.abs(np.delete(steps, k - 1))
    if k < ONCE_ROWS // 2 or k > len(rows) - ONCE_ROWS // 3:
        return None
    before, after = median(loss[k - 4 : k]), float(loss[k:].max())
    least = max(ONCE_OTHERS * float(others.max()), math.log(1 / ONCE_SHARE))
    if after > ONCE_SHARE * before or -steps[k - 1] < least or before < ONCE_SHARE * loss[0]:
        return None
    at = int(rows[k])
    if _rate_was_cut(record, rows, at, at + 1):
        return None
    return finding_at(
        record,
        detector="too-low",
        kind="too-good",
        signal="loss",
        severity="warning",
        row=int(rows[min(k + ONCE_ROWS // 3, len(rows) - 1)]),
        onset_row=at,
        peak_row=at,
        value=median(loss[k:]),
        expected=before,
        score=min(99.0, -float(steps[k - 1]) / max(float(np.median(others)), 1e-3)),
        direction="down",
        closed=True,
        text=(
            f"loss {before:.3g} → {loss[k]:.3g} from one row to the next, and it stays there"
            " (in hindsight)"
        ),
    )


def _known(known: set[int], span: slice) -> bool:
    return any(span.start <= row < span.stop for row in known)


def _step(record: RunRecord, span: slice) -> Finding | None:
    """Return a finding where the loss steps down between two flat stretches, for good."""
    column = record.columns.get("loss")
    rows = np.zeros(0, np.intp) if column is None else column.finite_rows(span)
    m = STEP_ROWS
    if column is None or len(rows) < 2 * m + 2 or column.values[rows].min() <= 0:
        return None
    loss = column.values[rows]
    y = np.log(loss)
    sides = np.median(sliding_window_view(y, m // 2), axis=1)
    # The fall at each row, from the half stretch before to the one that begins a row after it.
    falls = sides[: -m // 2 - 1] - sides[m // 2 + 1 :]
    k = (
        m // 2
        + int(np.argmax(falls[m // 2 : len(falls) - m // 2]) if len(falls) > m else 0)
        + m // 2
    )
    # Medians say where within half a stretch: the edge is the first row past the middle.
    middle = (median(y[max(0, k - m) : k]) + median(y[k + 1 : k + 1 + m])) / 2
    past = np.flatnonzero(y[k - m // 2 : k + m // 2 + 1] < middle)
    k = k - m // 2 + int(past[0]) if len(past) else k
    before, after = y[max(0, k - 2 * m) : k], y[k + 1 : k + 1 + 2 * m]
    if min(len(before), len(after)) < m:
        return None
    high, low = median(before[-m:]), median(after[:m])
    fall = high - low
    noise = max(_row_noise(before), _row_noise(after))
    if fall < max(math.log(1 / STEP_SHARE), STEP_SIGMA * noise):
        return None
    if y[:k].min() < middle or np.mean(y[k + 1 :] > middle) > STEP_BACK:
        return None
    half = m // 2
    trends = (
        median(before[-m:-half]) - median(before[-half:]),
        median(after[:half]) - median(after[half:m]),
    )
    if max(trends) > STEP_TREND * fall or high > math.log(STEP_LEARNED) + float(y[:3].max()):
        return None
    others = np.concatenate(
        (falls[max(0, k // 3 - m // 2) : max(0, k - 2 * m)], falls[k + m // 2 :])
    )
    if len(others) and float(others.max()) > STEP_OTHERS * fall:
        return None
    if _rate_was_cut(record, rows, int(rows[k]), int(rows[min(k + 2, len(rows) - 1)])):
        return None
    if _stage_changed(record, int(rows[max(0, k - 2)]), int(rows[k + 2])):
        return None
    old, new = math.exp(high), math.exp(low)
    if _validation_shares(record, rows, int(rows[k]), new / old):
        return None
    return finding_at(
        record,
        detector="too-low",
        kind="too-good",
        signal="loss",
        severity="warning",
        row=int(rows[k + m - 2]),
        onset_row=int(rows[k]),
        peak_row=int(rows[k]),
        value=new,
        expected=old,
        score=min(99.0, fall / max(noise, 1e-3)),
        direction="down",
        closed=True,
        text=(
            f"loss {old:.4g} → {new:.4g} from one row to the next, flat before and behind"
            f"{', at the same rate' if 'lr' in record.columns else ''} (in hindsight)"
        ),
    )


def _row_noise(y: Floats) -> float:
    """Return the noise of single rows of a stretch that may bend."""
    parts = [part - median(part) for part in np.array_split(y, max(1, len(y) // (STEP_ROWS // 2)))]
    return max(mad_sigma(np.concatenate(parts), center=0.0), difference_sigma(np.diff(y)))


def _stage_changed(record: RunRecord, first: int, last: int) -> bool:
    """Whether a logged stage of a curriculum, or a setting of the log's own, changes here."""
    for name in ("stage", "stated_setting"):
        column = record.columns.get(name)
        if column is None:
            continue
        rows = column.finite_rows(slice(first, last + 1))
        if len(rows) > 1 and np.ptp(column.values[rows]):
            return True
    return False


def _validation_shares(record: RunRecord, rows: Rows, at: int, left: float) -> bool:
    """Whether validation came down by half as much of itself as the loss, of which this is left."""
    val = record.columns.get("val_loss")
    checks = np.zeros(0, np.intp) if val is None else val.finite_rows(slice(rows[0], rows[-1] + 1))
    before, after = checks[checks < at], checks[checks >= at]
    if val is None or not len(before) or not len(after):
        return False
    # The next may have been made of rows from before.
    new = float(val.values[after[: 1 + (len(after) > 1)]].min())
    return new < (1 - (1 - left) / 2) * float(val.values[before[-1]])


def _too_low(record: RunRecord, rows: Rows) -> Finding | None:
    c = _curve(record, rows)
    # A ratio of levels says nothing where a loss may be negative.
    if float(c.y.min()) <= 0:
        return None
    num = len(c.y)
    best: tuple[float, int, int, float] | None = None
    contrast, slow = LOW_CONTRAST, SLOW_LOW_SHARE
    if _is_validated(record, rows):
        contrast, slow = math.inf, VALIDATED_LOW_SHARE
    for k in range(int(num * LOW_FIRST), num - 4):
        fits: _Fits | None = None
        level = median(c.y[k - 4 : k])
        # Down from the top of a spike is no fall of what was learned.
        if median(c.y[k - 2 : k]) > (1 + LOW_SHARE / 2) * median(c.y[max(0, k - 10) : k - 2]):
            continue
        for width in (1, 2, max(3, num // 10), int(num * LOW_SPAN) // 2, int(num * LOW_SPAN)):
            end = k + width
            if end + 3 > num:
                break
            # The cheap test first: the curve carried on lies below the level.
            if median(c.y[end : end + 3]) > (1 - LOW_SHARE) * level:
                continue
            fits = fits or _fit(c, slice(max(k // 3, k - 24), k))
            share = LOW_SHARE if width <= 2 else slow
            judged = fits and _unexplained_fall(c, fits, (k, end), share, contrast)
            if judged and (best is None or judged[0] > best[0]):
                best = judged[0], k, end, judged[1]
    if best is None:
        return None
    score, k, end, fall = best
    first, stop = int(c.rows[k]), int(c.rows[end])
    high, reached = median(c.y[k - 4 : k]), median(c.y[end : end + 3])
    if _rate_was_cut(record, rows, first, stop):
        return None
    # The level behind the fall is that of three blocks: a cut among them may have brought it down.
    behind = int(c.rows[min(end + 3, num)])
    if _cut_before_fall(record, rows, (stop, behind), (high + reached) / 2):
        return None
    # The rows before promised a part of what came; validation has to show more than that part.
    promised = max(high - reached - fall, 0.0)
    if _validation_fell(record, rows, (first, stop), promised + 0.5 * fall):
        return None
    low = median(c.y[end:])
    # Back to where the loss was before it rose: the end of a spike, and nothing too good.
    if low > float(c.y[:k].min()) - RETURN_SHARE * fall:
        return None
    # What still comes down as the log ends has not come to rest: a phase of learning falls so.
    falls_on = max(reached - median(c.y[-3:]), float(c.y[-3] - c.y[-1]))
    if num - end <= LOW_REST * num and falls_on > STILL_SHARE * fall:
        return None
    onset = _edge(record, rows, first, stop, high, reached)
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


def _unexplained_fall(
    c: _Curve, fits: _Fits, place: tuple[int, int], share: float, contrast: float
) -> tuple[float, float] | None:
    """Return (score, fall) of the blocks after a place below the curve carried on; else None."""
    first, end = place
    own = float(c.y[max(0, 2 * first - end - 2)] - c.y[first - 1])
    below: list[tuple[float, float]] = []
    for promise in fits.levels[:, end:]:
        level = float(promise[:3].mean())
        fall = median(promise[:3] - c.y[end : end + 3])
        # It must stay low to the end of the rows, or the run has left it again.
        stays = median(promise - c.y[end:]) >= 0.5 * fall
        if fall < share * level or own > contrast * fall or not stays:
            return None
        below.append((fall, fall))
    return _surest(below, fits.errors(end, len(c.y)), LOW_SIGMA)


def _edge(record: RunRecord, rows: Rows, first: int, stop: int, high: float, low: float) -> int:
    """Return the row from which the loss is nearer to the low level, or has left the high one."""
    loss = record.columns["loss"].values
    width = max(1, (stop - first) // 4)
    around = rows[(rows >= first - width) & (rows <= stop)]
    half = high - 0.25 * (high - low)
    below = np.flatnonzero(loss[around] < half)
    return int(around[below[0]]) if len(below) else first


def _cut_before_fall(record: RunRecord, rows: Rows, place: tuple[int, int], half: float) -> bool:
    """Whether the rate was cut in some rows while the loss was still above a level."""
    lr, loss = record.columns.get("lr"), record.columns["loss"].values
    if lr is None:
        return False
    at = np.flatnonzero((rows >= place[0] - CUT_ROWS) & (rows <= place[1]))
    rate = lr.values[rows[at]]
    cuts = at[1:][rate[1:] < CUT * rate[:-1]]
    return any(median(loss[rows[max(0, k - CUT_ROWS) : k]]) > half for k in cuts.tolist() if k)


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
        float(steps.min()) < math.log(2 / 3) or float(values[-1]) < 0.15 * float(values[0])
    )


def _is_validated(record: RunRecord, rows: Rows) -> bool:
    """Whether validation is logged in each third of the rows."""
    val = record.columns.get("val_loss")
    if val is None:
        return False
    thirds = np.linspace(int(rows[0]), int(rows[-1]) + 1, 4).astype(np.intp).tolist()
    return all(len(val.finite_rows(slice(a, b))) >= 3 for a, b in pairwise(thirds))


def _validation_fell(record: RunRecord, rows: Rows, place: tuple[int, int], fall: float) -> bool:
    """Whether validation fell by more than this, so that something was learned."""
    first, stop = place
    val = record.columns.get("val_loss")
    if val is None:
        return False
    span = slice(int(rows[0]), int(rows[-1]) + 1)
    checks = val.finite_rows(span)
    before, after = checks[checks < first][-3:], checks[checks > stop][:3]
    if not len(before) or not len(after):
        return False
    old, new = median(val.values[before]), median(val.values[after])
    return new < old - fall


def flat_window_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the windows of rows that stand at one height between two sharp edges."""
    found: list[Finding] = []
    for rows in _attempts(record):
        found += _flat_windows(record, rows)
    return tuple(found)


def _flat_windows(record: RunRecord, rows: Rows) -> list[Finding]:
    loss = record.columns["loss"].values[rows]
    steps = np.diff(loss)
    noise = max(difference_sigma(steps), printed_unit(loss), 1e-12)
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
            # Rows that follow one another, or have heavy tails, wander further than they step.
            rough = max(noise, mad_sigma(left), mad_sigma(right))
            if height < WINDOW_SIGMA * rough or not _is_flat_top(
                inside, left, right, height, noise
            ):
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


def _is_flat_top(inside: Floats, left: Floats, right: Floats, height: float, noise: float) -> bool:
    """Whether a window has one height, and the rows on both sides are on one level below it."""
    third = max(1, len(inside) // 3)
    ends = abs(median(inside[:third]) - median(inside[-third:]))
    spread = mad_sigma(inside)
    sides = abs(median(left) - median(right))
    edges = min(median(inside) - left[-1], median(inside) - right[0])
    return (
        ends < 0.25 * height
        and spread < max(2 * noise, 0.2 * height)
        and sides < SIDES_SHARE * height
        and float(edges) > EDGE_SHARE * height
    )


def thrown_start_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return a warning for each fresh attempt whose first rows are thrown far above its start."""
    column = record.columns.get("loss")
    # What an agent has to fit moves with what it does.
    if column is None or "reward" in record.columns:
        return ()
    found: list[Finding] = []
    for index, attempt in enumerate(record.attempts):
        rows = column.finite_rows(record.rows_of(index))
        loss = column.values[rows]
        if attempt.parent is not None or len(loss) < ONCE_ROWS or not loss[0] > 0:
            continue
        high = np.flatnonzero(loss >= THROWN * loss[0])
        num = len(high)
        if num < THROWN_ROWS or high[0] >= THROWN_BY or high[-1] - high[0] != num - 1:
            continue
        after = loss[high[-1] + 1 :]
        if len(after) < ONCE_ROWS or not 0 <= median(after[-ONCE_ROWS:]) < loss[0]:
            continue
        back = int(high[-1]) + 1 + int(np.argmax(after <= loss[0]))
        peak = int(np.argmax(loss[: high[-1] + 1]))
        found.append(
            finding_at(
                record,
                detector="rough-start-warm",
                kind="spike",
                signal="loss",
                severity="warning",
                row=int(rows[back]),
                onset_row=int(rows[high[0]]),
                peak_row=int(rows[peak]),
                end_row=int(rows[back]),
                value=float(loss[peak]),
                expected=float(loss[0]),
                score=min(99.0, float(loss[peak] / loss[0])),
                closed=True,
                text=(
                    f"the first updates throw the loss from {loss[0]:.4g} to {loss[peak]:.4g}; it is"
                    f" back below its start after {back - int(high[0])} rows (in hindsight)"
                ),
            )
        )
    return tuple(found)
