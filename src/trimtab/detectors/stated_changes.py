"""Changes that a log states itself: of a rate, a batch, a stage, a setting of its own.

What another signal does where one of them changes is no surprise. A pace that goes down there is a
note: longer sequences, larger images and another batch cost time by design. So is a loss that drops
where a stage changes, or a line announces another objective or other data, which may cost less.
"""

import re
from dataclasses import replace

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.readers.by_values import is_guessed_time
from trimtab.readers.stated_settings import ANNOUNCED, STAGE, STATED_SETTING
from trimtab.record import RunRecord

__all__ = ["as_stated", "states_a_change"]

SETTINGS = (
    STATED_SETTING,
    "batch_size",
    "kl_weight",
    "dropout",
    "stage",
    "weight_decay",
    "beta1",
    "beta2",
    "clip_limit",
    "trainable_parameters",
)
OF_PACE = (STATED_SETTING, "batch_size", "stage", "trainable_parameters")
RATE_FACTOR = 1.3
"""A rate that moves by less from row to row follows its schedule. As in `explained_rises`."""
OF_DATA = (STATED_SETTING, STAGE)
SAME, LEAST_STEP, EARLY = 1.05, 0.5, 0.25
"""Times a step of the rate, that the next one of a warm-up by epochs is at most and at least, and
the share of the rows in which a run warms up. Ours."""
LATE_ROWS, AS_SLOW = 64, 0.35
"""Rows by which a new level of the pace may be dated late, and the share of its step by which the rows
since the stated change may be off it. Ours."""
NEAR_ROWS, MOST_ROWS = 4, 32
"""Rows between a change and what it does, and what its place may be off where that is a level. Ours."""


def states_a_change(
    record: RunRecord, row: int, reach: int, *, of: tuple[str, ...] = (*SETTINGS, "lr")
) -> bool:
    """Whether the log states a change within `reach` rows of a row, in its attempt."""
    span = record.rows_of(int(record.attempt[row]))
    near = slice(max(span.start, row - reach), min(span.stop, row + reach + 1))
    for name in of:
        column = record.columns.get(name)
        if column is None:
            continue
        values = column.values[column.finite_rows(near)]
        if not len(values) or values.min() == values.max():
            continue
        # Step by step: a schedule may come down as far over the window.
        before, after = values[:-1], values[1:]
        if name != "lr" or bool(
            ((after > RATE_FACTOR * before) | (before > RATE_FACTOR * after)).any()
        ):
            return True
    return False


def as_stated(record: RunRecord, f: Finding) -> Finding:
    """Return a pace, or a loss, that goes down where the log states a change as a note."""
    if f.detector == "lr-change" and f.severity != "info" and _goes_on_up(record, f):
        return replace(f, severity="info", text=f"{f.text}; it rises on by as much: a warm-up")
    if f.severity == "info" or f.kind not in ("slowdown", "too-good"):
        return f
    if f.kind == "too-good" and _ends_augmented(record, f):
        return replace(f, severity="info", text=f"{f.text}; detectors end without mosaics")
    if f.kind == "slowdown" and f.signal == "step_time_s" and is_guessed_time(record.keys):
        return replace(f, severity="info", text=f"{f.text}; its name may be that of other data")
    of = OF_PACE if f.kind == "slowdown" else OF_DATA
    announced = ANNOUNCED in record.keys.get(STATED_SETTING, "") or STAGE in record.columns
    if f.kind == "too-good" and not announced:
        return f
    over = MOST_ROWS if f.detector == "too-low" else 0
    stated = states_a_change(record, f.onset_row, NEAR_ROWS + f.grain_rows + over, of=of)
    if not stated and (f.kind != "slowdown" or not _is_as_slow_since(record, f)):
        return f
    return replace(f, severity="info", text=f"{f.text}; it sets in where the log states a change")


def _is_as_slow_since(record: RunRecord, f: Finding) -> bool:
    """Whether a pace moved at a stated change some rows before it was dated, and not since."""
    span, pace = record.rows_of(int(record.attempt[f.onset_row])), record.columns.get(f.signal)
    first, stop = max(span.start, f.onset_row - LATE_ROWS), min(span.stop, f.row + 1)
    changes: set[int] = set()
    for name in OF_PACE:
        column = record.columns.get(name)
        rows = column.finite_rows(slice(first, stop)) if column is not None else np.zeros(0, int)
        if column is not None and len(rows) > 1:
            changes |= set(rows[1:][np.diff(column.values[rows]) != 0].tolist())
    before = [row for row in changes if row < f.onset_row]
    if pace is None or not before:
        return False
    behind = min((row for row in changes if row > f.onset_row), default=stop)
    between = pace.values[pace.finite_rows(slice(max(before), f.onset_row))]
    after = pace.values[pace.finite_rows(slice(f.onset_row, behind))]
    if min(len(between), len(after)) < NEAR_ROWS:
        return False
    now = float(np.median(after))
    off = abs(float(np.median(between)) - now)
    return off <= AS_SLOW * abs(now - f.expected)


def _ends_augmented(record: RunRecord, f: Finding) -> bool:
    """Whether the losses of a detector drop in its last epochs.

    YOLO feeds whole images in the last ten, where the loss of a box is smaller.
    """
    if record.axis != "epoch" or not _DETECTS.search(record.keys.get("loss", "").lower()):
        return False
    first = record.num_rows - _LAST_EPOCHS
    # A fall is found by what the rows before promise, and may be dated before its edge.
    dated_early = record.num_rows // 2 <= f.onset_row and first - 2 <= f.peak_row
    return first - 2 <= f.onset_row <= first + 3 or (f.onset_row < first and dated_early)


_DETECTS = re.compile(r"(?:^|[^a-z])box(?:[^a-z]|$)")
_LAST_EPOCHS = 10


def _goes_on_up(record: RunRecord, f: Finding) -> bool:
    """Whether a rate that was never higher next moves as far again, after as many rows."""
    column = record.columns["lr"]
    rows = column.finite_rows(record.rows_of(int(record.attempt[f.onset_row])))
    rate = column.values[rows]
    moved = np.flatnonzero(np.diff(rate)) + 1
    at = int(np.searchsorted(rows[moved], f.onset_row))
    if at + 1 >= len(moved) or rows[moved[at]] != f.onset_row or rate[: moved[at]].max() > f.value:
        return False
    here, after = int(moved[at]), int(moved[at + 1])
    held, before = after - here, here - int(moved[at - 1] if at else 0)
    steps = rate[here] - rate[here - 1], rate[after] - rate[here]
    if here > EARLY * len(rate) or not 0.5 * before <= held <= 2 * before:
        return False
    return bool(0 < LEAST_STEP * steps[0] <= steps[1] <= SAME * steps[0])
