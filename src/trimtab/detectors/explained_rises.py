"""Rises of the loss that the log itself explains: notes, in hindsight.

**A restart of the schedule**: where the learning rate jumps back up to one that was in force before
and then falls as slowly as schedules do, the loss rises with it and falls with it. A rise that
begins at such a restart is a note where, by the end of the cycle, the signal is back at its level
before the restart, and did not exceed its highest level before it; in a cycle that is still under
way, where the cycle before it healed and the rise is no larger than `LARGER` times what that was.

**A part that is warmed up**: a total loss = reconstruction + weight x divergence, as of a VAE,
rises while the weight does. It is a note where the reconstruction is no worse than before the rise,
and the divergence is not larger either, or its weight is logged and has risen.

Blind to a rate that is not logged. A rise that does not heal stays an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["as_explained"]

Floats = NDArray[np.float64]

KINDS = ("spike", "unrecovered-spike", "shift", "drift", "divergence", "grad-spike", "grad-drift")
SIGNALS = ("loss", "grad_norm", "perplexity")
JUMP = 1.3
"""Ratio of two rates in a row, as `lr_change` has it."""
ABOVE = 1.05
"""Over a rate that was in force: that rate again, as `lr_change` has it."""
MOST_FALL = 0.3
"""Of the height of the jump, that a rate on a schedule falls by from row to row. Ours."""
EARLY_ROWS = 32
"""By which the block that holds a restart may begin before it. Ours."""
CYCLE_SHARE = 8
"""A rise of a restart begins within the first eighth of a cycle; levels are those of an eighth."""
LARGER = 1.5
PART_ROWS = 64
"""Before a rise, that a part of the loss is compared with. Ours."""

ERRORS = 3.0
"""Standard errors by which the level of a part rises by chance."""
_NUMERIC = 1e-6


@dataclass(frozen=True)
class _Cycle:
    first: int
    """Row of the restart."""
    end: int
    falls: bool
    """The rate has fallen back as schedules do."""


def as_explained(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, rises that the rate or the parts of the loss explain as notes."""
    cycles: dict[int, list[_Cycle]] = {}
    result: list[Finding] = []
    for f in findings:
        why = ""
        rises = f.kind in KINDS and f.signal in SIGNALS and f.direction != "down"
        if rises and f.severity != "info":
            attempt = int(record.attempt[f.onset_row])
            if attempt not in cycles:
                cycles[attempt] = _cycles(record, attempt)
            if _of_a_restart(record, f, cycles[attempt]):
                why = "it rises and falls with the learning rate at a restart of the schedule"
            elif _of_a_warm_up(record, f):
                why = "the reconstruction falls on: the weight of another part of the loss rises"
        result.append(replace(f, severity="info", text=f"{f.text}; {why}") if why else f)
    return tuple(result)


def _cycles(record: RunRecord, attempt: int) -> list[_Cycle]:
    """Return the cycles that begin where the rate jumps back to one that was in force."""
    if "lr" not in record.columns:
        return []
    column = record.columns["lr"]
    rows = column.finite_rows(record.rows_of(attempt))
    rate = column.values[rows]
    if len(rate) < 2:
        return []
    highest = np.maximum.accumulate(rate)[:-1]
    jumps = (rate[1:] >= JUMP * rate[:-1]) & (rate[1:] <= ABOVE * highest) & (rate[:-1] < highest)
    at = np.flatnonzero(jumps) + 1
    found: list[_Cycle] = []
    for first, end in pairwise([*at.tolist(), len(rate)]):
        part, height = rate[first:end], float(rate[first] - rate[first - 1])
        smooth = float(np.max(-np.diff(part), initial=0.0))
        back = float(part[-1]) <= rate[first - 1] + 0.5 * height
        stop = int(rows[end]) if end < len(rows) else record.rows_of(attempt).stop
        found.append(_Cycle(int(rows[first]), stop, back and smooth <= MOST_FALL * height))
    return found


def _of_a_restart(record: RunRecord, f: Finding, cycles: Sequence[_Cycle]) -> bool:
    before: _Cycle | None = None
    for cycle in cycles:
        late = cycle.first + max(EARLY_ROWS, (cycle.end - cycle.first) // CYCLE_SHARE)
        if cycle.first - EARLY_ROWS <= f.onset_row < late and f.row >= cycle.first:
            if cycle.falls:
                return _rise(record, f, cycle, healed=True) is not None
            now = _rise(record, f, cycle, healed=False)
            usual = _rise(record, f, before, healed=True) if before and before.falls else None
            return now is not None and usual is not None and now <= LARGER * usual
        before = cycle
    return False


def _rise(record: RunRecord, f: Finding, cycle: _Cycle, *, healed: bool) -> float | None:
    """Return how far a signal rose in a cycle; None where it is more than a restart brings."""
    column = record.columns[f.signal]
    span = record.rows_of(int(record.attempt[cycle.first]))
    earlier = column.values[column.finite_rows(slice(span.start, cycle.first))]
    values = column.values[column.finite_rows(slice(cycle.first, cycle.end))]
    num = max(4, len(values) // CYCLE_SHARE)
    if len(values) < 2 * num or len(earlier) < 2 * num:
        return None
    level = median(earlier[-num:])
    noise = mad_sigma(np.diff(earlier[-num:])) / math.sqrt(2)
    if healed and median(values[-num:]) > level + 2 * noise:
        return None
    rise = _highest(values) - level
    return rise if _highest(values) <= _highest(earlier) + 2 * noise else None


def _highest(values: Floats) -> float:
    """Return the highest level: of medians of four, so that one odd row is none."""
    num = len(values) // 4
    return float(np.median(values[: 4 * num].reshape(num, 4), axis=1).max())


def _of_a_warm_up(record: RunRecord, f: Finding) -> bool:
    """Whether a part of the loss that measures what is learned falls on while the total rises."""
    if f.signal == "grad_norm" or not np.isfinite(f.value):
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    before = slice(max(span.start, f.onset_row - PART_ROWS), f.onset_row)
    stop = min(max(f.row, f.peak_row, f.onset_row + PART_ROWS) + 1, span.stop)
    during = slice(f.onset_row, stop)

    def moved(name: str) -> float | None:
        """Return how far the level of a part rose, in standard errors; None: not known."""
        column = record.columns.get(name)
        if column is None:
            return None
        old, new = (column.values[column.finite_rows(s)] for s in (before, during))
        if min(len(old), len(new)) < 4 or len(new) < int(column.present[during].sum()):
            return None
        noise = max(mad_sigma(np.diff(old)) / math.sqrt(2), _NUMERIC * float(np.abs(old).max()))
        return (median(new) - median(old)) / (1.25 * noise * math.sqrt(1 / len(old) + 1 / len(new)))

    part, other, weight = moved("recon_loss"), moved("latent_kl"), moved("kl_weight")
    falls_on = part is not None and part < ERRORS
    return falls_on and (
        (other is not None and other < ERRORS) or (weight is not None and weight > ERRORS)
    )
