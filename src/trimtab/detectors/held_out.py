"""The guard's fixed batches have got worse, whatever the training loss does.

The guard reads a few fixed batches in eval mode now and then, and records with the next row what
they say: `yardstick_evidence`, the log likelihood ratio of a sequential paired test for a rise
(`trimtab.guard.yardstick.sequential`). From `alarm` on it is a warning, from `critical` on the
state is to be mended; it is over when the evidence is gone. What one reading alone said, and the
next one took back, is a note.

The rise lies somewhere after the newest reading that was no worse. It dates to the first row there
at which the training loss itself rises in one row and stays; without one, to the row after that
reading. Where both losses rose by about the same in one row and the gradient's norm did not move,
what is counted has changed, not the model: label smoothing, weights of losses, another reduction.
That is told, and is no alarm; only what rises above that level later is.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["HeldOutDetector", "HeldOutState"]

_LEAST_OVER = 1.0
"""Evidence below which the condition is over."""
_SIDE = 8
"""Rows on each side of a row at which the training loss may have risen. Ours, as what follows."""
_LEAST_SCORE = 6.0
"""Standard errors of the difference of two such means; of 14 degrees of freedom that is one chance
in 30,000 for a row, and the fixed batches have risen as well."""
_ALIKE = 1.5
"""Factor within which two rises are about the same, and within which a norm has not moved."""
_KEPT = 0.5
"""Share of its rise at which the training loss must still stand: a spike is no change of level."""


@dataclass(frozen=True)
class HeldOutState:
    """The newest reading that was no worse, and the condition that is open."""

    good_row: int = -1
    good_step: float = math.nan
    good_loss: float = math.nan
    open_row: int = -1
    """Row of the onset; -1: nothing is open."""
    open_step: float = math.nan
    grave: bool = False
    recent: tuple[float, ...] = ()
    """Row, step, loss and gradient norm of each of the last rows, one after the other."""
    rise_score: float = 0.0
    """Of the clearest rise of the training loss since the good reading; 0: there is none."""
    rise_row: int = -1
    rise_step: float = math.nan
    rise_before: float = math.nan
    """Mean of the losses before it."""
    rise: float = math.nan
    norm_ratio: float = math.nan
    """Median gradient norm after it over that before; NaN where none was logged."""
    recounted: float = math.nan
    """Level of the fixed batches since what is counted has changed; NaN: it has not."""
    recounted_rise: float = 0.0
    """By how much the change of the count has raised it."""
    num_worse: int = 0
    """Readings since the condition is open."""
    worst: float = -math.inf
    """Highest loss of the fixed batches in those."""
    open_rows: int = 1
    """Rows in one of which the condition that is open began."""


@dataclass(frozen=True, kw_only=True)
class HeldOutDetector:
    """See the module."""

    name: str = "held-out"
    signals: tuple[str, ...] = ("yardstick_evidence", "yardstick_loss", "loss", "grad_norm")
    alarm: float = 7.0
    critical: float = 14.0
    """Evidence of a rise by more than eight times the noise at once, or of a lesser one again and
    again."""

    def start(self) -> HeldOutState:
        """Return the state before any row."""
        return HeldOutState()

    def update(self, state: HeldOutState, row: Row) -> tuple[HeldOutState, tuple[Finding, ...]]:
        """Judge one row; a loss that is missing or not finite is passed over."""
        evidence, loss, train, norm = row.values.tolist()
        if row.present[2] and math.isfinite(train):
            norm = norm if row.present[3] and math.isfinite(norm) else math.nan
            recent = (*state.recent, float(row.index), row.step, train, norm)[-8 * _SIDE :]
            state = changed(state, recent=recent)
            if state.good_row >= 0 and state.open_row < 0:
                state = _look_for_rise(state)
        if not row.present[0] or not math.isfinite(evidence):
            return state, ()
        loss = loss if row.present[1] else math.nan
        if state.open_row >= 0 and evidence >= _LEAST_OVER:
            worst = loss if loss > state.worst else state.worst
            state = changed(state, num_worse=state.num_worse + 1, worst=worst)
        if evidence < _LEAST_OVER:
            good = HeldOutState(row.index, row.step, loss, recent=state.recent)
            if state.open_row < 0:
                return good, ()
            return good, (self._finding(state, row, evidence, loss, over=True),)
        return self._judge(state, row, evidence, loss)

    def _judge(
        self, state: HeldOutState, row: Row, evidence: float, loss: float
    ) -> tuple[HeldOutState, tuple[Finding, ...]]:
        """Judge a reading that is worse than the good one."""
        grave = evidence >= self.critical
        if evidence < self.alarm or state.good_row < 0 or (state.open_row >= 0 and not grave):
            return state, ()
        if state.grave or self._is_recounted(state, loss):
            return state, ()
        if state.open_row < 0 and math.isnan(state.recounted) and _counts_otherwise(state, loss):
            told = self._finding(_opened(state, row), row, evidence, loss, over=True)
            text = (
                f"the loss is counted differently since {state.rise_step:g}: the training loss rose"
                f" by {state.rise:.3g} in one row, the fixed batches by"
                f" {loss - state.good_loss:.3g}, and the gradient norm did not move"
            )
            # what rises from here on is no longer the change of the count
            state = HeldOutState(
                row.index,
                row.step,
                loss,
                recent=state.recent,
                recounted=loss,
                recounted_rise=loss - state.good_loss,
            )
            return state, (dataclasses.replace(told, severity="info", text=text),)
        worst = loss if loss > state.worst else state.worst
        state = changed(_opened(state, row), grave=grave, worst=worst)
        return state, (self._finding(state, row, evidence, loss, over=False),)

    def _is_recounted(self, s: HeldOutState, loss: float) -> bool:
        """Whether a reading is no more above the good ones than the new count explains."""
        return loss - s.recounted <= s.recounted_rise * (_ALIKE - 1)

    def update_rows(
        self, state: HeldOutState, rows: Rows
    ) -> tuple[HeldOutState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; a log without readings is passed over."""
        findings: list[Finding] = []
        if state.good_row < 0 and not rows.present[:, 0].any():
            fit = np.flatnonzero(rows.present[:, 2] & np.isfinite(rows.values[:, 2]))[-2 * _SIDE :]
            for k in fit.tolist():
                state, _ = self.update(state, rows.row(k))
            return state, ()
        for k in range(len(rows)):
            state, found = self.update(state, rows.row(k))
            findings += found
        return state, tuple(findings)

    def _finding(
        self, s: HeldOutState, row: Row, evidence: float, loss: float, *, over: bool
    ) -> Finding:
        worst = s.worst if over and s.worst > -math.inf else loss
        return Finding(
            detector=self.name,
            kind="held-out-worse",
            signal="yardstick_loss",
            severity="info" if over and not s.num_worse else "critical" if s.grave else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.open_row,
            onset=s.open_step,
            peak_row=row.index,
            peak=row.step,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=worst,
            expected=s.good_loss,
            score=evidence,
            grain_rows=s.open_rows,
            closed=over,
            text=(
                f"fixed batches at {worst:.4g} in eval mode, {s.good_loss:.4g} at step"
                f" {s.good_step:g}" + (f", and back at {loss:.4g}" if over else "")
            ),
        )


