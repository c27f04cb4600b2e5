"""Changes that a log states itself: of a rate, a batch, a stage, a setting of its own.

What another signal does where one of them changes is no surprise. A pace that goes down there is a
note: longer sequences, larger images and another batch cost time by design.
"""

from dataclasses import replace

from trimtab.detectors.contract import Finding
from trimtab.readers.stated_settings import STATED_SETTING
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
NEAR_ROWS = 4
"""Rows between a change and what it does. Ours."""


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
        if name != "lr" or values.max() > RATE_FACTOR * values.min():
            return True
    return False


def as_stated(record: RunRecord, f: Finding) -> Finding:
    """Return a pace that goes down where the log states a change as a note."""
    if f.kind != "slowdown" or f.severity == "info":
        return f
    if not states_a_change(record, f.onset_row, NEAR_ROWS + f.grain_rows, of=OF_PACE):
        return f
    return replace(f, severity="info", text=f"{f.text}; it sets in where the log states a change")
