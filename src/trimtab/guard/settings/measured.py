"""Settings that no object holds, read off what comes in: the scale of batches, the count of losses.

A loader that loses its transform, a loss whose sign turns or that is summed where it was averaged:
nobody sets an option, and yet they are changes of a setting like any other. They are seen here by
what they do, stand in the ledger under a name, and are put back by arithmetic: a batch of the other
scale is brought back to the usual one, a loss is multiplied. Both look at each batch and each loss
anew, so that what comes as it used to is left alone: a window of wrong data ends by itself, and so
does a change that the script takes back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch

from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["BatchScales", "LossCount", "Measured", "RatePeak", "is_measured"]

T = TypeVar("T")
Values = tuple[float, ...]
Measured = tuple[str, int, Values, Values]
"""Name, first step under the new value, value before and after."""

_MOST_VALUES = 4096
"""Values of a tensor that are looked at, as of tokens in `probes.batch`."""
_MOST_TENSORS = 4
_OTHER_SCALE = 8.0
"""Ratio of spreads, and distance of means in spreads, from which a batch is of another scale. Data
sets and augmentations of one kind differ by less; 0-255 for 0-1 is 255. Ours."""
_FEWEST = 16
"""Batches or losses before a change can be told."""
_STEADY = 4.0
"""Largest ratio among the usual spreads: data whose scale varies has no usual one. Ours."""
_IN_A_ROW = 3
_USUAL = 64
_EARLY = 1.5
"""Times what the best date leaves unexplained, that an earlier one may. Ours."""
_MOST_ROWS = 256
"""Rows in which a factor that was measured is dated."""
_ACCEPTED = 256
"""Batches of another scale in a row after which it is the usual one."""


def is_measured(name: str) -> bool:
    """Whether a setting of this name stands in no object, and is put back by arithmetic."""
    return name.startswith("batch[") or name in ("batch", LossCount.name)


@dataclass
class _Scale:
    """Mean and spread of one tensor of the batches."""

    usual: deque[Values] = field(default_factory=lambda: deque(maxlen=_USUAL))
    other: deque[Values] = field(default_factory=lambda: deque(maxlen=_ACCEPTED))
    """Of the last batches in a row that were of another scale."""
    since: int = 0
    before: Values = ()
    """The usual mean and spread; empty: not known, or the data has no usual scale."""

    @property
    def after(self) -> Values:
        return _medians(self.other)

    def take(self, now: Values) -> None:
        """Take in a batch of the usual scale; what is usual is worked out now and then."""
        self.usual.append(now)
        self.other.clear()
        self.seen += 1
        if self.seen % _FEWEST == 0:
            spreads = [spread for _, spread in self.usual]
            steady = max(spreads) < _STEADY * min(spreads)
            self.before = _medians(self.usual) if steady else ()

    seen: int = 0


class BatchScales:
    """Mean and spread of the floating tensors of batches, and what brings them back."""

    def __init__(self) -> None:
        """Begin without knowing what is usual."""
        self.corrected: set[str] = set()
        """Tensors that were brought back in the step under way."""
        self._scales: dict[str, _Scale] = {}
        self._held: dict[str, Values] = {}

    def see(self, batch: object, step: int) -> list[Measured]:
        """Take in a batch that is trained on; return what is of another scale now, once.

        Cost: some ten microseconds for each floating tensor, on the CPU only: a read from a device
        would wait for it.
        """
        found: list[Measured] = []
        for name, tensor in _tensors(batch):
            now = _mean_and_spread(tensor)
            if now is None:
                continue
            s = self._scales.setdefault(name, _Scale())
            if not s.before or not _differ(s.before, now, _OTHER_SCALE):
                s.take(now)
                continue
            if not s.other:
                s.since = step
            s.other.append(now)
            if len(s.other) == _IN_A_ROW:
                found.append((name, s.since, s.before, s.after))
            elif len(s.other) == _ACCEPTED and name not in self._held:
                s.before = s.after
                s.usual.clear()
                s.other.clear()
        return found

    def apply(self, batch: T) -> T:
        """Return the batch with what is of the other scale brought back; itself where nothing is.

        x' = (x - mean after) * spread before / spread after + mean before; without the means where
        the factor alone brings the mean back as well.
        """
        for name, tensor in list(_tensors(batch)) if self._held else ():
            now = _mean_and_spread(tensor) if name in self._held else None
            if now is None:
                continue
            mean, spread, other_mean, other_spread = self._held[name]
            if not _differ((mean, spread), now, math.sqrt(_OTHER_SCALE)):
                continue
            self.corrected.add(name)
            factor = spread / other_spread
            offset = mean - factor * other_mean
            mended = tensor * factor
            batch = _with(batch, name, mended if abs(offset) < spread / 4 else mended + offset)
        return batch

    @property
    def ratio(self) -> float:
        """Spread now over the usual one, of the tensor that differs most and is not brought back.

        Where only the mean has moved it is by how many spreads; 1: all is as usual.
        """
        found = [1.0]
        for name, s in self._scales.items():
            if name not in self._held and len(s.other) >= _IN_A_ROW:
                (mean, spread), (new_mean, new_spread) = s.before, s.after
                same = 1 / _OTHER_SCALE < new_spread / spread < _OTHER_SCALE
                found.append(abs(new_mean - mean) / spread if same else new_spread / spread)
        return max(found, key=lambda x: abs(math.log(x)))

    def values_to_hold(self, name: str) -> Values:
        """Return mean and spread as they used to be and as they are now; empty: not known."""
        s = self._scales.get(name)
        return (*s.before, *s.after) if s is not None and s.other else ()

    def hold(self, held: Mapping[str, Values]) -> None:
        """Bring the tensors of these names back from now on, and no others."""
        self._held = {n: v for n, v in held.items() if n.startswith("batch") and len(v) == 4}


_COUNTED = 4.0
"""Least factor between loss and loss, and between norm and norm, that is another count. Ours."""
_ALIKE = 1.6
"""Most that the two factors differ by: single batches are noisy. Ours."""
_AS_LARGE = 2.5
"""Most that a loss whose sign has turned, and its norm, differ from before. Ours."""
_CLEAR_SIGMA = 2.0
"""Distance of a loss from 0, in its spread, from which its sign is clear. Ours."""
_SUMMED_IN_A_ROW = 5
"""Rows beyond all 16 before, which by chance one stretch in 20,000 is."""


_BACK = 0.02
"""Most that a measured factor differs from that of a loop that counts as before. Ours: twice what
batches may differ."""


class LossCount:
    """By what the loss is multiplied: its sign, and sums in place of means.

    Of a sum of n losses the norm of the gradient is n times what it was as well, in the same row;
    a loss that is negated falls below zero by as much as it was above, and the norm stays.
    """

    name = "loss.factor"

    def __init__(self) -> None:
        """Begin without rows."""
        self._rows: deque[tuple[int, float, float]] = deque(maxlen=_MOST_ROWS)
        """Step, loss and gradient norm."""
        self._new = 0
        """Newest rows in a row that were counted otherwise."""
        self._factor = 1.0
        """That is taken out; 1: none."""
        self._told: tuple[int, float, float] | None = None
        """Step of the change that was told last, the loss before it, and the factor."""
        self.is_over = False
        """Whether the newest loss since that change is counted as before it."""
        self._measured: tuple[int, float] | None = None
        """First step under the factor that was told last, and the factor, where it was measured."""
        self._undone: dict[int, float] = {}
        """Losses of steps that were undone, of the first time that they were done."""
        self._from: int | None = None
        """First step that is divided whatever its loss; None: as the loss says."""
        self.corrects = False
        """Whether the backward pass goes through the guard, which can multiply its loss."""
        self.corrected = False
        """Whether the loss of the step under way was brought back."""

    def see(self, loss: float, norm: float, step: int, *, counts: bool) -> list[Measured]:
        """Take in a row; return what the loss is multiplied by now, once.

        Args:
            loss: Of the row, as recorded.
            norm: Of the gradient before clipping.
            step: Of the row.
            counts: Whether the size of the gradient matters to the update: not to Adam's, nor
                where it is clipped anyway.
        """
        if not (math.isfinite(loss) and math.isfinite(norm) and norm > 0):
            return []
        self._rows.append((step, loss, norm))
        if self._told is not None and step >= self._told[0] and self._measured is None:
            _, usual, by = self._told
            self.is_over = _apart(loss, usual) < _apart(loss / by, usual)
        num = _FEWEST + self._new + 1
        if len(self._rows) < num:
            return []
        rows = list(islice(reversed(self._rows), num))[::-1]
        # without numpy: of so few it takes ten times as long, and this is done at each step
        losses = [row[1] for row in rows[:_FEWEST]]
        level = median(losses)
        turned = loss * level < 0 and all(x * level > 0 for x in losses)
        times = max(abs(loss / level), abs(level / loss)) if loss and level else 1.0
        beyond = times > _COUNTED / _ALIKE
        if not (turned or beyond):
            self._new = 0
            return []
        both = np.array(rows)[:, 1:]
        before, new = both[:_FEWEST], both[_FEWEST:]
        self._new += 1
        factor = None
        if self._new == (_IN_A_ROW if turned else _SUMMED_IN_A_ROW):
            factor = _turns(before, new) if turned else _counts(before, new) if counts else None
            self._new = 0
        if factor is None:
            return []
        self._told, self.is_over = (step - len(new) + 1, level, factor), False
        self._measured = None
        return [(self.name, self._told[0], (1.0,), (factor,))]

    def steepest(self, since: int) -> tuple[float, float]:
        """Return the largest gradient norm since a step, and that by the usual one until then.

        Of fewer than 16 rows until then what is usual is not known: 0.
        """
        usual = [norm for step, _, norm in self._rows if step < since]
        top = max((norm for step, _, norm in self._rows if step >= since), default=0.0)
        return top, top / median(usual) if len(usual) >= _FEWEST else 0.0

    def take_measured(self, factor: float, after: int) -> list[Measured]:
        """Take in that the loop multiplies its loss, as equal weights on equal batches show.

        The step is about the first from which losses and norms fit those before, multiplied.

        Args:
            factor: Above 0; by what the loss of the same state and batch is multiplied now.
            after: A step at which it was not.
        """
        told = self._told is not None and self._told[0] > after
        if told and self._measured is not None:
            return []
        rows = np.array([r for r in self._rows if r[1] > 0])
        if not len(rows) or not rows[_IN_A_ROW:, 0].max(initial=-1) > after:
            return []
        x, by = np.log(rows[:, 1:]), math.log(factor)
        first = max(int(np.searchsorted(rows[:, 0], after, "right")), _IN_A_ROW)
        levels = {k: np.median(x[max(k - _FEWEST, 0) : k], axis=0) for k in range(first, len(rows))}
        # what each choice of the first row under the factor leaves unexplained of its neighbors
        left = {
            k: np.abs(np.vstack([x[max(k - _FEWEST, 0) : k] - m, x[k : k + 8] - m - by])).mean()
            for k, m in levels.items()
        }
        # Some steps divided in vain lose little, one that is not may break the state.
        k = min(k for k, x in left.items() if x <= _EARLY * min(left.values()))
        step, level = int(rows[k, 0]), levels[k]
        self._told, self.is_over = (step, float(np.exp(level[0])), factor), False
        self._measured = (step, factor)
        return [] if told else [(self.name, step, (1.0,), (factor,))]  # a guess is made exact

    def is_back(self, factor: float) -> bool:
        """Whether the loop multiplies its loss no more by what it is divided by.

        Args:
            factor: By what the loss of the same state and batch, divided, is multiplied now.
        """
        return self._from is not None and abs(factor * self._factor - 1) < _BACK

    @property
    def last_norm(self) -> float:
        """Norm of the gradient in the newest row, before clipping; NaN without one."""
        return self._rows[-1][2] if self._rows else math.nan

    @property
    def values_to_hold(self) -> Values:
        """Return the factor to divide by, and the step from which on it was measured to be so."""
        if self._told is None or not self.corrects:
            return ()
        return (self._told[2],) if self._measured is None else (self._told[2], self._measured[0])

    def forget_after(self, step: int) -> None:
        """Forget the rows after a step, to which the run has gone back."""
        for t, loss, _ in self._rows:
            if t > step and len(self._undone) < _MOST_ROWS:
                self._undone.setdefault(t, loss)
        self._rows = deque((r for r in self._rows if r[0] <= step), maxlen=_MOST_ROWS)
        self._new = 0

    def apply(self, loss: torch.Tensor, step: int) -> torch.Tensor:
        """Return the loss as it used to be counted; itself where it comes so, or nothing is held.

        Args:
            loss: As the loop gives it.
            step: The one that is under way.

        Cost: a read of the loss, and only while a factor is held that was not measured.
        """
        self.corrects = True
        if self._factor == 1.0 or getattr(loss, "numel", int)() != 1:
            return loss
        if self._from is not None:  # known after a restart, too, when no row is
            if step < self._from and not self._counts_anew(loss, step):
                return loss
            self.corrected = True
            return loss / self._factor
        if not self._rows:
            return loss
        level = float(np.median([loss for _, loss, _ in list(self._rows)[-_FEWEST:]]))
        own = float(loss.detach())
        if _apart(own, level) <= _apart(own / self._factor, level):
            return loss
        self.corrected = True
        return loss / self._factor

    def _counts_anew(self, loss: torch.Tensor, step: int) -> bool:
        """Whether a step from before the change is multiplied now that it is done again.

        It is where the running code has changed, and not what happens at a step.
        """
        before = self._undone.get(step)
        if before is None:
            return False
        own = float(loss.detach())
        return _apart(own / self._factor, before) < _apart(own, before)

    @property
    def is_measured(self) -> bool:
        """Whether a factor is divided out that was measured, whatever the losses are."""
        return self._from is not None

    def hold(self, held: Mapping[str, Values]) -> None:
        """Divide by the factor of this name from now on; none: no longer."""
        self._factor, *rest = held.get(self.name, (1.0,))
        self._from = int(rest[0]) if rest else None
        self._new = 0


_SETTLED = 0.8
"""Share of its peak to which a rate has fallen, or else `_SETTLED_STEPS` without a higher one,
after which the peak counts as the run's own. Ours."""
_SETTLED_STEPS = 64
_JUMP = 1.5
_BEYOND = 2.0
"""Times that peak from which a rate is beyond all that the run has had: restarts of a schedule come
back to it (SGDR), and no recipe goes further. Ours."""
_JUMPED_BEYOND = 3.0
"""Times the earlier peak from which a jump counts as well: a restart of a schedule comes back to its
peak, or a little beyond. Ours."""


