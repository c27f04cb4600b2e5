"""Rows that wait for data again and again: a pace that no level shows.

A loader that runs dry stops a step every so often; the median of the pace stands, and each row is a
note. Where the log holds the wait (`data_time_s`) beside the time of a step, rows that take
`TIMES` their median and wait for data for half of that are counted. They are told where there are
`LEAST` of them, in both halves, and they cost `SHARE` of the time of the run, its first
`BEGIN_SHARE` left out. First rows of epochs count where they alone cost `OF_STARTS` of it. A wait that every row has is the pace of the run, and no trouble to find.

In hindsight. The bars are ours.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median

__all__ = ["data_wait_findings"]

TIMES, OF_STEP = 3.0, 0.5
LEAST, SHARE, OF_STARTS, BEGIN_SHARE = 8, 0.08, 0.15, 0.05
MIN_ROWS = 64


def data_wait_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding for each attempt whose rows wait for data again and again."""
    waits, steps = record.columns.get("data_time_s"), record.columns.get("step_time_s")
    if waits is None or steps is None:
        return ()
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        rows = steps.finite_rows(record.rows_of(index))
        rows = rows[np.isfinite(waits.values[rows]) & waits.present[rows]]
        rows = rows[int(BEGIN_SHARE * len(rows)) :]
        if len(rows) < MIN_ROWS:
            continue
        taken, waited = steps.values[rows], waits.values[rows]
        usual = median(taken)
        stalls = (taken > TIMES * usual) & (waited > OF_STEP * taken)
        # Workers that start with an epoch wait so in each; often that is a small part of it.
        of_starts = stalls & _begins_an_epoch(record, rows)
        # A row that stands for many steps says nothing of how much of the time its first one took.
        each = record.axis == "step" and median(np.diff(record.step[rows])) <= 1
        dear = each and float((taken[of_starts] - usual).sum()) >= OF_STARTS * float(taken.sum())
        if not dear:
            stalls = stalls & ~of_starts
        lost = float((taken[stalls] - usual).sum())
        half = len(rows) // 2
        both = min(int(stalls[:half].sum()), int(stalls[half:].sum())) >= LEAST // 4
        if not usual > 0 or stalls.sum() < LEAST or not both or lost < SHARE * taken.sum():
            continue
        at = rows[stalls]
        longest = float(taken[stalls].max())
        found.append(
            finding_at(
                record,
                detector="data-waits",
                kind="slowdown",
                signal="step_time_s",
                severity="warning",
                row=int(at[-1]),
                onset_row=int(at[0]),
                peak_row=int(rows[int(np.argmax(np.where(stalls, taken, 0.0)))]),
                value=longest,
                expected=usual,
                score=min(99.0, longest / usual),
                closed=False,
                text=(
                    f"{len(at)} rows wait for data, for up to {longest:.3g} s where {usual:.3g} s is"
                    f" usual: {lost / float(taken.sum()):.0%} of the time"
                    + (
                        "; most begin an epoch, where workers start anew"
                        if 2 * of_starts.sum() > stalls.sum() and dear
                        else ""
                    )
                ),
            )
        )
    return tuple(found)


def _begins_an_epoch(record: RunRecord, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which rows are the first of an epoch, of which others are logged: workers start there."""
    column = record.columns.get("epochs_seen")
    place = record.step[rows] if record.axis == "epoch" or column is None else column.values[rows]
    whole = np.floor(np.nan_to_num(place))
    first = np.append(False, np.diff(whole) > 0)
    counts = record.axis == "epoch" or column is not None
    return first if counts and 2 * int(first.sum()) < len(rows) else np.zeros(len(rows), np.bool_)
