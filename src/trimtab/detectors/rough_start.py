"""A rough start: in its first rows the loss climbs above where it began.

A loss begins at or above that of a guess, and the first updates bring it down. One that climbs by
`share` of its first level, for `hold_rows` rows and beyond the noise of the rows, was thrown up by
updates that are too large: a rate at its peak in the first row, without a warm-up (`rough-start-
cold`), or a rate that is too high as such (`rough-start-warm`), for which the climb must be larger.
Told when it is sure, and open until the median of `back_rows` losses is back at the first level;
a loss that after `timeout_rows` has not come down to where it began has not recovered.

The first rows alone do not tell what the noise is: a climb is held against it from `noise_rows` on.
Noise of losses is multiplicative, so it is taken of ln loss, from second differences, in which a
climb hardly counts. n rows at x above a first loss x0 are a climb where

    median ln x - ln x0 > `noise_sigma` sigma sqrt(1 + 1/n)

A rule for losses that have a natural zero, judged over the first `last_rows` rows only, until the
loss has stood well below its first level for `learned_rows`, or for most of the rows so far, and
only where the rate is logged. A climb after `at_once_rows` rows is not of a missing warm-up.
Blind to a rate that is too high and shows in a worse loss alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed, median

__all__ = ["BACK_SHARE", "RoughStartDetector", "RoughStartState", "log_noise", "rises_above_noise"]

Floats = NDArray[np.float64]

BACK_SHARE = 0.05
"""Above the first level, within which a climb is over: an excerpt begins at its level. Ours."""
NOISE_SIGMA = 4.0
"""Of the logarithm of one loss, that a climb must exceed. Ours."""
_FIRST_ROWS = 3
_RECENT_ROWS = 32
_STRETCH_ROWS = 128
"""Rows that are passed at once."""
_MOST_OVER = 64
_LEAST_LOSS = 1e-30


@dataclass(frozen=True)
class RoughStartState:
    """First losses and rates, and the climb under way."""

    first: tuple[float, ...] = ()
    first_rate: float = math.nan
    highest_rate: float = 0.0
    num_rows: int = 0
    recent: tuple[float, ...] = ()
    """Last losses, at most 32."""
    over: tuple[float, ...] = ()
    """Losses of the climb under way, or of one that has held and waits for the noise to be known;
    the last 64 of them."""
    over_rows: int = 0
    """Losses of the climb in a row."""
    onset_row: int = 0
    onset: float = 0.0
    end_row: int = 0
    end: float = 0.0
    cold: bool = False
    worst: float = 0.0
    worst_row: int = 0
    worst_step: float = 0.0
    fallen_rows: int = 0
    """Rows well below the first ones."""
    told_row: int = -1
    """Row at which the climb was told; -1: none was."""
    base: float = 0.0
    """First level that the climb was told against."""
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
    noise_rows: int = 12
    """Ours, as `at_once_rows`."""
    last_rows: int = 512
    at_once_rows: int = 48
    cold_share: float = 0.7
    """Of its peak: a first rate above it had no warm-up. Ours."""
    least: float = 0.5
    """Nats: below it a tenth of the level is next to nothing. Ours."""
    learned_share: float = 0.2
    """Of the first level: a loss this far below it has learned."""
    learned_rows: int = 32
    """Rows so far below after which a climb is no start any more. Ours."""
    least_learned_rows: int = 8
    """The same where they are most of the rows so far. Ours."""
    back_rows: int = 8
    """Ours."""
    timeout_rows: int = 200
    """As of `spike`."""

    def start(self) -> RoughStartState:
        """Return the state before any row."""
        return RoughStartState()

    def update_rows(
        self, state: RoughStartState, rows: Rows
    ) -> tuple[RoughStartState, tuple[Finding, ...]]:
        """Judge many rows as `update` does; stretches without a climb are passed."""
        found: list[Finding] = []
        at = 0
        while at < len(rows) and not state.done:
            state, end = self._passed(state, rows, at)
            if end == at:
                state, told = self.update(state, rows.row(at))
                found += told
                end += 1
            at = end
        return state, tuple(found)

    def _passed(self, s: RoughStartState, rows: Rows, at: int) -> tuple[RoughStartState, int]:
        """Return the state after rows that are below every bar, and where they end."""
        if len(s.first) < _FIRST_ROWS or s.over or s.over_rows or s.told_row >= 0:
            return s, at
        base = min(s.first[0], max(s.first[1:]))
        losses, rates = rows.values[at : at + _STRETCH_ROWS].T
        usable = np.isfinite(losses)
        num = s.num_rows + np.cumsum(usable)
        judged = (
            base >= self.least
            and max(
                s.highest_rate, float(np.nan_to_num(rates, nan=0.0, posinf=0.0, neginf=0.0).max())
            )
            > 0
        )
        bar = (1 + min(self.share, self.warm_share)) * base if judged else math.inf
        ends = (usable & ~((losses >= 0) & (losses < bar))) | (num > self.last_rows)
        end = int(np.argmax(ends)) if ends.any() else len(ends)
        fallen = s.fallen_rows + np.cumsum(usable & (losses < (1 - self.learned_share) * base))
        most = np.maximum(self.least_learned_rows, num / 2)
        over = usable & ((fallen >= self.learned_rows) | (fallen >= most))
        done = bool(over[:end].any())
        end = int(np.argmax(over)) + 1 if done else end
        if not end:
            return s, at
        rates = rates[:end][np.isfinite(rates[:end])]
        first = float(rates[0]) if len(rates) and math.isnan(s.first_rate) else s.first_rate
        passed = changed(
            s,
            first_rate=first,
            highest_rate=max(s.highest_rate, *rates.tolist()) if len(rates) else s.highest_rate,
            num_rows=int(num[end - 1]),
            recent=(*s.recent, *losses[:end][usable[:end]].tolist())[-_RECENT_ROWS:],
            fallen_rows=int(fallen[end - 1]),
            done=done,
        )
        return passed, at + end

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
            s = changed(s, first_rate=first, highest_rate=max(s.highest_rate, rate))
        if not row.present[0] or not math.isfinite(loss):
            return s, ()
        told = s.told_row >= 0
        done = not told and (loss < 0 or s.num_rows >= self.last_rows)
        s = changed(
            s,
            num_rows=s.num_rows + 1,
            recent=(*s.recent[1 - _RECENT_ROWS :], loss),
            first=s.first if done or len(s.first) == _FIRST_ROWS else (*s.first, loss),
            done=done,
        )
        if told:
            return self._follow(s, row, loss)
        if done or len(s.first) < 2:
            return s, ()
        # The first, unless it is an outlier: without a warm-up the second may be thrown up already.
        base = s.first[0] if len(s.first) < _FIRST_ROWS else min(s.first[0], max(s.first[1:]))
        at_peak = s.highest_rate > 0 and s.first_rate >= self.cold_share * s.highest_rate
        cold = at_peak and (s.cold if s.over_rows else s.num_rows <= self.at_once_rows)
        climb = (self.share if cold else self.warm_share) * base
        over = s.highest_rate > 0 and base >= self.least and loss >= base + climb
        held = len(s.over) >= self.hold_rows
        if over:
            s = self._climb(s, row, loss, cold=cold, anew=not s.over_rows and not held)
        else:
            fallen = s.fallen_rows + (loss < (1 - self.learned_share) * base)
            most = fallen >= max(self.least_learned_rows, s.num_rows / 2)
            # What updates of that size had brought down for long, they did not throw up at once.
            done = not held and (fallen >= self.learned_rows or most)
            kept = s.over if held else ()
            s = changed(s, over=kept, over_rows=0, fallen_rows=fallen, done=done)
        if len(s.over) < self.hold_rows or s.num_rows < self.noise_rows:
            return s, ()
        if rises_above_noise(s.over, base, log_noise(s.recent)):
            s = changed(s, told_row=row.index, base=base)
            return s, (self._finding(s, row, "open"),)
        return s if over else changed(s, over=()), ()

    def _follow(
        self, s: RoughStartState, row: Row, loss: float
    ) -> tuple[RoughStartState, tuple[Finding, ...]]:
        """Follow a climb that was told, until it is over or stays."""
        if loss >= s.base:
            s = changed(s, end_row=row.index, end=row.step)
        if loss > s.worst:
            s = changed(s, worst=loss, worst_row=row.index, worst_step=row.step)
        if median(np.array(s.recent[-self.back_rows :])) < (1 + BACK_SHARE) * s.base:
            return changed(s, done=True), (self._finding(s, row, "back"),)
        if row.index - s.onset_row >= self.timeout_rows:
            return changed(s, done=True), (self._finding(s, row, "accepted"),)
        return s, ()

    def _climb(
        self, s: RoughStartState, row: Row, loss: float, *, cold: bool, anew: bool
    ) -> RoughStartState:
        """Take a loss above the first ones; the climb may have begun with the second."""
        if anew:
            s = changed(s, onset_row=row.index, onset=row.step, cold=cold, worst=-math.inf)
        if loss > s.worst:
            s = changed(s, worst=loss, worst_row=row.index, worst_step=row.step)
        over = (*s.over[1 - _MOST_OVER :], loss)
        return changed(s, over=over, over_rows=s.over_rows + 1, end_row=row.index, end=row.step)

    def _finding(self, s: RoughStartState, row: Row, how: str) -> Finding:
        now = median(np.array(s.recent))
        return Finding(
            detector=f"{self.name}-{'cold' if s.cold else 'warm'}",
            kind="unrecovered-spike" if how == "accepted" else "spike",
            signal="loss",
            severity="critical" if how == "accepted" else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.worst_row,
            peak=s.worst_step,
            end_row=s.end_row if how == "back" else None,
            end=s.end if how == "back" else None,
            value=s.worst,
            expected=s.base,
            score=min(99.0, 10 * s.worst / s.base),
            closed=how != "open",
            text=(
                f"loss {s.base:.4g} → {s.worst:.4g} within the first rows, above where it began"
                f"{', the rate at its peak from the first row' if s.cold else ''}"
                f"{f'; at {now:.4g} {row.index - s.onset_row} rows later' * (how == 'accepted')}"
            ),
        )


def log_noise(losses: Sequence[float] | Floats) -> float:
    """Return the noise of ln loss, from second differences: 1.4826 MAD / sqrt(6); 0: not known."""
    if len(losses) < 6:
        return 0.0
    second = np.diff(np.log(np.maximum(losses, _LEAST_LOSS)), 2)
    return 1.4826 * median(np.abs(second)) / math.sqrt(6)


def rises_above_noise(over: Sequence[float] | Floats, base: float, sigma: float) -> bool:
    """Whether losses above a first one are a climb, or the noise of single losses."""
    rise = math.log(max(median(np.asarray(over)), _LEAST_LOSS) / max(base, _LEAST_LOSS))
    return rise > NOISE_SIGMA * sigma * math.sqrt(1 + 1 / len(over))
