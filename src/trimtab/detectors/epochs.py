"""Epochs in the loss, in hindsight: steps down at each pass, and batches that come round and round.

**Staircase**: with w rows on each side, the step at row t is

    d[t] = median loss[t-w .. t-1] - median loss[t .. t+w-1]

A period p whose multiples p, 2 p, ... are all steps of `STEP_SIGMA` and `STEP_SHARE` of the level,
while steps elsewhere are small, is an epoch: at each new pass the model has seen the data before. A
warning unless validation falls along; where each step is small for the run, it is how passes look.
Steps at each of which the learning rate falls are its milestones, and not told; a loss that climbs
back within each pass is of sorted data, see `sawtooth`.

**Round and round**: differences of the losses repeat with a period of 4 rows or more; their
autocorrelation at that lag, and at twice it, is above `ROUND_CORRELATION`, for `ROUND_PERIODS` of
them. It is a warning where it sets in in the middle of a run. A run that always repeats has epochs
in one order: a note. Losses that come round with a cycle of the logged learning rate are not told.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.sawtooth import finding_of, of_epochs, sawtooth_of
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median, printed_unit

__all__ = ["round_findings", "staircase_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 60
MOST_POINTS = 600
"""Blocks that a longer attempt is folded into."""
STEP_SIGMA = 6.0
STEP_SHARE = 0.04
MIN_STEPS = 2
MOST_PARTS = 8
PART_SHARE = 0.4
"""Of the step of the longer period that those of a shorter one must have. Ours."""
UP_SHARE = 0.5
"""Of the weakest step, that a rise between two steps has. Ours."""
RATE_FALL = 0.7
"""Of the learning rate before a step of the loss: a fall to less explains the step. Ours."""
ROUND_CORRELATION = 0.6
ROUND_SIGMA = 6.0
ROUND_PERIODS = 4
ROUND_ROWS = 8192
"""Of the end of an attempt, that are searched."""
LONG_ROUND = 16
"""Rows of a round that are no list of tasks or steps in time. Ours."""
OF_DIGITS = 3.0
"""Of the last printed digit that a step goes down by. Ours."""
SWING_ROWS, SWINGS, BESIDE = 8, (3.0, 5.0), 0.3
"""Rows of a round; times its low, that its high comes to where neighbors are alike and where not; and
correlation of a row with the next within it, from which on they are. Ours."""


def staircase_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt whose loss steps down at multiples of a period."""
    found = (_staircase(record, rows) for rows in _attempts(record))
    return tuple(f for f in found if f is not None)