class RatePeak:
    """The highest rate of a run, and whether the rate has climbed far beyond it since."""

    def __init__(self) -> None:
        """Begin without a rate."""
        self._peaks: list[tuple[int, float]] = []
        """Step and rate of each that was higher than all before by two per cent."""
        self._settled: int | None = None
        self._told: int | None = None
        self._last = math.inf

    def see(self, rate: float, step: int) -> float | None:
        """Take in the rate of a row; return it over its earlier peak where it is far beyond, once.

        A jump from one row to the next is left to the rules of jumps, unless it leads where hardly
        any recipe goes.
        """
        if not 0 < rate < math.inf:
            return None
        jumped, self._last = rate > _JUMP * self._last, rate
        if not self._peaks:
            self._peaks.append((step, rate))
            return None
        at, peak = self._peaks[-1]
        if self._settled is None and (rate <= _SETTLED * peak or step - at >= _SETTLED_STEPS):
            self._settled = step
        if self._settled is None:
            if rate > 1.02 * peak:
                self._peaks.append((step, rate))
            return None
        if jumped and rate < _JUMPED_BEYOND * peak:
            self._told = step
        if self._told is not None or rate < _BEYOND * peak:
            return None
        self._told = step
        return rate / peak

    def forget_after(self, step: int) -> None:
        """Forget what came after a step, to which the run has gone back."""
        self._last = math.inf
        self._peaks = [p for p in self._peaks if p[0] <= step]
        if self._settled is not None and self._settled > step:
            self._settled = None
        if self._told is not None and self._told > step:
            self._told = None


