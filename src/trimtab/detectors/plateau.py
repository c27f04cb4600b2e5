"""Plateaus: the loss stays flat although it should fall. Seen in hindsight only.

A flat loss is a fault only where it had reason to fall, which three things show:

* it fell again later, and steeply: a flat stretch of a sixth of the attempt or more that covers
  less than a twelfth of the whole fall, and behind it a rate at least four times its own. Where the
  validation loss fell meanwhile (by a twentieth), the run was learning: no plateau. A fall within a
  few rows is a step of another kind. The reported span is the one over which the level is constant,
  without the ends that still fall or fall again. Such a stretch is over: it is a note, and a
  warning only where it lasted for a third of the attempt or more and does not begin in its first
  tenth, so that most of what the run could have learned waited for nothing;
* it stalls late: over the last 5 % of the rows it lies flat, while the rows before it, fitted
  against the logarithm of the row, had it falling, and the learning rate is above a tenth of its
  peak;
* it stalls from the start of an attempt whose settings differ from those of its parent: the same
  test, with the rows of the parent before the resume as the rows before; or from the row at which
  a logged weight decay, or another setting of `setting_change`, moved for the last time.

Flat means less than a quarter of the expected fall, and short of it by four times what noise
explains (block medians, autocorrelation included). Needs 200 rows of the loss in the attempt for
the first rule, 64 in the flat stretch for the others. Cost: milliseconds for 100,000 rows.

The first rule was chosen on the first 73 labeled public logs. The late stall follows the wording
of a request (slope near 0 over the last 5 % at more than 10 % of the peak rate) and was tried on
generated curves only; a loss that still falls by a quarter of what was expected is not found.
Blind to a wait that another setting would have shortened: one that is over does not show it.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.setting_change import SettingChangeDetector
from trimtab.record import Attempt, RunRecord
from trimtab.signals.robust import (
    dependent_blocks_sigma,
    difference_sigma,
    theil_sen_slope,
)

__all__ = ["plateau_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 200
NUM_BLOCKS = 48
_OVER = "learning came out of it by itself"
FLAT_SHARE = 1 / 12
"""Largest part of the whole fall that a flat stretch may cover."""
FLAT_BLOCKS = 7
"""Of 48: about a sixth."""
STILL_SHARE = 1 / 20
"""Farthest from its middle, as a part of the later fall, that either end of a flat stretch may lie.
"""
LATER_BLOCKS = 3
LATER_SHARE = 0.1
"""Least part of the whole fall that must come later."""
RATE_RATIO = 4.0
STEP_SHARE = 0.5
"""A later fall that comes to this part within three blocks is a step: a cut of the learning rate
that falls on the edge of a block, and what the optimizer takes to answer it, touches that many."""
STEP_BLOCKS = 3
LONG_SHARE = 1 / 3
"""Of an attempt, that a stretch which is over has at least where it is an alarm. Ours."""
START_SHARE = 0.1
"""Of an attempt, in which a stretch begins that is a wait before learning. Ours."""
VAL_FALL = 0.05
LATE_SHARE = 0.05
MIN_STALL_ROWS = 64
STALL_BLOCKS = 16
BEFORE_WINDOWS = 4
STALL_SHARE = 0.25
STALL_SIGMA = 4.0
LR_SHARE = 0.1


@dataclass(frozen=True)
class _Stall:
    """How far short of its expected fall a stretch of rows stayed."""

    expected_fall: float
    fall: float
    score: float


def plateau_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the plateaus of the loss, attempt by attempt; none where there is no loss."""
    if "loss" not in record.columns:
        return ()
    findings: list[Finding] = []
    for index in range(len(record.attempts)):
        rows = _loss_rows(record, index)
        over = _knee(record, rows)
        # One that is over and a note says nothing of how the attempt ends.
        if over is None or over.severity == "info":
            lasts = _after_change(record, index, rows) or _after_setting(record, index, rows)
            lasts = lasts or _late_stall(record, index, rows)
        else:
            lasts = None
        findings += [f for f in (over, lasts) if f is not None]
    return tuple(findings)


def _loss_rows(record: RunRecord, index: int) -> Rows:
    """Return the rows of an attempt with a finite loss."""
    return record.columns["loss"].finite_rows(record.rows_of(index))


def _blocks(values: Floats, num: int) -> tuple[Floats, NDArray[np.intp]]:
    """Return the medians of `num` blocks of equal length, and where each begins."""
    edges = np.linspace(0, len(values), num + 1).astype(np.intp)
    medians = [np.median(values[a:b]) for a, b in pairwise(edges)]
    return np.array(medians), edges


