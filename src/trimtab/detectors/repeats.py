"""Repeated data: a resume that feeds what the run has had before, or leaves some out. Offline only.

Two kinds of evidence. The counter: `samples_seen` or `tokens_seen` after a resume differs from what
the lineage had consumed at that step by more than a batch, or falls within an attempt.

The losses: the same batches are easy or hard in the same order. Differences of the first losses
after a resume, clipped at three robust sigmas, are correlated with every earlier stretch of the
run:

    rho = corr(diff(loss[child 0 .. n]), diff(loss[past i .. i+n])),     n <= 256

The largest of M chance correlations of n rows is about sqrt(2 ln M / n); rho must be above
(sqrt(2 ln M) + 3) / sqrt(n) and above 0.5. Stretches at the same steps are not looked at: there the
same data is right. If the rows before the resume repeat the same earlier stretch too, the order of
an epoch repeats, and the resume is not to blame (unless those rows were fed again themselves).

Where the repeat ends, data comes that the run has not had. If the loss jumps there, by more than
six times the spread between blocks, it shows what it always was on unseen data: the low losses
before were those of data learned by heart. That is a jump of the resume's making, wherever the rows
of the repeat end.

Blind to data that is repeated in another order.
"""

import math
from collections.abc import Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.resumes import (
    BLOCK_ROWS,
    FLOOR_SHARE,
    MIN_SHARE,
    MIN_SIGMA,
    Resume,
    resumes_of,
)
from trimtab.record import RunRecord
from trimtab.signals.robust import block_median_sigma, mad_sigma, median

