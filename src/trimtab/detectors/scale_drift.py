"""Loss-scale drift: the scaler finds less and less room, long before anything breaks.

A healthy scaler swings by an octave or two about a level that the gradients set. Rows are folded
into blocks of 64 (medians of log2 scale). The scale drifts down when

    the highest of the last 4 blocks <= the lowest tenth of the blocks before - 1 octave

and it came down in `num_falls` blocks or more since it was last in that lowest tenth: a fall at
one blow is an outlier, from which a scaler needs a thousand steps per octave to recover, or a
collapse (`scale_collapse`). It ends when a block reaches the old level; after `accept_blocks` the
lower level is the new one, which is reported once.

The scale of BigScience's tr8-104B sank from step 4,700 on, and the loss exploded at 7,000.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import Block, fold, joined
from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, Series, changed, finite_of

__all__ = ["ScaleDriftDetector", "ScaleDriftState"]


@dataclass(frozen=True)
class ScaleDriftState:
    """Blocks of log2 scale, the block under way, and the drift under way."""

    past: NDArray[np.float64]
    """float64 [<= max_past], blocks that count as the level, oldest first."""
    recent: NDArray[np.float64]
    """float64 [<= num_recent], the last blocks."""
    rows: tuple[float, ...] = ()
    """The block under way."""
    first_row: int = 0
    first_step: float = 0.0
    mark: float = -math.inf
    """Where the level's usual swings end; the row since which every scale was below."""
    under_row: int = -1
    under_step: float = 0.0
    num_falls: int = 0
    """Blocks lower than all since the scale was at its level, and the lowest of them."""
    lowest: float = math.inf
    fall_row: int = 0
    fall_step: float = 0.0
    onset_row: int = -1
    """-1: no drift is reported."""
    onset: float = 0.0
    level: float = 0.0
    low_row: int = 0
    low_step: float = 0.0
    age: int = 0
    """Blocks since the drift was reported or continued."""


@dataclass(frozen=True, kw_only=True)
class ScaleDriftDetector:
    """See the module."""

    name: str = "scale-drift"
    signals: tuple[str, ...] = ("loss_scale",)
    block_rows: int = 64
    num_recent: int = 4
    min_past: int = 16
    max_past: int = 128
    num_falls: int = 2
    quantile: float = 0.1
    """Of the blocks before, where the lowest of the usual swings ends."""
    octaves: float = 1.0
    """Chosen with `num_falls` and `quantile` on simulated healthy scalers (`testing.scaler`) of
    three spreads and three windows: 0.4 alarms in 20,000 rows."""
    accept_blocks: int = 32

    def start(self) -> ScaleDriftState:
        """Return the state before any row."""
        none = np.zeros(0)
        return ScaleDriftState(none, none)

    def update(
        self, state: ScaleDriftState, row: Row
    ) -> tuple[ScaleDriftState, tuple[Finding, ...]]:
        """Judge one row; a missing, zero or non-finite scale leaves the state as it is."""
        return self._update(state, row)

    def update_rows(
        self, state: ScaleDriftState, rows: Rows
    ) -> tuple[ScaleDriftState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(
        self, s: ScaleDriftState, rows: Row | Rows
    ) -> tuple[ScaleDriftState, tuple[Finding, ...]]:
        series = finite_of(0, rows, above=0.0)
        if not series.y:
            return s, ()
        series.y = [math.log2(v) for v in series.value]
        findings: list[Finding] = []
        began, at = RowPlace(s.first_row, s.first_step), 0
        num_waiting = len(s.rows)
        blocks, rest, began = fold(s.rows, began, series, self.block_rows)
        for block in blocks:
            end = at + self.block_rows - num_waiting
            s, found = self._take(_under(s, series, at, end), block)
            findings += found
            at, num_waiting = end, 0
        s = _under(s, series, at, len(series.y))
        s = changed(s, rows=rest, first_row=began.index, first_step=began.step)
        return s, tuple(findings)

    def _take(self, s: ScaleDriftState, row: Block) -> tuple[ScaleDriftState, tuple[Finding, ...]]:
        """Compare a finished block with the level."""
        block = row.value
        recent = joined(s.recent, block, self.num_recent)
        # Blocks reach the past only once they are no longer recent: a level must not contain the
        # blocks that are compared with it.
        leaving = s.recent[:1] if len(s.recent) == self.num_recent else s.recent[:0]
        s = changed(s, recent=recent)
        if s.onset_row >= 0:
            return self._follow(s, row)
        past = np.append(s.past, leaving)[-self.max_past :]
        s = changed(s, past=past)
        if len(past) < self.min_past:
            return s, ()
        level = float(np.quantile(past, self.quantile))
        s = changed(s, mark=level)
        if block >= level:
            return changed(s, num_falls=0, lowest=math.inf), ()
        if block < s.lowest:
            # The row where it fell below, not the block: a block that ends low may begin high.
            if s.num_falls == 0:
                since = (row.first_row, row.first_step)
                if s.under_row >= 0:
                    since = (s.under_row, s.under_step)
                s = changed(s, fall_row=since[0], fall_step=since[1])
            s = changed(
                s, num_falls=s.num_falls + 1, lowest=block, low_row=row.row, low_step=row.step
            )
        # The highest of the recent ones, so that one low block among them is not enough.
        if s.num_falls < self.num_falls or float(recent.max()) > level - self.octaves:
            return s, ()
        s = changed(s, onset_row=s.fall_row, onset=s.fall_step, level=level, age=0)
        return s, (self._finding(s, row, "open"),)

    def _follow(
        self, s: ScaleDriftState, row: Block
    ) -> tuple[ScaleDriftState, tuple[Finding, ...]]:
        block = row.value
        if block < s.lowest:
            s = changed(s, lowest=block, low_row=row.row, low_step=row.step, age=0)
        else:
            s = changed(s, age=s.age + 1)
        calm = changed(s, onset_row=-1, num_falls=0, lowest=math.inf)
        if block >= s.level:
            return calm, (self._finding(s, row, "back"),)
        if s.age < self.accept_blocks:
            return s, ()
        # the old level is forgotten; the new one has to be learned
        return changed(calm, past=s.recent), (self._finding(s, row, "accepted"),)

    def _finding(self, s: ScaleDriftState, row: Block, how: str) -> Finding:
        fall = s.level - s.lowest
        ended = how == "back"
        return Finding(
            detector=self.name,
            kind="scale-collapse",
            signal="loss_scale",
            severity="warning",
            row=row.row,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.low_row,
            peak=s.low_step,
            end_row=row.first_row if ended else None,
            end=row.first_step if ended else None,
            value=2.0**s.lowest,
            expected=2.0**s.level,
            score=6.0 * fall,
            direction="down",
            closed=how != "open",
            text=(
                f"loss scale drifts down, {2.0**s.level:.6g} → {2.0**s.lowest:.6g} over "
                f"{s.low_row - s.onset_row + 1} rows"
            )
            + {"open": "", "back": ", back", "accepted": ", lasting"}[how],
        )


def _under(s: ScaleDriftState, series: Series, at: int, end: int) -> ScaleDriftState:
    """Note since which row every scale was below the mark."""
    row, step = s.under_row, s.under_step
    for k in range(at, end):
        if series.y[k] >= s.mark:
            row, step = -1, 0.0
        elif row < 0:
            row, step = series.index[k], series.step[k]
    return s if row == s.under_row else changed(s, under_row=row, under_step=step)
