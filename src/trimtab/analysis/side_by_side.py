"""Two runs, or two attempts of one, beside each other at equal steps or equal tokens.

Losses are smoothed by a running median before they are compared, so that a spike of one is not the
difference of both. The gap at the end is the median over the last tenth of the stretch that both
have; slopes are fitted over its last third.

Who is worse is said by what was held out, or a reward, where that tells; where it is the same in
both, or the loss is on another scale or has no good direction, the training loss accuses nobody.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.another_scale import LossScaling, find_scale, is_scaled_throughout
from trimtab.analysis.divergence import (
    MIN_ROWS,
    FirstDifference,
    apart_at_end,
    common_rows,
    find_partings,
    first_difference,
    measured_by_both,
)
from trimtab.analysis.end_slopes import EndSlope, slope_at_end
from trimtab.analysis.loss_direction import no_good_direction
from trimtab.analysis.loss_unit import loss_in_nats
from trimtab.analysis.paired import (
    By,
    Pairs,
    Side,
    axis_of,
    make_side,
    paired,
    parted,
    plural,
    series,
)
from trimtab.analysis.settings_diff import SettingChange, diff
from trimtab.masking import masked_text
from trimtab.record import HELD_OUT, RunRecord
from trimtab.signals.robust import running_median
from trimtab.text import OTHER, number, plain, signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = [
    "OF_LEARNED",
    "Apart",
    "Comparison",
    "End",
    "Gap",
    "Means",
    "PaceApart",
    "Side",
    "ToTarget",
    "compare_sides",
    "make_side",
    "mean_text",
]

USELESS_GAP = 1.0
"""A run this many nats per token above another at the same step learns nothing useful: the 104B
model stood at 6.3 where 13B had stood at 4.5 (BigScience tr8-104B chronicles)."""
_MOST_NATS = 30.0
"""First losses above this are no nats per token. Ours."""
ORDER_KEY = "data_order"
"""Setting that holds the hash of the order of the data; the guard writes it."""
_WINDOW = 21
_SHOWN = 8
_OUTCOMES = frozenset(
    (HELD_OUT - {"perplexity"})
    | {"reward", "yardstick_loss", "accuracy", "preference_accuracy", "token_accuracy", "fid"}
)
"""Signals that tell how good a run is; others, such as a norm, tell how it goes. A perplexity that
is not said to be of held-out data is mostly that of the training loss."""
OF_LEARNED = frozenset({"accuracy", "preference_accuracy", "token_accuracy"})
"""Those that may be of the data that are learned."""
_OF_WEIGHTS = frozenset({"loss", "grad_norm", "activation_norm"})
"""Signals of training that differ in their digits as soon as the weights do."""
_OF_DIGITS = 0.5
"""Share of distinct values from which on equal ones are no chance. Ours."""
_MOST_APART = 3
"""Signals that the verdict names."""
_MOST_NAMED = 8
"""Keys that a note names."""
_SLOW_SHARE = 0.15
"""Smallest difference in pace that is told, as in `detectors.pace`."""
_SIGNALS = (
    *("loss", "val_loss", "reward", "eval_score", "grad_norm", "activation_norm", "loss_scale"),
    *("lr", "step_time_s", "throughput"),
)
_NO_SCORE = "no reward or score ends apart beyond noise"
_SAME_SHARE = 0.25
"""Of the share that the training loss is higher by, up to which what is held out is the same. Ours."""
_MOST_SAME = 0.1
"""Share of itself beyond which it is not, however high the training loss. Ours."""
_SAME_SCORE = 0.02
"""Share of a score that is better when higher, up to which it is the same. Ours."""
_FEWEST_SAME = 3
"""Checks of held-out data that show that it is the same. Ours."""
_NO_NOISE = 1e-6
"""Share of a gap up to which noise is rounding. Ours."""
_REWARD = "reward"
"""Where it is logged the loss is that of an agent, and says nothing of how good it is."""


@dataclass(frozen=True)
class Gap:
    """Losses at one position."""

    position: float
    a: float
    b: float

    @property
    def gap(self) -> float:
        """How far b is above a, nats per token."""
        return self.b - self.a


@dataclass(frozen=True)
class Means:
    """Means of one signal over the stretch that both have; NaN where one has none."""

    signal: str
    a: float
    b: float


@dataclass(frozen=True)
class ToTarget:
    """Where both first reach the loss at which the worse one ends."""

    loss: float
    a: float
    b: float

    @property
    def ratio(self) -> float:
        """What b needs over what a needs, steps or tokens."""
        return self.b / self.a


@dataclass(frozen=True)
class Apart:
    """A signal besides the training loss that the two end apart in, beyond its noise."""

    signal: str
    a: float
    b: float
    """Medians over the last tenth of the positions that both have."""
    since: float
    """First position from which it stays so."""
    directed: bool = True
    """Whether one direction of it is bad; not of a loss of two nets against each other."""

    @property
    def held_out(self) -> bool:
        """Whether it is measured on data that nothing is learned from."""
        return self.signal.split("/")[0] in HELD_OUT

    @property
    def worse(self) -> Literal["a", "b"] | None:
        """The side on the bad side of a signal that says what a run has learned; None of others."""
        if self.signal.split("/")[0] not in _OUTCOMES or not self.directed:
            return None
        if not (np.isfinite(self.a) and np.isfinite(self.b)):
            return "b" if np.isfinite(self.a) else "a"
        bad = SIGNAL_BY_NAME[self.signal.split("/")[0]].bad
        return "b" if (self.b > self.a) == (bad == "up") else "a"


@dataclass(frozen=True)
class End:
    """How a signal that tells how good a run is ends in both, apart or not."""

    signal: str
    a: float
    b: float
    num: int
    """Positions at which both have it."""
    no_worse: bool
    """Whether it shows the side whose training loss ends higher to be as good, or better."""
    same: bool
    """Whether it is the same in both, as far as the training loss differs."""


@dataclass(frozen=True)
class PaceApart:
    """How fast two runs go whose pace differs to the end, beyond its noise."""

    signal: str
    a: float
    b: float
    """Medians since then; of the means of stretches where single steps are slow, not all."""
    since: float
    """First position from which it stays so."""
    ratio: float
    """How many times as slow b is as a."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs."""

    a: Side
    b: Side
    by: By
    common: tuple[float, float] | None
    """First and last position that both have; None where there is none."""
    gaps: tuple[Gap, ...] = ()
    end_gap: float | None = None
    """Median of b - a over the last tenth of the common stretch, nats per token."""
    widest: Gap | None = None
    slopes: tuple[float, float] | None = None
    """Nats per token and 1 000 steps (one epoch, 10^9 tokens) over the last third, of a and of b.

    NaN where noise explains it.
    """
    means: tuple[Means, ...] = ()
    changed: tuple[SettingChange, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is known to be alike, where that matters for what differs."""
    first_difference: FirstDifference | None = None
    """Until where both log the same, and what differs first; None without a common step."""
    loss_worse: Literal["a", "b"] | None = None
    """The side whose loss ends above the other's beyond noise, or is not finite; None: neither.

    Whether it is worse for it is another question: `worse`.
    """
    worse_by: float | None = None
    """By how much at equal positions at the end, nats per token; None where one is not finite."""
    apart_from: float | None = None
    """First position from which it stays above; None: neither does."""
    to_target: ToTarget | None = None
    """None where one of them does not fall to a common loss."""
    noise: float | None = None
    """Twice the noise of the median of a block of gaps, nats per token; None: too few rows."""
    apart: tuple[Apart, ...] = ()
    """Other signals that end apart, those that tell how good a run is first."""
    of_agent: bool = False
    """Whether both log a reward: who is worse is then said by it, and not by the loss."""
    of_players: bool = False
    """Whether the loss has no good direction: of two nets against each other, or of an agent."""
    ends: tuple[End, ...] = ()
    """Of all signals of both that tell how good a run is, what is held out first."""
    scale: LossScaling | None = None
    """What the one loss is of the other, where the same is learned on another scale."""
    other_axis: bool = False
    """Whether one counts epochs and the other steps, so that nothing of them was compared."""
    pace: PaceApart | None = None
    """None where both are as fast, within noise."""
    not_compared: tuple[str, ...] = ()
    """Keys of numbers that one of them logs at least, and that were not compared."""
    unit: str = ""
    """Of the loss: `nats`, or empty where that is not known."""

    @property
    def worse(self) -> Literal["a", "b"] | None:
        """The side that is worse at the end; None: neither, or it is not known.

        By what was held out or a reward where that says it of one side, else by the loss.
        """
        if self.same_training:
            return None
        judged = self._judged
        if judged:
            # Signals of held-out data that disagree are not overruled by the training loss.
            one = next(iter(judged)) if len(judged) == 1 else None
            held_out = any(x.held_out and x.worse for x in self.apart)
            return one if one or held_out or not self._loss_decides else self.loss_worse
        return self.loss_worse if self._loss_decides else None

    @property
    def axis(self) -> str:
        """What positions count: step, epoch, row or tokens."""
        return axis_of(self.a, self.by)

    @property
    def _loss_decides(self) -> bool:
        """Whether the training loss says who is worse, where nothing else does.

        One that is not finite any more does so in any case but that of an agent.
        """
        if self.of_agent or self.loss_worse is None:
            return False
        if self.worse_by is None:
            return True
        return not (self.of_players or self.scale is not None or self.held_out_no_worse)

    @property
    def held_out_no_worse(self) -> bool:
        """Whether all that is held out is no worse on the side whose training loss ends higher."""
        held_out = [e for e in self.ends if _root(e.signal) in HELD_OUT]
        return bool(held_out) and all(e.no_worse for e in held_out)

    @property
    def same_training(self) -> bool:
        """Whether loss and norms are equal in every common row: then so were the weights.

        Not of an agent, whose loss is of what it gathered.
        """
        d = self.first_difference
        if d is None or self.of_agent or d.num_rows < MIN_ROWS or "loss" not in d.compared:
            return False
        compared = d.compared & _OF_WEIGHTS
        return not d.since.keys() & _OF_WEIGHTS and any(map(self._has_digits, compared))

    def _has_digits(self, signal: str) -> bool:
        """Whether most values of a signal differ from all others: few digits are alike by chance."""
        column = self.a.record.columns[signal]
        values = column.values[column.finite_rows(slice(None))]
        return len(np.unique(values)) >= max(MIN_ROWS, _OF_DIGITS * len(values))

    @property
    def _judged(self) -> set[Literal["a", "b"]]:
        """Return the sides that are worse by what says how good a run is."""
        # An accuracy may be of the data that are learned: what says that it is not goes first.
        told = [x for x in self.apart if not (self.held_out_no_worse and x.signal in OF_LEARNED)]
        telling = [(x.worse, x.held_out) for x in told if x.worse is not None]
        return {side for side, held_out in telling if held_out} or {side for side, _ in telling}

    @property
    def verdict(self) -> str:
        """Who is worse, by how much, since when; one sentence."""
        said = self._of_loss_and_others()
        return f"{said}; {self._of_pace(self.pace)}" if said and self.pace is not None else said

    def _of_pace(self, pace: PaceApart) -> str:
        slow, ratio = (self.b, pace.ratio) if pace.ratio > 1 else (self.a, 1 / pace.ratio)
        return (
            f"{slow.label} is {ratio:.2g} times as slow from {self.axis} {number(pace.since)} on"
            f" ({_label(pace.signal)} {number(pace.a, digits=3)} and {number(pace.b, digits=3)})"
        )

    def _of_loss_and_others(self) -> str:
        if self.same_training and self.apart:
            same = (
                "the training is identical to the last digit: the evaluation differs, not the run"
            )
            return f"{same}; {self._ends_apart()}"
        said = self._of_loss()
        if not said:
            alike = self.first_difference is None or self.first_difference.at is None
            return self._of_others() or _NO_SCORE * (self.of_agent and not alike)
        judged = self._judged
        if self.of_agent and self.loss_worse is not None and self.worse_by is not None:
            loss = f"{self._loss_ends()}, which says little of an agent"
            if not self.apart:
                return f"{_NO_SCORE}; {loss}"
            return f"{self._of_others(judged)}; {loss}"
        if not self.apart:
            return said
        if self.loss_worse is None:
            return f"{self._of_others()}; training loss: {said}"
        if not self._loss_decides:
            return f"{self._of_others(judged)}; {said}"
        if self.worse_by is not None and judged == {"a" if self.loss_worse == "b" else "b"}:
            # What was held out, or a reward, says how good a run is; the training loss alone lies.
            return f"{self._of_others(judged)}; by the training loss alone {said}"
        if self.worse is None:
            return f"{self._of_others()}; {self._loss_ends()}"
        return f"{said}; {self._of_others()}"

    def _of_others(self, judged: Collection[str | None] = ()) -> str:
        """Return which other signals end apart, and who is worse by them: of itself, or `judged`."""
        shown = self._ends_apart()
        worse = set(judged) or {x.worse for x in self.apart if x.worse is not None}
        if (judged or self.loss_worse is None) and len(worse) == 1:
            return f"{(self.b if 'b' in worse else self.a).label} is worse: {shown}"
        return shown

    def _ends_apart(self) -> str:
        """Return which other signals end apart, how far, and since when."""
        shown = "; ".join(
            f"{_label(x.signal)} {number(x.a)} and {number(x.b)} at the end, apart from {self.axis}"
            f" {number(x.since)} on"
            for x in self.apart[:_MOST_APART]
        )
        more = len(self.apart) - _MOST_APART
        return shown + (f"; and {more} more" if more > 0 else "")

    def _of_loss(self) -> str:
        """Return who is worse by the training loss; one sentence."""
        if self.common is None:
            return ""
        # Of runs without any, rounding is left.
        told = self.noise is not None and self.noise > _NO_NOISE * abs(self.worse_by or 0.0)
        noise = f" (noise ±{number(self.noise)})" if told else ""
        if self.loss_worse is None:
            d = self.first_difference
            if d is not None and d.at is None:
                if self.pace is not None:
                    return "the losses are identical"
                return f"no difference at all{' in what was compared' * bool(self.not_compared)}"
            if d is not None and "loss" in d.compared and "loss" not in d.since:
                return "identical"
            if self.noise is None:
                return "too few common rows to tell who is worse"
            at = f"at equal {plural(self.axis)}"
            if self.end_gap is not None and abs(self.end_gap) > self.noise:
                above = (self.b if self.end_gap > 0 else self.a).label
                gap = f"{number(abs(self.end_gap))}{f' {self.unit}' if self.unit else ''}"
                return f"not told apart {at}: {above} ends {gap} above, too little for its noise{noise}"
            return f"no difference beyond noise {at}{noise}"
        if not self._loss_decides and not self.of_agent:
            return self._of_parted_loss(noise)
        worse = self.b if self.loss_worse == "b" else self.a
        since = self._since()
        d = self.first_difference
        if self.by == "step" and since and d is not None and d.at is not None and d.identical_rows:
            # the noise of what lies between may hide where the losses parted
            since = (
                f"; the runs differ from {self.axis} {number(d.at)} on, the loss beyond noise to the"
                f" end from {self.axis} {number(self.apart_from or 0.0)} on"
            )
        if self.worse_by is None:
            return f"{worse.label} is worse: its loss is not finite{since}"
        return f"{worse.label} is worse: {self._gap_text()}{noise}{since}"

    def _of_parted_loss(self, noise: str) -> str:
        """Return how the losses part where nobody is worse by that, and why; one sentence."""
        above, below = (self.b, self.a) if self.loss_worse == "b" else (self.a, self.b)
        same = ""
        if self.held_out_no_worse:
            same = " and ".join(
                f"{_label(e.signal)} is {'the same' if e.same else f'no worse in {above.label}'}"
                f" ({number(e.a)} and {number(e.b)} at the end)"
                for e in self.ends
                if _root(e.signal) in HELD_OUT
            )
        if self.of_players:
            key = plain(self.a.record.keys.get("loss", ""), limit=40)
            loss = f"{self._loss_ends()}{noise}{self._since()}"
            return f"the losses part: {loss}; a loss such as {key!r} has no good direction"
        if self.scale is None:
            return (
                f"{same}; {self._loss_ends()}{noise}{self._since()}, which alone makes it no worse"
            )
        if self.scale.factor is not None:
            how = f"{number(self.scale.factor, digits=3)} times that of {below.label}"
            such = "a sum in place of a mean, or a weight"
        else:
            how = f"a constant {number(self.scale.offset)} above that of {below.label}"
            such = "a term that is added, or smoothed labels"
        scaled = f"the training loss of {above.label} is {how}{self._since()}"
        return f"{same}{'; ' if same else ''}{scaled}: another scale of the loss, such as {such}"

    def _since(self) -> str:
        return "" if self.apart_from is None else f", from {self.axis} {number(self.apart_from)} on"

    def _loss_ends(self) -> str:
        above = (self.b if self.loss_worse == "b" else self.a).label
        return f"the loss of {above} ends {self._gap_text()}"

    def _gap_text(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        at = f"at equal {plural(self.axis)} at the end"
        return f"{number(self.worse_by or 0.0)}{unit} above {at}"

    @property
    def first_text(self) -> str:
        """Until where both are identical, and what differs first; one sentence."""
        if self.first_difference is None:
            return ""
        whole = ", in what was compared" if self.not_compared else ""
        return _first_text(self.first_difference, whole, self.axis)

    @property
    def slope_ratio(self) -> float | None:
        """Slope of b over that of a; None where noise explains one, or nothing is in common."""
        if self.slopes is None or not abs(self.slopes[0]) > 1e-12:
            return None
        ratio = self.slopes[1] / self.slopes[0]
        return ratio if np.isfinite(ratio) else None


def mean_text(value: float) -> str:
    """Return a mean for people: a dash where nothing finite was logged."""
    return number(value) if np.isfinite(value) else "—"


@np.errstate(all="ignore")
def compare_sides(a: Side, b: Side, *, by: By = "step") -> Comparison:
    """Return how b differs from a.

    NaN and Inf are left out of every mean, slope and gap. Cost: O(n log n) in the rows.
    """
    other_axis = _other_axis(a, b, by)
    if other_axis:
        changed = diff(a.settings, b.settings)
        return Comparison(
            a=a,
            b=b,
            by=by,
            common=None,
            changed=changed,
            warnings=(other_axis,),
            other_axis=True,
        )
    (xa, ya), (xb, yb) = _losses(a, by), _losses(b, by)
    steps, rows_a, rows_b = common_rows(a.record, b.record, a.rows, b.rows)
    first = first_difference(a.record, b.record, steps, rows_a, rows_b)
    same_order, reordered = _orders(a, b)
    told = (*same_order, *_of_unknown(a, b, by, first))
    of_agent = _REWARD in measured_by_both(a.record, b.record)
    found = Comparison(
        a=a,
        b=b,
        by=by,
        common=None,
        changed=(*diff(a.settings, b.settings), *_logged_settings(first, axis_of(a, by))),
        first_difference=first,
        apart=_apart(a, b, by, first),
        of_agent=of_agent,
        of_players=not of_agent and any(no_good_direction(s.record) for s in (a, b)),
        pace=_pace(a, b, by),
        unit="nats" if loss_in_nats(a.record) and loss_in_nats(b.record) else "",
    )
    if not len(xa) or not len(xb) or max(xa[0], xb[0]) >= min(xa[-1], xb[-1]):
        unfit = tuple(t for t in (_unfit(a), _unfit(b)) if t)
        unfit = (*unfit, f"nothing in common: no {axis_of(a, by)} at which both log a loss")
        # Of agents that log rewards alone, no loss is missing.
        missed = unfit if not of_agent or len(xa) or len(xb) else ()
        left = _not_compared(a.record, b.record, first)
        return replace(
            found,
            warnings=(*missed, *reordered),
            notes=(*told, *_of_left(left)),
            not_compared=left,
            ends=_ends(found, None),
        )
    return _over_common(replace(found, notes=told), ((xa, ya), (xb, yb)), reordered)


def _over_common(
    found: Comparison,
    losses: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...],
    reordered: tuple[str, ...],
) -> Comparison:
    """Return a comparison with what both losses have in common, at equal positions.

    Args:
        found: What is known without them, its notes those on order and on unknown signals.
        losses: Positions and values of a and of b, which overlap.
        reordered: Warnings on rows out of order.
    """
    a, b, by, first = found.a, found.b, found.by, found.first_difference
    (xa, ya), (xb, yb) = losses
    low, high = float(max(xa[0], xb[0])), float(min(xa[-1], xb[-1]))
    grid = np.unique(np.concatenate([xa, xb]))
    grid = grid[(grid >= low) & (grid <= high)]
    la, lb = np.interp(grid, xa, ya), np.interp(grid, xb, yb)
    gap = lb - la
    tail = grid >= high - 0.1 * (high - low)
    end_gap = float(np.median(gap[tail]))
    widest = int(np.argmax(np.abs(gap)))
    shown = np.unique(np.linspace(0, len(grid) - 1, min(_SHOWN, len(grid))).round().astype(int))
    per = {"tokens": 1e9, "epoch": 1.0}.get(axis_of(a, by), 1e3)
    slopes = (
        slope_at_end((xa, ya), series(a, "loss", by), low, high, per),
        slope_at_end((xb, yb), series(b, "loss", by), low, high, per),
    )
    worse = _worse(a, b, by, first)
    means = _means(a, b, by, low, high)
    left = _not_compared(a.record, b.record, first, means)
    found = replace(
        found,
        common=(low, high),
        gaps=tuple(Gap(float(grid[i]), float(la[i]), float(lb[i])) for i in shown),
        end_gap=end_gap,
        widest=Gap(float(grid[widest]), float(la[widest]), float(lb[widest])),
        slopes=(_clear(slopes[0]), _clear(slopes[1])),
        means=means,
        notes=(*found.notes, *_of_left(left)),
        loss_worse=worse.side,
        to_target=_to_target(xa, ya, xb, yb),
        worse_by=_worse_by(worse, end_gap),
        apart_from=worse.since,
        noise=worse.noise,
        not_compared=left,
    )
    share = _share_above(found, la[tail], lb[tail])
    found = replace(found, ends=_ends(found, share))
    found = replace(found, scale=_scale(found))
    warnings = (
        *(t for t in (_unfit(a), _unfit(b)) if t),
        # The loss of a policy or of its critic says nothing of how good it is.
        *(() if found.of_agent else _warnings(found, end_gap, slopes)),
        *reordered,
    )
    return replace(found, warnings=warnings)


def _other_axis(a: Side, b: Side, by: By) -> str:
    """Return why the positions of two runs are not the same; empty where they are."""
    one, two = axis_of(a, by), axis_of(b, by)
    steps = next((s.record.step[s.rows] for s, w in ((a, one), (b, two)) if w == "step"), None)
    # Where every step is logged a row is one.
    each = steps is not None and len(steps) > 1 and float(np.median(np.diff(steps))) == 1
    if one == two or (each and "row" in (one, two)):
        return ""
    return (
        f"not compared: {a.label} counts {plural(one)}, {b.label} {plural(two)}; log the"
        f" {'step' if by == 'step' else by} in both"
    )


def _clear(slope: EndSlope) -> float:
    return slope.value if slope.is_clear else float("nan")


def _worse_by(worse: "_Worse", end_gap: float) -> float | None:
    """Return by how much the higher loss lies above the other; None where one is not finite."""
    if worse.side is None or worse.lost:
        return None
    above = end_gap if worse.side == "b" else -end_gap
    return above if above > 0 else abs(worse.gap)


def _share_above(c: Comparison, one: NDArray[np.float64], two: NDArray[np.float64]) -> float | None:
    """Return by which share of itself the higher of two losses is above the other, at the end."""
    if c.loss_worse is None or c.worse_by is None:
        return None
    size = max(abs(float(np.median(one))), abs(float(np.median(two))))
    return c.worse_by / size if size else None


def _ends(c: Comparison, share: float | None) -> tuple[End, ...]:
    """Return how the signals end that tell how good a run is, what is held out first.

    Args:
        c: What is known; which side's training loss ends higher.
        share: By which share of itself it does.
    """
    found = []
    names = measured_by_both(c.a.record, c.b.record)
    for name in sorted(n for n in names if _root(n) in _OUTCOMES):
        if no_good_direction(c.a.record, name) or no_good_direction(c.b.record, name):
            continue
        x, one, two = paired(c.a, c.b, c.by, name, between=True)
        good = np.isfinite(one) & np.isfinite(two)
        if not good.any():
            continue
        last = slice(-max(1, len(x) // 10), None)
        level = _level_at_end(one[last]), _level_at_end(two[last])
        # What is the same before the losses part says nothing of what they part by.
        since = x >= (c.apart_from if c.apart_from is not None else -np.inf)
        late = np.flatnonzero(good & since)
        late = late[len(late) // 2 :] if len(late) >= 2 * _FEWEST_SAME else late
        above = float("nan")
        if share is not None and len(late) >= _FEWEST_SAME:
            above = _worse_share(name, one[late], two[late], c.loss_worse)
        limit = min(_SAME_SHARE * (share or 0.0), _MOST_SAME)
        limit = limit if SIGNAL_BY_NAME[_root(name)].bad == "up" else _SAME_SCORE
        is_apart = any(x.signal == name for x in c.apart)
        found.append(
            End(
                name,
                *level,
                num=int(good.sum()),
                no_worse=not is_apart and above <= limit,
                same=not is_apart and abs(above) <= limit,
            )
        )
    return tuple(sorted(found, key=lambda e: _telling_first(e.signal)))


def _level_at_end(values: NDArray[np.float64]) -> float:
    """Return the median of the last values; of what is not finite any more, its last value."""
    return float(np.nanmedian(values) if np.isfinite(values[-1]) else values[-1])


def _telling_first(signal: str) -> tuple[bool, bool]:
    """Return a sort key of signals: what is held out first, and of that the loss."""
    return _root(signal) not in HELD_OUT, signal != "val_loss"


def _worse_share(
    name: str,
    one: NDArray[np.float64],
    two: NDArray[np.float64],
    higher: Literal["a", "b"] | None,
) -> float:
    """Return by which share of itself a signal is worse on the side of the higher training loss."""
    a, b = float(np.median(one)), float(np.median(two))
    worse = (b - a) * (1 if SIGNAL_BY_NAME[_root(name)].bad == "up" else -1)
    size = max(abs(a), abs(b))
    return worse * (1 if higher == "b" else -1) / size if size else 0.0


def _scale(c: Comparison) -> LossScaling | None:
    """Return what the one loss is of the other, where the same is learned on another scale."""
    if c.loss_worse is None or c.worse_by is None or c.of_agent or c.of_players:
        return None
    x, one, two = paired(c.a, c.b, c.by, "loss", between=True)
    if c.held_out_no_worse:
        if not all(e.same for e in c.ends if _root(e.signal) in HELD_OUT):
            return None
        late = x >= (c.apart_from if c.apart_from is not None else -np.inf)
        return find_scale(one[late], two[late])
    if any(_root(e.signal) in HELD_OUT for e in c.ends):
        return None
    factor = is_scaled_throughout(one, two)
    return None if factor is None else LossScaling(factor=factor)


def _root(signal: str) -> str:
    return signal.split("/")[0]


def _not_compared(
    a: RunRecord, b: RunRecord, first: FirstDifference | None, means: Sequence[Means] = ()
) -> tuple[str, ...]:
    """Return the keys of numbers that were not compared, as logged.

    Compared are those of common rows, and those of which both have a mean.
    """
    both = measured_by_both(a, b)
    read = {n for n in both if n.startswith(OTHER) or n.split("/")[0] in _OUTCOMES}
    seen = read | _PACES.keys() | {"wall_time_s"} | (first.compared if first else frozenset())
    seen |= {m.signal for m in means if np.isfinite((m.a, m.b)).all()}
    known = {k for r in (a, b) for n, key in r.keys.items() if n in seen for k in key.split(", ")}
    keys = [
        k for r in (a, b) for n, key in r.keys.items() if n not in seen for k in key.split(", ")
    ]
    keys += [*a.unread, *b.unread]
    return tuple(masked_text(k) for k in dict.fromkeys(keys) if k not in known)


def _of_left(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the note that names what was not compared."""
    names = ", ".join(plain(k, limit=40) for k in keys[:_MOST_NAMED])
    more = len(keys) - _MOST_NAMED
    return (f"not compared: {names}" + (f" and {more} more" if more > 0 else ""),) if keys else ()


def _of_unknown(a: Side, b: Side, by: By, first: FirstDifference | None) -> tuple[str, ...]:
    """Return the note on numbers that no alias knows: from where they differ, how they end."""
    found = []
    for name, at in (first.since if first else {}).items():
        _, one, two = paired(a, b, by, name)
        if name.startswith(OTHER) and len(one):
            ends = f"{number(float(one[-1]))} and {number(float(two[-1]))} at the end"
            found.append(f"{_label(name)} from {a.record.axis} {number(at)} on, {ends}")
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    said = "; ".join(found[:_MOST_NAMED])
    return (f"keys not understood that differ: {said}{more}",) if found else ()


_PACES = {"step_time_s": 1.0, "throughput": -1.0}
"""Signals of pace; which sign of their logarithm is slow."""
_CLOCK_ROWS = 8
"""Rows of a stretch whose time a clock tells. Ours."""
_MOST_STRETCHES = 60
"""Stretches whose mean pace is compared at most: longer ones hold more of the slow steps. Ours."""


def _pace(a: Side, b: Side, by: By) -> PaceApart | None:
    """Return by how much the pace of both differs to the end, by the first signal of both."""
    for name, sign in (*_PACES.items(), ("wall_time_s", 1)):
        x, one, two = paired(a, b, by, name)
        if name == "wall_time_s":
            name, (x, one, two) = "step_time_s", _by_clock(x, one, two)
        good = (one > 0) & (two > 0) & np.isfinite(one) & np.isfinite(two)
        x, one, two = x[good], one[good], two[good]
        found = _pace_apart(name, sign, (x, one, two))
        # A median hides that every fourth step is slow; the mean of a stretch does not.
        found = found or _pace_apart(name, sign, _by_stretch(x, one, two, sign), halves=True)
        if found is not None:
            return found
    return None


def _pace_apart(name: str, sign: float, pairs: Pairs, *, halves: bool = False) -> PaceApart | None:
    """Return by how much a signal of pace differs to its end; None: not enough, or not for good.

    Args:
        name: The signal.
        sign: Which sign of its logarithm is slow.
        pairs: Its values, all above 0.
        halves: Whether it must differ as much in both halves of the stretch.
    """
    x, one, two = pairs
    at = apart_at_end(np.log(one), np.log(two))
    if at is None:
        return None
    level_a, level_b = float(np.median(one[at:])), float(np.median(two[at:]))
    ratio = (level_b / level_a) ** sign
    middle = (at + len(x)) // 2
    parts = (slice(at, middle), slice(middle, None)) if halves else (slice(at, None),)
    ratios = [float(np.median(two[p]) / np.median(one[p])) ** sign for p in parts]
    slow, least = np.sign(np.log(ratio)), np.log1p(_SLOW_SHARE)
    if any(slow * np.log(r) < least for r in ratios):
        return None
    return PaceApart(name, level_a, level_b, float(x[at]), ratio)


def _by_stretch(
    x: NDArray[np.float64], one: NDArray[np.float64], two: NDArray[np.float64], sign: float
) -> Pairs:
    """Return the mean pace in stretches of rows, of a throughput that of its inverse."""
    size = _CLOCK_ROWS * max(1, -(-len(x) // (_CLOCK_ROWS * _MOST_STRETCHES)))
    num = len(x) // size
    means = [
        np.mean(values[: num * size].reshape(num, size) ** sign, axis=1) ** sign
        for values in (one, two)
    ]
    return x[: num * size : size], means[0], means[1]


def _by_clock(
    x: NDArray[np.float64], one: NDArray[np.float64], two: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the time of a step in stretches of rows, by what rows begin with: clocks tick coarsely."""
    at = np.arange(0, len(x), _CLOCK_ROWS)
    steps = np.diff(x[at])
    return x[at[1:]], np.diff(one[at]) / steps, np.diff(two[at]) / steps


def _apart(a: Side, b: Side, by: By, first: FirstDifference | None) -> tuple[Apart, ...]:
    """Return the signals that both measure, but the training loss, and that end apart."""
    found: list[Apart] = []
    loss = [s.record.keys.get("loss") for s in (a, b)]
    for name in sorted(measured_by_both(a.record, b.record) - {"loss"}):
        if None not in loss and [s.record.keys.get(name) for s in (a, b)] == loss:
            continue  # what is read as the loss, by its own name
        known, unknown = SIGNAL_BY_NAME.get(name.split("/")[0]), name.startswith(OTHER)
        if not unknown and (known is None or known.bad == "none"):
            continue
        outcome = name.split("/")[0] in _OUTCOMES
        directed = not any(no_good_direction(s.record, name) for s in (a, b))
        x, one, two = paired(a, b, by, name, between=outcome or unknown)
        ends_at = _end_of_finite(one), _end_of_finite(two)
        if outcome and ends_at[0] != ends_at[1]:  # one of them is not finite any more
            found.append(Apart(name, one[-1], two[-1], float(x[min(ends_at)]), directed))
            continue
        # Where noise lives on a log scale, so do gaps; what is not positive has no logarithm.
        logs = (
            known is not None
            and known.scale == "log"
            and not (np.any(one <= 0) or np.any(two <= 0))
        )
        at = apart_at_end(
            *((np.log(one), np.log(two)) if logs else (one, two)), skip=parted(x, by, first)
        )
        if at is None:
            continue
        last = slice(-max(1, len(x) // 10), None)
        ends = [float(np.nanmedian(values[last])) for values in (one, two)]
        found.append(Apart(name, ends[0], ends[1], float(x[at]), directed))
    return tuple(sorted(found, key=lambda f: (f.worse is None, _telling_first(f.signal))))


def _logged_settings(first: FirstDifference | None, axis: str) -> tuple[SettingChange, ...]:
    """Return the logged settings that differ, with the values of the first step that they do."""
    return tuple(
        SettingChange(
            f"{_label(name)}, logged",
            f"{number(a)} at {axis} {number(step)}",
            f"{number(b)} at {axis} {number(step)}",
        )
        for name, step, a, b in (() if first is None else first.settings)
    )


def _to_target(
    xa: NDArray[np.float64],
    ya: NDArray[np.float64],
    xb: NDArray[np.float64],
    yb: NDArray[np.float64],
) -> ToTarget | None:
    """Return where both first reach the loss at which the worse one ends, its last tenth."""
    target = max(float(np.median(y[-max(len(y) // 10, 1) :])) for y in (ya, yb))
    reached = [np.flatnonzero(y <= target) for y in (ya, yb)]
    # One that begins there says nothing of what it needs.
    if any(not len(rows) or rows[0] == 0 for rows in reached):
        return None
    at_a, at_b = float(xa[reached[0][0]]), float(xb[reached[1][0]])
    return ToTarget(target, at_a, at_b) if at_a > 0 else None


@dataclass(frozen=True)
class _Worse:
    """Which loss ends above the other."""

    side: Literal["a", "b"] | None = None
    since: float | None = None
    gap: float = 0.0
    """Median of b - a since then."""
    lost: bool = False
    """Whether it is because it is not finite any more, and not by a gap."""
    noise: float | None = None
    """Twice that of a block."""


def _worse(a: Side, b: Side, by: By, first: FirstDifference | None) -> _Worse:
    """Return which loss ends above the other, since when, and the noise."""
    x, one, two = paired(a, b, by, "loss", between=True)
    if not len(x):
        return _Worse()
    ends = _end_of_finite(one), _end_of_finite(two)
    partings, sigma = find_partings(one, two, skip=parted(x, by, first))
    noise = 2 * sigma if np.isfinite(sigma) else None
    # A loss that is not finite any more is worse than any other.
    if ends[0] != ends[1]:
        side: Literal["a", "b"] = "a" if ends[0] < ends[1] else "b"
        return _Worse(side, float(x[min(ends)]), lost=True, noise=noise)
    last = partings[-1] if partings and partings[-1].lasts else None
    if last is None:
        return _Worse(noise=noise)
    return _Worse("b" if last.gap > 0 else "a", float(x[last.first]), last.gap, noise=noise)


def _end_of_finite(values: NDArray[np.float64]) -> int:
    """Return the index after the last finite value: n for one that ends finite."""
    finite = np.flatnonzero(np.isfinite(values))
    return int(finite[-1]) + 1 if len(finite) else 0


def _label(signal: str) -> str:
    return "learning rate" if signal == "lr" else signal_label(signal)


def _first_text(d: FirstDifference, whole: str, axis: str) -> str:
    if d.at is None:
        return f"identical in all {d.num_rows} rows that both log{whole}"
    shown = [
        f"{_label(s.signal)} {number(s.a)} and {number(s.b)}"
        + (f" (× {s.ratio:.3g})" if s.ratio is not None and abs(s.ratio - 1) >= 0.01 else "")
        for s in d.signals[:3]
    ]
    more = f" and {len(d.signals) - 3} more" if len(d.signals) > 3 else ""
    then = [f"{_label(n)} from {axis} {number(at)}" for n, at in d.later[:2]]
    later = f"; then {', '.join(then)}" if then else ""
    if d.identical_until is None:
        return (
            f"they differ from the first common {axis} {number(d.at)} on: {', '.join(shown)}{more}"
        )
    return (
        f"identical until {axis} {number(d.identical_until)}; at {axis} {number(d.at)}"
        f" {', '.join(shown)}{more} differ first{later}"
    )


def _orders(a: Side, b: Side) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (what to note, what to warn of) about the order of the data.

    Where both have its hash.
    """
    first, second = (side.settings.get(ORDER_KEY, "") for side in (a, b))
    if not first or not second:
        return (), ()
    if first == second:
        return (f"data order identical ({first})",), ()
    return (), (
        (
            f"the data order changed: {first} in {a.label}, {second} in {b.label}; part of what"
            " differs is the data"
        ),
    )


def _unfit(side: Side) -> str:
    """Return what makes the losses of a side unfit to compare; empty where they are fit."""
    column = side.record.columns.get("loss")
    rows = side.rows if column is None else side.rows[column.present[side.rows]]
    if column is None or not len(rows):
        return f"{side.label} logs no loss"
    finite = np.isfinite(column.values[rows])
    if not finite.any():
        return f"{side.label} never had a finite loss: NaN or Inf in all {len(rows)} rows"
    if not finite[-1]:
        last = int(np.flatnonzero(finite)[-1])
        at = f"{side.record.axis} {side.record.step[rows[last + 1]]:.12g}"
        return f"{side.label} has no finite loss from {at} on; it is compared up to there"
    return ""


def _losses(side: Side, by: By) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = series(side, "loss", by)
    return x, running_median(y, _WINDOW) if len(y) > 3 * _WINDOW else y


def _means(a: Side, b: Side, by: By, low: float, high: float) -> tuple[Means, ...]:
    found = []
    for name in _SIGNALS:
        values = []
        for side in (a, b):
            x, y = series(side, name, by)
            inside = y[(x >= low) & (x <= high)]
            values.append(float(inside.mean()) if len(inside) else float("nan"))
        if np.isfinite(values).any():
            found.append(Means(name, *values))
    return tuple(found)


def _is_useless(above: Side, better: Side, by: By) -> bool:
    """Whether losses are nats of a model that guesses, and the higher one has not come far down."""
    (_, high), (_, low) = _losses(above, by), _losses(better, by)
    num = max(len(high) // 10, 1)
    first, last = float(np.max(high[:num])), float(np.median(high[-num:]))
    return float(low.min()) > 0 and first <= _MOST_NATS and last > first / 2


def _warnings(c: Comparison, end_gap: float, slopes: tuple[EndSlope, EndSlope]) -> Sequence[str]:
    """Return what a person should know before anything else.

    A gap or a slope accuses only the run that is worse, and by its loss: one that comes back from a
    spike falls steeply, and the healthy one beside it is not slow.
    """
    said: list[str] = []
    if c.worse is None or c.worse != c.loss_worse or c.of_players:
        return said
    above, better = (c.b, c.a) if c.worse == "b" else (c.a, c.b)
    if abs(end_gap) > USELESS_GAP and (end_gap > 0) == (c.worse == "b"):
        size = f"{abs(end_gap):.3g}{f' {c.unit}' if c.unit else ''}"
        gap = f"{above.label} is {size} above {better.label} at the same {c.axis}"
        useless = _is_useless(above, better, c.by)
        said.append(f"{gap}: it is learning nothing useful" if useless else gap)
    own, other = slopes[::-1] if c.worse == "b" else slopes
    if not other.is_clear or other.value >= 0:
        return said
    slow = own.value > 0.5 * other.value
    if own.is_clear and slow:
        said.append(
            f"{above.label} rises at the end, where the other falls"
            if own.value > 0
            else f"{above.label} falls {other.value / own.value:.3g} times more slowly at the end"
        )
    elif slow and own.noise < 0.5 * abs(other.value):
        said.append(f"{above.label} no longer falls where the other does")
    return said
