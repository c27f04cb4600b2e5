"""A rough start: in its first rows the loss climbs above where it began.

A loss begins at or above that of a guess, and the first updates bring it down. One that climbs by
`share` of its first level, for `hold_rows` rows and beyond the noise of the rows, was thrown up by
updates that are too large: a rate at its peak in the first row, without a warm-up (`rough-start-
cold`), or a rate that is too high as such (`rough-start-warm`), for which the climb must be larger.
Told once, when it is sure.

A rule for losses that have a natural zero, judged over the first `last_rows` rows only, until the
loss has stood well below its first level for `learned_rows`, and only where the rate is logged.
Blind to a rate that is too high and shows in a worse loss alone.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, median, step_through

__all__ = ["RoughStartDetector", "RoughStartState"]

_FIRST_ROWS = 3


@dataclass(frozen=True)
class RoughStartState:
    """First losses and rates, and the climb under way."""

    first: tuple[float, ...] = ()
    first_rate: float = math.nan
    highest_rate: float = 0.0
    num_rows: int = 0
    over_rows: int = 0
    onset_row: int = 0
    onset: float = 0.0
    cold: bool = False
    worst: float = 0.0
    worst_row: int = 0
    worst_step: float = 0.0
    step_sizes: tuple[float, ...] = ()
    """Last changes from row to row while the loss was not over, at most 16."""
    last: float = math.nan
    fallen_rows: int = 0
    """Rows well below the first ones."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class RoughStartDetector:
    """See the module."""

    name: str = "rough-start"
    signals: tuple[str, ...] = ("loss", "lr")
    share: float = 0.1
    """Of the first level, where the rate began at its peak."""
    warm_share: float = 0.25
    """The same where it was warmed up. Ours."""
    hold_rows: int = 4
    last_rows: int = 512
    cold_share: float = 0.5
    """Of its peak: a first rate above it had no warm-up. Ours."""
    least: float = 0.5
    """Nats: below it a tenth of the level is next to nothing. Ours."""
    learned_share: float = 0.2
    """Of the first level: a loss this far below it has learned."""
    learned_rows: int = 32
    """Rows so far below after which a climb is no start any more. Ours."""

    def start(self) -> RoughStartState:
        """Return the state before any row."""
        return RoughStartState()

    def update_rows(
        self, state: RoughStartState, rows: Rows
    ) -> tuple[RoughStartState, tuple[Finding, ...]]:
        """Judge many rows as `update` does; once it is over, rows cost nothing."""
        found: list[Finding] = []
        at = 0
        while at < len(rows) and not state.done:
            part = slice(at, at + 256)
            some = Rows(rows.index[part], rows.step[part], rows.values[part], rows.present[part])
            state, told = step_through(self, state, some)
            found += told
            at += 256
        return state, tuple(found)

    def update(
        self, state: RoughStartState, row: Row
    ) -> tuple[RoughStartState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave what they concern as it is."""
        s = state
        if s.done:
            return s, ()
        loss, rate = row.values.tolist()
        if row.present[1] and math.isfinite(rate):
            first = rate if math.isnan(s.first_rate) else s.first_rate
            s = replace(s, first_rate=first, highest_rate=max(s.highest_rate, rate))
        if not row.present[0] or not math.isfinite(loss):
            return s, ()
        s = replace(s, num_rows=s.num_rows + 1)
        if loss < 0 or s.num_rows > self.last_rows:
            return replace(s, done=True), ()
        if len(s.first) < _FIRST_ROWS:
            return self._begin(s, row, loss), ()
        # The first, unless it is an outlier: without a warm-up the second may be thrown up already.
        base = min(s.first[0], max(s.first[1:]))
        cold = s.highest_rate > 0 and s.first_rate >= self.cold_share * s.highest_rate
        noise = 1.5 * median(np.array(s.step_sizes)) if s.step_sizes else 0.0
        climb = max((self.share if cold else self.warm_share) * base, 6 * noise)
        if s.highest_rate == 0 or base < self.least or loss < base + climb:
            sizes = (*s.step_sizes[-15:], abs(loss - s.last))
            fallen = s.fallen_rows + (loss < (1 - self.learned_share) * base)
            # What updates of that size had brought down for long, they did not throw up at once.
            done = fallen >= self.learned_rows
            s = replace(s, over_rows=0, step_sizes=sizes, last=loss, fallen_rows=fallen, done=done)
            return s, ()
        if not s.over_rows:
            s = replace(s, onset_row=row.index, onset=row.step, cold=cold, worst=-math.inf)
        if loss > s.worst:
            s = replace(s, worst=loss, worst_row=row.index, worst_step=row.step)
        s = replace(s, over_rows=s.over_rows + 1, last=loss)
        if s.over_rows < self.hold_rows:
            return s, ()
        return replace(s, done=True), (self._finding(s, row, base),)

    def _begin(self, s: RoughStartState, row: Row, loss: float) -> RoughStartState:
        """Take one of the first three losses; the climb may have begun with the second."""
        s = replace(s, first=(*s.first, loss), last=loss)
        if len(s.first) < 2:
            return s
        cold = s.highest_rate > 0 and s.first_rate >= self.cold_share * s.highest_rate
        climb = (self.share if cold else self.warm_share) * s.first[0]
        if loss < s.first[0] + climb:
            return replace(s, over_rows=0)
        if not s.over_rows:
            s = replace(s, onset_row=row.index, onset=row.step, cold=cold, worst=-math.inf)
        if loss > s.worst:
            s = replace(s, worst=loss, worst_row=row.index, worst_step=row.step)
        return replace(s, over_rows=s.over_rows + 1)

    def _finding(self, s: RoughStartState, row: Row, base: float) -> Finding:
        return Finding(
            detector=f"{self.name}-{'cold' if s.cold else 'warm'}",
            kind="spike",
            signal="loss",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.worst_row,
            peak=s.worst_step,
            end_row=row.index,
            end=row.step,
            value=s.worst,
            expected=base,
            score=min(99.0, 10 * s.worst / base),
            closed=True,
            text=(
                f"loss {base:.4g} → {s.worst:.4g} within the first {s.num_rows} rows, above where"
                f" it began{', the rate at its peak from the first row' if s.cold else ''}"
            ),
        )
