"""The learning rate is next to 0 for many rows after it had been above: the schedule has ended.

A decay that ends at 0 comes there in its last row. A rate of at most `nothing` of its highest for
`min_rows` rows, and for a `share` of all rows so far, means that the schedule was made for fewer
steps than the run takes, or is stepped too often: what follows costs time and changes no weight.
Told once, when both are reached.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["RateEndedDetector", "RateEndedState"]


@dataclass(frozen=True)
class RateEndedState:
    """Rows with a rate, the last and the highest rate above 0, and the rows next to 0 since."""

    num_rows: int = 0
    rate: float = 0.0
    highest: float = 0.0
    zeros: int = 0
    first_row: int = 0
    first_step: float = 0.0
    told: bool = False
    steps: int = 0
    """Changes of the rate while it was above 0."""
    finest: float = math.inf
    """The smallest of them."""
    num_finest: int = 0
    """How many are as small."""
    held: int = 0
    """Rows at the last rate above 0."""
    held_before: int = 0
    """Rows at the one before it."""
    halvings: int = 0
    """Changes to about a half."""

    def after(self, rate: float) -> "RateEndedState":
        """Return the state after one more rate above 0."""
        calm = changed(
            self,
            num_rows=self.num_rows + 1,
            rate=rate,
            highest=max(self.highest, rate),
            held=self.held + 1,
            zeros=0,
            told=False,
        )
        if rate == self.rate or not self.highest:
            return calm
        moved = abs(rate - self.rate)
        finest = min(self.finest, moved)
        known = self.num_finest if self.finest <= (1 + DIGITS) * finest else 0
        return changed(
            calm,
            steps=self.steps + 1,
            finest=finest,
            num_finest=known + (moved <= (1 + DIGITS) * finest),
            held=1,
            held_before=self.held,
            halvings=self.halvings + (HALF[0] < rate / self.rate < HALF[1]),
        )

    def after_all(self, rates: NDArray[np.float64]) -> "RateEndedState":
        """Return the state after more rates above 0, float64 [n >= 1], as `after` one by one."""
        before = self.rate if self.highest else float(rates[0])
        moves = np.abs(np.diff(rates, prepend=before))
        at = np.flatnonzero(moves)
        finest = min(self.finest, float(moves[at].min())) if len(at) else self.finest
        known = self.num_finest if self.finest <= (1 + DIGITS) * finest else 0
        held_before = self.held_before
        if len(at):
            held_before = int(at[-1] - at[-2]) if len(at) > 1 else self.held + int(at[0])
        return changed(
            self,
            num_rows=self.num_rows + len(rates),
            rate=float(rates[-1]),
            highest=max(self.highest, float(rates.max())),
            zeros=0,
            told=False,
            steps=self.steps + len(at),
            finest=finest,
            num_finest=known + int((moves[at] <= (1 + DIGITS) * finest).sum()),
            held_before=held_before,
            halvings=self.halvings + _halvings(rates, before),
            held=len(rates) - int(at[-1]) if len(at) else self.held + len(rates),
        )

    @property
    def is_printed(self) -> bool:
        """Whether 0 is what is left of the rate in the few digits that it is printed with.

        A rate that falls smoothly moves by the last of them, comes to one of it, and stays at each for
        rows. How long it then reads 0 follows from how the rows at each grow: as many as at the last
        for a straight line, half as many again for a cosine, without end for a decay by a factor.
        """
        power = 10.0 ** round(math.log10(self.rate))
        units = max(abs(self.rate - power), abs(self.finest - power)) <= DIGITS * power
        if not units or self.steps < FEWEST_STEPS or self.num_finest < 2 or self.held < 2:
            return False
        grows = self.held / max(self.held_before, 1)
        by_factor = grows >= BY_FACTOR or self.halvings >= FEWEST_STEPS
        return by_factor or self.zeros <= (2 if grows >= BENT else 1) * self.held


def _halvings(rates: NDArray[np.float64], before: float) -> int:
    ratios = rates / np.append(before, rates[:-1])
    return int(((ratios > HALF[0]) & (ratios < HALF[1])).sum())


HALF = 0.4, 0.6
FEWEST_STEPS, DIGITS = 3, 1e-6
"""Changes of a rate before its digits are believed to be few, and a share that rounding may add."""
BENT, BY_FACTOR = 1.2, 1.8
"""Times the rows at the digit before, that those at the last come to of a cosine (1.45) and of a decay by
a factor (2.15). Ours."""


@dataclass(frozen=True, kw_only=True)
class RateEndedDetector:
    """See the module."""

    name: str = "rate-ended"
    signals: tuple[str, ...] = ("lr",)
    min_rows: int = 24
    share: float = 0.1
    """Of the rows so far. Ours."""
    nothing: float = 1e-6
    """Of the highest rate. Ours; 32-bit weights of its size do not move by a tenth of that."""

    def start(self) -> RateEndedState:
        """Return the state before any row."""
        return RateEndedState()

    def update(self, state: RateEndedState, row: Row) -> tuple[RateEndedState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite rates leave the state as it is."""
        rate = float(row.values[0])
        if not row.present[0] or not math.isfinite(rate):
            return state, ()
        s = state
        if rate > self.nothing * max(s.highest, rate):
            return s.after(rate), ()
        if not s.zeros:
            s = replace(s, first_row=row.index, first_step=row.step)
        s = replace(s, num_rows=s.num_rows + 1, zeros=s.zeros + 1)
        due = max(self.min_rows, self.share * s.num_rows)
        if s.told or s.rate == 0 or s.zeros < due or (rate == 0 and s.is_printed):
            return s, ()
        s = replace(s, told=True)
        now = "0" if rate == 0 else f"{rate:.2g}, of {s.highest:.3g} at its highest,"
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
            value=rate,
            expected=s.rate,
            score=6.0,
            direction="down",
            closed=True,
            text=f"the learning rate is {now} for {s.zeros} rows and on, {s.rate:.3g} before it",
        )
        return s, (finding,)

    def update_rows(
        self, state: RateEndedState, rows: Rows
    ) -> tuple[RateEndedState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; rates above 0 are counted."""
        lr = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(lr))
        highest = np.maximum.accumulate(np.append(state.highest, lr[usable]))[1:]
        zeros = np.flatnonzero(lr[usable] <= self.nothing * highest)
        findings: list[Finding] = []
        at = 0
        for k in (*zeros.tolist(), len(usable)):
            if k > at:
                state = state.after_all(lr[usable[at:k]])
            if k < len(usable):
                state, found = self.update(state, rows.row(int(usable[k])))
                findings += found
            at = k + 1
        return state, tuple(findings)