__all__ = ["best_repeat", "repeat_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MIN_ROWS = 64
MAX_ROWS = 256
MAX_PAST = 65_536
"""Rows of the past that are searched."""
MIN_CORRELATION = 0.5
MARGIN_SIGMA = 3.0
MIN_COUNTED = 8
_COUNTERS = ("samples_seen", "tokens_seen")


def repeat_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding at most per resume and counter, and one per fall within an attempt."""
    findings: list[Finding] = []
    fed_again: set[int] = set()
    for name in _COUNTERS:
        if name in record.columns:
            findings += _falls(record, name)
    for resume in resumes_of(record):
        if not len(resume.past):
            continue
        told = [f for n in _COUNTERS if n in record.columns for f in _seam(record, n, resume)]
        repeat = _losses(record, resume, fed_again)
        if repeat:
            fed_again.add(resume.attempt)
        findings += told[:1] or repeat[:1]
        findings += repeat[1:]
    return tuple(findings)


def best_repeat(child: Floats, past: Floats) -> tuple[int, float]:
    """Return where in `past` the rows of `child` fit best, and the correlation there.

    Args:
        child: float64 [n >= 8], losses, finite.
        past: float64 [m >= n], losses, finite.

    Returns:
        Index of the stretch of n rows, and its correlation of clipped differences; 0.0 for a
        constant.

    Cost: two Fourier transforms of m rows.
    """
    x, y = _steps(child), _steps(past)
    n, m = len(x), len(y)
    # A power of two above m + n - 1, so that the circular product of the transform does not wrap.
    size = 1 << (m + n - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(y, size) * np.conj(np.fft.rfft(x, size)), size)[: m - n + 1]
    sums = np.cumsum(np.concatenate([[0.0], y * y]))
    # Differences of a running sum may come out a hair below 0.
    norms = np.sqrt(np.maximum(sums[n:] - sums[:-n], 0.0)) * math.sqrt(float(x @ x))
    rho = np.divide(products, norms, out=np.zeros_like(products), where=norms > 1e-9)
    at = int(np.argmax(rho))
    return at, float(rho[at])


def _steps(loss: Floats) -> Floats:
    """Return differences from row to row, centered and clipped at three robust sigmas."""
    steps = np.diff(loss)
    # A common fall of the loss would correlate any two stretches.
    steps = steps - median(steps)
    sigma = mad_sigma(steps, center=0.0)
    # One spike in both stretches would carry the whole correlation.
    return np.asarray(np.clip(steps, -3 * sigma, 3 * sigma))


def _losses(record: RunRecord, resume: Resume, fed_again: Set[int]) -> list[Finding]:
    """Compare the losses after a resume with those before it; find where a repeat ends."""
    loss = record.columns["loss"].values if "loss" in record.columns else np.zeros(0)
    if not len(loss):
        return []
    rows, past = (r[np.isfinite(loss[r])] for r in (resume.rows, resume.past[-MAX_PAST:]))
    # Half the past at most: with fewer offsets there is little chance to compare against.
    n = min(len(rows), MAX_ROWS, len(past) // 2)
    if n < MIN_ROWS:
        return []
    at, rho = best_repeat(loss[rows[:n]], loss[past])
    # A chance correlation has sigma 1/sqrt(n); the largest of M is about sqrt(2 ln M) sigma.
    chance = (math.sqrt(2 * math.log(len(past))) + MARGIN_SIGMA) / math.sqrt(n)
    explained = int(record.attempt[past[-1]]) in fed_again
    if rho < max(MIN_CORRELATION, chance):
        return []
    if not explained and _epochs_repeat(loss[past], at, n, rho):
        return []
    first, last = float(record.step[past[at]]), float(record.step[past[min(at + n, len(past)) - 1]])
    text = (
        f"the losses of the first {n} rows follow those of {record.axis} {first:g} to {last:g} "
        f"(correlation {rho:.2f}): the data of the past is fed again (in hindsight)"
    )
    found = _finding(record, "loss", rows[0], rows[n - 1], text, value=rho, expected=0.0)
    return [found, *_where_it_ends(record, rows, past[at:], n)]


def _where_it_ends(record: RunRecord, rows: Rows, stretch: Rows, n: int) -> list[Finding]:
    """Report a jump of the loss between the last repeated row and the first new one."""
    loss = record.columns["loss"].values
    most = min(len(rows), len(stretch))
    while n < most and _follows(loss[rows[:most]], loss[stretch[:most]], n):
        n = min(n + MIN_ROWS, most)
    steps = np.diff(loss[rows])
    near = slice(max(0, n - MIN_ROWS - 1), min(n + 2, len(steps)))
    if near.stop - near.start < 2:
        return []
    end = near.start + int(np.argmax(steps[near])) + 1
    before, after = loss[rows[max(0, end - BLOCK_ROWS) : end]], loss[rows[end : end + BLOCK_ROWS]]
    if len(after) < BLOCK_ROWS // 2 or len(before) < BLOCK_ROWS:
        return []
    level, value = median(before), median(after)
    sigma = max(block_median_sigma(loss[rows[:end]], BLOCK_ROWS), FLOOR_SHARE * abs(level))
    if value - level < max(MIN_SIGMA * sigma, MIN_SHARE * abs(level)):
        return []
    text = (
        f"loss {level:.4g} → {value:.4g} where the data that was fed again ends, {end} rows after"
        " the resume: memorized batches do not help on new data (in hindsight)"
    )
    said = rows[min(end + BLOCK_ROWS, len(rows)) - 1]
    told = _finding(record, "loss", rows[end], said, text, value=value, expected=level)
    return [
        replace(
            told,
            kind="resume-jump",
            detector="repeats-end",
            direction="up",
            score=(value - level) / sigma,
            end_row=None,
            end=None,
        )
    ]


def _follows(child: Floats, stretch: Floats, n: int) -> bool:
    """Whether the next rows after `n` still go with the stretch."""
    if len(child) - n <= BLOCK_ROWS:  # of a log that grows, or a stretch that ends with the past
        return False
    x, y = _steps(child[n : n + MIN_ROWS]), _steps(stretch[n : n + MIN_ROWS])
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return norm > 0 and float(x @ y) / norm > MIN_CORRELATION


def _epochs_repeat(past: Floats, at: int, n: int, rho: float) -> bool:
    """Whether the rows before the resume repeat what came before the stretch, equally far apart."""
    before = min(n, at, len(past) - n - at)
    if before < MIN_ROWS // 2:
        return False
    x, y = _steps(past[-before:]), _steps(past[at - before : at])
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return norm > 0 and float(x @ y) / norm > 0.5 * rho


def _seam(record: RunRecord, name: str, resume: Resume) -> list[Finding]:
    """Compare the counter after a resume with the line of the counter before it."""
    column = record.columns[name]
    rows, past = (
        r[column.present[r] & np.isfinite(column.values[r])] for r in (resume.rows, resume.past)
    )
    if len(rows) < 2 or len(past) < MIN_COUNTED:
        return []
    (a, b), (x, y) = column.values[past[-2:]].tolist(), record.step[past[-2:]].tolist()
    value, step = float(column.values[rows[0]]), float(record.step[rows[0]])
    per_step = (b - a) / (y - x) if y > x else 0.0
    due = b + per_step * (step - y)
    near = step - y <= 3 * (y - x)  # further away a ramp of the batch size may lie between
    if per_step <= 0 or not near or abs(value - due) <= 1.5 * per_step * max(1.0, y - x):
        return []
    what = "fed again" if value < due else "left out"
    unit = name.partition("_")[0]
    text = (
        f"{name} is {value:.6g} after the resume where {due:.6g} were due: "
        f"{abs(value - due):.4g} {unit} {what}"
    )
    return [_finding(record, name, rows[0], rows[0], text, value=value, expected=due)]


def _falls(record: RunRecord, name: str) -> list[Finding]:
    """Report the first fall of a counter within each attempt."""
    column, findings = record.columns[name], list[Finding]()
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = column.finite_rows(span)
        values = column.values[rows]
        falls = np.flatnonzero(np.diff(values) < 0) + 1
        # more than a few falls: a counter of the epoch, not of the run
        if not 0 < len(falls) <= max(1, len(rows) // 1000):
            continue
        i = int(falls[0])
        text = f"{name} falls from {values[i - 1]:.6g} to {values[i]:.6g}: data may be fed again"
        findings.append(
            _finding(
                record,
                name,
                rows[i],
                rows[i],
                text,
                value=float(values[i]),
                expected=float(values[i - 1]),
            )
        )
    return findings


def _finding(
    record: RunRecord,
    signal: str,
    onset: np.intp,
    said: np.intp,
    text: str,
    *,
    value: float,
    expected: float,
) -> Finding:
    return finding_at(
        record,
        detector="repeats",
        kind="repeated-data",
        signal=signal,
        severity="warning",
        row=int(said),
        onset_row=int(onset),
        end_row=int(said),
        value=value,
        expected=expected,
        score=9.0,
        direction="down",
        closed=True,
        text=text,
    )
