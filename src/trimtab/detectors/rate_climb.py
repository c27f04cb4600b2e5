"""The loss has risen while the learning rate climbed beyond all that the run has had.

A schedule that falls and then climbs again, past its earlier peak, in small steps: none of them is
a jump, and the loss goes up by less than its noise from row to row. Watched from the row where the
rate passes that peak: medians of eight losses, once the rate is `beyond` times the peak, against
the losses before the rate began to climb. A warm-up has no fall before it, a restart of a schedule
comes back to its peak, and a jump is left to the rule of jumps.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, changed
from trimtab.detectors.level_risen import BEFORE, BLOCK, ERRORS, FIRST, level_and_limit

__all__ = ["RateClimbDetector", "RateClimbState"]

_FALLEN = 0.95
"""Of its peak, below which the rate has fallen. Ours."""
_JUMP = 1.3
"""Ratio of two rates in a row from which it is a jump, as `lr_change` has it."""


@dataclass(frozen=True)
class RateClimbState:
    """The rate's peak and what it has done since, and the losses before it climbed."""

    first: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    rate: float = 0.0
    """As last logged; 0: never."""
    peak: float = 0.0
    low: float = math.inf
    """Lowest rate since the peak; Inf: it has not fallen since."""
    before: tuple[float, ...] = ()
    """The losses up to there."""
    since_row: int = -1
    """Row at which it passed the peak; -1: it has not."""
    since_step: float = math.nan
    block: tuple[float, ...] = ()
    level: float = math.nan
    count: int = 0
    """Losses since the alarm."""
    alarmed: bool = False


@dataclass(frozen=True, kw_only=True)
class RateClimbDetector:
    """See the module."""

    name: str = "rate-climb"
    signals: tuple[str, ...] = ("loss", "lr")
    beyond: float = 1.5
    rise_share: float = 0.05
    """Least rise, share of the descent of the run so far."""
    watch_rows: int = 128

    def start(self) -> RateClimbState:
        """Return the state before any row."""
        return RateClimbState()

    def update(self, state: RateClimbState, row: Row) -> tuple[RateClimbState, tuple[Finding, ...]]:
        """Judge one row; what is missing or not finite is passed over."""
        loss, rate = row.values.tolist()
        if row.present[1] and math.isfinite(rate) and rate > 0:
            state = self._see_rate(state, row, rate)
        if not row.present[0] or not math.isfinite(loss):
            return state, ()
        if len(state.first) < FIRST:
            state = changed(state, first=(*state.first, loss))
        if state.since_row < 0:
            return changed(state, recent=(*state.recent[1 - BEFORE :], loss)), ()
        if not state.alarmed and state.rate < self.beyond * state.peak:
            return state, ()
        block = (*state.block, loss)
        state = changed(state, block=block, count=state.count + state.alarmed)
        if len(block) < BLOCK:
            return state, ()
        return self._judge(changed(state, block=()), row, block)

    def update_rows(
        self, state: RateClimbState, rows: Rows
    ) -> tuple[RateClimbState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; those of a fall or a warm-up are passed."""
        findings: list[Finding] = []
        rate = rows.values[:, 1]
        usable = np.flatnonzero(rows.present[:, 1] & np.isfinite(rate) & (rate > 0))
        before = np.concatenate(([state.rate], rate[usable[:-1]]))[: len(usable)]
        rises, falls = usable[rate[usable] > before], usable[rate[usable] < before]
        k = 0
        while k < len(rows):
            # At the peak, without a fall since, the peak only moves on.
            turns = falls if _is_climbing(state) else rises
            place = int(np.searchsorted(turns, k))
            stop = int(turns[place]) if place < len(turns) else len(rows)
            # Back at the peak after a shallow dip, the dip is forgotten: row by row.
            dipped = math.inf > state.low > _FALLEN * state.peak and state.rate >= state.peak
            if stop > k and state.since_row < 0 and not state.alarmed and not dipped:
                state = self._pass(state, rows, k, stop)
                k = stop
            else:
                state, found = self.update(state, rows.row(k))
                findings += found
                k += 1
        return state, tuple(findings)

    def _pass(self, s: RateClimbState, rows: Rows, k: int, stop: int) -> RateClimbState:
        """Take in rows in which the rate only rises to new peaks, or never rises."""
        losses, rates = rows.values[k:stop, 0], rows.values[k:stop, 1]
        told = rows.present[k:stop, 0] & np.isfinite(losses)
        rated = np.flatnonzero(rows.present[k:stop, 1] & np.isfinite(rates) & (rates > 0))
        found = losses[told]
        lowest = rated[(rates[rated] < s.peak) & (rates[rated] <= s.low)]
        low, before = s.low, s.before
        if len(lowest):
            last = int(lowest[-1])
            earlier = losses[:last][told[:last]]
            low = float(rates[last])
            before = (*s.recent, *earlier[-BEFORE:].tolist())[-BEFORE:]
        return changed(
            s,
            first=(*s.first, *found[: FIRST - len(s.first)].tolist()),
            recent=(*s.recent, *found[-BEFORE:].tolist())[-BEFORE:],
            rate=float(rates[rated[-1]]) if len(rated) else s.rate,
            peak=float(rates[rated[-1]]) if len(rated) and _is_climbing(s) else s.peak,
            low=low,
            before=before,
        )

    def _see_rate(self, s: RateClimbState, row: Row, rate: float) -> RateClimbState:
        jumped = s.rate > 0 and rate > _JUMP * s.rate
        s = changed(s, rate=rate)
        if s.alarmed:
            return s
        if jumped or (rate >= s.peak and s.low > _FALLEN * s.peak):
            return changed(s, peak=max(s.peak, rate), low=math.inf, since_row=-1, block=())
        if rate <= s.low:
            return changed(s, low=rate, before=s.recent, since_row=-1, block=())
        if rate <= s.peak or s.since_row >= 0 or len(s.before) < BEFORE:
            return s
        return changed(s, since_row=row.index, since_step=row.step)

    def _judge(
        self, s: RateClimbState, row: Row, block: tuple[float, ...]
    ) -> tuple[RateClimbState, tuple[Finding, ...]]:
        middle = float(np.median(np.array(block)))  # one spike is no change of level
        level, limit = level_and_limit(s.first, s.before, self.rise_share)
        over = middle > limit
        if over and not s.alarmed:
            s = changed(s, alarmed=True, count=0, level=level)
            return s, (self._finding(s, row, middle, limit, closed=False),)
        if s.alarmed and (not over or s.count >= self.watch_rows):
            found = self._finding(s, row, middle, limit, closed=True)
            rest = changed(s, peak=s.rate, low=math.inf, since_row=-1, alarmed=False, recent=block)
            return rest, (found,)
        return s, ()

    def _finding(
        self, s: RateClimbState, row: Row, middle: float, limit: float, *, closed: bool
    ) -> Finding:
        return Finding(
            detector=self.name,
            kind="drift",
            signal="loss",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.since_row,
            onset=s.since_step,
            peak_row=row.index,
            peak=row.step,
            end_row=row.index if closed and middle <= limit else None,
            end=row.step if closed and middle <= limit else None,
            value=middle,
            expected=s.level,
            score=ERRORS * (middle - s.level) / max(limit - s.level, 1e-300),
            closed=closed,
            text=(
                f"loss {middle:.4g} since the learning rate climbed beyond its earlier peak, to"
                f" {s.rate / s.peak:.3g} times it; {s.level:.4g} before"
            ),
        )


def _is_climbing(s: RateClimbState) -> bool:
    """Whether the rate stands at its peak, and has not fallen since."""
    return s.low == math.inf and s.rate == s.peak