def _knee(record: RunRecord, rows: Rows) -> Finding | None:
    """Find the longest flat stretch behind which the loss fell again."""
    if len(rows) < MIN_ROWS:
        return None
    loss = record.columns["loss"].values[rows]
    # The search below is over all pairs: some 700 of blocks, where rows would make millions.
    levels, edges = _blocks(loss, NUM_BLOCKS)
    total = float(levels[0] - levels.min())
    noise = dependent_blocks_sigma(levels)
    best: tuple[int, int] | None = None
    for first in range(NUM_BLOCKS - FLAT_BLOCKS):
        for last in range(first + FLAT_BLOCKS, NUM_BLOCKS - LATER_BLOCKS):
            # The cheap test first: most stretches are shorter than the best one so far.
            longer = best is None or last - first > best[1] - best[0]
            if longer and _is_knee(levels, first, last, total, noise):
                best = first, last
    best = None if best is None else _still_part(levels, *best)
    if best is None:
        return None
    first_row, last_row = int(rows[edges[best[0]]]), int(rows[edges[best[1]]])
    if _val_fell(record, slice(first_row, last_row)):
        return None
    level = float(np.median(levels[best[0] : best[1] + 1]))
    low = float(levels[best[1] :].min())
    text = f"loss {level:.4g} for {edges[best[1]] - edges[best[0]]} rows, then down to {low:.4g}"
    score = min(99.0, (level - low) / max(noise, 1e-12))
    found = _finding(record, first_row, last_row, level, low, score, text, ended=True)
    first, last = int(edges[best[0]]), int(edges[best[1]])
    long = last - first >= LONG_SHARE * len(rows) and first >= START_SHARE * len(rows)
    return found if long else replace(found, severity="info", text=f"{found.text}; {_OVER}")


def _still_part(levels: Floats, first: int, last: int) -> tuple[int, int] | None:
    """Return a flat stretch without its sloping ends; None where too little of it is flat."""
    noise = difference_sigma(np.diff(levels[first : last + 1]))
    while last - first >= FLAT_BLOCKS:
        middle = float(np.median(levels[first : last + 1]))
        away = np.abs(levels[[first, last]] - middle)
        if away.max() <= max(STILL_SHARE * (middle - float(levels[last:].min())), 2 * noise):
            return first, last
        first, last = (first + 1, last) if away[0] >= away[1] else (first, last - 1)
    return None


def _is_knee(levels: Floats, first: int, last: int, total: float, noise: float) -> bool:
    inside = levels[first : last + 1]
    if total <= 0 or float(np.ptp(inside)) > FLAT_SHARE * total:
        return False
    later = levels[last:]
    fall = float(levels[last] - later.min())
    if fall < max(LATER_SHARE * total, STALL_SIGMA * noise):
        return False
    step = float((later[:-STEP_BLOCKS] - later[STEP_BLOCKS:]).max(initial=-math.inf))
    # The fall at a cut of the learning rate is a step, and the flat part before it no fault.
    if step > STEP_SHARE * fall:
        return False
    rate_inside = max(float(levels[first] - inside.min()), 0.0) / (last - first)
    return fall / (len(levels) - 1 - last) >= RATE_RATIO * rate_inside


