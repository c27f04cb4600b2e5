"""Shifts and rough starts that later rows do not bear out: notes, in hindsight.

A streaming rule tells a shift from the rows before it and one or two blocks. Once the rows after it
are there, the claim can be tested: the level of the next rows against that of as many rows before,
in units of what the level of this run does between two neighboring stretches of that length anyway
(the noise of real losses is not stationary: data of another kind passes, the learning rate moves):

    step[k] = median of stretch k+1 - median of stretch k, over the whole attempt
    z       = (after - before - median step) / (1.4826 MAD(step))

A shift that stays below `BORNE_OUT_SIGMA` at each length that can be judged asked nobody to act,
unless it stands: by `STANDS_OUT` of the level, and to the end no block of 16 rows, four of them at
least, comes down to half of it. Few stretches, the descent among them, make `z` small.
A climb in the first rows of a run is held against the noise of the rows after it, as
`rough_start` holds it against that of the first ones. Blind where fewer than eight stretches are
there. Only shifts: a divergence and a drift are told from many blocks already. A rise within the
span of a divergence is part of that climb, and the rows before it are no level to compare with.
A divergence that was still moving when it was told, and then stands on one level to the end, says
how long. Overfitting of which validation has come back, to within a quarter of its rise, is over.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.rough_start import log_noise, rises_above_noise
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma

__all__ = ["as_borne_out"]

STRETCHES = (64, 256)
"""Rows that are compared; a shift holds for one block of 16 rows at least, mostly for more."""
LEAST_STRETCHES = 8
BORNE_OUT_SIGMA = 3.0
STANDS_OUT, BLOCK_ROWS, LEAST_BLOCKS = 0.1, 16, 4
"""Ours."""
NOISE_ROWS = 128
"""After a rough start, of which the noise is taken. Ours."""
STANDS_ROWS = 128
"""Fewest rows behind a climb that show a level, cut into eight. Ours."""
STANDS_SHARE = 0.15
"""Of the climb, by which the level may move over them. Ours."""
LAST_CHECKS, LEFT_OVER = 3, 0.25
"""Validations that show where it ends, and what may be left of a rise. Ours."""
CLIMB_ROWS = 32
"""Of a rough start, which say how high it was; it may wear off over the rows after them. Ours."""


def as_borne_out(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, shifts of the loss that later rows contradict among them as notes."""
    climbs = [f for f in findings if f.kind == "divergence" and f.signal == "loss"]
    return tuple(
        replace(f, severity="info", text=f"{f.text}; the rows after it do not bear it out")
        if (_is_shift(f) and not _climbs_on(f, climbs) and not _holds(record, f))
        or (f.detector.startswith("rough-start-") and not _is_rough(record, f))
        else _as_it_stands(record, f)
        if not _comes_back(record, f)
        else replace(f, severity="info", text=f"{f.text}; that is over")
        for f in findings
    )


def _comes_back(record: RunRecord, f: Finding) -> bool:
    """Whether validation that had turned ends about where it was lowest."""
    if f.detector != "overfitting" or f.severity == "info" or f.signal not in record.columns:
        return False
    column = record.columns[f.signal]
    values = column.values[column.finite_rows(record.rows_of(int(record.attempt[f.onset_row])))]
    last = values[-LAST_CHECKS:]
    most = f.expected + LEFT_OVER * (f.value - f.expected)
    return len(last) == LAST_CHECKS and float(np.median(last)) <= most


def _as_it_stands(record: RunRecord, f: Finding) -> Finding:
    """Return a climb whose text says where it ended, if the rows behind it stand on one level."""
    text, moving, _ = f.text.partition(", still ")
    if not (f.kind == "divergence" and f.signal == "loss" and moving):
        return f
    column = record.columns["loss"]
    later = column.values[
        column.finite_rows(slice(f.row + 1, record.rows_of(int(record.attempt[f.row])).stop))
    ]
    if len(later) < STANDS_ROWS:
        return f
    levels = [float(np.median(part)) for part in np.array_split(later, 8)]
    # The first of them may hold the rest of the climb.
    if np.ptp(levels[1:]) > STANDS_SHARE * abs(float(np.median(levels)) - f.expected):
        return f
    level = f"{float(np.median(levels)):.4g} over the last {len(later)} rows"
    return replace(f, text=f"{text}, then it stands at {level}")


def _is_shift(f: Finding) -> bool:
    return (
        f.kind == "shift"
        and f.signal == "loss"
        and f.severity != "info"
        and f.detector.startswith(("level-", "creep-"))
    )


def _climbs_on(f: Finding, climbs: Sequence[Finding]) -> bool:
    """Whether a shift is a rise on the way up of a divergence."""
    return f.direction == "up" and any(d.onset_row <= f.onset_row <= d.row for d in climbs)


def _holds(record: RunRecord, f: Finding) -> bool:
    """Whether some length shows the shift, or none can be judged."""
    rows = record.columns["loss"].finite_rows(record.rows_of(int(record.attempt[f.onset_row])))
    values = record.columns["loss"].values[rows]
    at = int(np.searchsorted(rows, f.onset_row))
    if f.direction == "up" and _stands_to_the_end(values[at:], f):
        return True
    judged = [z for n in STRETCHES if (z := _z(values, at, n, up=f.direction == "up")) is not None]
    return not judged or max(judged) > BORNE_OUT_SIGMA


def _stands_to_the_end(later: NDArray[np.float64], f: Finding) -> bool:
    """Whether all that follows lies high above the level before a shift."""
    rise = f.value - f.expected
    num = len(later) // BLOCK_ROWS
    if num < LEAST_BLOCKS or rise < STANDS_OUT * abs(f.expected):
        return False
    blocks = np.median(later[len(later) - num * BLOCK_ROWS :].reshape(num, BLOCK_ROWS), axis=1)
    return bool(blocks.min() > f.expected + rise / 2)


def _is_rough(record: RunRecord, f: Finding) -> bool:
    """Whether a rough start stands out of the noise of the rows after it, or they are too few."""
    values = record.columns["loss"].values
    rows = record.columns["loss"].finite_rows(record.rows_of(int(record.attempt[f.onset_row])))
    first, end = np.searchsorted(rows, [f.onset_row, (f.end_row or f.row) + 1])
    later = values[rows[end : end + NOISE_ROWS]]
    if len(later) < NOISE_ROWS // 4:
        return True
    climb = values[rows[first : min(end, first + CLIMB_ROWS)]]
    return rises_above_noise(climb, f.expected, log_noise(later))


def _z(values: NDArray[np.float64], at: int, num: int, *, up: bool) -> float | None:
    """Return how far the level rose at a row, in moves of this run; None where it is not known."""
    # A quarter later: the block in which a shift is dated may hold rows from before it.
    before, after = values[max(0, at - num) : at], values[at + num // 4 : at + num // 4 + num]
    if len(values) < LEAST_STRETCHES * num or min(len(before), len(after)) < num // 2:
        return None
    edges = np.linspace(0, len(values), len(values) // num + 1).astype(np.intp)
    steps = np.diff([float(np.median(values[a:b])) for a, b in pairwise(edges)])
    trend = float(np.median(steps))
    rise = float(np.median(after)) - float(np.median(before)) - trend
    return (rise if up else -rise) / max(mad_sigma(steps, center=trend), 1e-12)
