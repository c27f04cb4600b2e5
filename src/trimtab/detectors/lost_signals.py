"""Signals of one kind of training that turn NaN or Inf: a KL, a reward, a router, in hindsight.

Each is judged as a validation loss is (`lost_validation`): tables write NaN for what was not
measured in a row, and Inf is nobody's empty cell. What belongs to every training is judged row by
row (`nonfinite`), and what the log follows from is judged by itself.
Blind to a signal that was never finite.
"""

from collections.abc import Iterator

import numpy as np

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.lost_validation import LostValidationDetector
from trimtab.detectors.nonfinite import NonFiniteDetector
from trimtab.record import RunRecord
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["lost_findings", "lost_signal_findings", "rows_beside_loss"]

MIN_FINITE = 8
"""Finite values before, so that a signal is known to be one. Ours."""
_LEFT_OUT = frozenset(NonFiniteDetector().signals) | {
    "val_loss",
    "perplexity",  # exp of a loss overflows, the loss is what is told
    "loss_step_std",
    "explained_variance",  # 0 / 0 where all returns are alike
    "reward_std",
    "advantage_std",
    "step_time_s",
    "throughput",
    "lr",
}


def lost_signal_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return what turned non-finite; nothing of a guard, which leaves out what it cannot tell."""
    return () if record.format == "trimtab" else tuple(_of(record))


def _of(record: RunRecord) -> Iterator[Finding]:
    for name, column in record.columns.items():
        signal = SIGNAL_BY_NAME.get(name)
        if signal is None or signal.bad == "none" or name in _LEFT_OUT:
            continue
        if np.isfinite(column.values[column.present]).all():
            continue
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            if len(column.finite_rows(span)) >= MIN_FINITE:
                yield from lost_findings(record, name, span)


def lost_findings(record: RunRecord, name: str, span: slice) -> tuple[Finding, ...]:
    """Return the stretches of an attempt in which one signal is not finite, each once."""
    lost = LostValidationDetector(signals=(name, "loss"))
    told = lost.update_rows(lost.start(), rows_beside_loss(record, name, span))[1]
    return tuple({f.key: f for f in told}.values())


def rows_beside_loss(record: RunRecord, name: str, span: slice) -> Rows:
    """Return the rows of an attempt that hold a signal or the train loss, in this order."""
    num = span.stop - span.start
    values, present = np.full((num, 2), np.nan), np.zeros((num, 2), dtype=np.bool_)
    for j, column in enumerate(record.columns.get(n) for n in (name, "loss")):
        if column is not None:
            present[:, j] = column.present[span]
            values[present[:, j], j] = column.values[span][present[:, j]]
    mine = present.any(axis=1)
    rows = np.arange(span.start, span.stop)[mine]
    return Rows(rows, record.step[span][mine], values[mine], present[mine])
