"""Phases of gradient clipping: the share of clipped steps changes from one row to the next.

Whether a step was clipped is a coin whose bias is the clip share. Two sums of log-likelihood
ratios, one for a higher and one for a lower share, are held against the share of the phase so far:

    S = max(0, S + log P(row | other share) - log P(row | share so far))

    higher: the share + 0.3, at most 0.95
    lower: an eighth of the share, where that is 0.1 or more

S above 10 (1 in 20,000 by chance) for 16 rows or more is a new phase, dated to the row where S left
zero. A rise to a quarter or more of the steps is a warning, everything else a note (and told at S above
40 only). The phase so
far must have 50 rows. Rows that log a share over an interval count as that share of one coin.
"""

import math
from dataclasses import dataclass, replace

from trimtab.detectors.contract import Finding, Row

__all__ = ["ClipPhaseDetector", "ClipPhaseState"]

_MIN_ROWS = 50
_MIN_PHASE = 16
_BOUND = 10.0
_HIGH_SHARE = 0.25
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class _Side:
    """One sum; `clips` and `rows` count from where it left zero."""

    total: float = 0.0
    first_row: int = 0
    first_step: float = 0.0
    clips: float = 0.0
    rows: int = 0


@dataclass(frozen=True)
class ClipPhaseState:
    """The phase so far and the two sums."""

    clips: float = 0.0
    rows: int = 0
    up: _Side = _Side()
    down: _Side = _Side()


@dataclass(frozen=True, kw_only=True)
class ClipPhaseDetector:
    """See the module."""

    name: str = "clip-phase"
    signals: tuple[str, ...] = ("clipped",)

    def start(self) -> ClipPhaseState:
        """Return the state before any row."""
        return ClipPhaseState()

    def update(self, state: ClipPhaseState, row: Row) -> tuple[ClipPhaseState, tuple[Finding, ...]]:
        """Judge one row; missing, non-finite and impossible shares leave the state as it is."""
        x = float(row.values[0])
        if not row.present[0] or not 0.0 <= x <= 1.0:
            return state, ()
        s = replace(state, clips=state.clips + x, rows=state.rows + 1)
        if state.rows < _MIN_ROWS:
            return s, ()
        # rows that may belong to the next phase do not speak for this one
        share = (state.clips - state.up.clips + 0.5) / (state.rows - state.up.rows + 1.0)
        up = _add(s.up, x, share, min(0.95, share + 0.3), row)
        down = _add(s.down, x, share, share / 8, row) if share >= _LEAST_SHARE else _Side()
        s = replace(s, up=up, down=down)
        for side in (up, down):
            surely = side is down or side.clips >= _HIGH_SHARE * side.rows
            bound = _BOUND if surely else 4 * _BOUND
            if side.total > bound and side.rows >= _MIN_PHASE:
                fresh = ClipPhaseState(clips=side.clips, rows=side.rows)
                return fresh, (self._finding(side, share, row, rose=side is up),)
        return s, ()

    def _finding(self, side: _Side, share: float, row: Row, *, rose: bool) -> Finding:
        now = side.clips / side.rows
        return Finding(
            detector=self.name,
            kind="shift",
            signal="clipped",
            severity="warning" if rose and now >= _HIGH_SHARE else "info",
            row=row.index,
            step=row.step,
            onset_row=side.first_row,
            onset=side.first_step,
            peak_row=row.index,
            peak=row.step,
            value=now,
            expected=share,
            score=side.total,
            direction="up" if rose else "down",
            closed=True,
            text=f"share of clipped steps {share:.0%} → {now:.0%}",
        )


def _add(side: _Side, x: float, share: float, other: float, row: Row) -> _Side:
    """Return the sum with one row more, at zero where the row speaks for the phase so far."""
    gain = x * math.log(other / share) + (1 - x) * math.log((1 - other) / (1 - share))
    total = side.total + gain
    if total <= 0:
        return _Side()
    if side.rows == 0:
        return _Side(total, row.index, row.step, x, 1)
    return replace(side, total=total, clips=side.clips + x, rows=side.rows + 1)