def _val_fell(record: RunRecord, span: slice) -> bool:
    """Whether the validation loss at the end of the rows is clearly below that at their start."""
    if "val_loss" not in record.columns:
        return False
    values = record.columns["val_loss"].values[span]
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return False
    few = max(1, len(values) // 4)
    start, end = float(np.median(values[:few])), float(np.median(values[-few:]))
    return end < start - VAL_FALL * abs(start)


def _late_stall(record: RunRecord, index: int, rows: Rows) -> Finding | None:
    """Compare the last 5 % of an attempt with the rows before it."""
    num = math.ceil(LATE_SHARE * len(rows))
    # Under a rate decayed to its end a flat loss is what the schedule asks for.
    if num < MIN_STALL_ROWS or not _lr_is_up(record, index, rows[-num:]):
        return None
    before = rows[-num * (1 + BEFORE_WINDOWS) : -num]
    loss = record.columns["loss"].values
    stall = _stall(loss[before], loss[rows[-num:]], len(rows) - num)
    if stall is None:
        return None
    return _stall_finding(record, rows[-num:], stall, "at the end, the learning rate still up")


def _after_change(record: RunRecord, index: int, rows: Rows) -> Finding | None:
    """Compare an attempt under other settings with the rows of its parent before it."""
    attempt = record.attempts[index]
    parents = [i for i, a in enumerate(record.attempts) if a.number == attempt.parent]
    if not parents or len(rows) < MIN_STALL_ROWS:
        return None
    changed = _changes(record.attempts[parents[0]], attempt)
    if not changed or not _lr_is_up(record, index, rows):
        return None
    past = _loss_rows(record, parents[0])
    # Rows that the parent logged after the resume point belong to an abandoned branch.
    past = past[record.step[past] < record.step[rows[0]]]
    before = past[-BEFORE_WINDOWS * len(rows) :]
    loss = record.columns["loss"].values
    stall = _stall(loss[before], loss[rows], len(past))
    if stall is None:
        return None
    return _stall_finding(record, rows, stall, f"since {changed}")


def _after_setting(record: RunRecord, index: int, rows: Rows) -> Finding | None:
    """Compare the rows under the last change of a logged setting with those before it."""
    span, changes = record.rows_of(index), list[tuple[int, str]]()
    for name in SettingChangeDetector().signals:
        column = record.columns.get(name)
        logged = column.finite_rows(span) if column is not None else rows[:0]
        values = column.values[logged] if column is not None else np.zeros(0)
        moved = np.flatnonzero(np.diff(values)) + 1
        # One that moves all the time follows a schedule.
        if len(moved) and (len(moved) < 2 or moved[-1] - moved[-2] >= MIN_STALL_ROWS):
            at = int(moved[-1])
            changes.append((int(logged[at]), f"{name} {values[at - 1]:g} → {values[at]:g}"))
    if not changes:
        return None
    first = max(row for row, _ in changes)
    before, here = rows[rows < first], rows[rows >= first]
    if len(here) < MIN_STALL_ROWS or not _lr_is_up(record, index, here):
        return None
    loss = record.columns["loss"].values
    stall = _stall(loss[before[-BEFORE_WINDOWS * len(here) :]], loss[here], len(before))
    if stall is None:
        return None
    changed = ", ".join(text for row, text in changes if row == first)
    return _stall_finding(record, here, stall, f"since {changed}")


def _changes(parent: Attempt, child: Attempt) -> str:
    """Return the settings that both name and that differ, as `name old → new`."""
    both = parent.settings.keys() & child.settings.keys()
    return ", ".join(
        f"{name} {parent.settings[name]} → {child.settings[name]}"
        for name in sorted(both)
        if parent.settings[name] != child.settings[name]
    )


def _lr_is_up(record: RunRecord, index: int, rows: Rows) -> bool:
    """Whether the learning rate is known and stayed above a tenth of the attempt's peak."""
    lr = record.columns.get("lr")
    if lr is None:
        return False
    whole = lr.values[record.rows_of(index)]
    here = lr.values[rows]
    here, whole = here[np.isfinite(here)], whole[np.isfinite(whole)]
    return len(here) > 0 and float(here.min()) > LR_SHARE * float(whole.max()) > 0


def _stall(before: Floats, here: Floats, age: int) -> _Stall | None:
    """Return by how much the fall stays short of the trend before; None if not significant.

    Args:
        before: float64 [n], the loss just before.
        here: float64 [m], the loss of the stretch.
        age: Rows from the start of the run to the stretch.
    """
    num = STALL_BLOCKS * BEFORE_WINDOWS
    if len(before) < num or len(here) < STALL_BLOCKS:
        return None
    past, edges = _blocks(before, num)
    levels, _ = _blocks(here, STALL_BLOCKS)
    middle = (edges[:-1] + edges[1:]) / 2 + (age - len(before))
    # Loss curves are close to straight over the logarithm of the step; a line over the step itself
    # would promise a fall that no healthy run delivers.
    x = np.log(middle + 1)
    slope = theil_sen_slope(x, past)  # a spike before the stretch must not bend the expectation
    noise = dependent_blocks_sigma(past - slope * x)
    expected = -slope * math.log((age + len(here)) / max(age, 1))
    fall = -float(np.polyfit(np.arange(STALL_BLOCKS), levels, 1)[0]) * STALL_BLOCKS
    # spread of the fall of a line through n blocks with independent noise
    error = max(noise * math.sqrt(12 / STALL_BLOCKS), 1e-12)
    score = (expected - fall) / error
    if score < STALL_SIGMA or fall > STALL_SHARE * expected:
        return None
    # What rises does not stand still: a stretch that ends in a spike or in NaN is told as that.
    if -fall > max(expected, STALL_SIGMA * error):
        return None
    return _Stall(expected, fall, score)


def _stall_finding(record: RunRecord, rows: Rows, stall: _Stall, why: str) -> Finding:
    level = float(np.median(record.columns["loss"].values[rows]))
    text = (
        f"loss {level:.4g} for {len(rows)} rows {why}: "
        f"fell by {stall.fall:.3g}, expected {stall.expected_fall:.3g}"
    )
    expected = level - stall.expected_fall
    score = min(99.0, stall.score)
    return _finding(record, int(rows[0]), int(rows[-1]), level, expected, score, text, ended=False)


def _finding(
    record: RunRecord,
    onset: int,
    last: int,
    value: float,
    expected: float,
    score: float,
    text: str,
    *,
    ended: bool,
) -> Finding:
    return finding_at(
        record,
        detector="plateau",
        kind="plateau",
        signal="loss",
        severity="warning",
        row=last,
        onset_row=onset,
        end_row=last if ended else None,
        value=value,
        expected=expected,
        score=score,
        closed=ended,
        text=f"{text} (in hindsight)",
    )
