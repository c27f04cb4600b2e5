"""Turn a running count of skipped steps, as DeepSpeed's, into the share per row of the vocabulary."""

from dataclasses import replace

import numpy as np

from trimtab.record import Column, RunRecord

__all__ = ["skipped_as_share"]


def skipped_as_share(record: RunRecord) -> RunRecord:
    """Return the record with `skipped` as the share of each row's steps.

    Counts that never fall within an attempt are totals, of which the differences count; others are
    counts of the row. A column that is at most 1 everywhere is a share or a flag already.
    """
    column = record.columns.get("skipped")
    if column is None or not (column.logged() > 1).any():
        return record
    values = column.values.copy()
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = column.finite_rows(span)
        if not len(rows):
            continue
        counts, steps = column.values[rows], record.step[rows]
        spacing = np.diff(
            steps, prepend=steps[0] - (float(np.median(np.diff(steps))) if len(rows) > 1 else 1.0)
        )
        # Within an attempt: a restart begins the total anew, at 0 or at what the checkpoint holds.
        if (np.diff(counts) >= 0).all():
            # what was skipped before the first row of a resumed attempt is not known
            counts = np.diff(counts, prepend=0.0 if steps[0] <= 2 * spacing[0] else counts[0])
        values[rows] = np.clip(counts / np.maximum(spacing, 1.0), 0.0, 1.0)
    columns = {**record.columns, "skipped": Column(values, column.present)}
    note = "skipped steps are printed as a count; read as the share of each row's steps"
    return replace(record, columns=columns, notes=(*record.notes, note))
