"""Rises of the loss that come back on a schedule and wear off each time: notes, in hindsight.

A pass over the data ends, or a schedule that is not logged begins anew: the loss steps up and then
comes down over the whole round. With w rows on both sides of a row

    e[t] = mean y[t .. t+w) - mean y[t-w .. t),      y the logarithm of a loss that is positive

has a peak there. Peaks at equal distances, or each twice as far as the one before (warm restarts
with `T_mult=2`), are a comb, if three of them at least, and all but those of the first rows, stand
where they should. A rise at a tooth is a note where the tooth is like the
others: at most twice as high as they are in the middle, gone by the next one, and a quarter of a
round later still at a quarter of its height. What falls at an edge is no round: a window of bad
data that comes with every pass stays an alarm, and so does a spike at a tooth.

Blind to rounds whose length changes in another way, and to the first two of a run that grows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["Rounds", "rounds_of"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

WINDOW_ROWS = (8, 32)
WINDOW_SHARE = 64
PEAK_SIGMA = 4.0
"""Of the steps of the run, over which one is a tooth. Ours."""
LEAST_TEETH = 3
MOST_TEETH = 64
GROWTH = (1, 2)
"""Times as long as the round before it that a round may be."""
LEAST_ROUND = 6
"""In windows; shorter rounds have no shape."""
HIGHEST = 2.0
LEFT_SHARE = 0.25
"""Of a tooth, that may be left at the next one, and must be left after a quarter of a round."""


@dataclass(frozen=True)
class Rounds:
    """Teeth of one comb that are alike."""

    teeth: Rows
    """Rows of the record."""
    height: float
    """In the middle, in units of y."""
    window: int

    def explains(self, f: Finding) -> bool:
        """Whether a rise begins at a tooth."""
        near = max(self.window, f.grain_rows)
        return bool(np.any(np.abs(self.teeth - f.onset_row) <= near))


def rounds_of(record: RunRecord, attempt: int, signal: str) -> Rounds | None:
    """Return the rounds of one attempt; None where nothing comes back at equal distances."""
    column = record.columns.get(signal)
    if column is None:
        return None
    rows = column.finite_rows(record.rows_of(attempt))
    num = len(rows)
    w = int(np.clip(num // WINDOW_SHARE, *WINDOW_ROWS))
    if num < (LEAST_TEETH + 1) * LEAST_ROUND * w:
        return None
    values = column.values[rows]
    y = np.log(values) if float(values.min()) > 0 else values
    sums = np.concatenate(([0.0], np.cumsum(y)))
    level = (sums[w:] - sums[:-w]) / w
    """level[t] is of the rows t to t + w."""
    step = level[w:] - level[:-w]
    """step[t] is at row t + w."""
    peaks = _peaks(step, w)
    comb = _comb(peaks, step[peaks - w], num, w)
    if comb is None:
        return None
    teeth, lengths = comb
    heights = step[teeth - w]
    usual = median(heights)
    good = [
        t
        for t, length, height in zip(
            teeth.tolist(), lengths[: len(teeth)].tolist(), heights.tolist(), strict=True
        )
        if height <= HIGHEST * usual and _wears_off(level, t, length, w, height)
    ]
    if len(good) < LEAST_TEETH:
        return None
    return Rounds(rows[np.array(good)], usual, w)


def _peaks(step: Floats, w: int) -> Rows:
    """Return the rows of the highest steps up, each the highest within w rows."""
    bar = median(step) + PEAK_SIGMA * mad_sigma(step)
    found: list[int] = []
    for t in np.lexsort((-step,))[: MOST_TEETH * 2 * w].tolist():
        if step[t] <= bar or len(found) == MOST_TEETH:
            break
        if all(abs(t + w - p) > 2 * w for p in found):
            found.append(t + w)
    return np.array(sorted(found), dtype=np.intp)


def _comb(peaks: Rows, heights: Floats, num: int, w: int) -> tuple[Rows, Rows] | None:
    """Return (peaks on a schedule, the rounds behind them): of all such the one with most peaks."""
    best: tuple[Rows, Rows] | None = None
    for i, first in enumerate(peaks.tolist()):
        for other in peaks[i + 1 :].tolist():
            if other - first < LEAST_ROUND * w:
                continue
            for growth in GROWTH:
                lengths = (other - first) * growth ** np.arange(num // w if growth == 1 else 20)
                wanted = first + np.concatenate(([0], np.cumsum(lengths)))
                wanted = wanted[wanted < num - w]
                at = np.abs(peaks[:, None] - wanted).argmin(axis=0)
                there = np.abs(peaks[at] - wanted) <= w
                if len(wanted) < LEAST_TEETH or not there.all():
                    continue
                # Three peaks of many are so by chance where rounds grow: there is no other, then.
                others = np.delete(heights[i:], at - i)
                if growth > 1 and others.max(initial=0.0) > 0.5 * median(heights[at]):
                    continue
                if best is None or len(wanted) > len(best[0]):
                    best = peaks[at], lengths
    return best


def _wears_off(level: Floats, tooth: int, length: int, w: int, height: float) -> bool:
    """Whether a tooth comes down over its round; one of which half is still to come may do so."""
    before, end = level[tooth - w], tooth + length - w
    quarter = tooth + length // 4
    if quarter >= len(level) or tooth + length // 2 >= len(level):
        return bool(level[tooth:].max() <= before + HIGHEST * height)
    last = level[min(end, len(level) - 1)]
    healed = end >= len(level) or last <= before + LEFT_SHARE * height
    return bool(healed and level[quarter] - last >= LEFT_SHARE * (level[tooth] - last))
