"""A model that only guesses: its accuracy stays at that of a guess while the loss is no better.

A rate that is far too high kills a network in its first steps: the loss leaps, comes down to that
of a guess or a little above it, and wanders there. No level is exact, so `never_learns` says
nothing. What gives it away is the accuracy, on training or held-out data: 1 / k of few classes k,
or the share of the one class that is always answered, at every reading; and a loss about ln k.

A constant answer costs ln k; above it updates are too large to settle there, which the finding's name
tells (`guessing-worse`).

Told once, after `least` readings over `min_rows` rows, and again, as info, where the accuracy rises
after all. Blind to more than `_MOST_CLASSES` classes, whose guesses lie too near one another, and
without a cross entropy in nats.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, changed
from trimtab.signals.robust import median

__all__ = ["GuessingDetector", "GuessingState"]

_MOST_CLASSES = 20
_NEAR = 0.05
"""How near an accuracy must lie to 1 / k. Ours; 400 held-out samples of ten classes have 0.015."""
_NEAR_ALL = 0.08
"""The same for the mean of all readings: a score that climbs there has learned. Ours."""
_BEST = 1.25
"""Times a guess that no reading may have reached. Ours."""
_LOSS = (0.97, 1.2)
"""Between which shares of ln k the loss lies. Below it something is known. Ours."""
_ABOVE = 1.01
"""Times ln k from which the loss is worse than that of a constant answer. Ours."""
_LEARNT = 1.5
"""Times a guess from which on something is learned after all. Ours."""


@dataclass(frozen=True)
class GuessingState:
    """The newest losses and accuracies, and what was told."""

    losses: tuple[float, ...] = ()
    scores: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """The newest of training and of held-out data."""
    counts: tuple[int, int] = (0, 0)
    best: tuple[float, float] = (0.0, 0.0)
    sums: tuple[float, float] = (0.0, 0.0)
    """Of all readings."""
    num_rows: int = 0
    first: tuple[int, float] = (-1, 0.0)
    """Row and step of the first loss."""
    told: int = 0
    """0: nothing; 1: told; 2: over."""
    classes: int = 0
    which: int = 0
    since: tuple[int, float] = (0, 0.0)
    says: str = ""
    level: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GuessingDetector:
    """See the module."""

    name: str = "guessing"
    signals: tuple[str, ...] = ("loss", "accuracy", "eval_score")
    least: int = 8
    """Readings of an accuracy. Ours."""
    min_rows: int = 48

    def start(self) -> GuessingState:
        """Return the state before any row."""
        return GuessingState()

    def update(self, state: GuessingState, row: Row) -> tuple[GuessingState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values are passed over."""
        if state.told == 2:
            return state, ()
        loss, *scores = map(float, row.values)
        s = state
        if math.isfinite(loss):
            s = changed(
                s,
                losses=(*s.losses, loss)[-32:],
                num_rows=s.num_rows + 1,
                first=(row.index, row.step) if s.first[0] < 0 else s.first,
            )
        found: tuple[Finding, ...] = ()
        for which, score in enumerate(scores):
            if not math.isfinite(score):
                continue
            s = self._with(s, which, score)
            if s.told == 0:
                s, found = self._judge(s, which, row)
            elif s.told == 1 and which == s.which and score > _LEARNT * self._guess(s):
                s = changed(s, told=2)
                found = (self._finding(s, row, over=True),)
            if found:
                break
        return s, found

    def _with(self, s: GuessingState, which: int, score: float) -> GuessingState:
        kept, counts = list(s.scores), list(s.counts)
        best, sums = list(s.best), list(s.sums)
        kept[which] = (*kept[which], score)[-self.least :]
        counts[which] += 1
        best[which] = max(best[which], score)
        sums[which] += score
        return changed(
            s,
            scores=(kept[0], kept[1]),
            counts=(counts[0], counts[1]),
            best=(best[0], best[1]),
            sums=(sums[0], sums[1]),
        )

    def _judge(
        self, s: GuessingState, which: int, row: Row
    ) -> tuple[GuessingState, tuple[Finding, ...]]:
        if s.counts[which] < self.least or s.num_rows < self.min_rows or not s.losses:
            return s, ()
        scores = s.scores[which]
        scale = 100.0 if s.best[which] > 1.0 else 1.0
        mean = sum(scores) / len(scores) / scale
        if not mean > 0:
            return s, ()
        classes = round(1 / mean)
        level = median(np.array(s.losses))
        share = level / math.log(classes) if classes > 1 else 0.0
        guesses = (
            2 <= classes <= _MOST_CLASSES
            and abs(mean * classes - 1) <= _NEAR
            and abs(s.sums[which] / s.counts[which] / scale * classes - 1) <= _NEAR_ALL
            and max(scores) / scale - mean <= 2 * _NEAR * mean
            and s.best[which] / scale <= _BEST / classes
            and _LOSS[0] <= share <= _LOSS[1]
        )
        if not guesses:
            return s, ()
        says = ("an accuracy", "a held-out accuracy")[which]
        s = changed(
            s,
            told=1,
            classes=classes,
            which=which,
            since=s.first,
            level=level,
            says=f"{says} of {mean:.3g} at {s.counts[which]} readings",
        )
        return s, (self._finding(s, row, over=False),)

    def _guess(self, s: GuessingState) -> float:
        return (100.0 if s.best[s.which] > 1.0 else 1.0) / s.classes

    def _finding(self, s: GuessingState, row: Row, *, over: bool) -> Finding:
        return Finding(
            detector=self.name + ("-worse" if s.level > _ABOVE * math.log(s.classes) else ""),
            kind="never-learns",
            signal="loss",
            severity="info" if over else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.since[0],
            onset=s.since[1],
            peak_row=s.since[0],
            peak=s.since[1],
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=s.level,
            expected=math.log(s.classes),
            score=8.0,
            closed=True,
            text=(
                f"loss {s.level:.4g} and {s.says}: a guess among {s.classes} classes"
                + (f"; it rises from {row.step:g} on" if over else "")
            ),
        )
