"""Skipped steps: the optimizer leaves out so many steps that the run does not learn as it seems.

A dynamic loss scaler skips about one step in a thousand, and a dozen in the first rows while it
finds its range: that is its way of working and is reported as a note. `run_rows` skipped steps
without a good one between, or `share` of the last `window_rows`, are a warning; nothing but skipped
steps for `dead_rows` rows means that weights do not move, and is critical. It ends with a window in
which less than half of `share` was skipped.

`skipped` is the share of a row's steps that were (0 or 1 where each step is logged).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed
from trimtab.vocabulary import Severity

__all__ = ["SkippedDetector", "SkippedState"]


@dataclass(frozen=True)
class SkippedState:
    """`recent` [window_rows] is a ring of shares.

    `stage` 0: calm, 1: note, 2: warning, 3: critical.
    """

    recent: NDArray[np.float64]
    total: float = 0.0
    """Sum of `recent`."""
    num_rows: int = 0
    run: int = 0
    """Rows in a row in which more than half of the steps were skipped."""
    first_row: int = -1
    """First skipped row of the episode under way; -1: none."""
    first_step: float = 0.0
    last_row: int = 0
    last_step: float = 0.0
    skipped: int = 0
    """Rows with skipped steps in the episode."""
    stage: int = 0


@dataclass(frozen=True, kw_only=True)
class SkippedDetector:
    """See the module."""

    name: str = "skipped"
    signals: tuple[str, ...] = ("skipped",)
    window_rows: int = 100
    run_rows: int = 8
    """Eight halvings in a row: a factor of 256, as far as a healthy scale ever swings."""
    share: float = 0.2
    dead_rows: int = 50
    calibration_rows: int = 64
    """As in `scale_collapse`: a scaler that starts at 2^32 needs up to 32 halvings."""
    settle_rows: int = 20
    """Rows without a skipped step after which an episode without a finding is forgotten."""

    def start(self) -> SkippedState:
        """Return the state before any row."""
        return SkippedState(np.zeros(self.window_rows))

    def update(self, state: SkippedState, row: Row) -> tuple[SkippedState, tuple[Finding, ...]]:
        """Judge one row; a missing or non-finite share leaves the state as it is."""
        value = float(row.values[0])
        if not row.present[0] or not math.isfinite(value):
            return state, ()
        # A count that no reader could turn into a share reads as all of the row's steps.
        value = min(max(value, 0.0), 1.0)
        s = self._take(state, row, value)
        stage = self._stage(s)
        # Only upwards: a condition that eases is reported when it is over.
        if stage > s.stage and s.first_row >= 0:
            s = changed(s, stage=stage)
            return s, (self._finding(s, row, closed=False),)
        # Half the share that opens it, so that a share on the edge does not open and close.
        quiet = s.total < 0.5 * self.share * min(s.num_rows, self.window_rows)
        if s.first_row >= 0 and quiet and row.index - s.last_row >= self.settle_rows:
            found = (self._finding(s, row, closed=True),) if s.stage else ()
            return changed(s, first_row=-1, stage=0, skipped=0), found
        return s, ()

    def update_rows(
        self, state: SkippedState, rows: Rows
    ) -> tuple[SkippedState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Rows without skipped steps, after a window without any, need no work.
        """
        share = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(share))  # absent ones are NaN
        telling = np.append(np.flatnonzero(share[usable] > 0), len(usable))
        findings: list[Finding] = []
        at = 0
        while at < len(usable):
            if state.first_row < 0 and not state.recent.any():
                end = int(telling[np.searchsorted(telling, at)])
                if end > at:
                    state = changed(state, num_rows=state.num_rows + end - at, run=0)
                    at = end
                    continue
            state, found = self.update(state, rows.row(int(usable[at])))
            findings += found
            at += 1
        return state, tuple(findings)

    def _take(self, s: SkippedState, row: Row, value: float) -> SkippedState:
        at = s.num_rows % self.window_rows
        old, recent = float(s.recent[at]), s.recent
        # Most rows write the 0 that is there already; the copy of the ring is what costs.
        if old != value:
            recent = recent.copy()
            recent[at] = value
        s = changed(
            s,
            recent=recent,
            # A running sum of fractions may end a hair below 0.
            total=max(0.0, s.total + value - old),
            num_rows=s.num_rows + 1,
            run=s.run + 1 if value > 0.5 else 0,
        )
        if value <= 0:
            return s
        if s.first_row < 0:
            s = changed(s, first_row=row.index, first_step=row.step, skipped=0)
        return changed(s, last_row=row.index, last_step=row.step, skipped=s.skipped + 1)

    def _stage(self, s: SkippedState) -> int:
        if s.run >= self.dead_rows:
            return 3
        full = s.num_rows >= self.window_rows and s.total >= self.share * self.window_rows
        # In the first rows even a long run of skips is the scaler that looks for its range.
        if s.num_rows <= self.calibration_rows:
            return 1 if s.run >= self.run_rows else 0
        # what a scaler skipped while it found its range still fills the first windows
        calibrated = s.num_rows > self.calibration_rows + self.window_rows
        return 2 if s.run >= self.run_rows or (full and calibrated) else 0

    def _finding(self, s: SkippedState, row: Row, *, closed: bool) -> Finding:
        window = min(s.num_rows, self.window_rows)
        why = {1: "while the scaler finds its range", 2: "", 3: "no weight moves"}[s.stage]
        end = (s.last_row, s.last_step) if closed else (None, None)
        return Finding(
            detector=self.name,
            kind="skipped-steps",
            signal="skipped",
            severity=_severity(s.stage),
            row=row.index,
            step=row.step,
            onset_row=s.first_row,
            onset=s.first_step,
            peak_row=s.last_row,
            peak=s.last_step,
            end_row=end[0],
            end=end[1],
            value=float(s.skipped),
            expected=0.0,
            score=6.0 * max(s.run / self.run_rows, s.total / (self.share * window)),
            closed=closed,
            text=f"steps skipped in {s.skipped} of {s.last_row - s.first_row + 1} rows"
            + (f", {why}" if why else "")
            + (", over" if closed else ""),
        )


def _severity(stage: int) -> Severity:
    if stage == 3:
        return "critical"
    return "warning" if stage == 2 else "info"
