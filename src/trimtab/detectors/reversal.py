"""Activation reversal: the norm of the last activations fell for long, and now rises again.

In healthy runs it grows at first and then decays with the learning rate. Rows are folded into
blocks of 16 (medians of the logarithm); from the highest block on, the lowest block is followed.
Two blocks in a row above the lowest by 3 % and by six times the noise from block to block are a
reversal, once the norm had come down by at least 5 % over eight blocks or more. It dates to the
lowest block, is reported once, and needs a new fall before it is reported again.

Source: S. Zhang on OPT-66B and OPT-175B (2022): the reversal came 100 to 1000 steps before the
loss.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import Block, fold, joined
from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, changed, series_of
from trimtab.signals.robust import dependent_blocks_sigma

__all__ = ["ReversalDetector", "ReversalState"]

Floats = NDArray[np.float64]

_NOISE_BLOCKS = 32
_MIN_BLOCKS = 12
_FALL = 0.05
_FALL_BLOCKS = 8
_RISE = 0.03
_RISE_SIGMA = 6.0


@dataclass(frozen=True)
class ReversalState:
    """Highest value of the norm, and the lowest since then, as logarithms."""

    recent: Floats
    """float64 [<= 32], blocks, oldest first."""
    rows: tuple[float, ...] = ()
    first_row: int = 0
    first_step: float = 0.0
    highest: float = -math.inf
    since_highest: int = 0
    lowest: float = math.inf
    lowest_row: int = 0
    lowest_step: float = 0.0
    noise: float = math.inf
    """Spread of a block when the lowest came; the rise itself is no noise."""
    num_over: int = 0


@dataclass(frozen=True, kw_only=True)
class ReversalDetector:
    """See the module."""

    name: str = "reversal"
    signals: tuple[str, ...] = ("activation_norm",)
    block_rows: int = 16

    def start(self) -> ReversalState:
        """Return the state before any row."""
        return ReversalState(np.zeros(0))

    def update(self, state: ReversalState, row: Row) -> tuple[ReversalState, tuple[Finding, ...]]:
        """Judge one row; missing, non-finite and non-positive values leave the state as it is."""
        return self._update(state, row)

    def update_rows(
        self, state: ReversalState, rows: Rows
    ) -> tuple[ReversalState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(
        self, s: ReversalState, rows: Row | Rows
    ) -> tuple[ReversalState, tuple[Finding, ...]]:
        series = series_of("activation_norm", 0, rows)
        if not series.y:
            return s, ()
        findings: list[Finding] = []
        began = RowPlace(s.first_row, s.first_step)
        blocks, rest, began = fold(s.rows, began, series, self.block_rows)
        for block in blocks:
            s, found = self._block(s, block)
            findings += found
        s = changed(s, rows=rest, first_row=began.index, first_step=began.step)
        return s, tuple(findings)

    def _block(self, s: ReversalState, row: Block) -> tuple[ReversalState, tuple[Finding, ...]]:
        block = row.value
        s = changed(s, recent=joined(s.recent, block, _NOISE_BLOCKS))
        # Still growing, as in the first phase of a healthy run: what follows is measured from here.
        if block >= s.highest:
            return changed(s, highest=block, since_highest=0, lowest=math.inf, num_over=0), ()
        if block < s.lowest:
            # Infinite: a run too young for a noise estimate cannot be found reversing.
            noise = dependent_blocks_sigma(s.recent) if len(s.recent) >= _MIN_BLOCKS else math.inf
            return (
                changed(
                    s,
                    since_highest=s.since_highest + 1,
                    lowest=block,
                    lowest_row=row.first_row,
                    lowest_step=row.first_step,
                    noise=noise,
                    num_over=0,
                ),
                (),
            )
        noise = s.noise
        over = block - s.lowest > max(_RISE, _RISE_SIGMA * noise)
        s = changed(s, since_highest=s.since_highest + 1, num_over=s.num_over + 1 if over else 0)
        fell = s.highest - s.lowest > max(_FALL, _RISE_SIGMA * noise)
        if s.num_over < 2 or not fell or s.since_highest < _FALL_BLOCKS:
            return s, ()
        found = self._finding(s, block, noise, row)
        # The block counts as the highest, so a rise that goes on is not reported again.
        return changed(s, highest=block, since_highest=0, lowest=math.inf, num_over=0), (found,)

    def _finding(self, s: ReversalState, block: float, noise: float, row: Block) -> Finding:
        low, now, high = math.exp(s.lowest), math.exp(block), math.exp(s.highest)
        return Finding(
            detector=self.name,
            kind="activation-reversal",
            signal="activation_norm",
            severity="warning",
            row=row.row,
            step=row.step,
            onset_row=s.lowest_row,
            onset=s.lowest_step,
            peak_row=row.row,
            peak=row.step,
            value=now,
            expected=low,
            score=min(99.0, (block - s.lowest) / max(noise, 1e-3)),
            closed=True,
            grain_rows=self.block_rows,
            text=f"activation_norm fell {high:.4g} → {low:.4g} and rises again, to {now:.4g}",
        )
