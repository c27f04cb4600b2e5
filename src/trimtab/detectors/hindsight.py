"""Bursts in hindsight: what a signal did against its own level before *and* after.

A streaming rule has no past at the start of a log, lags behind a level that falls, and cannot know
whether an outlier will stay alone. Once the rows are there, each is compared with the median of the
rows around it, on a log scale (ratios, so no unit matters):

    r[t]  = y[t] - median y[t-30 .. t+30]
    sigma = 1.4826 median |r| over some 300 rows around, so autocorrelated noise is included
    z[t]  = r[t] / max(sigma, floor, one unit of the last digit where most rows are printed alike)

Rows with z > 5 that are close together are one burst. A burst is an alarm

* if it lasts: three rows or more, and either z > 8 at the peak or far up by ratio. Rows of
  heavy-tailed data noise stand alone;
* if it is far out, z > 10, and takes three rows or more until it is back within 2 sigma: a spike
  of the weights dies away, an odd batch is over in the next row. A norm must also pass what the
  noise of this run reaches once (below);
* if it towers: a norm 30 times, a loss 3 times its level, and twice the height that this run has
  once in a hundred rows. A loss below 30 times must also pass what its noise reaches once,
  unless two of its rows lie far out: few odd batches come in pairs;
* if loss and norm burst together, three rows of them at least and one to ten times its level: a
  single odd batch moves both a little;

and only if the signal rose into it from the rows before, so that the descent at the start of a run
is none; a norm in the very first rows needs no past where it is 900 times its later level. All are
warnings at most.
What the noise of a run reaches once is extrapolated from two quantiles of the maxima of its blocks
(`_usual`), so that bursts do not mask one another and heavy tails are priced.
Blind to a change that lasts more than about 25 rows: see `level`. Nothing here is seen online, and
every finding says that it was seen in hindsight.

The bars below were chosen on the first 73 labeled public logs (`benchmarks`, collection 1), not on
simulated noise: each is near its best value on them. The tail of three rows, the price of a tower
and the noise of a falling curve were chosen on half of the repositories of both collections.
Figures on those logs are no evidence that the rule carries over; logs added later are.
Source of the extrapolation: Gumbel, Statistics of Extremes (1958), chapter 6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median, printed_unit, running_median
from trimtab.text import sigmas
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["hindsight_findings"]

Floats = NDArray[np.float64]

MIN_ROWS = 30
"""Shorter attempts are left to `excerpt`."""
HALF_WINDOW = 30
NOISE_BLOCK = 64
OVER_SIGMA = 5.0
PEAK_SIGMA = 8.0
"""As in `spike`; the published healthy runs that it was chosen on stay below 4.5."""
LASTING_ROWS = 3
LASTING_RATIO = 10.0
"""Ratio to the level from which a lasting burst needs no z."""
GAP_ROWS = 3
"""Rows above the bar that are this close are one burst."""
JOINT_SIGMA = 6.0
"""Enough where two signals say so at the same rows."""
PAST_ROWS = 8
TOWER_FACTOR = 2.0
MANY_LONE = 5
"""Odd batches, each over in the next row, that are the data of a run: notes. Ours."""
COMMON_BURSTS = 3
COMMON_SHARE = 0.01
"""Bursts, or bursts a row, that a run may have before such a height is usual for it."""
LONE_RATIO = 30.0
"""Ratio from which even a lone loss is no odd batch, whatever the noise."""
FAR_SIGMA = 10.0
"""Far outside the noise: a spike that heals needs this, and more than the run's own noise gives."""
TAIL_SIGMA = 2.0
"""Below this a row is back at its level."""
NUM_BLOCKS = 16
"""Blocks that a short log is cut into, of 16 rows at least."""
CHANCE = 0.05
"""Chance that the highest row of a run's own noise passes what is usual for it."""
_SECOND = math.sqrt(6.0)
ANEW_SHARE, HIGHER = 0.5, 1.5
"""Of the way that a stub fell, below its start by which the next attempt may begin; and above. Ours."""
_REMEMBERED_ROWS = 4096
"""Longest signal whose bursts are remembered: a self-test asks for those of the same rows again and
again, because a fault changes one signal and leaves the other."""


@dataclass(frozen=True)
class _Rule:
    """What differs between the signals."""

    kind: str
    lasting_kind: str
    floor: float
    """Smallest sigma believed, in log units."""
    tower: float
    """Ratio to the level from which a single row towers."""
    lasting: float
    """Ratio to the level from which a lasting burst matters."""

    negligible: float
    """Share of the values at the start of a run below which changes do not matter."""
    ratio_alone: bool
    """Whether a tower needs no z and, in the first rows, no past: norms have heavy tails, and only
    their ratio to the level says how much a step was scaled down."""


