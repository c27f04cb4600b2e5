"""A pace that is lost, from the times at which rows were written, where no time is logged.

    seconds per step = (time of row i - time of row i - k) / (step of row i - step of row i - k)

A clock of whole seconds rounds more than a slowdown moves, and a writer with a buffer gives many
rows one time: so many rows are taken together that nearly all such stretches last `MIN_TICKS` of the
clock. They are judged as logged times of steps are (`pace`), but for single ones: an evaluation or
a save between two rows is no slow step. Nor are steps slow that are larger from some row on, where
a length or a setting of the log's own changes.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.pace import PaceDetector
from trimtab.detectors.written_times import rows_in_order
from trimtab.record import RunRecord

__all__ = ["written_pace_findings"]

MIN_TICKS = 8.0
"""A stretch of as many ticks is known to an eighth, which is less than a slowdown. Ours."""
MIN_LONG = 0.95
"""Share of the stretches that have to be as long. Ours."""
MIN_STRETCHES = 96
"""Six blocks of `pace`: four calm ones and two slow ones."""
SLOW_SHARE = 0.3
"""Smallest slowdown that is told: between two rows lies more than steps. Ours."""


def written_pace_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return slowdowns of each attempt."""
    logged = any(n in record.columns for n in ("step_time_s", "throughput"))
    if "wall_time_s" not in record.columns or logged:
        return ()
    return tuple(f for i in range(len(record.attempts)) for f in _slowdowns(record, i))


def _slowdowns(record: RunRecord, attempt: int) -> list[Finding]:
    rows = rows_in_order(record, attempt)
    if len(rows) <= MIN_STRETCHES:
        return []
    at, step = record.columns["wall_time_s"].values[rows], record.step[rows]
    num = _rows_together(at)
    if num is None:
        return []
    cuts = np.arange(0, len(rows), num)
    seconds, steps = np.diff(at[cuts]), np.diff(step[cuts])
    known = (seconds > 0) & (steps > 0)
    per_step = np.divide(seconds, steps, out=np.full(len(seconds), np.nan), where=known)
    values = np.full((len(per_step), 3), np.nan)
    values[:, 0] = per_step
    # A stretch begins where its first step was done; it is a finding's row and step.
    begun = rows[cuts[:-1]]
    batch = record.columns.get("batch_size")
    if batch is not None:
        values[:, 2] = np.where(batch.present, batch.values, np.nan)[rows[cuts[1:]]]
    stretches = Rows(begun.astype(np.int64), step[cuts[:-1]], values, np.isfinite(values))
    detector = PaceDetector(slow_share=SLOW_SHARE)
    _, findings = detector.update_rows(detector.start(), stretches)
    return [
        replace(
            f,
            detector="written-pace",
            signal="wall_time_s",
            grain_rows=f.grain_rows * num,
            text=f.text.replace("step_time_s", "seconds per step by the times of rows"),
        )
        for f in findings
        if f.kind == "slowdown" and not _larger_steps(record, f, num)
    ]


def _larger_steps(record: RunRecord, f: Finding, num: int) -> bool:
    """Whether a setting of the log's own, or a length, changes there: steps are others then."""
    span = record.rows_of(int(record.attempt[f.onset_row]))
    near = f.grain_rows * num
    rows = slice(max(span.start, f.onset_row - near), min(span.stop, f.onset_row + near + 1))
    return any(
        len(values := column.values[column.finite_rows(rows)]) > 1 and bool(np.ptp(values))
        for name in ("stage", "stated_setting")
        if (column := record.columns.get(name)) is not None
    )


def _rows_together(at: NDArray[np.float64]) -> int | None:
    """Return how many rows make a stretch that a clock can measure; None: too many."""
    least = MIN_TICKS if np.all(at == np.floor(at)) else 0.0
    num = 1
    while len(at) > num * MIN_STRETCHES:
        seconds = np.diff(at[::num])
        if np.mean((seconds >= least) & (seconds > 0)) >= MIN_LONG:
            return num
        num *= 2
    return None
