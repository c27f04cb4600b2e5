"""Two runs, or two attempts of one, beside each other at equal steps or equal tokens.

Losses are smoothed by a running median before they are compared, so that a spike of one is not the
difference of both. The gap at the end is the median over the last tenth of the stretch that both
have; slopes are fitted over its last third.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.divergence import (
    FirstDifference,
    apart_at_end,
    common_rows,
    find_partings,
    first_difference,
    measured_by_both,
)
from trimtab.analysis.settings_diff import SettingChange, diff
from trimtab.record import HELD_OUT, RunRecord
from trimtab.signals.robust import running_median
from trimtab.text import number, signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = [
    "Apart",
    "Comparison",
    "Gap",
    "Means",
    "Side",
    "ToTarget",
    "compare_sides",
    "make_side",
    "mean_text",
]

By = Literal["step", "tokens"]

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
    {"val_loss", "eval_score", "reward", "yardstick_loss", "accuracy"}
    | {"preference_accuracy", "token_accuracy"}
)
"""Signals that tell how good a run is; others, such as a norm, tell how it goes."""
_FEW_COMMON = 8
"""Steps that both log below which a reward is read between steps."""
_MOST_APART = 3
"""Signals that the verdict names."""
_SIGNALS = ("loss", "val_loss", "grad_norm", "activation_norm", "loss_scale", "lr", "step_time_s")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two."""

    label: str
    record: RunRecord
    rows: NDArray[np.intp]
    """Rows compared: the final lineage, or those of one attempt."""
    settings: dict[str, str]


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

    @property
    def held_out(self) -> bool:
        """Whether it is measured on data that nothing is learned from."""
        return self.signal.split("/")[0] in HELD_OUT

    @property
    def worse(self) -> Literal["a", "b"] | None:
        """The side on the bad side of a signal that says what a run has learned; None of others."""
        if self.signal.split("/")[0] not in _OUTCOMES:
            return None
        if not (np.isfinite(self.a) and np.isfinite(self.b)):
            return "b" if np.isfinite(self.a) else "a"
        bad = SIGNAL_BY_NAME[self.signal.split("/")[0]].bad
        return "b" if (self.b > self.a) == (bad == "up") else "a"


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
    """Nats per token and 1 000 steps (10^9 tokens) over the last third, of a and of b."""
    means: tuple[Means, ...] = ()
    changed: tuple[SettingChange, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is known to be alike, where that matters for what differs."""
    first_difference: FirstDifference | None = None
    """Until where both log the same, and what differs first; None without a common step."""
    worse: Literal["a", "b"] | None = None
    """The side whose loss ends above the other's beyond noise, or is not finite; None: neither."""
    worse_by: float | None = None
    """By how much at equal steps at the end, nats per token; None where one is not finite."""
    apart_from: float | None = None
    """First position from which it stays above; None: neither does."""
    to_target: ToTarget | None = None
    """None where one of them does not fall to a common loss."""
    noise: float | None = None
    """Twice the noise of the median of a block of gaps, nats per token; None: too few rows."""
    apart: tuple[Apart, ...] = ()
    """Other signals that end apart, those that tell how good a run is first."""

    @property
    def verdict(self) -> str:
        """Who is worse, by how much, since when; one sentence."""
        said = self._of_loss()
        if not self.apart or not said:
            return said
        # An accuracy may be of the data that are learned: what says that it is not goes first.
        telling = [x for x in self.apart if x.worse is not None]
        judged = {x.worse for x in telling if x.held_out} or {x.worse for x in telling}
        if self.worse_by is not None and judged == {"a" if self.worse == "b" else "b"}:
            # What was held out, or a reward, says how good a run is; the training loss alone lies.
            return f"{self._of_others(judged)}; by the training loss alone {said}"
        loss = "training loss: " if self.worse is None else ""
        return f"{self._of_others()}; {loss}{said}" if loss else f"{said}; {self._of_others()}"

    def _of_others(self, judged: Collection[str | None] = ()) -> str:
        """Return which other signals end apart, and who is worse by them: of itself, or `judged`."""
        shown = "; ".join(
            f"{_label(x.signal)} {number(x.a)} and {number(x.b)} at the end, apart from {self.by}"
            f" {number(x.since)} on"
            for x in self.apart[:_MOST_APART]
        )
        more = len(self.apart) - _MOST_APART
        shown += f"; and {more} more" if more > 0 else ""
        worse = set(judged) or {x.worse for x in self.apart if x.worse is not None}
        if (judged or self.worse is None) and len(worse) == 1:
            return f"{(self.b if 'b' in worse else self.a).label} is worse: {shown}"
        return shown

    def _of_loss(self) -> str:
        """Return who is worse by the training loss; one sentence."""
        if self.common is None:
            return ""
        noise = "" if self.noise is None else f" (noise ±{number(self.noise)})"
        if self.worse is None:
            d = self.first_difference
            if d is not None and d.at is None:
                return "no difference at all"
            if self.noise is None:
                return "too few common rows to tell who is worse"
            return f"no difference beyond noise at equal {_plural(self.by)}{noise}"
        worse = self.b if self.worse == "b" else self.a
        since = "" if self.apart_from is None else f", from {self.by} {number(self.apart_from)} on"
        d = self.first_difference
        if self.by == "step" and since and d is not None and d.at is not None and d.identical_rows:
            # the noise of what lies between may hide where the losses parted
            since = (
                f"; the runs differ from step {number(d.at)} on, the loss beyond noise to the end"
                f" from step {number(self.apart_from or 0.0)} on"
            )
        if self.worse_by is None:
            return f"{worse.label} is worse: its loss is not finite{since}"
        by = f"{number(self.worse_by)} nats above at equal {_plural(self.by)}"
        return f"{worse.label} is worse: {by} at the end{noise}{since}"

    @property
    def first_text(self) -> str:
        """Until where both are identical, and what differs first; one sentence."""
        return "" if self.first_difference is None else _first_text(self.first_difference)

    @property
    def slope_ratio(self) -> float | None:
        """Slope of b over that of a; None where a is flat or nothing is in common."""
        if self.slopes is None or not abs(self.slopes[0]) > 1e-12:
            return None
        return self.slopes[1] / self.slopes[0]


def make_side(
    label: str, record: RunRecord, settings: dict[str, str], *, attempt: str = ""
) -> Side:
    """Return one side: a whole run along its final lineage, or one attempt.

    KeyError for an unknown one.
    """
    rows = record.lineage_rows()
    if attempt:
        part = record.rows_of(record.attempt_index(attempt))
        rows = np.arange(part.start, part.stop)
    return Side(label=label, record=record, rows=rows, settings=settings)


def mean_text(value: float) -> str:
    """Return a mean for people: a dash where nothing finite was logged."""
    return number(value) if np.isfinite(value) else "—"


def compare_sides(a: Side, b: Side, *, by: By = "step") -> Comparison:
    """Return how b differs from a.

    NaN and Inf are left out of every mean, slope and gap. Cost: O(n log n) in the rows.
    """
    (xa, ya), (xb, yb) = _losses(a, by), _losses(b, by)
    steps, rows_a, rows_b = common_rows(a.record, b.record, a.rows, b.rows)
    first = first_difference(a.record, b.record, steps, rows_a, rows_b)
    changed = (*diff(a.settings, b.settings), *_logged_settings(first))
    same_order, reordered = _orders(a, b)
    if not len(xa) or not len(xb) or max(xa[0], xb[0]) >= min(xa[-1], xb[-1]):
        why = f"nothing in common: no {by} at which both log a loss"
        said = (*(t for t in (_unfit(a), _unfit(b)) if t), why, *reordered)
        return Comparison(
            a=a,
            b=b,
            by=by,
            common=None,
            changed=changed,
            warnings=said,
            notes=same_order,
            first_difference=first,
        )
    low, high = float(max(xa[0], xb[0])), float(min(xa[-1], xb[-1]))
    grid = np.unique(np.concatenate([xa, xb]))
    grid = grid[(grid >= low) & (grid <= high)]
    la, lb = np.interp(grid, xa, ya), np.interp(grid, xb, yb)
    gap = lb - la
    tail = grid >= high - 0.1 * (high - low)
    end_gap = float(np.median(gap[tail]))
    widest = int(np.argmax(np.abs(gap)))
    shown = np.unique(np.linspace(0, len(grid) - 1, min(_SHOWN, len(grid))).round().astype(int))
    unit = 1e9 if by == "tokens" else 1e3
    slopes = (_slope(xa, ya, low, high) * unit, _slope(xb, yb, low, high) * unit)
    worse, apart_from, noise = _worse(a, b, by, first)
    return Comparison(
        a=a,
        b=b,
        by=by,
        common=(low, high),
        gaps=tuple(Gap(float(grid[i]), float(la[i]), float(lb[i])) for i in shown),
        end_gap=end_gap,
        widest=Gap(float(grid[widest]), float(la[widest]), float(lb[widest])),
        slopes=slopes,
        means=_means(a, b, by, low, high),
        changed=changed,
        warnings=(
            *(t for t in (_unfit(a), _unfit(b)) if t),
            *_warnings(a, b, end_gap, slopes, by, worse),
            *reordered,
        ),
        notes=same_order,
        first_difference=first,
        worse=worse,
        to_target=_to_target(xa, ya, xb, yb),
        worse_by=abs(end_gap) if worse == ("b" if end_gap > 0 else "a") else None,
        apart_from=apart_from,
        noise=noise,
        apart=_apart(a, b, by, first),
    )


def _apart(a: Side, b: Side, by: By, first: FirstDifference | None) -> tuple[Apart, ...]:
    """Return the signals that both measure, but the training loss, and that end apart."""
    found: list[Apart] = []
    for name in sorted(measured_by_both(a.record, b.record) - {"loss"}):
        known = SIGNAL_BY_NAME.get(name.split("/")[0])
        if known is None or known.bad == "none":
            continue
        outcome = name.split("/")[0] in _OUTCOMES
        x, one, two = _paired(a, b, by, name, between=outcome)
        ends_at = _end_of_finite(one), _end_of_finite(two)
        if outcome and ends_at[0] != ends_at[1]:  # one of them is not finite any more
            found.append(Apart(name, one[-1], two[-1], float(x[min(ends_at)])))
            continue
        # Where noise lives on a log scale, so do gaps; what is not positive has no logarithm.
        logs = known.scale == "log" and not (np.any(one <= 0) or np.any(two <= 0))
        at = apart_at_end(
            *((np.log(one), np.log(two)) if logs else (one, two)), skip=_parted(x, by, first)
        )
        if at is None:
            continue
        last = slice(-max(1, len(x) // 10), None)
        ends = [float(np.nanmedian(values[last])) for values in (one, two)]
        found.append(Apart(name, ends[0], ends[1], float(x[at])))
    return tuple(sorted(found, key=lambda f: (f.worse is None, not f.held_out)))


def _parted(x: NDArray[np.float64], by: By, first: FirstDifference | None) -> int:
    """Return the first position at which the runs may differ."""
    if first is None or first.identical_until is None or by != "step":
        return 0
    return int(np.searchsorted(x, first.identical_until, side="right"))


def _logged_settings(first: FirstDifference | None) -> tuple[SettingChange, ...]:
    """Return the logged settings that differ, with the values of the first step that they do."""
    return tuple(
        SettingChange(
            f"{_label(name)}, logged",
            f"{number(a)} at step {number(step)}",
            f"{number(b)} at step {number(step)}",
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


def _worse(
    a: Side, b: Side, by: By, first: FirstDifference | None
) -> tuple[Literal["a", "b"] | None, float | None, float | None]:
    """Return (the side that is worse at the end, from where on, twice the noise of a block)."""
    x, one, two = _paired(a, b, by, "loss")
    if not len(x):
        return None, None, None
    ends = _end_of_finite(one), _end_of_finite(two)
    partings, sigma = find_partings(one, two, skip=_parted(x, by, first))
    noise = 2 * sigma if np.isfinite(sigma) else None
    # A loss that is not finite any more is worse than any other.
    if ends[0] != ends[1]:
        worse: Literal["a", "b"] = "a" if ends[0] < ends[1] else "b"
        return worse, float(x[min(ends)]), noise
    last = partings[-1] if partings and partings[-1].lasts else None
    if last is None:
        return None, None, noise
    return "b" if last.gap > 0 else "a", float(x[last.first]), noise


def _paired(
    a: Side, b: Side, by: By, name: str, *, between: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return positions and the two values of a signal there, as logged; NaN and Inf stay.

    Args:
        a: One side.
        b: The other.
        by: What positions are.
        name: The signal.
        between: Where hardly a step is common to both, give values between those of b.
    """
    one, two = (s.record.columns.get(name) for s in (a, b))
    if one is None or two is None:
        return (np.zeros(0),) * 3
    rows_a, rows_b = a.rows[one.present[a.rows]], b.rows[two.present[b.rows]]
    steps, rows_a, rows_b = common_rows(a.record, b.record, rows_a, rows_b)
    if by == "tokens" or (between and len(steps) < _FEW_COMMON):
        (xa, ya), (xb, yb) = _series(a, name, by), _series(b, name, by)
        if not len(xa) or not len(xb):
            return (np.zeros(0),) * 3
        grid = xa[(xa >= xb[0]) & (xa <= xb[-1])]
        return grid, np.interp(grid, xa, ya), np.interp(grid, xb, yb)
    return steps, one.values[rows_a], two.values[rows_b]


def _end_of_finite(values: NDArray[np.float64]) -> int:
    """Return the index after the last finite value: n for one that ends finite."""
    finite = np.flatnonzero(np.isfinite(values))
    return int(finite[-1]) + 1 if len(finite) else 0


def _plural(by: By) -> str:
    return "steps" if by == "step" else by


def _label(signal: str) -> str:
    return "learning rate" if signal == "lr" else signal_label(signal)


def _first_text(d: FirstDifference) -> str:
    if d.at is None:
        return f"identical in all {d.num_rows} rows that both log"
    shown = [
        f"{_label(s.signal)} {number(s.a)} and {number(s.b)}"
        + (f" (× {s.ratio:.3g})" if s.ratio is not None and abs(s.ratio - 1) >= 0.01 else "")
        for s in d.signals[:3]
    ]
    more = f" and {len(d.signals) - 3} more" if len(d.signals) > 3 else ""
    then = [f"{_label(n)} from step {number(at)}" for n, at in d.later[:2]]
    later = f"; then {', '.join(then)}" if then else ""
    if d.identical_until is None:
        return f"they differ from the first common step {number(d.at)} on: {', '.join(shown)}{more}"
    return (
        f"identical until step {number(d.identical_until)}; at step {number(d.at)}"
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


def _positions(side: Side, by: By, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    if by == "step":
        return side.record.step[rows]
    tokens = side.record.columns.get("tokens_seen")
    if tokens is None:
        return np.full(len(rows), np.nan)
    return np.where(tokens.present[rows], tokens.values[rows], np.nan)


def _series(side: Side, name: str, by: By) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (position, value) of what is finite, positions rising."""
    column = side.record.columns.get(name)
    if column is None:
        return np.zeros(0), np.zeros(0)
    rows = side.rows[column.present[side.rows] & np.isfinite(column.values[side.rows])]
    x = _positions(side, by, rows)
    rows, x = rows[np.isfinite(x)], x[np.isfinite(x)]
    order = np.argsort(x, kind="stable")
    return x[order], column.values[rows][order]


def _losses(side: Side, by: By) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = _series(side, "loss", by)
    return x, running_median(y, _WINDOW) if len(y) > 3 * _WINDOW else y


def _slope(x: NDArray[np.float64], y: NDArray[np.float64], low: float, high: float) -> float:
    """Return the slope by least squares over the last third of the stretch.

    NaN below three points.
    """
    part = (x >= high - (high - low) / 3) & (x <= high)
    if part.sum() < 3:
        return float("nan")
    u = x[part] - x[part].mean()
    return float((u @ (y[part] - y[part].mean())) / (u @ u))


def _means(a: Side, b: Side, by: By, low: float, high: float) -> tuple[Means, ...]:
    found = []
    for name in _SIGNALS:
        values = []
        for side in (a, b):
            x, y = _series(side, name, by)
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


def _warnings(
    a: Side,
    b: Side,
    end_gap: float,
    slopes: tuple[float, float],
    by: By,
    worse: Literal["a", "b"] | None,
) -> Sequence[str]:
    """Return what a person should know before anything else.

    A slope accuses only the run that also ends above the other: one that comes back from a spike
    falls steeply, and the healthy one beside it is not slow.
    """
    said = []
    # The loss of a policy or of its critic says nothing of how good it is.
    if abs(end_gap) > USELESS_GAP and "reward" not in measured_by_both(a.record, b.record):
        above, better = (b, a) if end_gap > 0 else (a, b)
        gap = f"{above.label} is {abs(end_gap):.3g} nats above {better.label} at the same {by}"
        useless = _is_useless(above, better, by)
        said.append(f"{gap}: it is learning nothing useful" if useless else gap)
    flat, steep = sorted(slopes, key=abs)
    if np.isfinite(flat) and np.isfinite(steep) and steep < 0 and abs(flat) < 0.5 * abs(steep):
        slower = "a" if flat == slopes[0] else "b"
        if slower != worse:
            return said
        label = (a if slower == "a" else b).label
        said.append(
            f"{label} falls {abs(steep) / abs(flat):.3g} times more slowly at the end"
            if flat < -1e-3 * abs(steep)
            else f"{label} rises at the end, where the other falls"
            if flat > 1e-3 * abs(steep)
            else f"{label} no longer falls where the other does"
        )
    return said