_RULES = {
    # A norm is far noisier than a loss, hence its higher floor and bars.
    "loss": _Rule("spike", "spike", 4e-3, 3.0, 1.02, 5e-3, ratio_alone=False),
    "grad_norm": _Rule("grad-spike", "grad-explosion", 0.05, 30.0, 3.0, 0.0, ratio_alone=True),
}


@dataclass(frozen=True)
class _Burst:
    """Positions among the finite rows of an attempt, first to last, and its height in log units."""

    first: int
    last: int
    num_over: int
    tail_rows: int
    """Rows in one piece around the peak until the signal is back."""
    peak: int
    height: float
    z: float
    second: float
    """z of the second highest row; 0 where there is one only."""
    usual: float
    """z that the noise of this run reaches once."""
    common: float
    """Height that this run has once in a hundred rows."""
    rose: bool


def hindsight_findings(record: RunRecord, *, bar: float = 1.0) -> tuple[Finding, ...]:
    """Return the bursts of loss and grad norm that are alarms, attempt by attempt.

    Args:
        record: All rows of a run.
        bar: Factor on every bar, in sigma or as the logarithm of a ratio; 1 is as built.
    """
    findings: list[Finding] = []
    for span, alone in _spans(record):
        bursts: dict[str, tuple[NDArray[np.intp], Sequence[_Burst]]] = {}
        for signal, rule in _RULES.items():
            rows = _rows(record, signal, alone if signal == "loss" else span)
            if len(rows):
                y = _logs(record.columns[signal].values[rows], rule)
                short = len(y) <= _REMEMBERED_ROWS
                bursts[signal] = (
                    rows,
                    _known_bursts(y.tobytes(), rule, bar) if short else _bursts(y, rule, bar),
                )
        for signal, (rows, found) in bursts.items():
            rule = _RULES[signal]
            other = next((v for k, v in bursts.items() if k != signal), None)
            told: list[tuple[_Burst, str]] = []
            for burst in found:
                lasts = _lasts(burst, rule, bar)
                if lasts or _towers(burst, rule, bar) or _joint(rows, burst, other, bar):
                    told.append((burst, rule.lasting_kind if lasts else rule.kind))
            lone = sum(_is_lone(b) for b, _ in told)
            for burst, kind in told:
                f = _finding(record, signal, kind, rows, burst)
                if lone >= MANY_LONE and _is_lone(burst) and not rule.ratio_alone:
                    f = replace(f, severity="info", text=f"{f.text}; one of {lone} such rows")
                findings.append(f)
    return tuple(findings)


def _is_lone(b: _Burst) -> bool:
    return b.first == b.last and b.tail_rows <= 1


def _spans(record: RunRecord) -> list[tuple[slice, slice]]:
    """Return the rows of each attempt; a stub that the next attempt repeats counts with it.

    Of its loss, the second, not where that starts anew: the way that the stub fell would be a rise.
    """
    spans: list[tuple[slice, slice]] = []
    stub: slice | None = None
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        if span.start == span.stop:
            continue
        again = stub is not None and record.step[span.start] <= record.step[stub.start]
        alone = span
        # Another run of the same file repeats nothing.
        if stub is not None and again and record.attempts[index].parent is not None:
            span = slice(stub.start, span.stop)
            alone = alone if _starts_anew(record, stub, alone) else span
        # A crash loop leaves many stubs; alone, each is too short for a level.
        stub = alone if alone.stop - alone.start < MIN_ROWS else None
        spans.append((span, alone))
    return spans


def _starts_anew(record: RunRecord, stub: slice, span: slice) -> bool:
    """Whether the loss begins where the stub began, after that had left it."""
    loss = record.columns.get("loss")
    if loss is None:
        return False
    rows = [loss.finite_rows(part) for part in (stub, span)]
    if not len(rows[0]) or not len(rows[1]):
        return False
    first, last, begins = loss.values[[rows[0][0], rows[0][-1], rows[1][0]]].tolist()
    fell = first - last
    # Another fold may begin higher.
    return bool(fell > 0 and -ANEW_SHARE * fell < begins - first < HIGHER * fell)


