"""The learning rate is exactly 0 for many rows after it had been above: the schedule has ended.

A decay that ends at 0 comes there in its last row. A rate of 0 for `min_rows` rows, and for a
`share` of all rows so far, means that the schedule was made for fewer steps than the run takes:
what follows costs time and changes no weight. Told once, when both are reached.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows

__all__ = ["RateEndedDetector", "RateEndedState"]


@dataclass(frozen=True)
class RateEndedState:
    """Rows with a rate, the last rate above 0, and the zeros since."""

    num_rows: int = 0
    rate: float = 0.0
    zeros: int = 0
    first_row: int = 0
    first_step: float = 0.0
    told: bool = False


@dataclass(frozen=True, kw_only=True)
class RateEndedDetector:
    """See the module."""

    name: str = "rate-ended"
    signals: tuple[str, ...] = ("lr",)
    min_rows: int = 24
    share: float = 0.1
    """Of the rows so far. Ours."""

    def start(self) -> RateEndedState:
        """Return the state before any row."""
        return RateEndedState()

    def update(self, state: RateEndedState, row: Row) -> tuple[RateEndedState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite rates leave the state as it is."""
        rate = float(row.values[0])
        if not row.present[0] or not math.isfinite(rate):
            return state, ()
        s = state
        if rate != 0:
            return RateEndedState(s.num_rows + 1, rate), ()
        if not s.zeros:
            s = RateEndedState(s.num_rows, s.rate, 0, row.index, row.step)
        s = RateEndedState(s.num_rows + 1, s.rate, s.zeros + 1, s.first_row, s.first_step, s.told)
        due = max(self.min_rows, self.share * s.num_rows)
        if s.told or s.rate == 0 or s.zeros < due:
            return s, ()
        s = RateEndedState(s.num_rows, s.rate, s.zeros, s.first_row, s.first_step, told=True)
        finding = Finding(
            detector=self.name,
            kind="plateau",
            signal="lr",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.first_row,
            onset=s.first_step,
            peak_row=s.first_row,
            peak=s.first_step,
            value=0.0,
            expected=s.rate,
            score=6.0,
            direction="down",
            closed=True,
            text=f"the learning rate is 0 for {s.zeros} rows, {s.rate:.3g} before: no weight moves",
        )
        return s, (finding,)

    def update_rows(
        self, state: RateEndedState, rows: Rows
    ) -> tuple[RateEndedState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; rates above 0 are counted."""
        lr = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(lr))
        zeros = np.flatnonzero(lr[usable] == 0)
        findings: list[Finding] = []
        at = 0
        for k in (*zeros.tolist(), len(usable)):
            if k > at:
                last = float(lr[usable[k - 1]])
                state = RateEndedState(state.num_rows + k - at, last)
            if k < len(usable):
                state, found = self.update(state, rows.row(int(usable[k])))
                findings += found
            at = k + 1
        return state, tuple(findings)
