"""Numbers that no alias knows (`other/KEY`): those that stop being numbers, and memory that grows.

**Stopped**: a metric that was a finite number in each of `LEAST_BEFORE` rows or more, and is NaN,
Inf, null or nothing in all rows from some row on, for `LEAST_AFTER` rows and a share of the run:
it broke, or what computes it did, and nobody is told by the loss.

**Memory**: a key that says so, of which the medians of `PARTS` equal stretches rise each over the
one before (but for `SLACK`), by `GROWN` in all and by a quarter of that in the last half: it goes
on at `PACE` of its mean pace in each of the last stretches, and ends in the middle of a night. Not told
where the log states a change as it grows.

**Worse**: a number that a word of its key calls worse for it (`lasting`), and that has got worse ever
since its best, as `came_up` has it, by `WORSE_SHARE` of the best or of the way to it. Not beside a
reward: what an agent is scored by trades one for another.

Whether such a number moves at once and for good is asked by `lasting`. In hindsight.
"""

from dataclasses import replace

import numpy as np

from trimtab.detectors.came_up import climb_of
from trimtab.detectors.contract import Finding
from trimtab.detectors.lasting import worse_by_words
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.stated_changes import OF_PACE, states_a_change
from trimtab.readers.other_columns import LEAST_VALUES, MEMORY, is_seldom
from trimtab.record import RunRecord
from trimtab.text import OTHER, plain

__all__ = ["other_signal_findings"]

WORSE_SHARE = 0.15
"""Of the best, or of the way to it, that a number gets worse by. Ours."""
LEAST_BEFORE, LEAST_AFTER, AFTER_SHARE = 100, 16, 0.1
PARTS, SLACK, GROWN, LATE, PACE = 8, 1, 1.3, 0.25, 0.6
LEAST_OF_MEMORY = 24
"""All bars are ours."""


def other_signal_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return unknown metrics that stopped being numbers, and memory that grows without end."""
    found: list[Finding] = []
    for name in record.columns:
        if name.startswith(OTHER) and not is_seldom(record.columns[name]):
            for index in range(len(record.attempts)):
                told = (
                    _stopped(record, name, index)
                    or _grows(record, name, index)
                    or _worsens(record, name, index)
                )
                found += [told] if told is not None else []
    return tuple(found)


def _worsens(record: RunRecord, name: str, index: int) -> Finding | None:
    """Return the way from its best to the end of a number that a word says is worse there."""
    sign = worse_by_words(name)
    rows = record.columns[name].finite_rows(record.rows_of(index))
    if not sign or len(rows) < LEAST_VALUES or "reward" in record.columns:
        return None
    values = record.columns[name].values[rows]
    climb = climb_of(record, name, rows, sign * values)
    if climb is None or states_a_change(record, climb.onset_row, len(rows) // 8, of=OF_PACE):
        return None
    best, last = sign * climb.expected, sign * climb.value
    if abs(last - best) < WORSE_SHARE * max(abs(best), abs(float(values[0]) - best)):
        return None
    key = plain(record.keys.get(name, name), limit=60)
    return replace(
        climb,
        detector="other-worsens",
        kind="signal-abnormal",
        severity="warning",
        value=last,
        expected=best,
        direction="up" if sign > 0 else "down",
        text=f"{key} {best:.4g} → {last:.4g}: worse ever since its best (in hindsight)",
    )


def _stopped(record: RunRecord, name: str, index: int) -> Finding | None:
    column, span = record.columns[name], record.rows_of(index)
    main = record.columns.get("loss")
    rows = np.arange(span.start, span.stop)
    if main is not None:
        rows = rows[main.present[span]]
    good = column.present[rows] & np.isfinite(column.values[rows])
    num = int(good.sum())
    # The last attempt alone: one before may have ended where it liked.
    if num < LEAST_BEFORE or not good[:num].all() or index != len(record.attempts) - 1:
        return None
    gone = len(rows) - num
    if gone < max(LEAST_AFTER, AFTER_SHARE * len(rows)):
        return None
    key, last = plain(record.keys.get(name, name), limit=60), float(column.values[rows[num - 1]])
    written = column.present[rows[num:]].any()
    # What is not written any more may have ended by design; NaN is what somebody computed.
    how = "NaN or Inf" if written else "no number"
    return finding_at(
        record,
        detector="other-stopped",
        kind="signal-abnormal",
        signal=name,
        severity="warning" if written else "info",
        row=int(rows[min(num + LEAST_AFTER, len(rows)) - 1]),
        onset_row=int(rows[num]),
        value=float("nan"),
        expected=last,
        score=12.0,
        closed=False,
        text=(
            f"{key!r} was a number in each of {num} rows, and is {how} in all {gone} since"
            " (in hindsight)"
        ),
    )


def _grows(record: RunRecord, name: str, index: int) -> Finding | None:
    key = record.keys.get(name, name)
    column = record.columns[name]
    rows = column.finite_rows(record.rows_of(index))
    if not MEMORY.search(key.lower()) or len(rows) < LEAST_OF_MEMORY:
        return None
    size = len(rows) // PARTS
    y = np.median(column.values[rows[: size * PARTS]].reshape(PARTS, size), axis=1)
    grown = float(y[-1] - y[0])
    late = float(y[-1] - y[PARTS // 2 - 1])
    if not y[0] > 0 or y[-1] < GROWN * y[0] or int((np.diff(y) > 0).sum()) < PARTS - 1 - SLACK:
        return None
    if late < LATE * grown or (np.diff(y[-4:]) < PACE * grown / (PARTS - 1)).any():
        return None
    begun = int(np.argmax(y > y[0] + 0.05 * grown)) * size
    if states_a_change(record, int(rows[len(rows) // 2]), len(rows) // 2, of=OF_PACE):
        return None
    return finding_at(
        record,
        detector="memory-grows",
        kind="signal-abnormal",
        signal=name,
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[begun]),
        value=float(y[-1]),
        expected=float(y[0]),
        score=12.0,
        closed=False,
        text=(
            f"{plain(key, limit=60)} {y[0]:.4g} → {y[-1]:.4g} and on: memory that is never given"
            " back ends the run when it is used up (in hindsight)"
        ),
    )
