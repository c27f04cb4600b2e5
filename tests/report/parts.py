"""Pieces of accounts: a finding, an incident, a record of given columns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import IncidentAccount
from trimtab.detectors.contract import Finding
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.incidents import Incident
from trimtab.plan.plan import Plan
from trimtab.record import Attempt, Column, RunRecord


def finding(row: int, step: float, text: str, **changes: Any) -> Finding:
    base = Finding(
        detector="spike",
        kind="spike",
        signal="loss",
        severity="critical",
        row=row,
        step=step,
        onset_row=row,
        onset=step,
        peak_row=row,
        peak=step,
        value=4.0,
        expected=2.6,
        score=12.0,
        text=text,
    )
    return replace(base, **changes)


def incident(**changes: Any) -> Incident:
    base = Incident(
        kind="spike",
        attempt="1.0",
        severity="info",
        onset_row=411,
        onset=412.0,
        peak_row=412,
        peak=413.0,
        end_row=415,
        end=416.0,
        signals=("loss",),
        headline="loss spike · step 412 to 416, over · loss 3.9, expected 3.1",
    )
    return replace(base, **changes)


def told(
    found: Incident, diagnosis: Diagnosis | None = None, plan: Plan | None = None
) -> IncidentAccount:
    return IncidentAccount(
        incident=found, diagnosis=diagnosis or Diagnosis(causes=()), plan=plan or Plan()
    )


def plain_record(
    columns: Mapping[str, NDArray[np.float64]], *, source: str = "run.jsonl", **changes: Any
) -> RunRecord:
    n = len(next(iter(columns.values())))
    whole = np.ones(n, dtype=np.bool_)
    base = RunRecord(
        source=source,
        format="JSONL",
        axis="step",
        attempt=np.zeros(n, dtype=np.int32),
        step=np.arange(1, n + 1, dtype=np.float64),
        columns={k: Column(v, whole) for k, v in columns.items()},
        attempts=(Attempt(number="1.0", first_row=0, end_row=n),),
    )
    return replace(base, **changes)
