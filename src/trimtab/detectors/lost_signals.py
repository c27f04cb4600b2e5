"""Signals of one kind of training that turn NaN or Inf: a KL, a reward, a router, in hindsight.

Each is judged as a validation loss is (`lost_validation`): tables write NaN for what was not
measured in a row, and Inf is nobody's empty cell. What belongs to every training is judged row by
row (`nonfinite`), and what the log follows from is judged by itself.
Blind to a signal that was never finite, but for an agent's reward, and for validation whose score
stands beside it: then it was made.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.lost_validation import LostValidationDetector
from trimtab.detectors.nonfinite import NonFiniteDetector
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.text import signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["lost_findings", "lost_signal_findings", "rows_beside_loss"]

MIN_NEVER = 24
"""Rewards that are no number before it is told that none is one. Ours."""
MIN_SCORED, SCORED = 8, 0.8
"""Validation losses that are no number beside a held-out score, and their share of all. Ours."""
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
    for index in range(len(record.attempts)):
        yield from _never_validated(record, record.rows_of(index))
    for name, column in record.columns.items():
        signal = SIGNAL_BY_NAME.get(name)
        if signal is None or signal.bad == "none" or name in _LEFT_OUT:
            continue
        if np.isfinite(column.values[column.present]).all():
            continue
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            if len(column.finite_rows(span)) >= MIN_FINITE:
                told = lost_findings(record, name, span)
                yield from (f for f in told if not _has_nothing_yet(f, column.present, span))
            elif name == "reward":
                yield from _never_a_number(record, span)


def _never_validated(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a validation loss that is NaN wherever it is logged, though its score is finite there.

    Where the score stands in every row and the loss in every n-th, one of its values is finite.
    """
    column, score = (record.columns.get(n) for n in ("val_loss", "eval_score"))
    if column is None or score is None or len(column.finite_rows(span)):
        return
    rows = np.arange(span.start, span.stop)[column.present[span]]
    scored = np.isin(rows, score.finite_rows(span))
    if scored.sum() < MIN_SCORED or scored.mean() < SCORED:
        return
    why = "beside a score that is not"
    yield _never_finite(record, "validation-never-finite", "val_loss", rows, why)


def _has_nothing_yet(f: Finding, present: NDArray[np.bool_], span: slice) -> bool:
    """Whether a signal was NaN from its first row on until it had something to tell: no episode."""
    begins = f.onset_row <= span.start + int(np.flatnonzero(present[span])[0])
    return begins and f.closed and math.isnan(f.value)


def _never_a_number(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield an agent's reward that is NaN or Inf wherever it is logged."""
    column = record.columns["reward"]
    rows = np.arange(span.start, span.stop)[column.present[span]]
    if len(rows) < MIN_NEVER or len(column.finite_rows(span)):
        return
    why = "no episode ends, or it is lost"
    yield _never_finite(record, "reward-never-finite", "reward", rows, why)


def _never_finite(
    record: RunRecord, detector: str, name: str, rows: NDArray[np.intp], why: str
) -> Finding:
    """Return the finding of a signal that is finite in none of the rows that hold it."""
    return finding_at(
        record,
        detector=detector,
        kind="non-finite",
        signal=name,
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=float(record.columns[name].values[rows[-1]]),
        expected=0.0,
        score=9.0,
        closed=True,
        text=f"{signal_label(name)} is NaN or Inf in all {len(rows)} rows: {why}",
    )


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
