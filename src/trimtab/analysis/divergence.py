"""Where two runs part: the first logged value that differs, and where one is worse beyond noise.

Two questions, two measures. *Identical until where* is asked of every signal that both log, row by
row at equal steps. *Worse from where* is asked of the losses, which differ by noise as soon as the
data comes in another order:

    gap[t]   = b[t] - a[t]                                  at the steps that both log
    g[k]     = median of the k-th block of m gaps           m = n / 30, from 4 to 64 rows
    sigma    = 1.4826 median |g[k+1] - g[k]| / sqrt(2)
    apart    : |g[k]| > max(5 sigma, noise of one row / 2) + what a falls within a block

in two blocks in a row at least, or

    apart    : |g[k]| > 2 sigma + the same                  on one side in the whole last quarter,
               |median g[k]| > 5 times the sigma of that quarter, and noise of one row / 2

so that a spike that one run had before, which is in sigma, hides no gap that stays. The last term
keeps the first steep rows of two runs, which are a few rows apart in time, from being told as a
difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.other_columns import MEMORY
from trimtab.record import RunRecord
from trimtab.signals.robust import block_median_sigma, difference_sigma, mad_sigma, running_median
from trimtab.text import OTHER

__all__ = [
    "FEWEST_CHECKS",
    "MIN_ROWS",
    "SETTING_SIGNALS",
    "FirstDifference",
    "Parting",
    "SignalDifference",
    "apart_at_end",
    "common_rows",
    "find_partings",
    "first_difference",
    "measured_by_both",
]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
What = Literal["settings", "data", "signal"]

SETTING_SIGNALS = ("lr", "batch_size", "weight_decay", "beta1", "beta2", "adam_eps")
"""Logged signals that are set, not measured: where they differ, a setting differs."""
_DATA_SIGNALS = ("samples_seen", "tokens_seen")
_CLOCKS = frozenset({"step_time_s", "data_time_s", "wall_time_s", "throughput", "host_memory_gib"})
"""What differs between two runs of the same program on the same machine."""
_SAME = 1e-7
"""Relative difference of one number printed from float32 and from float64."""
_MOST_BLOCKS = 30
_SIGMAS = 5.0
"""Of 30 independent Gaussian blocks the largest lies below 4.2 in 99.9 of 100 pairs; the rest is
for the spread being estimated from 30 differences."""
_ROW_SHARE = 0.5
"""Less than half the noise of a row is what two seeds of one run may differ by. Ours."""
_FEWEST_AT_END = 6
"""Fewer blocks in the last quarter lie on one side by chance where neighbors go together. Ours."""
MIN_ROWS = 16
"""Fewer common rows have no noise to compare with, block by block."""
_FEW_ROWS = 64
_FEWEST_PRINTED = 8
"""Fewer distinct values do not tell how many digits are printed: 0.001 may be all of them. Ours."""
FEWEST_CHECKS = 6
"""Of a signal that is logged seldom, such as validation."""


@dataclass(frozen=True)
class SignalDifference:
    """One signal at the first step at which anything differs."""

    signal: str
    a: float
    b: float

    @property
    def ratio(self) -> float | None:
        """B over a; None where that is no number."""
        return self.b / self.a if self.a and np.isfinite([self.a, self.b]).all() else None


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """How long two runs log the same, and what differs first."""

    num_rows: int
    """Steps that both log."""
    identical_rows: int
    """How many of them are alike before anything differs."""
    identical_until: float | None
    """The last of those; None where the first common step differs."""
    at: float | None
    """First step at which something differs; None: nothing does."""
    signals: tuple[SignalDifference, ...] = ()
    """What differs there, settings first, then counters of data."""
    later: tuple[tuple[str, float], ...] = ()
    """(signal, first step at which it differs) of the others that differ, in order."""
    settings: tuple[tuple[str, float, float, float], ...] = ()
    """(signal, step, a, b) of every logged setting, where it first differs."""
    compared: frozenset[str] = frozenset()
    """The signals that both log at a common step; all else was not compared."""

    @property
    def since(self) -> dict[str, float]:
        """Signal -> the first step at which it differs, of those that differ."""
        here = {} if self.at is None else {s.signal: self.at for s in self.signals}
        return {**here, **dict(self.later)}

    @property
    def what(self) -> What | None:
        """Settings, data, or another signal; None where nothing differs."""
        names = {s.signal for s in self.signals}
        if not names:
            return None
        if names & set(SETTING_SIGNALS):
            return "settings"
        return "data" if names & set(_DATA_SIGNALS) else "signal"


@dataclass(frozen=True, kw_only=True)
class Parting:
    """A stretch of common rows in which one loss lies above the other beyond noise."""

    first: int
    """Index among the common rows."""
    last: int
    peak: int
    gap: float
    """Median of b - a over the stretch, in the units of the loss."""
    lasts: bool
    """Whether it goes on to the last common row."""
    score: float
    """The same over the noise of a block."""


def common_rows(
    a: RunRecord, b: RunRecord, rows_a: Rows, rows_b: Rows
) -> tuple[Floats, Rows, Rows]:
    """Return (steps that both log, the rows of a there, the rows of b there), steps rising.

    Of a step that one side logs twice the last row counts.
    """
    one = {float(s): int(r) for s, r in zip(a.step[rows_a].tolist(), rows_a.tolist(), strict=True)}
    two = {float(s): int(r) for s, r in zip(b.step[rows_b].tolist(), rows_b.tolist(), strict=True)}
    steps = sorted(one.keys() & two.keys())
    return (
        np.array(steps, dtype=np.float64),
        np.array([one[s] for s in steps], dtype=np.intp),
        np.array([two[s] for s in steps], dtype=np.intp),
    )


def first_difference(
    a: RunRecord, b: RunRecord, steps: Floats, rows_a: Rows, rows_b: Rows
) -> FirstDifference | None:
    """Return what differs first over the common rows; None without a common row.

    A value that one side did not log is no difference. NaN equals NaN, and Inf equals the same Inf
    only: neither is near any number. Cost: O(n) for each signal of both.
    """
    if not len(steps):
        return None
    first: dict[str, int] = {}
    compared = []
    for name in _logged_by_both(a, b):
        both, differs = _differs(a, b, name, rows_a, rows_b)
        if both.any():
            compared.append(name)
        if differs.any():
            first[name] = int(np.argmax(differs))
    order = [*SETTING_SIGNALS, *_DATA_SIGNALS]

    def values(name: str, i: int) -> tuple[float, float]:
        return (
            float(a.columns[name].values[rows_a[i]]),
            float(b.columns[name].values[rows_b[i]]),
        )

    def place(name: str) -> tuple[int, int, str]:
        return (first[name], order.index(name) if name in order else len(order), name)

    names = sorted(first, key=place)
    at = min(first.values(), default=len(steps))
    return FirstDifference(
        num_rows=len(steps),
        identical_rows=at,
        identical_until=float(steps[at - 1]) if at else None,
        at=float(steps[at]) if at < len(steps) else None,
        signals=tuple(SignalDifference(n, *values(n, at)) for n in names if first[n] == at),
        later=tuple((n, float(steps[first[n]])) for n in names if first[n] > at),
        settings=tuple(
            (n, float(steps[first[n]]), *values(n, first[n])) for n in SETTING_SIGNALS if n in first
        ),
        compared=frozenset(compared),
    )


def measured_by_both(a: RunRecord, b: RunRecord) -> set[str]:
    """Return the signals that both log and nobody set: no setting, no counter, no clock."""
    return _logged_by_both(a, b) - {*SETTING_SIGNALS, *_DATA_SIGNALS}


def _logged_by_both(a: RunRecord, b: RunRecord) -> set[str]:
    """Return the signals to compare: those that both logged, not what is worked out of them."""
    both = a.columns.keys() & b.columns.keys() - _CLOCKS
    keys = a.keys.keys() & b.keys.keys()
    named = both & keys if keys else set(both)
    return {n for n in named if not (n.startswith(OTHER) and MEMORY.search(n.lower()))}


def _differs(
    a: RunRecord, b: RunRecord, name: str, rows_a: Rows, rows_b: Rows
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (rows in which both log a signal, those of them in which it differs)."""
    one, two = a.columns[name], b.columns[name]
    x, y = one.values[rows_a], two.values[rows_b]
    both = one.present[rows_a] & two.present[rows_b]
    # A log of four decimals and one of eight are alike where the longer rounds to the shorter.
    digits = (_decimals(x[both]), _decimals(y[both]))
    rounding = 0.5000001 * 10.0 ** -min(digits) if digits[0] != digits[1] else 0.0
    printed = _printed_rounding(x, y, both)
    with np.errstate(invalid="ignore", over="ignore"):  # Inf - Inf
        limit = np.maximum(_SAME * np.maximum(np.abs(x), np.abs(y)), np.maximum(rounding, printed))
        near = np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) <= limit)
    same = near | (x == y) | (np.isnan(x) & np.isnan(y))
    return both, np.asarray(both & ~same)


