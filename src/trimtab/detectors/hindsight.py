"""Bursts in hindsight: what a signal did against its own level before *and* after.

A streaming rule has no past at the start of a log, lags behind a level that falls, and cannot know
whether an outlier will stay alone. Once the rows are there, each is held against the median of the
rows around it, on a log scale (ratios, so no unit matters):

    r[t]  = y[t] - median y[t-30 .. t+30]
    sigma = 1.4826 median |r| over some 300 rows around, so autocorrelated noise is priced in
    z[t]  = r[t] / max(sigma, floor)

Rows with z > 5 that stand close together are one burst. A burst is an alarm

* if it lasts: three rows or more, peak z > 8. Rows of heavy-tailed data noise stand alone;
* if it towers: a norm 30 times, a loss 3 times its level. Where the same run had several such rows
  alone, they are its way: a tower must be twice as high as the third highest of all others.

and only if the signal rose into it from the rows before, so that the descent at the start of a run
is none; a norm that towers in the very first rows needs no past. A norm alone is a warning at most.
Blind to a change that lasts more than about 25 rows: see `level`. Nothing here is seen online, and
every finding says that it was seen in hindsight.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["hindsight_findings"]

Floats = NDArray[np.float64]

MIN_ROWS = 30
"""Shorter attempts are left to `excerpt`."""
HALF_WINDOW = 30
NOISE_BLOCK = 64
OVER_SIGMA = 5.0
PEAK_SIGMA = 8.0
"""As in `spike`: published healthy runs stay below 4.5."""
LASTING_ROWS = 3
GAP_ROWS = 3
"""Rows over that stand this close are one burst."""
PAST_ROWS = 8
TOWER_RANK = 3
"""Outliers that a run may have before they count as its way."""
TOWER_FACTOR = 2.0


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


_RULES = {
    "loss": _Rule("spike", "spike", 4e-3, 3.0, 1.02),
    "grad_norm": _Rule("grad-spike", "grad-explosion", 0.05, 30.0, 3.0),
}


@dataclass(frozen=True)
class _Burst:
    """Positions among the finite rows of an attempt, first to last, and its height in log units."""

    first: int
    last: int
    num_over: int
    peak: int
    height: float
    z: float
    level: float
    rose: bool
    lasting: bool = False


def hindsight_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the bursts of loss and grad norm that are alarms, attempt by attempt."""
    findings: list[Finding] = []
    for signal, rule in _RULES.items():
        column = record.columns.get(signal)
        if column is None:
            continue
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            values = column.values[span]
            good = column.present[span] & np.isfinite(values) & (values > 0)
            rows = np.flatnonzero(good) + span.start
            if len(rows) < max(MIN_ROWS, int(column.present[span].sum()) // 2):
                continue  # too few, or a signal that may be negative: ratios say nothing
            for burst in _alarms(np.log(column.values[rows]), rule):
                findings.append(_finding(record, signal, rule, rows, burst))
    return tuple(findings)


def _alarms(y: Floats, rule: _Rule) -> list[_Burst]:
    """Return the bursts of one signal that last or tower."""
    level = _level(y)
    residual = y - level
    z = residual / np.maximum(_noise(residual), rule.floor)
    bursts = _bursts(y, level, z)
    heights = sorted((b.height for b in bursts), reverse=True)
    chosen: list[_Burst] = []
    for b in bursts:
        lasting = b.num_over >= LASTING_ROWS and b.height > math.log(rule.lasting) and b.rose
        usual = heights[TOWER_RANK] if len(heights) > TOWER_RANK else 0.0
        early = rule.tower >= 10 and b.first < PAST_ROWS
        tower = b.height > math.log(rule.tower) and b.height > usual + math.log(TOWER_FACTOR)
        if (lasting and b.z > PEAK_SIGMA) or (tower and (b.rose or early)):
            chosen.append(replace(b, lasting=lasting))
    return chosen


def _level(y: Floats) -> Floats:
    """Return the median of the rows around each row; fewer at the ends."""
    padded = np.concatenate([np.full(HALF_WINDOW, np.nan), y, np.full(HALF_WINDOW, np.nan)])
    windows = sliding_window_view(padded, 2 * HALF_WINDOW + 1)
    level = np.median(windows, axis=1)  # NaN at the ends
    for i in (*range(min(HALF_WINDOW, len(y))), *range(max(0, len(y) - HALF_WINDOW), len(y))):
        level[i] = np.median(y[max(0, i - HALF_WINDOW) : i + HALF_WINDOW + 1])
    return np.asarray(level)


def _noise(residual: Floats) -> Floats:
    """Return the robust spread around each row: the median over five blocks."""
    num = max(1, len(residual) // NOISE_BLOCK)
    blocks = [1.4826 * float(np.median(np.abs(b))) for b in np.array_split(residual, num)]
    spread = [float(np.median(blocks[max(0, i - 2) : i + 3])) for i in range(num)]
    lengths = [len(b) for b in np.array_split(residual, num)]
    return np.repeat(np.array(spread), lengths)


def _bursts(y: Floats, level: Floats, z: Floats) -> list[_Burst]:
    over = np.flatnonzero(z > OVER_SIGMA)
    if not len(over):
        return []
    bursts: list[_Burst] = []
    for group in np.split(over, np.flatnonzero(np.diff(over) > GAP_ROWS) + 1):
        first, last = int(group[0]), int(group[-1])
        peak = int(group[np.argmax((y - level)[group])])
        height = float(y[peak] - level[peak])
        before = y[max(0, first - PAST_ROWS) : first]
        rose = len(before) >= LASTING_ROWS and y[peak] - float(np.median(before)) > 0.5 * height
        bursts.append(
            _Burst(
                first, last, len(group), peak, height, float(z[peak]), float(level[peak]), rose
            )
        )
    return bursts


def _finding(
    record: RunRecord, signal: str, rule: _Rule, rows: NDArray[np.intp], b: _Burst
) -> Finding:
    onset, peak, end = int(rows[b.first]), int(rows[b.peak]), int(rows[b.last])
    seen = int(rows[min(b.last + HALF_WINDOW, len(rows) - 1)])
    value, expected = float(record.columns[signal].values[peak]), math.exp(b.level)
    width = f"{b.last - b.first + 1} rows" if b.last > b.first else "one row"
    return Finding(
        detector="hindsight",
        kind=rule.lasting_kind if b.lasting else rule.kind,
        signal=signal,
        severity="warning",
        row=seen,
        step=float(record.step[seen]),
        onset_row=onset,
        onset=float(record.step[onset]),
        peak_row=peak,
        peak=float(record.step[peak]),
        end_row=end,
        end=float(record.step[end]),
        value=value,
        expected=expected,
        score=b.z,
        closed=True,
        text=f"{SIGNAL_BY_NAME[signal].name} {expected:.4g} → {value:.4g} ({b.z:.0f} sigma), {width} (in hindsight)",
    )
