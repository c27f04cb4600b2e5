"""Stretches of a run that its log does not hold: said beside a verdict, for nobody judged them."""

import numpy as np

from trimtab.detectors.missing_rows import MANY
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import number

__all__ = ["unlogged"]

_SHARE = 0.05
"""Of the steps of an attempt, from which on a gap is said."""
_STOPS = {"grad_norm": "gradient norm", "val_loss": "validation"}
_FEWEST, _LATE, _FEW_BEHIND = 4, 4.0, 16
"""Readings of a signal; times their usual distance, and rows behind the last, for one that stopped.
All of these are ours."""


def unlogged(record: RunRecord) -> tuple[str, ...]:
    """Return a clause for each stretch of steps without rows, and each signal that is logged no more."""
    return (*_gaps(record), *_stopped(record))


def _gaps(record: RunRecord) -> tuple[str, ...]:
    if record.axis == "row":
        return ()
    found: list[tuple[float, float]] = []
    for index in range(len(record.attempts)):
        steps = record.step[record.rows_of(index)]
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = np.diff(steps)
            whole = float(gaps.sum())
        if len(gaps) < _FEWEST or not (gaps > 0).all() or not np.isfinite(whole):
            continue
        wide = max(MANY * median(gaps), _SHARE * whole)
        found += [(float(steps[k]), float(steps[k + 1])) for k in np.flatnonzero(gaps >= wide)]
    if not found:
        return ()
    first, last = max(found, key=lambda gap: gap[1] - gap[0])
    more = f", and {len(found) - 1} more such gaps" if len(found) > 1 else ""
    return (f"no rows between step {number(first)} and {number(last)}{more}",)


def _stopped(record: RunRecord) -> tuple[str, ...]:
    if not record.num_rows:
        return ()
    span = record.rows_of(len(record.attempts) - 1)
    found: list[str] = []
    for name, word in _STOPS.items():
        column = record.columns.get(name)
        rows = column.finite_rows(span) if column is not None else np.zeros(0, dtype=np.intp)
        behind = span.stop - 1 - int(rows[-1]) if len(rows) else 0
        usual = median(np.diff(rows)) if len(rows) >= _FEWEST else 0.0
        if usual and behind >= max(_FEW_BEHIND, _LATE * usual):
            found.append(f"no {word} is logged behind step {number(record.step[rows[-1]])}")
    return tuple(found)