def _printed_rounding(x: Floats, y: Floats, both: NDArray[np.bool_]) -> Floats:
    """Return half the last digit of the side that prints fewer digits of a number, as `1.05e-03`.

    Zero where both print as many, or too few values differ to tell.
    """
    digits = (_significant(x[both]), _significant(y[both]))
    if digits[0] == digits[1]:
        return np.zeros(len(x))
    short = np.abs(x if digits[0] < digits[1] else y)
    usable = np.isfinite(short) & (short > 0)
    place = np.floor(np.log10(np.where(usable, short, 1.0))) - min(digits) + 1
    return np.where(usable, 0.5000001 * 10.0**place, 0.0)


def _significant(values: Floats) -> int:
    """Return the digits of a number from its first on, 9 for more than 8 or where it is not clear."""
    finite = np.abs(values[np.isfinite(values) & (values != 0)][:256])
    if len(np.unique(finite)) < _FEWEST_PRINTED:
        return 9
    place = np.floor(np.log10(finite))
    for digits in range(2, 9):
        unit = 10.0 ** (place - digits + 1)
        if np.allclose(finite, np.round(finite / unit) * unit, rtol=1e-12, atol=0.0):
            return digits
    return 9


def _decimals(values: Floats) -> int:
    """Return the decimals with which values were printed, 9 for more than 8."""
    finite = values[np.isfinite(values)][:256]
    for digits in range(9):
        if np.allclose(finite, np.round(finite, digits), rtol=1e-12, atol=0.0):
            return digits
    return 9


