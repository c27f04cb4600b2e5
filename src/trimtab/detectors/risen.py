"""A loss that lies higher for good in a log of 64 to 4,096 rows, though no row is far out.

Blocks of 16 rows need many blocks to know their noise, and swells need an edge. Here both sides of
every row are compared as wholes, in windows of m = 32, 64, 128 and 256 rows, by the G of `two_sides`.

An alarm needs G above the bar of its window, a rise of twice any rise before it in the run, of the
row noise and of 2 % of the level; and the rows to the end must keep half of it. Where a level lasts
is all that it tells: one that falls back is `swells`'. Blind in the first and the last 32 rows. A
loss that changes its sign again and again is a difference of two terms that follow each other, as
of an energy model or a critic: its level says nothing, and it is not judged.

The windows and bars are ours.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.two_sides import TwoSides
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma

__all__ = ["risen_findings"]

Floats = NDArray[np.float64]
BARS = {32: 200.0, 64: 150.0, 128: 125.0, 256: 125.0}
"""Largest G that is noise, by the rows of its window. Together with the conditions below, 99 % of
random stretches of 100 to 200 rows of real logs stay below, those with a true change included."""
MOST_ROWS = 4096
OVER_EARLIER = 2.0
LEAST_SHARE = 0.02
"""Of the level. As in `swells`."""
SIGN_SHARE = 0.25
"""Of the rows, at which a loss changes its sign: far more than one that passes 0. Ours."""
_MOST_MOVED = 64
"""Rows by which the place may be later than sums say: a spike there widens both sides."""
NEGLIGIBLE = 1e-3
"""Of the first losses: below that a change does not matter. As in `hindsight`."""


def risen_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the row of each attempt from which on the loss lies higher, to its end."""
    column = record.columns.get("loss")
    if column is None:
        return ()
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        rows = column.finite_rows(record.rows_of(index))
        if 2 * min(BARS) <= len(rows) <= MOST_ROWS:
            y = column.values[rows]
            if np.mean(np.diff(np.signbit(y))) < SIGN_SHARE:
                found += _of(record, rows, y)
    return tuple(found)


def _of(record: RunRecord, rows: NDArray[np.intp], y: Floats) -> list[Finding]:
    sums = TwoSides(y)
    noise = difference_sigma(np.diff(y, 2), order=2)
    least = NEGLIGIBLE * float(np.abs(y[:8]).max())
    best = (0.0, 0, 0, 0.0, 0.0)
    for m, bar in BARS.items():
        if 2 * m > len(y):
            break
        at = np.arange(m, len(y) - m + 1)
        rise, g = sums.change(at, m)
        level = sums.mean(at - m, at)
        # What is an edge of this window to a rise is no rise before it.
        highest = np.maximum.accumulate(np.maximum(rise, 0.0))
        earlier = np.concatenate((np.zeros(2 * m), highest))[: len(rise)]
        enough = np.maximum(np.maximum(LEAST_SHARE * np.abs(level), least), noise)
        kept = level + 0.5 * rise
        to_end = sums.mean(at, np.full_like(at, len(y)))
        over = (g > bar) & (rise > OVER_EARLIER * earlier) & (rise > enough)
        over &= (to_end > kept) & (float(y[-m:].mean()) > kept)
        if over.any():
            k = int(np.argmax(np.where(over, g / bar, 0.0)))
            best = max(best, (float(g[k] / bar), int(at[k]), m, float(level[k]), float(rise[k])))
    over_bar, k, m, level_before, rise_by = best
    if not k:
        return []
    onset = k + _parting(y[k : k + min(m, _MOST_MOVED)] > level_before + 0.25 * rise_by)
    return [
        finding_at(
            record,
            detector="risen",
            kind="shift",
            signal="loss",
            severity="warning",
            row=int(rows[k + m - 1]),
            onset_row=int(rows[onset]),
            peak_row=int(rows[onset + int(np.argmax(y[onset : k + m]))]),
            value=level_before + rise_by,
            expected=level_before,
            score=min(99.0, 6.0 * float(np.sqrt(over_bar))),
            closed=True,
            text=(
                f"loss {level_before:.4g} → {level_before + rise_by:.4g} over {m} rows on each"
                " side, to the end (in hindsight)"
            ),
        )
    ]


def _parting(risen: NDArray[np.bool_]) -> int:
    """Return the place that parts what has not risen from what has, with the fewest on a wrong side.

    Among places as good it is the first.
    """
    before = np.append(0, np.cumsum(risen))  # risen, though before the place
    behind = np.append(np.cumsum(~risen[::-1])[::-1], 0)  # not risen, though behind it
    return int(np.argmin(before[:-1] + behind[:-1]))