def _turns(before: NDArray[np.float64], new: NDArray[np.float64]) -> float | None:
    """Return -1 where the sign has turned, and nothing else; rows of loss and norm.

    A loss that falls through 0 row by row is not as far below it, three rows later, as it was above
    over 16.
    """
    by_loss, by_norm = np.median(new, axis=0) / np.median(before, axis=0)
    alike = all(1 / _AS_LARGE < x < _AS_LARGE for x in (-by_loss, by_norm))
    level, sigma = float(np.median(before[:, 0])), mad_sigma(before[:, 0])
    # An offset leads below 0 as well, but hardly to the same distance. 1.25 is that of medians.
    error = 1.25 * sigma * math.sqrt(1 / len(new) + 1 / len(before))
    as_far = abs(level * (1 + by_loss)) < max(4 * error, 1e-3 * abs(level))
    return -1.0 if alike and as_far and abs(level) > _CLEAR_SIGMA * sigma else None


def _counts(before: NDArray[np.float64], new: NDArray[np.float64]) -> float | None:
    """Return the factor by which loss and norm have both grown, or shrunk, at once."""
    by_loss, by_norm = np.median(new, axis=0) / np.median(before, axis=0)
    alike = 1 / _ALIKE < by_loss / by_norm < _ALIKE
    up = bool((new.min(axis=0) > before.max(axis=0)).all()) and min(by_loss, by_norm) >= _COUNTED
    down = (
        bool((new.max(axis=0) < before.min(axis=0)).all()) and max(by_loss, by_norm) <= 1 / _COUNTED
    )
    return float(by_loss) if alike and (up or down) else None