def find_partings(a: Floats, b: Floats, *, skip: int = 0) -> tuple[tuple[Parting, ...], float]:
    """Return (the stretches in which b lies above or below a beyond noise, the noise of a block).

    Args:
        a: float64 [n], losses of the one run at common steps.
        b: float64 [n], of the other; rows in which either is not finite are left out.
        skip: First row whose gap counts for the noise: before it the runs were identical.

    Cost: O(n log n).
    """
    kept = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    kept = kept[kept >= skip]
    n = len(kept)
    if n < MIN_ROWS:
        return (), float("nan")
    gap = b[kept] - a[kept]
    size = int(np.clip(n // _MOST_BLOCKS, 4, 64))
    num = n // size
    blocks = gap[: num * size].reshape(num, size)
    level, base = np.median(blocks, axis=1), np.median(a[kept][: num * size].reshape(num, size), 1)
    sigma = max(block_median_sigma(gap, size), _rounding(a[kept]))
    row = difference_sigma(np.diff(gap)) if n > 2 else 0.0
    falls = np.abs(np.gradient(base)) if num > 1 else np.zeros(num)
    # In steep rows alone: the slope of a settled loss within a block is part of its noise.
    steep = np.where(falls > 3 * max(mad_sigma(falls), sigma), falls, 0.0)
    limit = max(_SIGMAS * sigma, _ROW_SHARE * row) + steep
    side = np.where(level > limit, 1, np.where(level < -limit, -1, 0))
    found = [
        _parting(gap, kept, size, start, stop, level, sigma)
        for start, stop in _runs_of(side)
        if stop - start >= 2
    ]
    if not (found and found[-1].lasts):
        beyond = np.where(np.abs(level) > 2 * sigma + steep, np.sign(level), 0.0)
        start = _start_of_end_gap(gap, level, beyond, size, _ROW_SHARE * row)
        if start is not None:
            found.append(_parting(gap, kept, size, start, num, level, sigma))
    return tuple(found), float(sigma)


_ABOUT_LINE = 1.5
"""Times what a gap of signals wanders by about a line, that counts as its noise. Ours."""


def apart_at_end(a: Floats, b: Floats, *, skip: int = 0) -> int | None:
    """Return the row from which two signals stay apart beyond noise to their end, or None.

    Of fewer than `MIN_ROWS` rows, or of up to `_FEW_ROWS` whose blocks tell nothing, the last third
    must lie on one side, its middle by 5 times the noise of a gap, which is what the gap does from
    row to row, but for its largest step.

    Args:
        a: float64 [n], values of the one run at common steps.
        b: float64 [n], of the other.
        skip: As for `find_partings`.
    """
    kept = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    if len(kept[kept >= skip]) >= MIN_ROWS:
        partings, _ = find_partings(a, b, skip=skip)
        if partings and partings[-1].lasts:
            return partings[-1].first
        # Of a few dozen rows each block is worth a row or two: their own noise tells more.
        if len(kept) > _FEW_ROWS:
            return None
    if len(kept) < FEWEST_CHECKS:
        return None
    gap = b[kept] - a[kept]
    # Where there are enough, those of the last half: a loss that falls has less noise there.
    late = gap[len(gap) // 2 :] if len(gap) >= MIN_ROWS else gap
    steps = np.sort(np.abs(np.diff(late)))[:-1]
    sigma = max(float(np.sqrt(np.mean(steps**2) / 2)), _rounding(a[kept]), _rounding(b[kept]))
    if len(gap) >= MIN_ROWS:
        # Neighbors that go together step less than they wander: 4 times that is enough, and what
        # they wander by about a line, of a gap that grows.
        at = np.arange(len(late))
        about = float(np.std(late - np.polyval(np.polyfit(at, late, 1), at)))
        sigma = max(sigma, min(0.8 * float(np.std(late)), _ABOUT_LINE * about))
    side = np.sign(gap[-1])
    last = gap[-(len(gap) // 3 + 1) :]
    if (np.sign(last) != side).any() or abs(float(np.median(last))) <= _SIGMAS * sigma:
        return None
    near = np.flatnonzero(side * gap[: -len(last)] <= 2 * sigma)
    return int(kept[near[-1] + 1]) if len(near) else int(kept[0])


def _start_of_end_gap(
    gap: Floats, level: Floats, beyond: Floats, size: int, least: float
) -> int | None:
    """Return the block from which on a gap stays to the end; None where none does.

    Args:
        gap: float64 [n].
        level: float64 [n / size], medians of its blocks.
        beyond: float64 of the same length: on which side a block lies beyond the noise, or 0.
        size: Rows in a block.
        least: Gap that two seeds may differ by.
    """
    num = len(level)
    quarter = num // 4
    if quarter < _FEWEST_AT_END or not beyond[-1] or (beyond[-quarter:] != beyond[-1]).any():
        return None
    own = block_median_sigma(gap[(num - quarter) * size : num * size], size)
    if abs(float(np.median(level[-quarter:]))) <= max(_SIGMAS * own, least):
        return None
    other = np.flatnonzero(beyond != beyond[-1])
    return int(other[-1]) + 1 if len(other) else 0


def _rounding(values: Floats) -> float:
    return float(1e-9 * np.max(np.abs(values), initial=0.0))


def _runs_of(side: NDArray[np.int_]) -> Sequence[tuple[int, int]]:
    """Return (start, stop) of the runs of equal signs that are not 0; a gap of one block joins."""
    found: list[tuple[int, int]] = []
    signs: list[int] = []
    for i, sign in enumerate(side.tolist()):
        if sign == 0:
            continue
        if found and signs[-1] == sign and i - found[-1][1] <= 1:
            found[-1] = (found[-1][0], i + 1)
        else:
            found.append((i, i + 1))
            signs.append(sign)
    return found


def _parting(
    gap: Floats, kept: Rows, size: int, start: int, stop: int, level: Floats, sigma: float
) -> Parting:
    """Return a stretch of blocks with its edges found to the row."""
    sign = 1.0 if level[start] > 0 else -1.0
    smooth = sign * running_median(gap, 5)
    last_block = len(level) - 1
    lasts = stop > last_block
    # Half-way up is where the running median of a step crosses.
    up, down = sign * float(level[start]) / 2, sign * float(level[stop - 1]) / 2
    first = start * size
    # A block half of whose rows are apart may stand below the limit: the edge may lie in it.
    low = max(0, first - size)
    below = np.flatnonzero(smooth[low : first + size // 2] < up)
    first = low + int(below[-1]) + 1 if len(below) else low
    end = len(gap) - 1
    if not lasts:
        edge = stop * size - size // 2
        back = np.flatnonzero(smooth[edge : (stop + 1) * size] < down)
        end = edge + int(back[0]) - 1 if len(back) else min((stop + 1) * size, len(gap)) - 1
    end = max(end, first)
    inside = gap[first : end + 1]
    typical = float(np.median(inside))
    return Parting(
        first=int(kept[first]),
        last=int(kept[end]),
        peak=int(kept[first + int(np.argmax(sign * inside))]),
        gap=typical,
        lasts=lasts,
        score=abs(typical) / sigma if sigma > 0 else float("inf"),
    )
