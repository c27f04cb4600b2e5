"""Overfitting: the validation loss has turned and rises, while the training loss falls on.

Each validation is compared with the lowest before it, whose level is the median of it and of the
two validations on either side: one that is low by chance is no level. With d[k] the second
differences of the last validations and sigma = 1.4826 median |d| / sqrt(6):

    rise = lowest of the last `confirm` validations - level at the lowest before them

is a finding if it exceeds `threshold` sigma, by a quarter every earlier rise that a new low
followed, `share` of the fall from the first validation to the lowest (from the first fourth of those
before it on where the training loss fell by more than the rise since), and `share` of what the
training loss fell since then, and if the training loss (median of its last rows) is below that of
the first rows by more than noise, and not above where it was at the lowest validation: a run that
has learned nothing does not overfit. Nor does one whose last training losses have left the level of
those before: that run goes wrong as a whole. Differences only, so adding a constant to the losses,
or scaling them, changes nothing.

It dates from the validation after the lowest, and is reported once; again when validation comes to
a new low. Nobody overfits between two validations: where one step between them holds the rise, and
no other step since the lowest is a third of it, the evaluation has changed, and that is what
is told. Blind to a set of which the loss is logged fewer than `min_validations` times.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed
from trimtab.signals.robust import difference_sigma, median

__all__ = ["OverfittingDetector", "OverfittingState"]

_PAST = 24
_TRAIN_ROWS = 16
_BEYOND_PAST = 1.25
"""Times the largest rise that was followed by a new low. Ours."""
_NEAR = 2
"""Validations on either side of the lowest that make its level. Ours."""
_FOURTH = 4
_LEARNED_SPREADS = 4.0
"""Fall of the training loss, in errors of its level, from which on the run has learned. Ours."""
_CLIMB_SIGMA = 3.0
"""Rise of the last training losses, in standard deviations of a row, that is a climb. Ours."""

_JUMP_SHARE = 0.7
"""Of the rise since the lowest validation, that a jump holds. Ours."""
_JUMP_SIGMA = 5.0
"""Noise of validation before its lowest that a jump exceeds. Ours."""
_KNOWN_CHECKS = 5
"""Validations before the lowest, from which on that noise is known. Ours."""


@dataclass(frozen=True)
class OverfittingState:
    """Recent losses, the lowest validation, and what followed it."""

    train: tuple[float, ...] = ()
    """Last finite training losses, at most 16."""
    train_first: tuple[float, ...] = ()
    """The first finite training losses, at most 16."""
    past: tuple[float, ...] = ()
    """Last validations, at most 24."""
    num_checks: int = 0
    marks: tuple[float, ...] = ()
    """Validations 1, 2, 4, 8 and so on."""
    fall_from: float = 0.0
    """The last of those within the first fourth of the validations up to the lowest."""
    lowest: float = math.inf
    near: tuple[float, ...] = ()
    """The lowest validation, two before it, and up to two after it."""
    after_lowest: int = 0
    rose: float = 0.0
    """Largest rise since the lowest validation."""
    wandered: float = 0.0
    """Largest rise after which validation came to a new low."""
    train_then: float = math.nan
    """Level of the training loss at the lowest validation."""
    onset_row: int = -1
    """The validation after the lowest."""
    onset: float = 0.0
    told: bool = False
    worst: float = -math.inf
    worst_row: int = 0
    worst_step: float = 0.0
    jump: float = 0.0
    """Largest rise from one validation to the next, since the lowest."""
    jump_fell: float = 0.0
    """By how much the training loss fell between the two."""
    checked: float = math.nan
    """Level of the training loss at the last validation."""
    jump_row: int = -1
    jump_step: float = 0.0
    jumped: bool = False
    """What was told is a jump."""


@dataclass(frozen=True, kw_only=True)
class OverfittingDetector:
    """See the module."""

    name: str = "overfitting"
    signals: tuple[str, ...] = ("val_loss", "loss")
    threshold: float = 5.0
    share: float = 0.05
    """Of the fall of validation, and of that of training since. Ours."""
    confirm: int = 3
    min_validations: int = 10
    """Fewer are a fine-tune of a few epochs, whose best checkpoint is kept anyway. Ours."""

    def start(self) -> OverfittingState:
        """Return the state before any row."""
        return OverfittingState()

    def update(
        self, state: OverfittingState, row: Row
    ) -> tuple[OverfittingState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave what they concern as it is."""
        val, loss = row.values.tolist()
        s = state
        if row.present[1] and math.isfinite(loss):
            s = changed(
                s,
                train=(*s.train[1 - _TRAIN_ROWS :], loss),
                train_first=(*s.train_first, loss)[:_TRAIN_ROWS],
            )
        if not row.present[0] or not math.isfinite(val):
            return s, ()
        return self._check(s, val, row.index, row.step)

    def update_rows(
        self, state: OverfittingState, rows: Rows
    ) -> tuple[OverfittingState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; only validations need work."""
        losses = rows.values[:, 1]
        usable = np.flatnonzero(np.isfinite(losses))
        findings: list[Finding] = []
        s, at = state, 0
        for k in (*np.flatnonzero(np.isfinite(rows.values[:, 0])).tolist(), len(rows)):
            stop = int(np.searchsorted(usable, k, "right"))
            if stop > at:
                new = losses[usable[max(at, stop - _TRAIN_ROWS) : stop]].tolist()
                old = losses[usable[at : min(stop, at + _TRAIN_ROWS)]].tolist()
                s = changed(
                    s,
                    train=(*s.train, *new)[-_TRAIN_ROWS:],
                    train_first=(*s.train_first, *old)[:_TRAIN_ROWS],
                )
                at = stop
            if k < len(rows):
                s, found = self._check(
                    s, float(rows.values[k, 0]), int(rows.index[k]), float(rows.step[k])
                )
                findings += found
        return s, tuple(findings)

    def _check(
        self, s: OverfittingState, val: float, row: int, step: float
    ) -> tuple[OverfittingState, tuple[Finding, ...]]:
        past = (*s.past[1 - _PAST :], val)
        s = changed(s, past=past, num_checks=s.num_checks + 1)
        if s.num_checks == 1 << len(s.marks):
            s = changed(s, marks=(*s.marks, val))
        before, level = s.checked, median(np.array(s.train)) if s.train else math.nan
        s = changed(s, checked=level)
        if val < s.lowest:
            over = (self._finding(s, row, step, over=True),) if s.told else ()
            low = changed(
                s,
                lowest=val,
                fall_from=s.marks[max((s.num_checks // _FOURTH).bit_length() - 1, 0)],
                near=past[-1 - _NEAR :],
                rose=0.0,
                wandered=max(s.wandered, s.rose),
                train_then=level,
                onset_row=-1,
                told=False,
                worst=-math.inf,
                jump=0.0,
                jumped=False,
            )
            return low, over
        if s.onset_row < 0:
            s = changed(s, onset_row=row, onset=step, after_lowest=0)
        if s.after_lowest < _NEAR:
            s = changed(s, near=(*s.near, val), after_lowest=s.after_lowest + 1)
        if len(past) > 1 and val - past[-2] > s.jump:
            rise = val - past[-2]
            s = changed(s, jump=rise, jump_fell=before - level, jump_row=row, jump_step=step)
        if val > s.worst:
            s = changed(s, worst=val, worst_row=row, worst_step=step)
        rise = min(past[-self.confirm :]) - median(np.array(s.near))
        s = changed(s, rose=max(s.rose, rise))
        if s.told or s.num_checks < self.min_validations or not self._rises(s, rise):
            return s, ()
        s = changed(s, told=True, jumped=_jumps(s))
        return s, (self._finding(s, row, step, over=False),)

    def _rises(self, s: OverfittingState, rise: float) -> bool:
        # Without training losses it may be the whole run that goes wrong.
        if len(s.train) < 4 or math.isnan(s.train_then):
            return False
        if rise <= 0:
            return False
        noise = _noise(s)
        fell = s.train_then - median(np.array(s.train))
        spread = difference_sigma(np.diff(np.array(s.train))) / 2
        if fell < -spread or _climbs(np.array(s.train), self.confirm):
            return False
        # Two losses that stand still, at chance level or at a rate of 0, wander apart by noise.
        learned = median(np.array(s.train_first)) - median(np.array(s.train))
        if learned < _LEARNED_SPREADS * spread:
            return False
        # A model at its start has much to lose: where training goes on to fall, what came later counts.
        fall = (
            s.fall_from if fell > max(rise, _LEARNED_SPREADS * spread) else s.marks[0]
        ) - s.lowest
        needed = self.share * max(fall, fell, 0.0)
        return rise > max(self.threshold * noise, needed, _BEYOND_PAST * s.wandered)

    def _finding(self, s: OverfittingState, row: int, step: float, *, over: bool) -> Finding:
        return Finding(
            detector="evaluation-jump" if s.jumped else self.name,
            kind="shift" if s.jumped else "overfitting",
            signal="val_loss",
            severity="info" if over else "warning",
            row=row,
            step=step,
            onset_row=s.jump_row if s.jumped else s.onset_row,
            onset=s.jump_step if s.jumped else s.onset,
            peak_row=s.worst_row,
            peak=s.worst_step,
            end_row=row if over else None,
            end=step if over else None,
            value=s.worst,
            expected=s.lowest,
            score=min(99.0, (s.worst - s.lowest) / max(_noise(s), 1e-12)),
            closed=True,
            text=(
                f"validation loss {s.lowest:.4g} → {s.worst:.4g} "
                + (f"by a jump of {s.jump:.3g} at once" if s.jumped else "since its lowest")
                + " while the training loss does not rise"
                + (", then a new low" if over else "")
            ),
        )


def _jumps(s: OverfittingState) -> bool:
    """Whether one step between two validations holds the rise since the lowest."""
    past = np.array(s.past)
    # The fall before, where it is known, says of its noise alone how validation rises.
    low = int(np.argmin(past))
    known = low >= _KNOWN_CHECKS
    steps = np.sort(np.abs(np.diff(past[low:] if known else past)))
    noise = difference_sigma(np.diff(past[: low + 1], 2), order=2) if known else 0.0
    held = s.jump >= _JUMP_SHARE * (median(past[-3:]) - s.lowest) and s.jump > _JUMP_SIGMA * noise
    rest = float(steps[-2]) if len(steps) > 1 else math.inf
    return held and rest <= s.jump / 3 and s.jump_fell < s.jump / 2


def _climbs(train: NDArray[np.float64], num_last: int) -> bool:
    """Whether the last training losses left the level of those before: the run itself goes wrong.

    The level of all of them follows a sudden climb too late.
    """
    before, last = train[:-num_last], train[-num_last:]
    if len(before) < num_last:
        return False
    return median(last) - median(before) > _CLIMB_SIGMA * difference_sigma(np.diff(before))


def _noise(s: OverfittingState) -> float:
    """Return the noise of one validation, as far as the last ones show it."""
    values = np.array(s.past)
    if len(values) < 5:
        return 0.0
    return difference_sigma(np.diff(values, 2), order=2)
