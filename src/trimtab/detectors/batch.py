"""Batches that are not like the others, known before the step they would spoil.

How well a batch compresses and how evenly its tokens are spread is nearly the same from batch to
batch. Of each of both, two-sided:

    level[t] = level[t-1] + 0.05 clip(y[t] - level[t-1], +-3 spread)
    spread   = 1.25 mean |y - level| over about the last 64 calm rows, at least `floor`

A row more than `threshold_sigma` spreads away opens an episode and freezes both; three calm rows in
a row close it, `timeout_rows` of another data mix are accepted. It is a note and no alarm: data may
change for good reasons. Whether it does harm shows in the loss, a step later.

Blind to damage that leaves the counts of tokens and their repetitions as they are, and to a slow
change of the mix. Chosen on the lab's text in batches of 256 to 2,048 bytes: sound ones stay below
5 spreads, random bytes are at 10 to 25, shuffled ones reach 7 at most and are not seen.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, changed
from trimtab.signals.robust import MEAN_DEVIATION_TO_SIGMA
from trimtab.text import sigmas

__all__ = ["BatchDetector", "BatchState"]


@dataclass(frozen=True)
class Statistic:
    """Level and spread of one statistic, and the episode under way."""

    level: float = 0.0
    distance: float = 0.0
    """Mean distance from the level."""
    num_rows: int = 0
    onset_row: int = -1
    """-1: calm."""
    onset: float = 0.0
    last_row: int = 0
    """Last row that was not like the others."""
    last: float = 0.0
    num_calm: int = 0
    age: int = 0
    worst: float = 0.0
    """Value furthest from the level, and how far that is in spreads."""
    worst_z: float = 0.0
    worst_row: int = 0
    worst_step: float = 0.0


@dataclass(frozen=True)
class BatchState:
    """One `Statistic` per signal."""

    statistics: tuple[Statistic, ...]


@dataclass(frozen=True, kw_only=True)
class BatchDetector:
    """See the module."""

    name: str = "batch"
    signals: tuple[str, ...] = ("batch_compression", "batch_entropy")
    threshold_sigma: float = 8.0
    calm_sigma: float = 5.0
    floor: float = 0.005
    """Smallest spread believed, in the signal's unit."""
    min_rows: int = 16
    memory_rows: int = 64
    timeout_rows: int = 200

    def start(self) -> BatchState:
        """Return the state before any row."""
        return BatchState((Statistic(),) * len(self.signals))

    def update(self, state: BatchState, row: Row) -> tuple[BatchState, tuple[Finding, ...]]:
        """Judge one row; a missing or non-finite statistic stays as it is."""
        statistics, found = list(state.statistics), list[Finding]()
        for i, y in enumerate(row.values.tolist()):
            if math.isfinite(y):
                statistics[i], finding = self._take(i, statistics[i], y, row)
                if finding is not None:
                    found.append(finding)
        return BatchState(tuple(statistics)), tuple(found)

    def _take(self, i: int, s: Statistic, y: float, row: Row) -> tuple[Statistic, Finding | None]:
        # The first row is the level: from 0 the distance would start with the value itself.
        if s.num_rows == 0:
            return Statistic(level=y, num_rows=1), None
        spread = max(MEAN_DEVIATION_TO_SIGMA * s.distance, self.floor)
        z = abs(y - s.level) / spread
        if s.onset_row >= 0:
            # Level and spread stay frozen here: an odd stretch must not become its own measure.
            return self._follow(i, s, y, z, row)
        if s.num_rows >= self.min_rows and z > self.threshold_sigma:
            s = changed(
                s,
                onset_row=row.index,
                onset=row.step,
                last_row=row.index,
                last=row.step,
                num_calm=0,
                age=0,
                worst=y,
                worst_z=z,
                worst_row=row.index,
                worst_step=row.step,
            )
            return s, self._finding(i, s, row, "open")
        # The weight of a row is 1/n: the spread is a plain mean at first, an exponential one later.
        n = min(s.num_rows, self.memory_rows)
        move = y - s.level
        # Below that the spread is not known well enough to clip by.
        if n >= self.min_rows:
            move = math.copysign(min(abs(move), 3 * spread), move)
        return (
            changed(
                s,
                level=s.level + move * max(1 / (n + 1), 0.05),
                distance=s.distance + (abs(move) - s.distance) / n,
                num_rows=n + 1,
            ),
            None,
        )

    def _follow(
        self, i: int, s: Statistic, y: float, z: float, row: Row
    ) -> tuple[Statistic, Finding | None]:
        calm = z < self.calm_sigma
        s = changed(s, age=s.age + 1, num_calm=s.num_calm + 1 if calm else 0)
        if not calm:
            s = changed(s, last_row=row.index, last=row.step)
        if z > s.worst_z:
            s = changed(s, worst=y, worst_z=z, worst_row=row.index, worst_step=row.step)
        # One row within the band may lie there by chance between two odd ones.
        if s.num_calm >= 3:
            return changed(s, onset_row=-1), self._finding(i, s, row, "back")
        if s.age >= self.timeout_rows:
            # A new data mix may have another spread too, so both are learned again.
            return Statistic(level=y, num_rows=1), self._finding(i, s, row, "accepted")
        return s, None

    def _finding(self, i: int, s: Statistic, row: Row, how: str) -> Finding:
        ended = how == "back"
        num = s.last_row - s.onset_row + 1
        tail = {
            "open": "",
            "back": f", {num} row{'s' if num > 1 else ''}",
            "accepted": ", lasting",
        }[how]
        return Finding(
            detector=self.name,
            kind="batch-outlier",
            signal=self.signals[i],
            severity="info",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.worst_row,
            peak=s.worst_step,
            end_row=s.last_row if ended else None,
            end=s.last if ended else None,
            value=s.worst,
            expected=s.level,
            score=s.worst_z,
            direction="up" if s.worst > s.level else "down",
            closed=how != "open",
            text=f"{self.signals[i]} {s.level:.3g} → {s.worst:.3g} ({sigmas(s.worst_z)}){tail}",
        )