def _apart(loss: float, level: float) -> float:
    """Return how far a loss is from its level, as a logarithm; infinite for the other sign."""
    return abs(math.log(loss / level)) if loss * level > 0 else math.inf


def _tensors(batch: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the first floating tensors of a batch, with a name for each."""
    if isinstance(batch, dict):
        parts = [(f"batch[{key}]", x) for key, x in batch.items()]
    elif isinstance(batch, list | tuple):
        parts = [(f"batch[{i}]", x) for i, x in enumerate(batch)]
    else:
        parts = [("batch", batch)]
    for name, x in parts[:_MOST_TENSORS]:
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() > 1:
            yield name, x


def _with(batch: T, name: str, value: torch.Tensor) -> T:
    """Return a shallow copy of a batch with another tensor under a name."""
    if isinstance(batch, dict):
        changed = {k: value if f"batch[{k}]" == name else x for k, x in batch.items()}
        return cast("T", changed)
    if isinstance(batch, list | tuple):
        parts = [value if f"batch[{i}]" == name else x for i, x in enumerate(batch)]
        if isinstance(batch, list):
            return parts  # type: ignore[return-value]
        made = getattr(type(batch), "_make", tuple)  # a named tuple stays one
        return made(parts)  # type: ignore[return-value]
    return value  # type: ignore[return-value]


def _mean_and_spread(x: torch.Tensor) -> Values | None:
    """Return mean and standard deviation of some of a tensor's values; None: not to be had."""
    if x.device.type != "cpu" or x.layout is not torch.strided or not x.is_contiguous():
        return None
    flat = x.detach().view(-1)
    # odd, so that no column of an image is met again and again
    stride = max(flat.numel() // _MOST_VALUES, 1) | 1
    spread, mean = torch.std_mean(flat[::stride].float())
    found = float(mean), float(spread)
    return found if math.isfinite(found[0]) and 0 < found[1] < math.inf else None


def _differ(usual: Values, now: Values, factor: float) -> bool:
    """Whether mean or spread are further from the usual ones than a factor."""
    (mean, spread), (new_mean, new_spread) = usual, now
    ratio = new_spread / spread
    apart = abs(new_mean - mean) > factor * max(spread, new_spread)
    return not 1 / factor < ratio < factor or apart


def _medians(found: deque[Values]) -> Values:
    middle = np.median(np.array(found), axis=0)
    return float(middle[0]), float(middle[1])
