"""The guard's fixed batches have got worse, whatever the training loss does.

The guard reads a few fixed batches in eval mode now and then, and records with the next row what
they say: `yardstick_evidence`, the log likelihood ratio of a sequential paired test for a rise
(`trimtab.guard.yardstick.sequential`). From `alarm` on it is a warning, from `critical` on the
state is to be mended; it is over when the evidence is gone. It dates to the row after the newest
reading that was no worse, as the rise lies somewhere between the two readings.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, Rows

__all__ = ["HeldOutDetector", "HeldOutState"]

_LEAST_OVER = 1.0
"""Evidence below which the condition is over."""


@dataclass(frozen=True)
class HeldOutState:
    """The newest reading that was no worse, and the condition that is open."""

    good_row: int = -1
    good_step: float = math.nan
    good_loss: float = math.nan
    open_row: int = -1
    """Row of the onset; -1: nothing is open."""
    open_step: float = math.nan
    grave: bool = False


@dataclass(frozen=True, kw_only=True)
class HeldOutDetector:
    """See the module."""

    name: str = "held-out"
    signals: tuple[str, ...] = ("yardstick_evidence", "yardstick_loss")
    alarm: float = 7.0
    critical: float = 14.0
    """Evidence of a rise by more than eight times the noise at once, or of a lesser one again and
    again."""

    def start(self) -> HeldOutState:
        """Return the state before any row."""
        return HeldOutState()

    def update(self, state: HeldOutState, row: Row) -> tuple[HeldOutState, tuple[Finding, ...]]:
        """Judge one row; one without a reading leaves the state as it is."""
        evidence, loss = row.values.tolist()
        if not row.present[0] or not math.isfinite(evidence):
            return state, ()
        loss = loss if row.present[1] else math.nan
        if evidence < _LEAST_OVER:
            good = HeldOutState(row.index, row.step, loss)
            if state.open_row < 0:
                return good, ()
            return good, (self._finding(state, row, evidence, loss, over=True),)
        grave = evidence >= self.critical
        if evidence < self.alarm or state.good_row < 0 or (state.open_row >= 0 and not grave):
            return state, ()
        if state.grave:
            return state, ()
        first = state.open_row < 0
        state = HeldOutState(
            state.good_row,
            state.good_step,
            state.good_loss,
            min(state.good_row + 1, row.index) if first else state.open_row,
            min(state.good_step + 1, row.step) if first else state.open_step,
            grave,
        )
        return state, (self._finding(state, row, evidence, loss, over=False),)

    def update_rows(
        self, state: HeldOutState, rows: Rows
    ) -> tuple[HeldOutState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; those without a reading are passed."""
        findings: list[Finding] = []
        for k in rows.present[:, 0].nonzero()[0].tolist():
            state, found = self.update(state, rows.row(k))
            findings += found
        return state, tuple(findings)

    def _finding(
        self, s: HeldOutState, row: Row, evidence: float, loss: float, *, over: bool
    ) -> Finding:
        return Finding(
            detector=self.name,
            kind="held-out-worse",
            signal="yardstick_loss",
            severity="critical" if s.grave else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.open_row,
            onset=s.open_step,
            peak_row=row.index,
            peak=row.step,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=loss,
            expected=s.good_loss,
            score=evidence,
            closed=over,
            text=(
                f"fixed batches at {loss:.4g} in eval mode, {s.good_loss:.4g} at step"
                f" {s.good_step:g}"
            ),
        )
