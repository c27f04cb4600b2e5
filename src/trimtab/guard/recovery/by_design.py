"""Rises of the loss that the script itself explains, known before the loss has come back.

**A rate that comes back**: the learning rate rises again to one that was in force before, as at a
restart of a schedule or where a milestone is taken back, and the loss rises with it. **A weight
that grows**: the factor of a part of the loss grows step by step, as in a warm-up of a divergence.
**Turns**: the script trains by another sign, or other parameters, in some steps, and comes back to
what it did before, as one that ascends and descends in turn.

An alarm that begins there is a note. Of the first two it is one only as long as the loss stays
within a share of the descent of the run, and comes back when the rate does; then it is an alarm
after all. A rate beyond all that were in force explains nothing, nor does anything here a value
that is not finite.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from trimtab.detectors.explained_rises import ABOVE, JUMP, KINDS, SIGNALS
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import Key

__all__ = ["ByDesign"]

_RISES = frozenset((*KINDS, "held-out-worse"))
_OF_TURNS = _RISES | {"too-good"}
_FIRST = 16
"""Losses that the descent of the run is counted from."""
_LEVEL = 32
"""Losses before a rise that its level is of."""
_LEAST_SIGMA, _MOST_SIGMA = 30.0, 200.0
"""Bounds of the descent in noise of single steps, as `recovery.expectation` has them."""
_SHARE_OF_RATE, _SHARE_OF_WEIGHT = 0.5, 1.0
"""Of the descent, that the loss may rise by. A weight on a part of the loss raises the total by as
much as that part is, whatever is learned. Ours."""
_BACK_SHARE = 0.1
"""Of the descent, within which the loss is back once the rate is. Ours."""
_BACK_STEPS = 64
"""Steps after the rate is on its way back in which the loss has to be back. Ours."""
_LATE_STEPS = 16
"""Steps after that in which what it explains may still begin: a block of `detectors.level`."""
_SIGMAS = 8.0
_BLOCK = 8
_GROWTH_STEPS = 32
_GROWS = 0.02
"""Of the weights together, that one has to grow by in so many steps."""
_NEAR_STEPS = 2
"""Steps from a turn in which what it sets off begins: a row may be read one step late."""
_MOST_KEPT = 64


@dataclass
class _Rise:
    """Something that makes the loss rise, from one step on."""

    why: str
    since: int
    share: float
    level: float
    sigma: float
    unit: float
    until: int | None = None
    """Last step of it; None: it goes on."""
    failed: bool = False

    def over(self, losses: Sequence[float], step: int) -> bool:
        """Whether the last losses are higher than it explains."""
        if len(losses) < _BLOCK:
            return False
        limit = max(_SIGMAS * self.sigma, self.share * self.unit)
        if float(np.median(losses[-_BLOCK:])) > self.level + limit:
            return True
        if self.until is None or step != self.until + _BACK_STEPS or self.share > _SHARE_OF_RATE:
            return False
        back = max(self.sigma, _BACK_SHARE * self.unit)
        return float(np.median(losses[-2 * _BLOCK :])) > self.level + back


class ByDesign:
    """What the script does to the loss of a run, and which alarms that explains."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._first: list[float] = []
        self._losses: deque[tuple[int, float]] = deque(maxlen=_MOST_KEPT)
        self._turns = _Turns()
        self._rates: list[tuple[int, int, float]] = []
        """First and last step of each turning point, and its rate: top, trough, top ..., of which
        the last is followed."""
        self._weights: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=_GROWTH_STEPS)
        self._rises: list[_Rise] = []
        self._notes: dict[Key, _Rise | None] = {}

    # -- in each step -----------------------------------------------------------------------

    def see_step(self, step: int, terms: tuple[float, ...], trained: Hashable) -> None:
        """Take in by what the parts of the loss are multiplied, and which parameters are trained.

        Args:
            step: The one under way.
            terms: As `step.loss_terms` gives them.
            trained: Equal where the same parameters are trained.
        """
        self._turns.take(step, (tuple(x < 0 for x in terms), trained))
        self._take_weights(step, terms)

    def take_row(self, step: int, loss: float, rate: float, weight: float = math.nan) -> None:
        """Take in a row: its loss, the rate in force, and the weight of a divergence, if logged."""
        if rate >= 0:
            self._take_rate(step, rate)
        if math.isfinite(weight):
            self._take_weights(step, (1.0, weight))
        if math.isfinite(loss):
            if len(self._first) < _FIRST:
                self._first.append(loss)
            self._losses.append((step, loss))

    @staticmethod
    def is_about(finding: Finding) -> bool:
        """Whether a finding is an alarm of a kind that may be explained.

        All of these rest on values that all ranks share.
        """
        f = finding
        shared = f.signal in SIGNALS or f.kind == "held-out-worse" or f.detector == "loss-count"
        return f.severity != "info" and shared

    def why(self, finding: Finding) -> str:
        """Return what explains such an alarm; empty where nothing does."""
        f = finding
        if f.key in self._notes:
            rise = self._notes[f.key]
            return _Turns.why if rise is None else rise.why
        last = int(max(f.step if f.kind == "held-out-worse" else 0, f.onset + f.grain_rows - 1))
        first = int(f.onset)
        turned = f.kind in _OF_TURNS and self._turns.between(
            first - _NEAR_STEPS, last + _NEAR_STEPS
        )
        if turned or (f.detector == "loss-count" and self._turns.returned):
            self._notes[f.key] = None
            return _Turns.why
        rises = f.kind in _RISES and f.direction != "down"
        for rise in self._rises if rises else ():
            until = math.inf if rise.until is None else rise.until + _LATE_STEPS
            if not rise.failed and last >= rise.since and first <= until:
                self._notes[f.key] = rise
                return rise.why
        return ""

    def failed(self, step: int) -> frozenset[Key]:
        """Return the alarms that are such after all: the loss rose too far, or did not come back.

        Each is returned once.
        """
        if not self._notes:
            return frozenset()
        losses = [x for _, x in self._losses]
        for rise in {id(r): r for r in self._notes.values() if r is not None}.values():
            rise.failed = rise.failed or rise.over(losses, step)
        keys = frozenset(k for k, r in self._notes.items() if r is not None and r.failed)
        for key in keys:
            del self._notes[key]
        return keys

    def forget_after(self, step: int) -> None:
        """Forget what came after a step, to which the run has gone back."""
        self._notes.clear()
        self._turns.forget_after(step)
        self._rates = [r for r in self._rates if r[1] <= step]
        self._rises = [r for r in self._rises if r.since <= step]
        for kept in (self._losses, self._weights):
            while kept and kept[-1][0] > step:
                kept.pop()

    # -- inside -----------------------------------------------------------------------------

    def _take_rate(self, step: int, rate: float) -> None:
        found = self._rates
        if not found:
            found.append((step, step, rate))
            return
        first, _, last = found[-1]
        if len(found) % 2:  # up to a top
            if rate > last:
                found[-1] = (first, step, rate)
                if len(found) > 2 and rate > ABOVE * self._highest_before():
                    self._end(step - 1, fails=True)
            elif rate * JUMP <= last:
                found.append((step, step, rate))
                self._end(step)
        elif rate <= last:
            found[-1] = (first, step, rate)
        elif rate >= JUMP * last:
            since = found[-1][1] + 1
            found.append((step, step, rate))
            if len(found) > 2 * _MOST_KEPT:  # the higher of the first two tops stands for both
                found[:3] = [max(found[0], found[2], key=itemgetter(2))]
            if rate <= ABOVE * self._highest_before():
                why = f"the learning rate is back at {rate:.3g}, a value that was in force before"
                self._begin(why, since, _SHARE_OF_RATE)

    def _highest_before(self) -> float:
        return max(rate for *_, rate in self._rates[:-2])

    def _take_weights(self, step: int, weights: tuple[float, ...]) -> None:
        if self._weights and len(self._weights[-1][1]) != len(weights):
            self._weights.clear()
        self._weights.append((step, weights))
        if len(self._weights) == 1 or self._weights[-2][1] == weights:
            grows = False  # as in nearly all runs
        else:
            grows = _grow([w for _, w in self._weights])
        growing = next(
            (r for r in self._rises if r.share == _SHARE_OF_WEIGHT and r.until is None), None
        )
        if grows and growing is None:
            self._begin("the weight of a part of the loss grows", step, _SHARE_OF_WEIGHT)
        elif growing is not None and not grows:
            growing.until = step

    def _begin(self, why: str, since: int, share: float) -> None:
        before = np.array([x for t, x in self._losses if t < since][-_LEVEL:])
        if len(before) < _BLOCK:
            return
        level, numeric = float(np.median(before)), 1e-6 * float(np.abs(before).max())
        sigma = max(mad_sigma(np.diff(before)) / math.sqrt(2), numeric)
        descent = float(np.median(np.array(self._first))) - level
        unit = min(max(descent, _LEAST_SIGMA * sigma), _MOST_SIGMA * sigma)
        self._rises = [*self._rises[1 - _MOST_KEPT :], _Rise(why, since, share, level, sigma, unit)]

    def _end(self, step: int, *, fails: bool = False) -> None:
        for rise in self._rises:
            if rise.share == _SHARE_OF_RATE and rise.until is None:
                rise.until, rise.failed = step, fails


