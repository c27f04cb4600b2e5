"""A reward that was learned and sinks again, to the end of the log, without having settled yet.

`domain_signs` tells a reward that has come to rest far below what it had reached. One that still
sinks is told by its whole course: with b the means of up to `BLOCKS` blocks of an attempt, k the
block where their running median is highest, and u the curve nearest to them that rises to k and
falls behind it (isotonic regression on both sides),

    rose = b[k] - first,  lost = b[k] - last,  sigma = spread of b about u
    rose and lost >= `SURE` sigma,  lost >= `LOST` rose,  and b[k:] falls by Kendall's test

Rewards that wander, AR(1) of up to .98 about one level or about a curve of learning, come to such a
`SURE` in 1 of 100 series of 120 rows and in fewer of longer ones; a random walk does in 1 of 50. Not told of what sinks by
design (`by_design`). In hindsight, of `FEWEST` rows and more, where no sign of those tells the same. It dates from the last block
that lies within `BEGUN` of what is lost. Blind to a fall within the last tenth of the rows.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.by_design import unless_designed
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import number
from trimtab.trend import kendall_score

__all__ = ["with_reward_sinks"]

Floats = NDArray[np.float64]

KIND = "policy-collapse"
FEWEST, BLOCKS, MOST = 96, 32, 1e100
SURE, LOST, FALLS, BEGUN = 20.0, 0.45, -2.5, 0.1
FIRST_BLOCKS, LAST_BLOCKS, EDGE = 2, 3, 3
"""Blocks that make the first and the last level, and at either end, in which no best one lies. All
bars are ours."""


def with_reward_sinks(record: RunRecord, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with the best of each attempt's rewards from which on they sink to its end."""
    column = record.columns.get("reward")
    if column is None:
        return findings
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        if any(
            f.signal == "reward" and f.kind == KIND and span.start <= f.onset_row < span.stop
            for f in findings
        ):
            continue
        rows = column.finite_rows(span)
        sunk = _sinks(column.values[rows]) if len(rows) >= FEWEST else None
        if sunk is None:
            continue
        k, first, best, last, score = sunk
        found.append(
            unless_designed(
                record,
                finding_at(
                    record,
                    detector="sign-reward-sinks",
                    kind=KIND,
                    signal="reward",
                    severity="warning",
                    row=int(rows[-1]),
                    onset_row=int(rows[k]),
                    value=last,
                    expected=best,
                    score=min(99.0, score),
                    direction="down",
                    closed=False,
                    text=(
                        f"the reward came from {number(first)} to {number(best)}, and sinks since then:"
                        f" {number(last)} at the end (in hindsight)"
                    ),
                ),
                rows[k:],
            )
        )
    return (*findings, *found)


def _sinks(y: Floats) -> tuple[int, float, float, float, float] | None:
    """Return (row, first level, best, last, score) where rewards sink from their best; else None."""
    size = float(np.abs(y).max())
    if not 0 < size < MOST:  # what is beyond it would overflow, and is told by its own rules
        return None
    edges = np.linspace(0, len(y), BLOCKS + 1).astype(np.intp)
    b = np.array([float(y[i:j].mean()) for i, j in pairwise(edges)])
    smooth = np.array([median(b[max(0, i - 1) : i + 2]) for i in range(len(b))])
    k = int(np.argmax(smooth[:-EDGE]))
    first, best, last = median(b[:FIRST_BLOCKS]), float(smooth[k]), median(b[-LAST_BLOCKS:])
    rose, lost = best - first, best - last
    if k < EDGE or lost < LOST * rose or kendall_score(b[k:]) > FALLS:
        return None
    rest = b - np.concatenate([_rising(b[: k + 1]), -_rising(-b[k + 1 :])])
    # A third of the blocks are left once the curve has taken its own levels.
    sigma = max(float(np.sqrt((rest**2).sum() / (len(b) / 3))), 1e-3 * float(np.ptp(b)))
    score = min(rose, lost) / max(sigma, 1e-300)
    begun = k + int(np.flatnonzero(b[k:] >= best - BEGUN * lost)[-1])
    return (int(edges[begun]), first, best, last, score) if score >= SURE else None


def _rising(values: Floats) -> Floats:
    """Return the least-squares curve through values that never falls, by pooling neighbors."""
    levels: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        levels.append(value)
        sizes.append(1)
        while len(levels) > 1 and levels[-2] > levels[-1]:
            size = sizes[-2] + sizes[-1]
            level = (levels[-2] * sizes[-2] + levels[-1] * sizes[-1]) / size
            levels[-2:], sizes[-2:] = [level], [size]
    return np.repeat(levels, sizes)
