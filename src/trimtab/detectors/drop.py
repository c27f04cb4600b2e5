"""Sudden drops: the loss falls within a few rows to where it never was. Too good, or understood?

Rows are folded into blocks of eight (medians). A block is too low if it lies below its recent trend
by 8 times the noise from block to block, and below the lowest block of the run by 10 %. Two such
blocks in a row are reported: repeated data, a leak of labels into the input, a broken loss, a step
at an epoch boundary. The rows of a run's first 24 blocks say nothing, and a loss that learning
brings down over many blocks is no drop: before it, the blocks must have kept to their trend.

A step down of the learning rate (to two thirds or less within the last 64 rows) explains a drop:
reported as a note. A validation loss that falls by half as much of itself explains it too: then it
is grokking, and a note; the first validation within 1024 rows decides. Without one it stays a
warning. A loss that comes back within 64 rows is reported as over.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import Block, fold, joined
from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, Series, changed, finite_of
from trimtab.detectors.level import NEGLIGIBLE
from trimtab.signals.robust import dependent_blocks_sigma, median

__all__ = ["DropDetector", "DropState"]

Floats = NDArray[np.float64]

_PAST = 32
# As in `creep`: 192 rows, past the steep start where every block is the lowest so far.
_MIN_BLOCKS = 24
_BACK_ROWS = 64
_LR_ROWS = 64
# Schedules by steps cut to a half or a tenth; a smooth decay of 2 % a row is no step.
_LR_STEP = 2 / 3
_VAL_ROWS = 1024
_VAL_SHARE = 0.5
_FLOOR = 2e-3
"""Smallest noise believed, as a share of the level."""


@dataclass(frozen=True)
class DropState:
    """State of the loss and of a drop under way; `stage` 0: none, 1: candidate, 2: reported."""

    past: Floats
    """float64 [<= 32], blocks at the level in force, oldest first."""
    rows: tuple[float, ...] = ()
    first_row: int = 0
    first_step: float = 0.0
    num_blocks: int = 0
    start: float = 0.0
    lowest: float = math.inf
    val: float = math.nan
    """Last validation loss before the drop."""
    lr: float = 0.0
    """Highest recent learning rate."""
    lr_row: int = -1_000_000
    """Row at which the learning rate last stepped down."""
    stage: int = 0
    onset_row: int = 0
    onset: float = 0.0
    expected: float = 0.0
    noise: float = 1.0
    low: float = 0.0
    low_row: int = 0
    low_step: float = 0.0
    excused: int = 0
    """1 where the learning rate explains it."""


@dataclass(frozen=True, kw_only=True)
class DropDetector:
    """See the module."""

    name: str = "drop"
    signals: tuple[str, ...] = ("loss", "val_loss", "lr")
    block_rows: int = 8
    threshold_sigma: float = 8.0
    min_share: float = 0.1
    """Least relative fall below the lowest block before."""

    def start(self) -> DropState:
        """Return the state before any row."""
        return DropState(np.zeros(0))

    def update(self, state: DropState, row: Row) -> tuple[DropState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        return self._update(state, row)

    def update_rows(self, state: DropState, rows: Rows) -> tuple[DropState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(self, s: DropState, rows: Row | Rows) -> tuple[DropState, tuple[Finding, ...]]:
        loss, val, lr = (finite_of(i, rows) for i in range(3))
        findings: list[Finding] = []
        # Rows without a block still count: a validation may come without a loss in its row.
        blocks, rest, began = list[Block](), s.rows, RowPlace(s.first_row, s.first_step)
        if loss.y:
            blocks, rest, began = fold(s.rows, began, loss, self.block_rows)
        events: list[tuple[RowPlace, Block | float]] = list(map(_event, blocks))
        events = sorted([*((val.place(k), v) for k, v in enumerate(val.value)), *events], key=_row)
        at = 0
        for place, event in events:  # in one row: the learning rate, the validation, then the block
            end = bisect_right(lr.index, place.index, at)
            s, at = _follow_lr(s, lr, at, end), end
            if isinstance(event, Block):
                s = changed(s, first_row=event.first_row, first_step=event.first_step)
                s, found = self._block(s, event.value, place)
            else:
                s, found = self._validated(s, event, place)
            findings += found
        s = _follow_lr(s, lr, at, len(lr.value))
        return changed(s, rows=rest, first_row=began.index, first_step=began.step), tuple(findings)

    def _block(self, s: DropState, block: float, row: RowPlace) -> tuple[DropState, list[Finding]]:
        start = s.start or abs(block)
        s = changed(s, num_blocks=s.num_blocks + 1, start=start)
        if s.stage == 2:
            return self._watch(s, block, row)
        # below the lowest block of the run: coming back from a rise is no drop
        deep = s.lowest - block > self.min_share * max(abs(s.lowest), NEGLIGIBLE * start)
        known = len(s.past) >= _MIN_BLOCKS
        # frozen at the first low block, so that the drop does not move its own expectation
        if s.stage == 0 and known and deep:
            expected, noise = self._expect(s)
            s = changed(s, expected=expected, noise=noise)
        if not (known and deep and s.expected - block > self.threshold_sigma * s.noise):
            past = joined(s.past, block, _PAST)
            return changed(s, past=past, lowest=min(s.lowest, block), stage=0), []
        if s.stage == 0:
            excused = int(row.index - s.lr_row <= _LR_ROWS)
            return (
                changed(
                    s,
                    stage=1,
                    onset_row=s.first_row,
                    onset=s.first_step,
                    low=block,
                    low_row=row.index,
                    low_step=row.step,
                    excused=excused,
                ),
                [],
            )
        s = changed(_lower(s, block, row), stage=2)
        return s, [self._finding(s, row, "open")]

    def _watch(self, s: DropState, block: float, row: RowPlace) -> tuple[DropState, list[Finding]]:
        """Follow a drop that was reported, until it came back or no validation is due any more."""
        s = _lower(s, block, row)
        age = row.index - s.onset_row
        # Half-way, since a loss that comes back often rests above its low for some blocks.
        if s.expected - block < 0.5 * (s.expected - s.low) and age <= _BACK_ROWS + self.block_rows:
            return changed(s, stage=0), [self._finding(s, row, "back")]
        # without validation losses there is nothing to wait for beyond a quick way back
        waits = age < (_VAL_ROWS if math.isfinite(s.val) else _BACK_ROWS)
        past = joined(s.past, block, _PAST)
        if waits:
            return changed(s, past=past), []
        return _settled(changed(s, past=past)), [self._finding(s, row, "lasts")]

    def _validated(
        self, s: DropState, val: float, row: RowPlace
    ) -> tuple[DropState, list[Finding]]:
        """Process a validation loss; the first one after a drop decides the kind of the drop."""
        # Without a validation from before the drop it is not known whether this one fell.
        if s.stage != 2 or not math.isfinite(s.val):
            return changed(s, val=val), []
        # both relative: a validation loss lies on another level than the training loss
        share = (s.expected - s.low) / max(abs(s.expected), 1e-12)
        fell = (s.val - val) / max(abs(s.val), 1e-12)
        how: Literal["understood", "lasts"] = "understood" if fell > _VAL_SHARE * share else "lasts"
        return changed(_settled(s), val=val), [self._finding(s, row, how)]

    def _expect(self, s: DropState) -> tuple[float, float]:
        """Return where the trend of the past leads, and the noise of a block around it."""
        half = len(s.past) // 2
        early, late = median(s.past[:half]), median(s.past[half:])
        # The medians of the halves lie half a window apart: their difference over `half` blocks.
        slope = (late - early) / half
        # The median of the late half belongs to its middle, half of `half` behind the newest block.
        expected = late + slope * half / 2
        # a loss that already jumps by this much from block to block says little by one more jump
        jump = float(np.abs(np.diff(s.past[-4:])).max())
        noise = max(
            dependent_blocks_sigma(s.past),
            jump / 3,
            _FLOOR * max(abs(expected), NEGLIGIBLE * s.start),
        )
        return expected, noise

    def _finding(self, s: DropState, row: RowPlace, how: str) -> Finding:
        kind = "grokking" if how == "understood" else "too-good"
        note = how in ("understood", "back") or s.excused
        tail = {
            "open": "",
            "back": ", back",
            "lasts": ", lasting",
            "understood": ", and the validation loss fell too",
        }[how]
        why = ", the learning rate had just been lowered" if s.excused else ""
        return Finding(
            detector=self.name,
            kind=kind,
            signal="loss",
            severity="info" if note else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.low_row,
            peak=s.low_step,
            end_row=row.index if how == "back" else None,
            end=row.step if how == "back" else None,
            value=s.low,
            expected=s.expected,
            # A loss of exactly 0 over tiny noise would print thousands of sigma.
            score=min(99.0, (s.expected - s.low) / s.noise),
            direction="down",
            closed=how != "open",
            grain_rows=self.block_rows,
            text=(
                f"loss {s.expected:.4g} → {s.low:.4g} within {2 * self.block_rows} rows{tail}{why}"
            ),
        )


def _event(block: Block) -> tuple[RowPlace, Block | float]:
    return RowPlace(block.row, block.step), block


def _row(event: tuple[RowPlace, Block | float]) -> int:
    return event[0].index


def _follow_lr(s: DropState, rates: Series, at: int, end: int) -> DropState:
    """Note the row at which the learning rate fell to two thirds of its recent value or less."""
    high, row = s.lr, s.lr_row
    for k in range(at, end):
        lr = rates.value[k]
        if lr <= 0:
            continue
        if lr < _LR_STEP * high:
            high, row = lr, rates.index[k]
        else:
            # Fades to two thirds in 20 rows: a smooth decay keeps up with it and is no step.
            high = max(lr, high * 0.98)
    return changed(s, lr=high, lr_row=row)


def _lower(s: DropState, block: float, row: RowPlace) -> DropState:
    if block >= s.low:
        return s
    return changed(s, low=block, low_row=row.index, low_step=row.step)


def _settled(s: DropState) -> DropState:
    """Return the state at rest at the new level: only blocks from there on count as its past."""
    return changed(s, stage=0, past=np.zeros(0), lowest=min(s.lowest, s.low))