class _Turns:
    """Whether the script does one thing and another in turn, and where it changed over."""

    why = "the script does so in turn: by another sign of the loss, or other parameters"

    def __init__(self) -> None:
        self._now: Hashable = None
        self._known: set[Hashable] = set()
        self._changes: deque[int] = deque(maxlen=_MOST_KEPT)
        self.returned = False

    def take(self, step: int, what: Hashable) -> None:
        if what == self._now:
            return
        if self._known:
            self._changes.append(step)
            self.returned = self.returned or what in self._known
        if len(self._known) < _MOST_KEPT:
            self._known.add(what)
        self._now = what

    def between(self, first: int, last: int) -> bool:
        return self.returned and any(first <= step <= last for step in self._changes)

    def forget_after(self, step: int) -> None:
        while self._changes and self._changes[-1] > step:
            self._changes.pop()


def _grow(weights: Sequence[tuple[float, ...]]) -> bool:
    """Whether one of the weights has grown over the last steps, and not all at once."""
    sizes = np.abs(np.array(weights))
    steps = np.diff(sizes, axis=0)
    grown = sizes[-1] - sizes[0]
    gradual = (steps >= 0).all(axis=0) & (steps.max(axis=0) <= np.maximum(grown, 0) / 2)
    return bool((gradual & (grown > _GROWS * sizes[-1].sum())).any())