def _look_for_rise(s: HeldOutState) -> HeldOutState:
    """Keep the row in the middle of the recent ones where the loss rises there more clearly."""
    if len(s.recent) < 8 * _SIDE or s.recent[4 * _SIDE] <= s.good_row:
        return s
    losses = s.recent[2::4]
    before, rise = sum(losses[:_SIDE]) / _SIDE, (sum(losses[_SIDE:]) - sum(losses[:_SIDE])) / _SIDE
    least = 1e-9 * abs(before)
    if rise <= least:
        return s
    squares = sum((x - before) ** 2 for x in losses[:_SIDE])
    squares += sum((x - before - rise) ** 2 for x in losses[_SIDE:])
    error = math.sqrt(squares / (_SIDE - 1) / _SIDE)
    score = rise / max(error, least) if error or least else math.inf
    if score < _LEAST_SCORE or score <= s.rise_score:
        return s
    norms = [float(np.median(side)) for side in np.array(s.recent[3::4]).reshape(2, _SIDE)]
    return changed(
        s,
        rise_score=score,
        rise_row=int(s.recent[4 * _SIDE]),
        rise_step=s.recent[4 * _SIDE + 1],
        rise_before=before,
        rise=rise,
        norm_ratio=norms[1] / norms[0] if norms[0] > 0 else math.nan,
    )


def _stays(s: HeldOutState) -> bool:
    """Whether the training loss rose in one row and still stands there."""
    now = float(np.mean(s.recent[2::4][-_SIDE:])) if s.recent else math.nan
    return s.rise_row >= 0 and now - s.rise_before >= _KEPT * s.rise


def _counts_otherwise(s: HeldOutState, loss: float) -> bool:
    """Whether both losses rose by about the same in one row, and the gradient's norm did not."""
    ratio = (loss - s.good_loss) / s.rise if _stays(s) else math.nan
    return all(1 / _ALIKE <= x <= _ALIKE for x in (ratio, s.norm_ratio))


def _opened(s: HeldOutState, row: Row) -> HeldOutState:
    """Return the state with the onset of what is found; one that is open keeps its own."""
    if s.open_row >= 0:
        return s
    if _stays(s):
        return changed(s, open_row=s.rise_row, open_step=s.rise_step)
    return changed(
        s,
        open_row=min(s.good_row + 1, row.index),
        open_step=min(s.good_step + 1, row.step),
        open_rows=max(row.index - s.good_row, 1),
    )
