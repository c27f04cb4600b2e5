"""Loss-scale collapse: the fp16 scaler halves again and again without growing back.

A dynamic scaler halves once in a while and doubles after some hundred clean steps; what is not
normal is a fall by `warn_factor` within `window_rows` rows, or a scale that stays at the lowest
value it can reach while the run goes on. The calibration of the first rows, where a scaler comes
down from a very high start, is no collapse.

Blind to a scale that sinks over thousands of rows: see `level`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row

__all__ = ["ScaleCollapseDetector", "ScaleCollapseState"]


@dataclass(frozen=True)
class ScaleCollapseState:
    """`recent` [window_rows] is a ring of log2 scales with the rows and steps they stood at."""

    recent: NDArray[np.float64]
    rows: NDArray[np.int64]
    steps: NDArray[np.float64]
    num_rows: int
    onset_row: int
    """-1 while calm."""
    onset: float
    top: float
    lowest: float
    lowest_row: int
    lowest_step: float
    level: int
    """0 calm, 1 warned, 2 critical."""


@dataclass(frozen=True, kw_only=True)
class ScaleCollapseDetector:
    """See the module."""

    name: str = "scale-collapse"
    signals: tuple[str, ...] = ("loss_scale",)
    window_rows: int = 32
    warn_halvings: float = 3.0
    """OPT and BigScience logs: a fall by 8 within ten rows went with trouble in every case."""
    critical_halvings: float = 5.0
    calibration_rows: int = 64
    """A scaler that starts at 2^32 needs up to 32 halvings to find its range."""

    def start(self) -> ScaleCollapseState:
        """Return the state before any row."""
        n = self.window_rows
        return ScaleCollapseState(
            np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n), 0, -1, 0.0, 0.0, 0.0, 0, 0.0, 0
        )

    def update(
        self, state: ScaleCollapseState, row: Row
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        """Judge one row; a missing, zero or non-finite scale leaves the state as it is."""
        value = float(row.values[0])
        if not row.present[0] or not math.isfinite(value) or value <= 0:
            return state, ()
        y = math.log2(value)
        recent, rows, steps = state.recent.copy(), state.rows.copy(), state.steps.copy()
        at = state.num_rows % self.window_rows
        recent[at], rows[at], steps[at] = y, row.index, row.step
        n = state.num_rows + 1
        onset_row, onset, top, lowest = state.onset_row, state.onset, state.top, state.lowest
        lowest_row, lowest_step, level = state.lowest_row, state.lowest_step, state.level
        findings: tuple[Finding, ...] = ()
        filled = recent[: min(n, self.window_rows)]
        if onset_row < 0:
            high = int(np.argmax(filled))
            if n > self.calibration_rows and filled[high] - y >= self.warn_halvings:
                top, lowest, lowest_row, lowest_step, level = (
                    float(filled[high]),
                    y,
                    row.index,
                    row.step,
                    1,
                )
                onset_row, onset = self._first_fall(recent, rows, steps, n, top)
        elif y < lowest:
            lowest, lowest_row, lowest_step = y, row.index, row.step
        new = ScaleCollapseState(
            recent, rows, steps, n, onset_row, onset, top, lowest, lowest_row, lowest_step, level
        )
        if onset_row >= 0 and state.onset_row < 0:
            findings = (self._finding(new, row, closed=False),)
        elif onset_row >= 0 and y >= top - 1:
            findings = (self._finding(new, row, closed=True),)
            new = ScaleCollapseState(recent, rows, steps, n, -1, 0.0, 0.0, 0.0, 0, 0.0, 0)
        elif onset_row >= 0 and level < 2 and top - lowest >= self.critical_halvings:
            new = ScaleCollapseState(
                recent, rows, steps, n, onset_row, onset, top, lowest, lowest_row, lowest_step, 2
            )
            findings = (self._finding(new, row, closed=False),)
        return new, findings

    def _first_fall(
        self,
        recent: NDArray[np.float64],
        rows: NDArray[np.int64],
        steps: NDArray[np.float64],
        n: int,
        top: float,
    ) -> tuple[int, float]:
        """Return row and step of the first value below the top, in time order."""
        order = [i % self.window_rows for i in range(max(0, n - self.window_rows), n)]
        last_top = max(k for k, i in enumerate(order) if recent[i] == top)
        i = order[last_top + 1]
        return int(rows[i]), float(steps[i])

    def _finding(self, s: ScaleCollapseState, row: Row, *, closed: bool) -> Finding:
        halvings = s.top - s.lowest
        return Finding(
            detector=self.name,
            kind="scale-collapse",
            signal="loss_scale",
            severity="critical" if halvings >= self.critical_halvings else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.lowest_row,
            peak=s.lowest_step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=2.0**s.lowest,
            expected=2.0**s.top,
            score=halvings,
            direction="down",
            closed=closed,
            text=f"loss scale {2.0**s.top:.6g} → {2.0**s.lowest:.6g}, {halvings:.0f} halvings"
            + (", back" if closed else ""),
        )
