"""A pace that creeps: each step takes a little longer than the one before, to the end of the log.

`pace` holds a block against the blocks before it, and moves along with what moves slowly. With y the
logarithm of the time of a step (or of one over the throughput) in `NUM_BLOCKS` blocks of an attempt,
and low the last block that is as low as the lowest, but for noise, it creeps where

    median of the last `LAST` blocks - y[low]  >=  ln `SLOWER`, and `BEYOND` times the noise of blocks,

where y rises from low on by Kendall's test, where of its moves there `UP` go up, and no two blocks hold
`AT_ONCE` of the rise, which `pace` tells, and the last half of them holds `LATE` of it. Something is kept from step to step, fragments, or heats up.

In hindsight. Blind to what comes back before the end, and to a log that states what changed: longer
sequences cost time by design, as do the longer episodes of an agent.
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.silence import OF_AN_AGENT
from trimtab.detectors.stated_changes import OF_PACE
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import number
from trimtab.trend import kendall_score

__all__ = ["pace_creeps_findings"]

Floats = NDArray[np.float64]

NUM_BLOCKS, MIN_ROWS = 32, 256
LAST = 3
SLOWER, BEYOND = 1.15, 6.0
TREND, UP, AT_ONCE, LATE = 4.5, 0.6, 0.4, 0.3
FEW_ROWS, SLOWER_OF_FEW, LATE_OF_FEW = 32, 2.0, 0.25
"""Rows from which on a log is judged; and where they are fewer than `MIN_ROWS`, times that it must slow
down, and what the last half holds. Their single moves are noise."""
LEAST_BLOCKS, CUT = 12, 4.0
"""Blocks over which it creeps. All of these are ours."""


def pace_creeps_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding for each attempt whose steps take longer and longer."""
    if any(name in record.columns for name in OF_AN_AGENT):
        return ()
    known = ("throughput", "step_time_s", "wall_time_s")
    name = next((n for n in known if n in record.columns), "")
    if not name:
        return ()
    found = (_judge(record, name, record.rows_of(i)) for i in range(len(record.attempts)))
    return tuple(f for f in found if f is not None)


def _judge(record: RunRecord, name: str, span: slice) -> Finding | None:
    column = record.columns[name]
    rows = column.finite_rows(span)
    values = column.values[rows]
    if (
        len(rows) < FEW_ROWS
        or (len(rows) < MIN_ROWS and name == "wall_time_s")
        or (name != "wall_time_s" and values.min() <= 0)
        or _states_one(record, span)
    ):
        return None
    few = len(rows) < MIN_ROWS
    edges = np.linspace(0, len(values), min(NUM_BLOCKS, len(values)) + 1).astype(np.intp)
    if name == "wall_time_s":
        blocks = _of_clock(values, record.step[rows], edges)
    else:
        y = np.log(values) * (-1 if name == "throughput" else 1)
        blocks = np.array([median(y[a:b]) for a, b in pairwise(edges.tolist())])
    if not np.isfinite(blocks).all():
        return None
    noise = difference_sigma(np.diff(blocks, 2), order=2)
    # The last of those that are as low, but for noise.
    low = int(np.flatnonzero(blocks <= blocks.min() + 2 * noise)[-1])
    since = blocks[low:]
    if len(since) < LEAST_BLOCKS:
        return None
    moves = np.diff(since)
    rise = median(since[-LAST:]) - float(since[0])
    least = math.log(SLOWER_OF_FEW if few else SLOWER)
    if rise < max(least, BEYOND * noise) or kendall_score(since) < TREND:
        return None
    late, up = (LATE_OF_FEW, 0.0) if few else (LATE, UP)
    settles = median(since[-LAST:]) - float(since[len(since) // 2]) < late * rise
    if settles or np.mean(moves > 0) < up or float((since[2:] - since[:-2]).max()) > AT_ONCE * rise:
        return None
    first = int(rows[edges[low + 1]])
    way = -1.0 if name == "throughput" else 1.0
    before, now = math.exp(way * float(since[0])), math.exp(way * median(since[-LAST:]))
    return finding_at(
        record,
        detector="pace-creeps",
        kind="slowdown",
        signal="step_time_s" if name == "wall_time_s" else name,
        severity="warning",
        row=int(rows[-1]),
        onset_row=first,
        value=now,
        expected=before,
        score=min(99.0, rise / max(noise, 1e-6)),
        direction="down" if name == "throughput" else "up",
        closed=True,
        text=(
            f"each step takes longer than the one before: {number(math.exp(rise), digits=3)} times as"
            f" long in the end as at {record.axis} {record.step[rows[edges[low]]]:g} (in hindsight)"
        ),
    )


def _of_clock(clock: Floats, steps: Floats, edges: NDArray[np.intp]) -> Floats:
    """Return the logarithms of the mean time of a step in each block, by what rows begin with.

    Clocks tick in whole seconds, so a median of single rows is coarse; pauses are cut to `CUT` times
    what is usual in the block.
    """
    took, moved = np.diff(clock), np.diff(steps)
    blocks = np.full(len(edges) - 1, np.nan)
    for k, (a, b) in enumerate(pairwise(edges.tolist())):
        t, n = took[a : b - 1], moved[a : b - 1]
        if len(t) and (t >= 0).all() and (n > 0).all():
            most = CUT * max(float(np.median(t)), float(t.mean()) / 2)
            total = float(np.minimum(t, most).sum())
            blocks[k] = math.log(total / float(n.sum())) if total > 0 else np.nan
    return blocks


def _states_one(record: RunRecord, span: slice) -> bool:
    """Whether a setting that costs time changes in these rows."""
    for name in OF_PACE:
        column = record.columns.get(name)
        if column is not None:
            values = column.values[column.finite_rows(span)]
            if len(values) and values.min() != values.max():
                return True
    return False