def round_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt that begins to repeat a few batches."""
    found = (_round(record, rows) for rows in _attempts(record))
    return tuple(f for f in found if f is not None)


def _attempts(record: RunRecord) -> list[Rows]:
    if "loss" not in record.columns:
        return []
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    found = [record.columns["loss"].finite_rows(span) for span in spans]
    return [rows for rows in found if len(rows) >= MIN_ROWS]


def _staircase(record: RunRecord, rows: Rows) -> Finding | None:
    loss = record.columns["loss"].values[rows]
    # A share of the level says nothing of a loss that may be negative.
    if float(loss.min()) < 0:
        return None
    size = max(1, -(-len(rows) // MOST_POINTS))
    num = len(rows) // size
    points = np.median(loss[: num * size].reshape(num, size), axis=1)
    width = max(3, num // 40)
    windows = np.lib.stride_tricks.sliding_window_view(points, width)
    levels = np.median(windows, axis=1)
    down = levels[:-width] - levels[width:]  # at the boundary t = i + width
    share = down / np.maximum(np.abs(levels[:-width]), 1e-12)
    sigma = max(mad_sigma(share), 1e-12)
    bar = max(STEP_SIGMA * sigma, STEP_SHARE)
    hits: list[tuple[float, float, int]] = []
    for period in range(2 * width + 1, num // MIN_STEPS):
        at = np.arange(period, num - width, period)
        if len(at) < MIN_STEPS:
            break
        # A boundary lies within a block or two of its place.
        near = [share[max(0, t - width - 2) : t - width + 3].max() for t in at.tolist()]
        weakest = float(min(near))
        if weakest < STEP_SHARE:
            continue
        between = np.ones(len(share), dtype=np.bool_)
        for t in at.tolist():
            between[max(0, t - 2 * width) : t + 1] = False
        # The steep start is no flat of a stair.
        between[: period // 2] = False
        if between.sum() < 4 or float(np.median(share[between])) > 0.25 * weakest:
            continue
        # A level that goes up as well as down has two states, and is no stair.
        ups = np.flatnonzero(between & (share < -UP_SHARE * weakest))
        num_ups = int((np.diff(ups) > width).sum()) + 1 if len(ups) else 0
        if num_ups * MIN_STEPS >= len(at):
            continue
        hits.append((weakest, sum(near) / len(near), period))
    if not hits or max(hits)[0] < bar:
        return None
    weakest, _, period = _shortest(hits)
    edges = np.arange(period, num - width, period).tolist()
    falls = [float(down[max(0, t - width - 2) : t - width + 3].max()) for t in edges]
    if min(falls) < OF_DIGITS * printed_unit(loss):  # the last digit goes down, and no stair
        return None
    onset = int(rows[min(period * size, len(rows) - 1)])
    fell = _validation_falls(record, onset, int(rows[-1]))
    steps = (num - width - 1) // period
    boundaries = [k * period * size for k in range(1, steps + 1)]
    saw = sawtooth_of(record.columns["loss"].values, rows, rows[boundaries])
    if saw is not None:  # a loss that climbs back within each pass is not learned by heart
        counted = of_epochs(record, int(record.attempt[rows[0]])) is not None
        return None if counted else finding_of(record, saw, severity="warning")
    if _rate_falls(record, rows, boundaries, width * size):
        return None
    return finding_at(
        record,
        detector="staircase",
        kind="memorised",
        signal="loss",
        severity="info" if fell else "warning",
        row=int(rows[-1]),
        onset_row=onset,
        value=float(points[-1]),
        expected=float(points[max(period - 1, 0)]),
        score=min(99.0, weakest / sigma),
        direction="down",
        closed=True,
        text=(
            f"loss steps down by {weakest:.0%} or more every {period * size} rows, {steps} times:"
            " each pass over the data is learned by heart a little more (in hindsight)"
        ),
    )


def _rate_falls(record: RunRecord, rows: Rows, boundaries: list[int], reach: int) -> bool:
    """Whether the learning rate falls at each step of the loss: milestones of a schedule."""
    if "lr" not in record.columns:
        return False
    rate = record.columns["lr"].values[rows]
    pairs = [(rate[max(0, t - reach)], rate[min(t + reach, len(rate) - 1)]) for t in boundaries]
    return all(after < RATE_FALL * before for before, after in pairs)


def _shortest(hits: list[tuple[float, float, int]]) -> tuple[float, float, int]:
    """Return (weakest step, mean step, period) of the largest steps, or of each pass within them.

    Every second step of a staircase is one, too, and larger where the first step is the smallest.
    """
    best = max(hits)
    for parts in range(MOST_PARTS, 1, -1):
        near = [h for h in hits if abs(h[2] * parts - best[2]) <= parts]
        # By the mean: the weakest step is the same a row off its place.
        first = max(near, key=lambda h: h[1], default=None)
        if first is not None and first[0] >= PART_SHARE * best[0]:
            return first
    return best


def _validation_falls(record: RunRecord, first: int, last: int) -> bool:
    val = record.columns.get("val_loss")
    if val is None:
        return False
    checks = val.values[val.finite_rows(slice(first, last + 1))]
    if len(checks) < 3:
        return False
    third = max(1, len(checks) // 3)
    return median(checks[-third:]) < median(checks[:third])


def _round(record: RunRecord, rows: Rows) -> Finding | None:
    loss = record.columns["loss"].values[rows[-ROUND_ROWS:]]
    half = len(loss) // 2
    period = _period(loss[half:])
    if period is None or _rate_comes_round(record, rows[-ROUND_ROWS:][half:], period):
        return None
    tail = rows[-ROUND_ROWS:]
    ordered = _is_a_pass(record, tail, period)
    always = ordered or _period(loss[:half]) is not None or half < 2 * period
    onset = int(tail[_sets_in(loss, period)])
    swing = _swing(loss[half:], period) if ordered or period >= LONG_ROUND else 0.0
    return finding_at(
        record,
        detector="round-and-round" if not swing else "one-order",
        kind="repeated-data",
        signal="loss",
        severity="info" if always and not swing else "warning",
        row=int(rows[-1]),
        onset_row=onset,
        value=float(period),
        expected=0.0,
        score=9.0,
        closed=True,
        text=(
            f"the losses repeat every {period} rows: the same batches come over and over"
            + (", each epoch in the same order: they are not shuffled" if ordered else "")
            + (f", and within each it goes up and down {swing:.3g}-fold" if swing else "")
            + " (in hindsight)"
        ),
    )


def _swing(loss: Floats, period: int) -> float:
    """Return how many times its low the loss comes to within each round; 0.0: not far.

    What lies beside each other is alike then: sorted by label or source. Of data sets that take turns
    few differ by so much.
    """
    num = len(loss) // period
    if period < SWING_ROWS or num < 2 or loss.min() <= 0:
        return 0.0
    shape = np.median(np.log(loss[: num * period]).reshape(num, period), axis=0)
    low, high = np.quantile(shape, (0.1, 0.9))
    centered = shape - shape.mean()
    beside = float(centered @ np.roll(centered, 1)) / max(float(centered @ centered), 1e-300)
    far = math.log(SWINGS[0] if beside >= BESIDE else SWINGS[1])
    return math.exp(high - low) if high - low >= far else 0.0


def _is_a_pass(record: RunRecord, rows: Rows, period: int) -> bool:
    """Whether epochs are counted, and each has as many rows as the losses repeat after."""
    epochs = record.columns.get("epochs_seen")
    if epochs is None or not epochs.present[rows].all():
        return False
    begun = np.flatnonzero(np.diff(np.floor(epochs.values[rows])) > 0)
    return len(begun) > 1 and bool((np.abs(np.diff(begun) - period) <= 1).all())


def _rate_comes_round(record: RunRecord, rows: Rows, period: int) -> bool:
    """Whether the learning rate goes up and down with that period: the losses follow it."""
    if "lr" not in record.columns:
        return False
    rate = record.columns["lr"].values[rows]
    steps = np.diff(rate)
    if not (np.isfinite(rate).all() and (steps > 0).any() and (steps < 0).any()):
        return False
    near = range(max(2, period - 1), min(period + 2, len(steps) // 2 + 1))
    return any(_alike(steps[:-lag], steps[lag:]) for lag in near)


def _period(loss: Floats) -> int | None:
    """Return the period with which the differences of losses repeat; None where they do not."""
    steps = np.diff(loss)
    num = len(steps)
    if num < 32:
        return None
    bound = 3 * mad_sigma(steps)
    if bound <= 0:
        return None
    clipped = np.clip(steps, -bound, bound)
    clipped = clipped - clipped.mean()
    spectrum = np.fft.rfft(clipped, 2 * num)
    raw = np.fft.irfft(np.abs(spectrum) ** 2)[:num]
    rho = raw / max(float(raw[0]), 1e-300)
    most = num // ROUND_PERIODS
    lags = np.arange(4, most + 1)
    if not len(lags):
        return None
    # Fewer pairs at longer lags, so each has its own bar.
    pairs = num - lags
    scaled = rho[lags] * num / pairs
    bar = np.maximum(ROUND_CORRELATION, ROUND_SIGMA / np.sqrt(pairs))
    twice = rho[np.minimum(2 * lags, num - 1)] * num / np.maximum(num - 2 * lags, 1)
    # Differences of a smooth or rounded loss go together at every short lag: what comes round comes
    # apart in between.
    between = np.minimum.accumulate(rho[1:])[lags - 2]
    hits = np.flatnonzero((scaled > bar) & (twice > ROUND_CORRELATION) & (2 * between < scaled))
    return int(lags[hits[0]]) if len(hits) else None


def _sets_in(loss: Floats, period: int) -> int:
    """Return the position from which the losses repeat with this period."""
    steps = np.diff(loss)
    # From the end backwards, while the steps of a period go with those of the next. Correlated, so
    # that rows of less noise before the fault do not pass for equal.
    at = len(steps) - period
    while at >= period and _alike(steps[at - period : at], steps[at : at + period]):
        at -= period
    # That is where the batches came first, to within a period; from their return on they repeat.
    apart = np.abs(steps[period:] - steps[:-period])
    again = min(at + period, len(apart) - 1)
    bound = max(4 * median(apart[again:]), 0.2 * mad_sigma(steps[again:]))
    before = max(at - period, 0)
    other = np.flatnonzero(apart[before:again] > bound)
    first = before + int(other[-1]) + 1 if len(other) else before
    return min(first + period, len(loss) - 1)


def _alike(x: Floats, y: Floats) -> bool:
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return norm > 0 and float(x @ y) / norm > ROUND_CORRELATION
