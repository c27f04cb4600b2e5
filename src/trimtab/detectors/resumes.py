"""Resumes: does the loss continue at the level at which it was saved? Offline only.

The first rows of an attempt are compared with the rows before its first step on its lineage:

    d = median(first 16 losses) - median(last 16 losses before)        z = d / noise

with `noise` the spread between blocks of 16 rows before (1.4826 median |difference| / sqrt 2), so
that autocorrelated noise is included. z > 6 and d > 2 % of the loss is a jump. One that lasts
through the first 64 rows is a warning; one that is over by then is a note, and so is a loss that is
lower than before, which data seen already or a lower learning rate explain. A learning rate or
batch size that differs from what the schedule had there is named; it is a note if the loss did
not change, unless the schedule of the rate begins anew there.

An attempt that begins where its parent began started over: a note. One that continues at its level
gives no finding, unless the loss of its parent was far higher at the same steps: then the parent
had other data, or its damage is not in the saved weights. Whether the two losses rise and fall
together tells which; that is a note.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.ranks import spearman
from trimtab.signals.robust import block_median_sigma, difference_sigma, median
from trimtab.text import sigmas
from trimtab.vocabulary import Severity

__all__ = ["Resume", "resume_findings", "resumes_of"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

BLOCK_ROWS = 16
PAST_ROWS = 512
LATER_ROWS = 64
MIN_PAST = 24
MIN_ROWS = 8
MIN_SIGMA = 6.0
FEWEST, FEW, OVER_ROWS = 4, 8, 1.5
"""Blocks of the past in which the descent counts for noise; errors of independent rows. Ours."""
MIN_SHARE = 0.02
FLOOR_SHARE = 0.004
"""Smallest noise believed, as a share of the loss; twice that of `spike`, for the seam is seen
once."""
SETTING_RATIO = 1.1
"""Rates and batch sizes within this ratio of the expected one are the schedule's own."""
ANEW_RATIO = 2.0
"""A rate that falls by this at a resume, and then rises as far beyond where it was left, is that of
a schedule from its start. Ours."""
MAX_ATTEMPTS = 64
"""Where a record has more, runs or ranks are mixed in one file, and its seams say nothing."""
_SAME_DATA = "on the same data, so what happened there was not in the saved weights"
_OTHER_DATA = "the two do not go up and down together, so the data differs"


@dataclass(frozen=True)
class Resume:
    """One attempt that continues from another."""

    attempt: int
    rows: Rows
    """Its own rows, in order."""
    past: Rows
    """Rows before its first step on its lineage, in order of step; empty: it started over."""
    again: Rows
    """Rows of its parent from its first step on, in order."""


def resumes_of(record: RunRecord) -> Iterator[Resume]:
    """Yield the resumes of a record, in order; none where it has too many attempts for one run."""
    if not 1 < len(record.attempts) <= MAX_ATTEMPTS:
        return
    by_number = {a.number: i for i, a in enumerate(record.attempts)}
    for index, attempt in enumerate(record.attempts):
        parent = by_number.get(attempt.parent or "", -1)
        if parent < 0 or parent == index or attempt.first_row == attempt.end_row:
            continue
        first = float(record.step[attempt.first_row])
        # Half a step on: the bound is exclusive, and the resume point itself is past.
        limit = first if attempt.parent_step is None else min(first, attempt.parent_step + 0.5)
        parts: list[Rows] = []
        seen = {index}
        current, bound = parent, limit
        while current >= 0 and current not in seen:
            seen.add(current)
            span = record.rows_of(current)
            here = np.arange(span.start, span.stop)
            parts.append(here[record.step[here] < bound])
            if len(parts[-1]):
                # An ancestor gives only rows before the next one began, so no step comes twice.
                bound = min(bound, float(record.step[span.start]))
            current = by_number.get(record.attempts[current].parent or "", -1)
        span = record.rows_of(parent)
        after = np.arange(span.start, span.stop)
        yield Resume(
            index,
            np.arange(attempt.first_row, attempt.end_row),
            np.concatenate(parts[::-1]),
            after[record.step[after] >= first],
        )