def _rows(record: RunRecord, signal: str, span: slice) -> NDArray[np.intp]:
    """Return the rows whose ratios say something; none where there are too few of them."""
    column = record.columns.get(signal)
    if column is None:
        return np.zeros(0, dtype=np.intp)
    values, present = column.values[span], column.present[span]
    rows = np.flatnonzero(present & np.isfinite(values) & (values > 0)) + span.start
    # A loss that is negative or 0 in half of its rows has no ratios worth judging.
    enough = len(rows) >= max(MIN_ROWS, int(present.sum()) // 2)
    return np.asarray(rows if enough else rows[:0])


def _logs(values: Floats, rule: _Rule) -> Floats:
    """Return logarithms in which values far below those at the start of the run count as zero."""
    start = float(values[:PAST_ROWS].max())
    return np.asarray(np.log(values + rule.negligible * start))


def _lasts(b: _Burst, rule: _Rule, bar: float) -> bool:
    """Whether a burst is more than rows of heavy-tailed noise that stand alone."""
    if not b.rose or b.height < bar * math.log(rule.lasting):
        return False
    # Far outside the noise, and three rows until it is back: the odd batch alone has no tail.
    far = max(FAR_SIGMA, b.usual if rule.ratio_alone else 0.0)
    if b.tail_rows >= LASTING_ROWS and b.z > bar * far:
        return True
    if b.num_over < LASTING_ROWS:
        return False
    # The second test is for runs so noisy that even a tenfold rise is few sigma.
    return b.z > bar * PEAK_SIGMA or b.height > bar * math.log(LASTING_RATIO)


def _towers(b: _Burst, rule: _Rule, bar: float) -> bool:
    """Whether a burst stands out by ratio alone, compared with what this run does all the time."""
    tower = bar * math.log(rule.tower)
    # Without a rise from the rows before, only the rows after it give it a level: twice the bar.
    if b.height < (tower if b.rose else 2 * tower) or not (
        b.rose or (b.first < PAST_ROWS and rule.ratio_alone)
    ):
        return False
    # A lone loss is one odd batch where such batches are usual for the run.
    lone = b.z < b.usual and not (b.z > bar * FAR_SIGMA and b.second > bar * PEAK_SIGMA)
    if not rule.ratio_alone and lone and b.height < bar * math.log(LONE_RATIO):
        return False
    return b.height > b.common + bar * math.log(TOWER_FACTOR)


def _joint(
    rows: NDArray[np.intp],
    b: _Burst,
    other: tuple[NDArray[np.intp], Sequence[_Burst]] | None,
    bar: float,
) -> bool:
    """Whether the other signal bursts at the same rows, and not both in one row only."""
    if other is None or not b.rose or b.z < bar * JOINT_SIGMA:
        return False
    first, last = rows[b.first] - GAP_ROWS, rows[b.last] + GAP_ROWS
    return any(
        c.rose
        and c.z > bar * JOINT_SIGMA
        and b.num_over + c.num_over >= LASTING_ROWS
        and max(b.height, c.height) > bar * math.log(LASTING_RATIO)
        and other[0][c.first] <= last
        and first <= other[0][c.last]
        for c in other[1]
    )


def _noise(y: Floats, residual: Floats) -> Floats:
    """Return the robust spread around each row: the median over five blocks."""
    # Where the curve falls faster than the noise, its running median is the curve itself and the
    # residuals are zero: second differences see the noise there.
    second = np.abs(np.diff(y, 2, prepend=y[0], append=y[-1])) / _SECOND
    num = max(1, len(residual) // _block_rows(len(residual)))
    spread = np.array(
        [
            max(mad_sigma(r, center=0.0), mad_sigma(d, center=0.0))
            for r, d in zip(np.array_split(residual, num), np.array_split(second, num), strict=True)
        ]
    )
    # A median over blocks, so that a burst does not raise the noise it is measured by.
    smooth = [median(spread[max(0, i - 2) : i + 3]) for i in range(num)]
    lengths = [len(b) for b in np.array_split(residual, num)]
    return np.repeat(np.array(smooth), lengths)


def _block_rows(num_rows: int) -> int:
    """Return the rows of a block of noise: fewer in a short log, so that it has several."""
    return min(NOISE_BLOCK, max(NOISE_BLOCK // 4, num_rows // NUM_BLOCKS))


def _usual(z: Floats) -> float:
    """Return the height that the largest of all rows has by this run's own noise: about its record.

    The maxima of blocks of rows follow a Frechet law for any noise with a heavy tail, and one with
    a small exponent follows those of a light tail: two of their quantiles give the height that a
    row of the whole run passes with a chance of `CHANCE`. Bursts in less than a fifth of the blocks
    do not move them.
    """
    num = len(z) // _block_rows(len(z))
    # Too few rows to say what they can do by chance: whatever rests on it alone stays a note.
    if num < NUM_BLOCKS // 2:
        return math.inf
    highest = np.log([max(float(b.max()), 1.0) for b in np.array_split(z, num)])
    half, most = (float(np.quantile(highest, q)) for q in (0.5, 0.8))
    spread = (most - half) / (_gumbel(0.8) - _gumbel(0.5))
    at = half + spread * (_gumbel(1 - CHANCE / num) - _gumbel(0.5))
    return math.exp(min(at, 50.0))


def _gumbel(p: float) -> float:
    return -math.log(-math.log(p))


@lru_cache(maxsize=16)
def _known_bursts(y: bytes, rule: _Rule, bar: float) -> tuple[_Burst, ...]:
    """Return what `_bursts` gives, from memory where the same rows were asked for before."""
    return tuple(_bursts(np.frombuffer(y, dtype=np.float64), rule, bar))


def _bursts(y: Floats, rule: _Rule, bar: float) -> list[_Burst]:
    """Return the bursts of one signal, alarms or not."""
    # A short window in a short log, whose curve bends; a norm is held to most of its later rows.
    least = HALF_WINDOW if rule.ratio_alone else max(HALF_WINDOW // 6, len(y) // 10)
    half = min(HALF_WINDOW, least)
    level = running_median(y, 2 * half + 1)
    residual = y - level
    z = residual / np.maximum(_noise(y, residual), max(rule.floor, printed_unit(y)))
    high = z > bar * OVER_SIGMA
    over = np.flatnonzero(high | (rule.ratio_alone & (residual > bar * math.log(rule.tower))))
    if not len(over):
        return []
    usual, low = _usual(z), np.flatnonzero(z <= TAIL_SIGMA)
    groups = np.split(over, np.flatnonzero(np.diff(over) > GAP_ROWS) + 1)
    heights = sorted((float(residual[group].max()) for group in groups), reverse=True)
    # The burst itself is among them: where it is the highest, this is its third companion at least.
    rank = max(COMMON_BURSTS, int(COMMON_SHARE * len(y)))
    common = heights[rank] if len(heights) > rank else 0.0
    bursts: list[_Burst] = []
    for group in groups:
        first, last = int(group[0]), int(group[-1])
        peak = int(group[np.argmax(residual[group])])
        height = float(residual[peak])
        # At the very start there are no rows before the burst; those before its peak must do.
        began = first if first >= LASTING_ROWS else peak
        before = y[max(0, began - PAST_ROWS) : began]
        rose = len(before) >= LASTING_ROWS and y[peak] - float(np.median(before)) > 0.5 * height
        bursts.append(
            _Burst(
                first,
                last,
                len(group),
                _tail_rows(low, peak, len(z)),
                peak,
                height,
                float(z[peak]),
                float(np.sort(z[group])[-2]) if len(group) > 1 else 0.0,
                usual,
                common,
                rose,
            )
        )
    return bursts


def _tail_rows(low: NDArray[np.intp], peak: int, num_rows: int) -> int:
    """Return the rows in one piece around a peak that are above `TAIL_SIGMA`; `low` are not."""
    at = int(np.searchsorted(low, peak))
    first = int(low[at - 1]) + 1 if at else 0
    stop = int(low[at]) if at < len(low) else num_rows
    return stop - first


def _finding(
    record: RunRecord, signal: str, kind: str, rows: NDArray[np.intp], b: _Burst
) -> Finding:
    onset, peak, end = int(rows[b.first]), int(rows[b.peak]), int(rows[b.last])
    # The level after the burst is part of the evidence, so it is seen only then.
    seen = int(rows[min(b.last + HALF_WINDOW, len(rows) - 1)])
    values = record.columns[signal].values
    around = values[rows[max(0, b.peak - HALF_WINDOW) : b.peak + HALF_WINDOW + 1]]
    value, expected = float(values[peak]), float(np.median(around))
    width = f"{b.last - b.first + 1} rows" if b.last > b.first else "one row"
    return finding_at(
        record,
        detector="hindsight",
        kind=kind,
        signal=signal,
        severity="warning",
        row=seen,
        onset_row=onset,
        peak_row=peak,
        end_row=end,
        value=value,
        expected=expected,
        score=b.z,
        closed=True,
        text=(
            f"{SIGNAL_BY_NAME[signal].name} {expected:.4g} → {value:.4g} ({sigmas(b.z)}), {width}"
            " (in hindsight)"
        ),
    )
