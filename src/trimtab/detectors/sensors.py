"""Sensors that miss samples: a signal that the log should have at these rows, and often has not.

A signal logged at every k-th row is complete: k is the usual distance between its values. Missing
is what a distance of several k leaves out. Where more than `MAX_MISSING` of the samples are
missing, between the first value and the last row of an attempt, what is drawn or judged from the
signal is unreliable, which is a note. Signals that a trainer leaves out for a reason (a validation
loss, the norm of a skipped step) are not judged, nor what is derived from others: nobody logged it.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.rank_values import is_of_rank
from trimtab.record import RunRecord
from trimtab.text import OTHER

__all__ = ["sensor_findings", "share_missing"]

MAX_MISSING = 0.1
"""Share of missing samples from which a sensor is unreliable. Ours."""
MIN_SAMPLES = 50
# Logged when something happens, or left out of a step for a reason: they have no cadence.
_BY_EVENT = frozenset({"val_loss", "perplexity", "grad_norm", "loss", "skipped", "nonfinite"})
_DERIVED = frozenset({"loss_step_std", "clipped", "clip_frequency"})


def share_missing(rows: NDArray[np.intp], end_row: int) -> float:
    """Return the share of missing samples of a signal seen at these rows, int [n >= 2], rising.

    Example:
        >>> share_missing(np.array([0, 2, 4, 10, 12]), 14)
        0.2857142857142857
    """
    # The end counts as a sample, so a sensor that died before the last row shows.
    gaps = np.diff(np.append(rows, end_row))
    usual = max(1.0, float(np.median(gaps)))
    # A gap below half the usual rounds to 0, yet it ends in a sample that was due.
    due = float(np.rint(gaps / usual).clip(1).sum())
    return 1.0 - len(rows) / due


def sensor_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per unreliable signal and attempt; none where trimtab itself has sampled.

    A guard reads its signals at a cadence of its own, denser early and while something is wrong.
    """
    findings: list[Finding] = []
    if record.format == "trimtab":
        return ()
    for name, column in record.columns.items():
        if (
            name in _BY_EVENT
            or name.startswith(("loss/", "val_loss/", "grad_norm/", OTHER))
            or is_of_rank(name)
        ):
            continue
        if name in _DERIVED and name not in record.keys:
            continue
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            rows = column.finite_rows(span)
            if len(rows) < MIN_SAMPLES:
                continue
            missing = share_missing(rows, span.stop)
            if missing > MAX_MISSING:
                findings.append(_finding(record, name, rows, span.stop - 1, missing))
    return tuple(findings)


def _finding(
    record: RunRecord, name: str, rows: NDArray[np.intp], last: int, missing: float
) -> Finding:
    onset = int(rows[0])
    return finding_at(
        record,
        detector="sensors",
        kind="frozen-signal",
        signal=name,
        severity="info",
        row=last,
        onset_row=onset,
        value=missing,
        expected=0.0,
        score=6.0 * missing / MAX_MISSING,
        closed=False,
        text=f"{missing:.0%} of the samples of {name} are missing: unreliable, do not judge by it",
    )