def resume_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return at most one finding for each resume."""
    if "loss" not in record.columns:
        return ()
    found = (_judge(record, resume) for resume in resumes_of(record))
    return tuple(f for f in found if f is not None)


def _judge(record: RunRecord, resume: Resume) -> Finding | None:
    past, rows = _finite(record, "loss", resume.past), _finite(record, "loss", resume.rows)
    if len(rows) and _started_over(record, resume, past):
        return _anew(record, resume, rows)
    if len(past) < MIN_PAST or len(rows) < MIN_ROWS:
        return None
    loss = record.columns["loss"].values
    before, after = loss[past[-PAST_ROWS:]], loss[rows[:LATER_ROWS]]
    size = min(BLOCK_ROWS, len(after))
    level = median(before[-size:])
    first = median(after[:size])
    noise = max(_noise(before, size), FLOOR_SHARE * abs(level), 1e-12)
    z, d = (first - level) / noise, first - level
    changed = _changed_settings(record, resume)
    jumped = abs(z) > MIN_SIGMA and abs(d) > MIN_SHARE * abs(level)
    # A few hard batches after the seam are over within the 64 rows; a wrong state is not.
    lasts = jumped and _lasts(after, size, level, d)
    if not jumped:
        return _quiet(record, resume, rows, (level, first, z), changed)
    # A lower loss does the run no harm by itself; the text names what may be behind it.
    severity: Severity = "warning" if lasts and d > 0 else "info"
    how = "lasting" if lasts else f"over within {len(after)} rows"
    if d < 0:
        how += "; data seen before, or another learning rate?"
    text = f"loss {level:.4g} before, {first:.4g} after ({sigmas(z, sign='+')}), {how}"
    return _finding(record, rows, _and(text, changed), severity, (level, first, z), len(after))


def _noise(before: Floats, size: int) -> float:
    """Return the noise of the median of a block: two of them are compared, and rows are noisier.

    In a short past the descent is most of what blocks differ by: there the largest rise from one to
    the next counts, but not below what independent rows give.
    """
    noise = block_median_sigma(before, size)
    num = len(before) // size
    if not FEWEST <= num < FEW:
        return noise
    blocks = np.median(before[len(before) - num * size :].reshape(num, size), axis=1)
    rise = max(float(np.diff(blocks).max()), 0.0) / math.sqrt(2)
    rows = 1.25 * difference_sigma(np.diff(before, 2), order=2) / math.sqrt(size)
    return min(noise, max(rise, OVER_ROWS * rows))


def _quiet(
    record: RunRecord, resume: Resume, rows: Rows, seam: tuple[float, float, float], changed: str
) -> Finding | None:
    """Report a resume at its level: changed settings, or a parent that left the level meanwhile."""
    level, first, _ = seam
    again = _finite(record, "loss", resume.again)
    loss = record.columns["loss"].values
    _, mine, theirs = np.intersect1d(record.step[rows], record.step[again], return_indices=True)
    text = f"loss {level:.4g} before, {first:.4g} after"
    if len(mine) >= MIN_ROWS:
        ours, others = loss[rows[mine]], loss[again[theirs]]
        # 10 %: both attempts wander, so twice the noise of one is no difference yet.
        if median(others) > median(ours) * (1 + 5 * MIN_SHARE) > 0:
            # Differences, since two losses that fall correlate whatever their data is; ranks, since
            # the parent may hold a spike.
            together = spearman(np.diff(ours), np.diff(others)) > 0.5
            text += (
                f"; attempt {record.attempts[record.attempt[again[0]]].number} was at "
                f"{median(others):.4g} at the same steps, this one at {median(ours):.4g}: "
            )
            text += _SAME_DATA if together else _OTHER_DATA
            return _finding(record, rows, _and(text, changed), "info", seam, len(mine))
    if not changed:
        return None
    anew = _schedule_anew(record, resume)
    severity: Severity = "warning" if anew else "info"
    text = _and(text, changed) + anew
    return _finding(record, rows, text, severity, seam, min(len(rows), LATER_ROWS))


def _schedule_anew(record: RunRecord, resume: Resume) -> str:
    """Say that the schedule of the rate began from its start again; "" where it did not."""
    if "lr" not in record.columns:
        return ""
    rows, past = _finite(record, "lr", resume.rows), _finite(record, "lr", resume.past)
    if not len(rows) or not len(past):
        return ""
    values = record.columns["lr"].values
    first, last, most = values[rows[0]], values[past[-1]], float(values[rows].max())
    if not 0 < first < last / ANEW_RATIO or most < ANEW_RATIO * last:
        return ""
    return f"; the schedule begins anew: back up to {most:.3g}, though it had come to {last:.3g}"


def _started_over(record: RunRecord, resume: Resume, past: Rows) -> bool:
    """Whether an attempt begins where its parent did, and that one had got anywhere."""
    again = _finite(record, "loss", resume.again)
    # A log that names the step it resumed from did load a checkpoint.
    stated = record.attempts[resume.attempt].parent_step is not None
    return not stated and len(again) >= MIN_ROWS and len(past) <= len(again) // MIN_ROWS


def _anew(record: RunRecord, resume: Resume, rows: Rows) -> Finding:
    loss = record.columns["loss"].values
    again = _finite(record, "loss", resume.again)
    left = float(loss[again[-1]]) if len(again) else math.nan
    first = float(loss[rows[0]])
    text = (
        f"it starts over at {record.axis} {record.step[rows[0]]:g} (loss {first:.4g}, the attempt "
        f"before left off at {left:.4g}): a new run, or no checkpoint was loaded"
    )
    return _finding(record, rows, text, "info", (left, first, MIN_SIGMA), 1)


def _finite(record: RunRecord, name: str, rows: Rows) -> Rows:
    return record.columns[name].finite_rows(rows)


def _lasts(after: Floats, size: int, level: float, d: float) -> bool:
    """Whether no later block of the first rows is closer to the old level than to the jump."""
    starts = range(0, len(after) - size + 1, size)
    return all((median(after[i : i + size]) - level) / d > 0.5 for i in starts)


def _changed_settings(record: RunRecord, resume: Resume) -> str:
    """Name the settings that a row after the seam shows other than they were due there."""
    named: list[str] = []
    for name, title in (("lr", "learning rate"), ("batch_size", "batch size")):
        if name not in record.columns:
            continue
        rows, past = _finite(record, name, resume.rows), _finite(record, name, resume.past)
        if not len(rows) or len(past) < 2:
            continue
        value = float(record.columns[name].values[rows[0]])
        due = _due(record, name, resume, past, float(record.step[rows[0]]))
        last = float(record.columns[name].values[past[-1]])
        if (
            min(value, due, last) > 0
            # Off the line and off the last value: a line through two rows overshoots where a
            # schedule by steps has just moved.
            and min(_ratio(value, due), _ratio(value, last)) > SETTING_RATIO
        ):
            named.append(f"{title} {due:.3g} → {value:.3g}")
            # A warm-up that begins anew shows where it leads, and not by its first value.
            values = record.columns[name].values
            most, later = float(values[past].max()), float(values[rows[:LATER_ROWS]].max())
            if later > SETTING_RATIO * max(most, value):
                named[-1] += f", then up to {later:.3g}, beyond the {most:.3g} of before"
    return ", ".join(named)


def _due(record: RunRecord, name: str, resume: Resume, past: Rows, step: float) -> float:
    """Return what the parent had at a step, else the line through its last two values there."""
    values = record.columns[name].values
    again = _finite(record, name, resume.again)
    # The parent's own value at that step is the schedule itself, with no line to guess.
    if len(again) and record.step[again[0]] == step:
        return float(values[again[0]])
    (a, b), (x, y) = values[past[-2:]].tolist(), record.step[past[-2:]].tolist()
    return float(b + (b - a) / (y - x) * (step - y)) if y > x else float(b)


def _ratio(a: float, b: float) -> float:
    return max(a / b, b / a)


def _and(text: str, changed: str) -> str:
    return f"{text}; changed: {changed}" if changed else text


def _finding(
    record: RunRecord,
    rows: Rows,
    text: str,
    severity: Severity,
    seam: tuple[float, float, float],
    num_rows: int,
) -> Finding:
    level, first, z = seam
    onset, said = int(rows[0]), int(rows[min(num_rows, len(rows)) - 1])
    return finding_at(
        record,
        detector="resume",
        kind="resume-jump",
        signal="loss",
        severity=severity,
        row=said,
        onset_row=onset,
        end_row=onset if severity == "info" else None,
        value=first,
        expected=level,
        score=abs(z),
        direction="down" if first < level else "up",
        closed=True,
        text=f"{text} (in hindsight)",
    )
