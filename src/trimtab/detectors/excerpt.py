"""The excerpt rule: what a handful of rows can say, in hindsight.

Chronicles and bug reports quote a few rows around the trouble. No streaming detector has a past to
compare with there, so attempts of fewer than `MAX_ROWS` train losses are judged whole: a loss that
stands well above the lowest value seen before it is a spike, and unrecovered unless the last rows
are back; a true grad norm far above the clip in every row is a first sign. The rule looks ahead
(at the end of the excerpt) and every finding of it says so.
"""

import math

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord

__all__ = ["MAX_ROWS", "excerpt_findings"]

MAX_ROWS = 30
MIN_RISE = 0.15
"""Smallest relative rise of the loss that counts: logged losses of healthy runs fall."""
BACK_SHARE = 0.05
"""Back means within this share of the level before."""
NOISE_FACTOR = 6.0
CLIP_RATIO = 10.0
"""Grad norm at least this many times the clip in every row: each step is scaled down tenfold."""


def excerpt_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return hindsight findings on the attempts that are too short for the detectors."""
    findings: list[Finding] = []
    column = record.columns.get("loss")
    if column is None:
        return ()
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = np.flatnonzero(column.present[span] & np.isfinite(column.values[span])) + span.start
        if 3 <= len(rows) < MAX_ROWS:
            spike = _spike(record, rows, column.values[rows])
            if spike is not None:
                findings += [*_norm(record, rows), spike]
    return tuple(findings)


def _spike(
    record: RunRecord,
    rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    loss: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Finding | None:
    peak = int(np.argmax(loss))
    if peak == 0 or loss[:peak].min() <= 0:
        return None
    low = int(np.argmin(loss[:peak]))
    before = float(loss[low])
    rise = float(loss[peak]) - before
    noise = float(np.median(np.abs(np.diff(loss[: low + 1])))) if low >= 4 else 0.0
    if rise < MIN_RISE * before or rise < NOISE_FACTOR * noise:
        return None
    onset = low + 1
    last = float(loss[-1])
    back = last <= before * (1 + BACK_SHARE)
    score = min(99.0, rise / max(noise, 0.01 * before))
    end = int(rows[-1])
    story = " → ".join(f"{x:.4g}" for x in dict.fromkeys((before, float(loss[peak]), last)))
    steps = int(record.step[rows[peak]] - record.step[rows[low]])
    return Finding(
        detector="excerpt",
        kind="spike" if back else "unrecovered-spike",
        signal="loss",
        severity="warning" if back else "critical",
        row=end,
        step=float(record.step[end]),
        onset_row=int(rows[onset]),
        onset=float(record.step[rows[onset]]),
        peak_row=int(rows[peak]),
        peak=float(record.step[rows[peak]]),
        end_row=end if back else None,
        end=float(record.step[end]) if back else None,
        value=float(loss[peak]),
        expected=before,
        score=score,
        closed=True,
        text=f"loss {story} (up within {steps} {record.axis}s; excerpt rule, in hindsight)",
    )


def _norm(record: RunRecord, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[Finding]:
    """Return the first sign that every row is clipped far below its norm, if that is so."""
    column = record.columns.get("grad_norm")
    if column is None:
        return []
    clip = record.facts.get("clip", 1.0)
    assumed = "" if "clip" in record.facts else " assumed"
    norms = column.values[rows][column.present[rows]]
    if len(norms) < 3 or not np.isfinite(norms).all() or math.isclose(clip, 0.0):
        return []
    ratios = norms / clip
    if float(np.median(ratios)) < CLIP_RATIO or float(ratios.min()) < 1:
        return []
    first, last = int(rows[0]), int(rows[-1])
    worst = int(rows[column.present[rows]][int(np.argmax(norms))])
    return [
        Finding(
            detector="excerpt",
            kind="grad-explosion",
            signal="grad_norm",
            severity="info",
            row=last,
            step=float(record.step[last]),
            onset_row=first,
            onset=float(record.step[first]),
            peak_row=worst,
            peak=float(record.step[worst]),
            value=float(norms.max()),
            expected=clip,
            score=float(np.median(ratios)),
            closed=False,
            text=f"every row is clipped {ratios.min():.0f} to {ratios.max():.0f} times (clip {clip:g}{assumed})",
        )
    ]
