"""The learning rate in force leaves its schedule: a jump from one row to the next.

Schedules move slowly or by planned cuts. A rise by more than `factor` in one row that is far
beyond the rise of the row before is a change of settings, a reload bug or a schedule error: a
warning where it leads beyond every rate before (`above`), or, the first time, to one that the run
has not had lately. A restart of a schedule comes back to a rate that was in force, and a cut that
is taken back does too: such rises are evidence, not alarms. A warm-up that is held from epoch to
epoch rises by as much each time: no more than the rise before, it is none. Falls are not reported: a cut is a
remedy.
"""

import math
from dataclasses import dataclass, replace

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
    highest: float = 0.0
    """Of all rates so far."""
    recent: float = 0.0
    """Highest rate of the block of rows under way."""
    earlier: float = 0.0
    """Highest rate of the block before it."""
    num_jumps: int = 0
    step_up: float = 0.0
    """Last rise, 0 where the rate fell since."""


@dataclass(frozen=True, kw_only=True)
class LrChangeDetector:
    """See the module."""

    name: str = "lr-change"
    signals: tuple[str, ...] = ("lr",)
    factor: float = 1.3
    min_rows: int = 10
    """A warm-up doubles and triples in its first rows."""
    above: float = 1.05
    """Rates within this ratio of one that was in force are that rate again. Ours."""
    recent_rows: int = 256
    """Rows of a block of recent rates; a cut is taken back within two of them. Ours."""

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
        recent, earlier, seen = state.recent, state.earlier, state.num_rows
        at = 0
        while at < len(lr):
            room = self.recent_rows - seen % self.recent_rows
            part = lr[at : at + room]
            recent = max(recent, float(part.max()))
            seen, at = seen + len(part), at + len(part)
            if seen % self.recent_rows == 0:
                recent, earlier = 0.0, recent
        highest = max(state.highest, float(lr.max()))
        return LrChangeState(
            last, rise, seen, highest, recent, earlier, state.num_jumps, _step_up(state, lr)
        )

    def update(self, state: LrChangeState, row: Row) -> tuple[LrChangeState, tuple[Finding, ...]]:
        """Judge one row; missing, zero and non-finite rates leave the state as it is."""
        lr = float(row.values[0])
        if not row.present[0] or not math.isfinite(lr) or lr <= 0:
            return state, ()
        rise = math.log(lr) - math.log(state.lr) if state.lr > 0 else 0.0
        new = self._pass(state, np.array([lr]))
        # A linear warm-up rises by a smaller share each row, so the row before is an upper bound.
        expected_rise = max(0.0, state.rise)
        if (
            state.num_rows < self.min_rows
            or rise < math.log(self.factor)
            or rise < 4 * expected_rise
        ):
            return new, ()
        lately = self.above * max(state.recent, state.earlier, state.lr)
        fresh = state.num_jumps == 0 and lately < lr < state.highest / self.above
        beyond = lr > self.above * state.highest
        if 0.5 * state.step_up <= lr - state.lr <= self.above * state.step_up > 0:
            return new, ()
        new = replace(new, num_jumps=state.num_jumps + 1)
        finding = Finding(
            detector=self.name,
            kind="setting-jump",
            signal="lr",
            severity="warning" if beyond or fresh else "info",
            row=row.index,
            step=row.step,
            onset_row=row.index,
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=lr,
            expected=state.lr * math.exp(expected_rise),
            score=rise,
            closed=True,
            text=f"learning rate {state.lr:.3g} → {lr:.3g} in one row (x{lr / state.lr:.3g})",
        )
        return new, (finding,)


def _step_up(state: LrChangeState, lr: NDArray[np.float64]) -> float:
    """Return the last rise after more rates, 0 where the rate has fallen since."""
    moves = np.diff(lr, prepend=state.lr if state.lr > 0 else lr[:1])
    moved = moves[moves != 0]
    return state.step_up if not len(moved) else max(float(moved[-1]), 0.0)
