"""Rises of the loss that the script itself explains, known before the loss has come back.

**A rate that comes back**: the learning rate rises again to one that was in force before, as at a
restart of a schedule or where a milestone is taken back, and the loss rises with it. **A weight
that grows**: the factor of a part of the loss grows step by step, as in a warm-up of a divergence.
**Turns**: the script trains by another sign, or other parameters, in some steps, and comes back to
what it did before, as one that ascends and descends in turn.

An alarm is a note only where it begins at such a place, and only as long as the loss stays within
what is known of such places:

* of a rate, twice what it rose by when a rate came back before; the first time, the level that it
  had when that rate was last in force. Half of the descent at most. What is above the usual has to
  come down while the rate stands, and all of it once the rate does;
* of a weight, what so much more of its part makes; of a part that is not known, what so much more
  of the whole loss would, or the descent;
* of turns, the range of the turns before.

Then it is an alarm after all. A rate beyond all that were in force explains nothing, nor does
anything here a value that is not finite. After a restart of the process what is known is built
again from the rows and from the changes of factors and parameters, which checkpoints hold.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trimtab.detectors.explained_rises import ABOVE, JUMP, KINDS, SIGNALS
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import Key
    from trimtab.record import RunRecord

__all__ = ["ByDesign"]

_RISES = frozenset((*KINDS, "held-out-worse"))
_OF_TURNS = _RISES | {"too-good"}
_FIRST = 16
"""Losses that the descent of the run is counted from."""
_LEVEL = 32
"""Losses before a rise that its level is of."""
_LEAST_SIGMA, _MOST_SIGMA = 30.0, 200.0
"""Bounds of the descent in noise of single steps, as `recovery.expectation` has them."""
_SHARE_OF_RATE = 0.5
"""Of the descent, that the loss may rise by at a rate that comes back. Ours."""
_LARGER = 2.0
"""Times what the loss rose by when a rate came back before. Ours."""
_BACK_SHARE = 0.1
"""Of the descent, within which the loss is back once the rate is. Ours."""
_BACK_STEPS = 64
"""Steps after the last rise of the rate in which the loss has to begin to come down, and after it
is on its way back in which the loss has to be back. Ours."""
_LATE_STEPS, _LATE_SHARE = 16, 16
"""Steps after the last rise of a rate in which what it explains begins: a block of
`detectors.level`, and no more than this part of the cycle before."""
_SIGMAS = 8.0
_BLOCK = 8
_QUIET_STEPS = 32
_GROWS = 0.02
"""Of the weights together, that one has to grow by since it last fell."""
_NEAR_STEPS = 2
"""Steps from a turn in which what it sets off begins: a row may be read one step late."""
_LEAST_TURNS = 4
_MOST_KEPT = 64
_MOST_LOSSES = 1024
"""A slow drift is known long after it began."""
_MOST_CHANGES, _MOST_ROWS = 512, 20_000
"""That the state is built again from, the newest ones."""
_MOST_KINDS, _MOST_TURNS = 8, 128
"""Of turns, whose losses are kept."""
_NUMERIC = 1e-6


class _Why(Protocol):
    why: str

    @property
    def rise(self) -> float:
        """Most that it explains."""

    def over(self, losses: Sequence[float], step: int) -> bool:
        """Whether the last losses are more than it explains."""


@dataclass
class _Return:
    """A rate that comes back, from one step on."""

    why: str
    since: int
    late: int
    """Steps after its last rise in which what it explains begins."""
    level: float
    sigma: float
    limit: float
    usual: float
    """Level up to which the loss may stay as long as the rate stands."""
    back: float
    """Level that the loss has to be at, some time after the rate is on its way back."""
    risen: int
    """Step of the last rise of the rate."""
    peak: float = -math.inf
    until: int | None = None
    """First step at which the rate is on its way back; None: it stands."""
    failed: bool = False

    def take(self, losses: Sequence[float], step: int) -> None:
        """Follow the loss for as long as it may rise."""
        if self.failed or len(losses) < 2 * _BLOCK or step < self.since + _BLOCK // 2:
            return
        late = step - self.risen
        if late <= _BACK_STEPS:
            now = median(losses[-_BLOCK:])
            self.peak = max(self.peak, now)
            high = self.usual if late == _BACK_STEPS else self.limit
            self.failed = now > high
        if self.until is not None and step == self.until + _BACK_STEPS:
            self.failed = self.failed or median(losses[-2 * _BLOCK :]) > self.back

    @property
    def rise(self) -> float:
        return self.limit - self.level

    def over(self, losses: Sequence[float], step: int) -> bool:
        self.failed = self.failed or (
            len(losses) >= _BLOCK and step > self.risen and median(losses[-_BLOCK:]) > self.limit
        )
        return self.failed


@dataclass
class _Growth:
    """One of the weights since it last fell."""

    start: float
    size: float
    step: int
    """At which it last grew."""
    quiet: int = _QUIET_STEPS
    """Steps without growth after which it stands still."""
    most: float = 0.0
    """Largest of its steps."""
    marks: list[tuple[int, float]] = field(default_factory=list)
    """Some of its sizes, by step; the first is that before it grew."""

    def take(self, step: int, size: float) -> None:
        if size < self.size or (self.stands(step) and size > self.size):
            self.start, self.most, self.marks = min(size, self.size), 0.0, [(self.step, self.size)]
        if size > self.size:
            self.quiet = max(_QUIET_STEPS, 2 * (step - self.step) if self.most else 0)
            self.most, self.step = max(self.most, size - self.size), step
            self.marks.append((step, size))
            if len(self.marks) > _MOST_KEPT:
                self.marks[1:-1] = self.marks[1:-1:2]
        self.size = size

    def stands(self, step: int) -> bool:
        return step - self.step > self.quiet

    def grows(self, total: float) -> bool:
        """Whether it has grown, and not all at once."""
        grown = self.size - self.start
        return grown > _GROWS * total and self.most <= grown / 2

    def at(self, step: int) -> float:
        """Return its size at a step."""
        steps, sizes = zip(*self.marks, strict=True)
        return float(np.interp(step, steps, sizes))


class _Weights:
    """The weights of the parts of the loss, and which of them grows."""

    def __init__(self) -> None:
        self._last: tuple[float, ...] = ()
        self._parts: list[_Growth] = []
        self._odd = 0
        self.since: int | None = None
        """First step at which one is seen to grow; None: none does."""
        self.until: int | None = None
        """Step of its last growth, once it stands still."""
        self.grown: _Growth | None = None
        """The one that grows, or was the last to."""

    def take(self, step: int, weights: tuple[float, ...]) -> None:
        if weights == self._last and (self.since is None or self.until is not None):
            return  # as in nearly all runs
        if len(weights) != len(self._parts):
            self._odd += 1
            if self._parts and self._odd < 2:  # two weights may be equal for a step
                return
            self._parts = [_Growth(abs(x), abs(x), step) for x in weights]
            self._end(step)
        else:
            for part, x in zip(self._parts, weights, strict=True):
                part.take(step, abs(x))
        self._odd, self._last = 0, weights
        total = sum(p.size for p in self._parts)
        now = next((p for p in self._parts if p.grows(total) and not p.stands(step)), None)
        if now is None:
            self._end(max((p.step for p in self._parts), default=step))
        elif self.since is None or self.until is not None:
            # it grew before it could be told; a slow rise is of the whole growth
            self.since, self.until = now.marks[0][0], None
        self.grown = now or self.grown

    def forget_after(self, step: int) -> None:
        if self._parts and any(p.step > step for p in self._parts):
            self._last, self._parts, self.since, self.until = (), [], None, None
            self.grown = None

    def _end(self, step: int) -> None:
        if self.since is not None and self.until is None:
            self.until = step

    def explains(self, first: int, last: int) -> bool:
        until = math.inf if self.until is None else self.until + _LATE_STEPS
        return self.since is not None and last >= self.since and first <= until

    @property
    def all_add(self) -> bool:
        """Whether all parts are added."""
        return min(self._last, default=-1.0) >= 0


@dataclass
class _More:
    """A part of the loss that is given more weight, as one alarm sees it."""

    why = "the weight of a part of the loss grows"
    level: float
    sigma: float
    most: float
    """By which the loss may rise in all."""
    weights: _Weights
    part: _Growth
    before: float
    """Weight of it before the rise."""
    size: float | None
    """Of the part, before the rise; None: not known."""

    @property
    def rise(self) -> float:
        more = self.part.size - self.before
        rise = self.most
        if self.size is not None:
            rise = more * abs(self.size)
        elif self.before > 0 and self.weights.all_add and self.level > 0:
            rise = min(rise, more / self.before * self.level)
        return max(_SIGMAS * self.sigma, rise)

    def over(self, losses: Sequence[float], step: int) -> bool:
        del step
        return len(losses) >= _BLOCK and median(losses[-_BLOCK:]) > self.level + self.rise


class ByDesign:
    """What the script does to the loss of a run, and which alarms that explains."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._first: list[float] = []
        self._losses: deque[tuple[int, float]] = deque(maxlen=_MOST_LOSSES)
        self._recent: deque[float] = deque(maxlen=2 * _BLOCK)
        self._turns = _Turns()
        self._rates: list[tuple[int, int, float]] = []
        """First and last step of each turning point, and its rate: top, trough, top ..., of which
        the last is followed."""
        self._level_at_rate = math.nan
        """Of the loss, as the rate came down from its last top."""
        self._halved = False
        self._seen: deque[float] = deque(maxlen=4)
        """By which the loss rose when a rate came back."""
        self._returns: deque[_Return] = deque(maxlen=_MOST_KEPT)
        self._of_graph, self._logged = _Weights(), _Weights()
        self._part: deque[float] = deque(maxlen=_BLOCK)
        """What the logged weight is of."""
        self._notes: dict[Key, _Why | None] = {}
        """By alarm, what explains it; None: nothing any more."""
        self._trained: tuple[Hashable, str] = (None, "")
        """The parameters that were trained last, and their name."""
        self.changes: deque[tuple[int, tuple[float, ...], str]] = deque(maxlen=_MOST_CHANGES)
        """Steps at which the factors or the trained parameters changed, with both."""

    @classmethod
    def of_rows(
        cls,
        record: RunRecord,
        changes: Sequence[tuple[int, tuple[float, ...], str]],
        *,
        until: int,
    ) -> ByDesign:
        """Return what is known after the rows of a lineage, and the changes, up to a step."""
        design = cls()
        rows = record.lineage_rows()
        rows = rows[record.step[rows] <= until]
        rows = np.concatenate((rows[:_FIRST], rows[_FIRST:][-_MOST_ROWS:]))
        names = ("loss", "lr", "kl_weight", "latent_kl")
        columns = [record.columns.get(name) for name in names]
        values = np.array(
            [
                np.full(len(rows), math.nan)
                if c is None
                else np.where(c.present[rows], c.values[rows], math.nan)
                for c in columns
            ]
        ).T
        ahead, now = [c for c in changes if c[0] <= until], None
        for step, row in zip(record.step[rows].astype(int).tolist(), values.tolist(), strict=True):
            while ahead and ahead[0][0] <= step:
                now = ahead.pop(0)
                if now[0] < step:
                    design._see(*now)
            if now is not None:
                design._see(step, *now[1:])
            design.take_row(step, *row)
        return design

    # -- in each step -----------------------------------------------------------------------

    def see_step(self, step: int, terms: tuple[float, ...], trained: Hashable) -> None:
        """Take in by what the parts of the loss are multiplied, and which parameters are trained.

        Args:
            step: The one under way.
            terms: As `step.loss_terms` gives them.
            trained: Equal where the same parameters are trained.
        """
        if trained != self._trained[0]:
            name = hashlib.blake2b(repr(trained).encode(), digest_size=6).hexdigest()
            self._trained = (trained, name)
        self._see(step, terms, self._trained[1])

    def _see(self, step: int, terms: tuple[float, ...], trained: str) -> None:
        if not self.changes or self.changes[-1][1:] != (terms, trained):
            self.changes.append((step, terms, trained))
        self._turns.take(step, tuple(x < 0 for x in terms), trained)
        self._of_graph.take(step, terms)

    def take_row(
        self,
        step: int,
        loss: float,
        rate: float,
        weight: float = math.nan,
        part: float = math.nan,
    ) -> None:
        """Take in a row.

        Args:
            step: Its own.
            loss: Of the step.
            rate: In force.
            weight: Of a divergence, if logged.
            part: That divergence, if logged.
        """
        if rate >= 0:
            self._take_rate(step, rate)
        if math.isfinite(weight):
            self._logged.take(step, (weight,))
            if math.isfinite(part):
                self._part.append(part)
        if math.isfinite(loss):
            if len(self._first) < _FIRST:
                self._first.append(loss)
            self._losses.append((step, loss))
            self._recent.append(loss)
            self._turns.take_loss(loss)
            now = self._returns[-1] if self._returns else None
            if now is not None and step <= (now.until or now.risen) + _BACK_STEPS:
                now.take(list(self._recent), step)

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
        if f.key not in self._notes:
            note = self._explain(f)
            if note is None:
                return ""
            if len(self._notes) >= _MOST_KEPT:
                del self._notes[next(iter(self._notes))]
            self._notes[f.key] = note
        found = self._notes[f.key]
        return "" if found is None else found.why

    def _explain(self, f: Finding) -> _Why | None:
        last = int(max(f.step if f.kind == "held-out-worse" else 0, f.onset + f.grain_rows - 1))
        first = int(f.onset)
        turned = f.kind in _OF_TURNS and self._turns.between(
            first - _NEAR_STEPS, last + _NEAR_STEPS
        )
        if f.detector == "loss-count" and self._turns.known:
            return _Range(self._turns, {})  # of the factor, whatever the loss does
        note: _Why | None = self._turns.note(first) if turned else None
        if note is not None:
            return note
        if f.kind not in _RISES or f.direction == "down":
            return None
        # A reading of fixed batches is no noisy row: it says at once how far the loss has risen.
        risen = f.value - f.expected if f.kind == "held-out-worse" else 0.0
        for rise in self._returns:
            placed = last >= rise.since and first <= rise.risen + rise.late
            if placed and not self._is_over(rise, risen):
                return rise
        for weights in (self._logged, self._of_graph):
            if weights.explains(first, last):
                note = self._more(weights, first)
                if note is not None and not self._is_over(note, risen):
                    return note
        return None

    def _is_over(self, note: _Why, risen: float) -> bool:
        step = self._losses[-1][0] if self._losses else 0
        return risen > note.rise or note.over(list(self._recent), step)

    def failed(self, step: int) -> frozenset[Key]:
        """Return the alarms that are such after all: the loss rose too far, or did not come back.

        Each is returned once.
        """
        if not self._notes:
            return frozenset()
        losses = list(self._recent)
        found = {id(n): n for n in self._notes.values() if n is not None}
        over = {i for i, note in found.items() if note.over(losses, step)}
        keys = frozenset(k for k, n in self._notes.items() if n is not None and id(n) in over)
        self._notes |= dict.fromkeys(keys)
        return keys

    def forget_after(self, step: int) -> None:
        """Forget what came after a step, to which the run has gone back."""
        self._notes.clear()
        while self.changes and self.changes[-1][0] > step:
            self.changes.pop()
        self._turns.forget_after(step)
        self._of_graph.forget_after(step)
        self._logged.forget_after(step)
        self._rates = [r for r in self._rates if r[1] <= step]
        kept = (r for r in self._returns if r.since <= step)
        self._returns = deque(kept, maxlen=_MOST_KEPT)
        while self._losses and self._losses[-1][0] > step:
            self._losses.pop()
        self._recent.clear()
        self._recent.extend([x for _, x in self._losses][-2 * _BLOCK :])

    # -- inside -----------------------------------------------------------------------------

    def _take_rate(self, step: int, rate: float) -> None:
        found = self._rates
        if not found:
            found.append((step, step, rate))
            return
        first, _, last = found[-1]
        now = self._returns[-1] if self._returns else None
        if len(found) % 2:  # up to a top
            if rate > last:
                found[-1] = (first, step, rate)
                if now is not None and now.until is None:
                    now.risen = step
                    if len(found) > 2 and rate > ABOVE * self._highest_before():
                        now.until, now.failed = step - 1, True
            elif rate * JUMP <= last:
                found.append((step, step, rate))
                if now is not None and now.until is None:
                    now.until = step
                self._keep_level(halved=2 * rate <= last)
        elif rate <= last:
            found[-1] = (first, step, rate)
            if not self._halved and 2 * rate <= found[-2][2]:
                self._keep_level(halved=True)
        elif rate >= JUMP * last:
            since = found[-1][1] + 1
            found.append((step, step, rate))
            if rate <= ABOVE * self._highest_before():
                why = f"the learning rate is back at {rate:.3g}, a value that was in force before"
                self._begin(why, since, step, since - found[-3][0])
            if len(found) > 2 * _MOST_KEPT:  # the higher of the first two tops stands for both
                found[:3] = [max(found[0], found[2], key=itemgetter(2))]

    def _keep_level(self, *, halved: bool) -> None:
        """Keep the level of the loss, as the rate comes down from a top."""
        self._halved = halved
        self._level_at_rate = median(self._recent) if self._recent else math.nan

    def _highest_before(self) -> float:
        return max(rate for *_, rate in self._rates[:-2])

    def _scale(self, since: int) -> tuple[float, float, float] | None:
        """Return level and noise before a step, and the descent up to there; None: not known."""
        kept = list(self._losses)
        rows = [x for t, x in kept if t < since][-_LEVEL:]
        if len(kept) == _MOST_LOSSES and not rows:  # it began before all that is kept
            rows = [x for _, x in kept[:_LEVEL]]
        before = np.array(rows)
        if len(before) < _BLOCK:
            return None
        level, numeric = float(np.median(before)), _NUMERIC * float(np.abs(before).max())
        sigma = max(mad_sigma(np.diff(before)) / math.sqrt(2), numeric)
        return level, sigma, min(median(self._first) - level, _MOST_SIGMA * sigma)

    def _begin(self, why: str, since: int, step: int, cycle: int) -> None:
        last = self._returns[-1] if self._returns else None
        if last is not None and not last.failed and math.isfinite(last.peak):
            self._seen.append(max(last.peak - last.level, 0.0))
        scale = self._scale(since)
        if scale is None:
            return
        level, sigma, descent = scale
        noise = _SIGMAS * sigma
        if self._seen:
            usual, rise = max(self._seen) + noise / 2, max(noise, _LARGER * max(self._seen))
        else:
            usual = rise = max(self._level_at_rate - level, 0.0) + noise
        rise = min(rise, max(noise, _SHARE_OF_RATE * descent))
        self._returns.append(
            _Return(
                why,
                since=since,
                late=min(_LATE_STEPS, cycle // _LATE_SHARE),
                level=level,
                sigma=sigma,
                limit=level + rise,
                usual=level + min(usual, rise),
                back=level + max(sigma, _BACK_SHARE * max(descent, _LEAST_SIGMA * sigma)),
                risen=step,
            )
        )

    def _more(self, weights: _Weights, first: int) -> _More | None:
        """Return what a weight that grows explains from a step on; None where nothing is known."""
        part, scale = weights.grown, self._scale(first)
        if part is None or scale is None:
            return None
        level, sigma, descent = scale
        size = median(self._part) if weights is self._logged and self._part else None
        before = part.at(first - _LEVEL // 2)
        most = max(descent, _LEAST_SIGMA * sigma)
        return _More(level, sigma, most, weights, part, before, size)


@dataclass
class _Range:
    """The losses of the turns before an alarm, of each kind; infinite where nothing is known."""

    why = "the script does so in turn: by another sign of the loss, or other parameters"
    turns: _Turns
    limits: dict[Hashable, float]
    rise = math.inf

    def over(self, losses: Sequence[float], step: int) -> bool:
        del losses, step
        what, loss = self.turns.worst
        return loss > self.limits.get(what, math.inf)


class _Turns:
    """Whether the script does one thing and another in turn, and where it changed over."""

    def __init__(self) -> None:
        self._now: Hashable = None
        self._sign = 1.0
        self._known: set[Hashable] = set()
        self._changes: deque[int] = deque(maxlen=_MOST_KEPT)
        self._num_changes = 0
        self._since = 0
        self._high = -math.inf
        self._last = math.nan
        self._highs: dict[Hashable, deque[tuple[int, float]]] = {}
        """Highest loss of each turn and its last step, by its kind: lowest, where it ascends."""
        self.returned = False

    def take(self, step: int, signs: tuple[bool, ...], trained: Hashable) -> None:
        what = (signs, trained)
        if what == self._now:
            return
        if self._known:
            self._changes.append(step)
            self._num_changes += 1
            self.returned = self.returned or what in self._known
            if math.isfinite(self._high) and (
                self._now in self._highs or len(self._highs) < _MOST_KINDS
            ):
                kept = self._highs.setdefault(self._now, deque(maxlen=_MOST_TURNS))
                kept.append((step - 1, self._high))
        if len(self._known) < _MOST_KEPT:
            self._known.add(what)
        self._now, self._sign = what, -1.0 if signs and all(signs) else 1.0
        self._high, self._last = -math.inf, math.nan

    def take_loss(self, loss: float) -> None:
        self._last = self._sign * loss
        self._high = max(self._high, self._last)

    @property
    def known(self) -> bool:
        """Whether there were enough turns, and back to what was done before."""
        return self.returned and self._num_changes >= _LEAST_TURNS - 1

    @property
    def worst(self) -> tuple[Hashable, float]:
        """What is done just now, and the last loss of it; larger is worse."""
        return self._now, self._last

    def note(self, first: int) -> _Range | None:
        """Return what turns explain from a step on; None where too little is known of them."""
        if not self.known:
            return None
        limits: dict[Hashable, float] = {}
        for what, kept in self._highs.items():
            highs = np.array([x for t, x in kept if t < first][-_LEVEL:])
            if len(highs) > 1:
                # few turns say little of their spread but by the range of it
                spread = max(mad_sigma(np.diff(highs)) / math.sqrt(2), float(np.ptp(highs)) / 4)
                least = _NUMERIC * float(np.abs(highs).max())
                limits[what] = float(highs.max()) + max(_SIGMAS * spread, least)
        if not limits:
            return None
        found = _Range(self, limits)
        return None if found.over((), 0) else found

    def between(self, first: int, last: int) -> bool:
        return self.returned and any(first <= step <= last for step in self._changes)

    def forget_after(self, step: int) -> None:
        while self._changes and self._changes[-1] > step:
            self._changes.pop()
        for kept in self._highs.values():
            while kept and kept[-1][0] > step:
                kept.pop()
