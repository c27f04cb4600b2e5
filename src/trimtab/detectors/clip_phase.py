"""Phases of gradient clipping: the share of clipped steps changes from one row to the next.

Whether a step was clipped is a coin whose bias is the clip share. Two sums of log-likelihood
ratios, one for a higher and one for a lower share, are compared with the share of the phase so far:

    S = max(0, S + log P(row | other share) - log P(row | share so far))

    higher: the share + 0.3, at most 0.95
    lower: an eighth of the share, where that is 0.1 or more

S above 13 for 16 rows or more is a new phase, dated to the row where S left zero; the phase before
must have 100 rows. A rise to a quarter of the steps or more is a warning if the grad norm rose with
it two and a half times: that a norm crosses the clip is no trouble by itself. The rest are notes, and
a rise that stays below a quarter is reported at S above 52 only. Rows that log a share over an
interval count as that share of one coin.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["ClipPhaseDetector", "ClipPhaseState"]

# The standard error of a share of 100 rows is 5 points at most: sqrt(0.25 / 100).
_MIN_ROWS = 100
# From a share near 0, four clipped rows in a row would pass the bound: a burst, not a phase.
_MIN_PHASE = 16
# Were both shares known, such a sum would pass it by chance once in e^13 = 440,000 rows or less
# often (Lorden, 1971, on Page's sum).
_BOUND = 13.0
_HIGH_SHARE = 0.25
# Below it an eighth of the share differs by too few clipped rows to be told apart.
_LEAST_SHARE = 0.1
_NORM_RISE = math.log(2.5)


@dataclass(frozen=True)
class _Side:
    """One of the two sums of log-likelihood ratios.

    `clips`, `rows` and `norms` (sum of log grad norms) count from the row where it left zero.
    """

    total: float = 0.0
    first_row: int = 0
    first_step: float = 0.0
    clips: float = 0.0
    rows: int = 0
    norms: float = 0.0


@dataclass(frozen=True)
class ClipPhaseState:
    """The phase so far and the two sums."""

    clips: float = 0.0
    rows: int = 0
    norms: float = 0.0
    """NaN from the first row on that logged no grad norm."""
    up: _Side = _Side()
    down: _Side = _Side()


@dataclass(frozen=True, kw_only=True)
class ClipPhaseDetector:
    """See the module."""

    name: str = "clip-phase"
    signals: tuple[str, ...] = ("clipped", "grad_norm")

    def start(self) -> ClipPhaseState:
        """Return the state before any row."""
        return ClipPhaseState()

    def update(self, state: ClipPhaseState, row: Row) -> tuple[ClipPhaseState, tuple[Finding, ...]]:
        """Judge one row; missing, non-finite and impossible shares leave the state as it is."""
        x = float(row.values[0])
        if not row.present[0] or not 0.0 <= x <= 1.0:
            return state, ()
        norm = float(row.values[1]) if row.present[1] else math.nan
        norm = math.log(norm) if 0 < norm < math.inf else math.nan
        s = changed(state, clips=state.clips + x, rows=state.rows + 1, norms=state.norms + norm)
        if state.rows < _MIN_ROWS:
            return s, ()
        # rows that may belong to the next phase do not count for this one
        # The 0.5 and 1 keep the share off 0 and 1, where a log-likelihood has no value.
        share = (state.clips - state.up.clips + 0.5) / (state.rows - state.up.rows + 1.0)
        up = _add(s.up, (x, norm), share, min(0.95, share + 0.3), row)
        down = _add(s.down, (x, norm), share, share / 8, row) if share >= _LEAST_SHARE else _Side()
        s = changed(s, up=up, down=down)
        for side in (up, down):
            surely = side is down or side.clips >= _HIGH_SHARE * side.rows
            bound = _BOUND if surely else 4 * _BOUND
            if side.total > bound and side.rows >= _MIN_PHASE:
                # The phase keeps its rows since the onset; from zero it is blind for 100 rows.
                fresh = ClipPhaseState(clips=side.clips, rows=side.rows, norms=side.norms)
                return fresh, (self._finding(s, side, share, row),)
        return s, ()

    def update_rows(
        self, state: ClipPhaseState, rows: Rows
    ) -> tuple[ClipPhaseState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Rows without clipping, in a phase with few clipped rows, need no work.
        """
        shares = rows.values[:, 0]
        usable = np.flatnonzero((shares >= 0.0) & (shares <= 1.0))  # absent ones are NaN
        clipped = np.append(np.flatnonzero(shares[usable] > 0), len(usable))
        norms = rows.values[usable, 1].tolist()
        findings: list[Finding] = []
        at = 0
        while at < len(usable):
            s = state
            few = (s.clips + 0.5) / (s.rows + 1.0) < _LEAST_SHARE and s.rows >= _MIN_ROWS
            end = int(clipped[np.searchsorted(clipped, at)])
            if few and end > at and s.up == s.down == _Side():
                # A loop: np.sum adds in another order, and `update` gives the last bit, too.
                total = s.norms
                for norm in norms[at:end]:
                    total += math.log(norm) if 0 < norm < math.inf else math.nan
                state = changed(s, rows=s.rows + end - at, norms=total)
                at = end
                continue
            state, found = self.update(state, rows.row(int(usable[at])))
            findings += found
            at += 1
        return state, tuple(findings)

    def _finding(self, s: ClipPhaseState, side: _Side, share: float, row: Row) -> Finding:
        now, rose = side.clips / side.rows, side is s.up
        before = (s.norms - side.norms) / max(1, s.rows - side.rows)
        swells = side.norms / side.rows - before >= _NORM_RISE  # False where a norm is unknown
        return Finding(
            detector=self.name,
            kind="shift",
            signal="clipped",
            severity="warning" if rose and now >= _HIGH_SHARE and swells else "info",
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
            grain_rows=_MIN_PHASE,
            text=f"share of clipped steps {share:.0%} → {now:.0%}",
        )


def _add(side: _Side, logged: tuple[float, float], share: float, other: float, row: Row) -> _Side:
    """Return the sum with one more row (clip share, log norm).

    It stays at zero where the row agrees with the phase so far.
    """
    x, norm = logged
    # A share x between 0 and 1 is a mean over several steps; it weighs as one coin, so a row that
    # averages is judged too carefully, never too boldly.
    gain = x * math.log(other / share) + (1 - x) * math.log((1 - other) / (1 - share))
    total = side.total + gain
    if total <= 0:
        return _Side()
    if side.rows == 0:
        return _Side(total, row.index, row.step, x, 1, norm)
    return changed(
        side, total=total, clips=side.clips + x, rows=side.rows + 1, norms=side.norms + norm
    )
