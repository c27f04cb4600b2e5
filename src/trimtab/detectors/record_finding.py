"""Findings of rules that look at a whole record: rows are given, their steps are looked up."""

from typing import Literal

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.vocabulary import Severity

__all__ = ["finding_at"]


def finding_at(
    record: RunRecord,
    *,
    detector: str,
    kind: str,
    signal: str,
    severity: Severity,
    row: int,
    onset_row: int,
    peak_row: int | None = None,
    end_row: int | None = None,
    value: float,
    expected: float,
    score: float,
    direction: Literal["up", "down"] = "up",
    closed: bool,
    text: str,
) -> Finding:
    """Return a `Finding` whose steps are those of its rows; without a peak, its onset is the peak.

    A streaming detector has the steps at hand and makes its findings itself; a rule in hindsight
    knows rows only, and row and step of one event must not fall apart.
    """
    peak_row = onset_row if peak_row is None else peak_row
    return Finding(
        detector=detector,
        kind=kind,
        signal=signal,
        severity=severity,
        row=int(row),
        step=float(record.step[row]),
        onset_row=int(onset_row),
        onset=float(record.step[onset_row]),
        peak_row=int(peak_row),
        peak=float(record.step[peak_row]),
        end_row=None if end_row is None else int(end_row),
        end=None if end_row is None else float(record.step[end_row]),
        value=value,
        expected=expected,
        score=score,
        direction=direction,
        closed=closed,
        text=text,
    )
