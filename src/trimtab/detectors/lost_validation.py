"""A validation loss that turns NaN or Inf, of the whole or of one data set.

In a row of its own it is told at once, and in a log that leaves it out of rows with a training
loss. Where every such row has one, tables write NaN for a validation that was not made, so there
NaN counts from the row on at which the next validation was due: after more such rows than ever
stood between two validations. It is an alarm after `min_rows` of them, or as many more as stood
between. Inf is nobody's empty cell.

Blind, in such a table, to a validation that was never finite, and to one that stops after fewer
than `min_checks`.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["LostValidationDetector", "LostValidationState"]


@dataclass(frozen=True)
class LostValidationState:
    """The stretch of values that are not finite, and how often validations came before."""

    num_checks: int = 0
    gap: int = 0
    """Most rows of NaN beside a training loss between two validations."""
    rows: int = 0
    """Values of this stretch, not finite all."""
    due_rows: int = 0
    """Of them, those from the row on at which a validation was due."""
    since_row: int = -1
    since: float = 0.0
    last_row: int = -1
    last: float = 0.0
    value: float = 0.0
    told: bool = False
    num_before: int = 0
    """Stretches told before that are over."""
    left_out: bool = False
    """Whether a row with a finite training loss has had no validation: then NaN is no empty cell."""


@dataclass(frozen=True, kw_only=True)
class LostValidationDetector:
    """See the module."""

    name: str = "lost-validation"
    signals: tuple[str, ...] = ("val_loss", "loss")
    min_rows: int = 3
    min_checks: int = 3

    def start(self) -> LostValidationState:
        """Return the state before any row."""
        return LostValidationState()

    def update(
        self, state: LostValidationState, row: Row
    ) -> tuple[LostValidationState, tuple[Finding, ...]]:
        """Judge one row; one without a validation leaves the state as it is."""
        if not row.present[0]:
            leaves_out = not state.left_out and math.isfinite(row.values[1])
            return (changed(state, left_out=True) if leaves_out else state), ()
        value, beside, s = float(row.values[0]), bool(row.present[1]), state
        if math.isfinite(value):
            if not s.rows:
                return changed(s, num_checks=s.num_checks + 1), ()
            new = LostValidationState(
                num_checks=s.num_checks + 1,
                gap=s.gap if s.told or not s.num_checks else max(s.gap, s.rows),
                num_before=s.num_before + s.told,
                left_out=s.left_out,
            )
            return new, (self._finding(s, row, over=True),) if s.told else ()
        sure = not beside or s.left_out or math.isinf(value)
        due = sure or s.due_rows > 0 or (s.num_checks >= self.min_checks and s.rows >= s.gap)
        s = changed(s, rows=s.rows + 1, due_rows=s.due_rows + due)
        if not due:
            return s, ()
        if s.due_rows == 1:
            s = changed(s, since_row=row.index, since=row.step, value=value)
        s = changed(s, last_row=row.index, last=row.step)
        bar = 1 if sure and not s.num_before else max(self.min_rows, 0 if sure else s.gap + 1)
        if s.told or s.due_rows < bar:
            return s, ()
        s = changed(s, told=True)
        return s, (self._finding(s, row, over=False),)

    def update_rows(
        self, state: LostValidationState, rows: Rows
    ) -> tuple[LostValidationState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; finite ones among finite ones are passed."""
        made = np.flatnonzero(rows.present[:, 0])
        bad = ~np.isfinite(rows.values[made, 0])
        after = np.concatenate(([state.rows > 0], bad[:-1]))[: len(made)]
        findings: list[Finding] = []
        done = 0
        without = np.flatnonzero(np.isfinite(rows.values[:, 1]) & ~rows.present[:, 0])
        leaves_out = int(without[0]) if len(without) and not state.left_out else len(rows)
        for k in np.flatnonzero(bad | after).tolist():
            seen = state.left_out or int(made[k]) > leaves_out
            state = changed(state, num_checks=state.num_checks + k - done, left_out=seen)
            state, found = self.update(state, rows.row(int(made[k])))
            findings += found
            done = k + 1
        seen = state.left_out or leaves_out < len(rows)
        state = changed(state, num_checks=state.num_checks + len(made) - done, left_out=seen)
        return state, tuple(findings)

    def _finding(self, s: LostValidationState, row: Row, *, over: bool) -> Finding:
        lasted = f" for {s.due_rows} rows" if over and s.due_rows > 1 else ""
        if not s.num_checks:
            lasted = f" from the first one on{lasted}"
        return Finding(
            detector=self.name if s.num_checks or not s.left_out else "evaluation-never-finite",
            kind="non-finite",
            signal=self.signals[0],
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.since_row,
            onset=s.since,
            peak_row=s.since_row,
            peak=s.since,
            end_row=s.last_row if over else None,
            end=s.last if over else None,
            value=s.value,
            expected=0.0,
            score=math.inf,
            closed=over,
            text=f"{self.signals[0]} is {s.value}{lasted}",
        )
