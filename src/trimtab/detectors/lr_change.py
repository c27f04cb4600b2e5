"""The learning rate in force leaves its schedule: a jump from one row to the next.

Schedules move slowly or by planned cuts. A rise by more than `factor` in one row that is far
beyond the rise of the row before is a change of settings, a reload bug or a schedule error. It is
evidence, not an alarm. Falls are not reported: a cut is a remedy.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows

__all__ = ["LrChangeDetector", "LrChangeState"]


@dataclass(frozen=True)
class LrChangeState:
    """Last logged learning rate (0: none yet), its last log rise, how many rows were seen."""

    lr: float
    rise: float
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class LrChangeDetector:
    """See the module."""

    name: str = "lr-change"
    signals: tuple[str, ...] = ("lr",)
    factor: float = 1.3
    min_rows: int = 10
    """A warm-up doubles and triples in its first rows."""

    def start(self) -> LrChangeState:
        """Return the state before any row."""
        return LrChangeState(0.0, 0.0, 0)

    def update_rows(
        self, state: LrChangeState, rows: Rows
    ) -> tuple[LrChangeState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Those where the rate hardly rises are passed.
        """
        lr = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(lr) & (lr > 0))
        before = np.concatenate(([state.lr], lr[usable[:-1]]))[: len(usable)]
        # A superset of the jumps: round-off must not hide one that `update` would find.
        jumps = np.flatnonzero(lr[usable] / (0.9 * self.factor) > before)  # and some more
        findings: list[Finding] = []
        at = 0
        for jump in (*jumps.tolist(), len(usable)):
            state = self._pass(state, lr[usable[at:jump]])
            if jump < len(usable):
                state, found = self.update(state, rows.row(int(usable[jump])))
                findings += found
            at = jump + 1
        return state, tuple(findings)

    def _pass(self, state: LrChangeState, lr: NDArray[np.float64]) -> LrChangeState:
        """Update the state with usable rates in which no jump is possible."""
        if not len(lr):
            return state
        last = float(lr[-1])
        before = float(lr[-2]) if len(lr) > 1 else state.lr
        # Not the logarithm of a quotient, which underflows to 0 for rates far apart.
        rise = math.log(last) - math.log(before) if before > 0 else 0.0
        return LrChangeState(last, rise, state.num_rows + len(lr))

    def update(self, state: LrChangeState, row: Row) -> tuple[LrChangeState, tuple[Finding, ...]]:
        """Judge one row; missing, zero and non-finite rates leave the state as it is."""
        lr = float(row.values[0])
        if not row.present[0] or not math.isfinite(lr) or lr <= 0:
            return state, ()
        rise = math.log(lr) - math.log(state.lr) if state.lr > 0 else 0.0
        new = LrChangeState(lr, rise, state.num_rows + 1)
        # A linear warm-up rises by a smaller share each row, so the row before is an upper bound.
        expected_rise = max(0.0, state.rise)
        if (
            state.num_rows < self.min_rows
            or rise < math.log(self.factor)
            or rise < 4 * expected_rise
        ):
            return new, ()
        finding = Finding(
            detector=self.name,
            kind="shift",
            signal="lr",
            severity="info",
            row=row.index,
            step=row.step,
            onset_row=row.index,
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=lr,
            expected=state.lr * math.exp(expected_rise),
            score=rise,
            closed=False,
            text=f"learning rate {state.lr:.3g} → {lr:.3g} in one row (x{lr / state.lr:.3g})",
        )
        return new, (finding,)
