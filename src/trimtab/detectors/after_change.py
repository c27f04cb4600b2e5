"""The loss has risen since a setting changed that nobody announced.

Alone, a rise of a twentieth of the descent is too little to be called a shift. Right after such a
change it is enough: the change is the only thing that is known to be other than before. Steps are
looked at in eights, up to 128 after the change, each median against that of the last 32 before.
A change of the rate is left to the rules of the rate. Only a guard records such changes.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, changed
from trimtab.detectors.level_risen import BEFORE, BLOCK, ERRORS, FIRST, level_and_limit

__all__ = ["AfterChangeDetector", "AfterChangeState"]

_RATE_RATIO = 1.5


@dataclass(frozen=True)
class AfterChangeState:
    """The losses so far, and the change after which they are watched."""

    first: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    """The last ones; while a change is watched those before it."""
    rate: float = math.nan
    """Learning rate as last logged."""
    since_row: int = -1
    """First row under the change; -1: none is watched."""
    since_step: float = math.nan
    level: float = math.nan
    limit: float = math.nan
    """Median of a block above which the change did harm."""
    count: int = 0
    """Losses since the change."""
    block: tuple[float, ...] = ()
    alarmed: bool = False


@dataclass(frozen=True, kw_only=True)
class AfterChangeDetector:
    """See the module."""

    name: str = "after-change"
    signals: tuple[str, ...] = ("unannounced_changes", "loss", "lr")
    rise_share: float = 0.05
    """Least rise, share of the descent of the run so far."""
    watch_rows: int = 128

    def start(self) -> AfterChangeState:
        """Return the state before any row."""
        return AfterChangeState()

    def update(
        self, state: AfterChangeState, row: Row
    ) -> tuple[AfterChangeState, tuple[Finding, ...]]:
        """Judge one row; a loss that is missing or not finite is passed over."""
        count, loss, rate = row.values.tolist()
        if row.present[0] and count >= 1 and state.since_row < 0:
            state = self._begin(state, row, rate)
        if row.present[2] and rate != state.rate and math.isfinite(rate):
            state = changed(state, rate=rate)
        if not row.present[1] or not math.isfinite(loss):
            return state, ()
        if len(state.first) < FIRST:
            state = changed(state, first=(*state.first, loss))
        if state.since_row < 0:
            return changed(state, recent=(*state.recent[1 - BEFORE :], loss)), ()
        block = (*state.block, loss)
        state = changed(state, count=state.count + 1, block=block)
        if len(block) < BLOCK:
            return state, ()
        return self._judge(changed(state, block=()), row, block)

    def update_rows(
        self, state: AfterChangeState, rows: Rows
    ) -> tuple[AfterChangeState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; a log without such changes is passed."""
        findings: list[Finding] = []
        k = 0
        while k < len(rows):
            ahead = np.flatnonzero(rows.values[k:, 0] >= 1)
            calm = 0 if state.since_row >= 0 else int(ahead[0]) if len(ahead) else len(rows) - k
            if calm > 0:
                state = self._pass(state, rows, k, k + calm)
                k += calm
            else:
                state, found = self.update(state, rows.row(k))
                findings += found
                k += 1
        return state, tuple(findings)

    def _pass(self, state: AfterChangeState, rows: Rows, k: int, stop: int) -> AfterChangeState:
        losses, rates = rows.values[k:stop, 1], rows.values[k:stop, 2]
        found = losses[np.isfinite(losses)]
        rates = rates[np.isfinite(rates)]
        return changed(
            state,
            first=(*state.first, *found[: FIRST - len(state.first)].tolist()),
            recent=(*state.recent, *found[-BEFORE:].tolist())[-BEFORE:],
            rate=float(rates[-1]) if len(rates) else state.rate,
        )

    def _begin(self, state: AfterChangeState, row: Row, rate: float) -> AfterChangeState:
        ratio = rate / state.rate if row.present[2] and state.rate > 0 and rate > 0 else 1.0
        if len(state.recent) < BEFORE or not 1 / _RATE_RATIO < ratio < _RATE_RATIO:
            return state
        level, limit = level_and_limit(state.first, state.recent, self.rise_share)
        return changed(
            state,
            since_row=row.index,
            since_step=row.step,
            level=level,
            limit=limit,
            count=0,
            block=(),
            alarmed=False,
        )

    def _judge(
        self, state: AfterChangeState, row: Row, block: tuple[float, ...]
    ) -> tuple[AfterChangeState, tuple[Finding, ...]]:
        middle = float(np.median(np.array(block)))  # one spike is no change of level
        over = middle > state.limit
        if over and not state.alarmed:
            state = changed(state, alarmed=True, count=0)
            return state, (self._finding(state, row, middle, closed=False),)
        ended = state.count >= self.watch_rows  # a level that lasts is the new one
        if (state.alarmed and not over) or ended:
            found = (self._finding(state, row, middle, closed=True),) if state.alarmed else ()
            return changed(state, since_row=-1, recent=block), found
        return state, ()

    def _finding(self, s: AfterChangeState, row: Row, middle: float, *, closed: bool) -> Finding:
        return Finding(
            detector=self.name,
            kind="shift",
            signal="loss",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.since_row,
            onset=s.since_step,
            peak_row=row.index,
            peak=row.step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=middle,
            expected=s.level,
            score=ERRORS * (middle - s.level) / (s.limit - s.level),
            closed=closed,
            text=f"loss {middle:.4g} since a setting changed unannounced, {s.level:.4g} before",
        )
