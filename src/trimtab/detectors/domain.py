"""Lasting change of the signals of one kind of training: reinforcement learning, MoE, fp8, GANs.

One mechanism; what is abnormal is data (`domain_signs`). Of each signal it keeps

    cells   medians of 4 rows; where there are 64 of them, neighbors are joined, so the cells always
            span the whole run and their number is bounded
    now     of the last 8 rows, the median of the 4 that is nearer to the past
    past    median of the cells that end before these rows
    start   median of their first quarter
    best    mean of the best eighth, the very best left out: highest where down is bad, else lowest
    sigma   noise of 4 rows, from second differences of the cells: neither trend nor bend counts
    settled what the course reached, and the lower level on which it has stood since (`_settled`)

A sign is a list of clauses over these numbers (`Clause`): all of one list, one of another and none
of a third must hold, twice in a row or as often as the sign says. In fewer rows than a sign asks
for, from 24 on, what it tells must also have come at once: a run's first rows fall by themselves.
One signal alone is seldom
enough: answers that grow longer while the evaluation rises are learning, while it stands still they
are not.

Reported when it is first seen; it closes when the signal is half-way back, or after
`accept_checks` checks as the new level. The onset is the first cell past half of the way.

Blind to what lasts less than 8 rows, to a change slower than the run, and to signs whose signals
the run does not log. Signals logged at few rows (evaluations) have cells of one row.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, changed
from trimtab.signals.robust import MAD_TO_SIGMA
from trimtab.text import number
from trimtab.vocabulary import Severity

__all__ = ["Clause", "DomainDetector", "DomainSign", "DomainState"]

_MOST_CELLS = 64
_RECENT = 8
_SPARSE = frozenset({"eval_score", "eval_error", "fid", "ema_loss"})
"""Signals of evaluations: few values, each a mean over many samples."""
_LEAST_PAST = 4
"""Cells of past below which a signal is not judged."""
_FEWEST_ROWS = 24
_AT_ONCE_SHARE, _AT_ONCE_SIGMA = 0.5, 12.0
"""Of the way from the level before, and of the noise, that lies behind the last quarter of a short
past. Ours."""
_LONGEST_WAIT_ROWS = 32
_FLOOR_SHARE = 0.02
"""Smallest noise believed, as a share of the past level."""
_SECOND = math.sqrt(6.0)
_APART, _FEW_ABOVE, _GAINED = 2.5, 3.0, 3.0
_ALL, _HUMP = 0.9, 8.0
_FEWEST_BELOW, _BELOW_SHARE, _STAYS = 3, 1 / 6, 3
"""Of `_settled`; ours, chosen on made-up rewards that wander, seeds 0-14: no sound one is told."""
_USUAL_CHECKS = 2
_SETTLES, _NEAR_A_HALF = "settles below", "near a half"
_PAID_SIGMA, _PAID_KEPT = 3.0, 0.5
"""Of `_pays`; ours."""


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One condition on one signal; false where the signal is not logged."""

    signal: str
    how: str
    """Name of a rule in `HOW`."""
    amount: float = 0.0
    other: str = ""
    """Second signal, for rules that compare two."""


@dataclass(frozen=True, kw_only=True)
class DomainSign:
    """One row of the table: what is abnormal, and what it is called."""

    id: str
    """Also the end of the finding's detector name: `sign-ID`."""
    title: str
    """One clause for people: what it means."""
    kind: str
    way: str
    """up or down: direction of the first clause's signal that is told."""
    all: tuple[Clause, ...]
    any: tuple[Clause, ...] = ()
    unless: tuple[Clause, ...] = ()
    min_rows: int = 48
    """Values of the first clause's signal before it is judged."""
    checks: int = _USUAL_CHECKS
    """Checks in a row at which it must hold."""
    severity: Severity = "warning"
    causes: tuple[str, ...] = ()
    """Ids of causes that it speaks for, the likeliest first."""

    @property
    def signal(self) -> str:
        """The signal that is told."""
        return self.all[0].signal

    @property
    def is_for_good(self) -> bool:
        """Whether it says of a level that it stays; one that comes back was no trouble."""
        return self.all[0].how in (_SETTLES, _NEAR_A_HALF)

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """All signals that its clauses read."""
        clauses = (*self.all, *self.any, *self.unless)
        return tuple(dict.fromkeys(s for c in clauses for s in (c.signal, c.other) if s))


@dataclass(frozen=True)
class Course:
    """What is kept of one signal."""

    num_rows: int = 0
    width: int = 4
    """Rows of a cell."""
    cells: tuple[float, ...] = ()
    rows: tuple[float, ...] = ()
    """First row of each cell."""
    steps: tuple[float, ...] = ()
    part: tuple[float, ...] = ()
    """Values that wait for the median of four."""
    sum: float = 0.0
    """Of the medians of the cell under way."""
    part_row: float = 0.0
    part_step: float = 0.0
    recent: tuple[float, ...] = ()
    recent_rows: tuple[float, ...] = ()
    recent_steps: tuple[float, ...] = ()


@dataclass(frozen=True)
class Told:
    """What is known of one sign."""

    num_held: int = 0
    """Checks in a row at which it held."""
    stage: int = 0
    """0: nothing reported; 1: reported, open; 2: accepted as the new level."""
    age: int = 0
    onset_row: int = 0
    onset: float = 0.0
    before: float = 0.0
    worst: float = 0.0
    worst_row: int = 0
    worst_step: float = 0.0
    score: float = 0.0


@dataclass(frozen=True)
class DomainState:
    """One course per signal, one state per sign."""

    courses: tuple[Course, ...]
    told: tuple[Told, ...]


@dataclass(frozen=True)
class Settled:
    """A level that a course has come down to, and what it had reached before; see `_settled`."""

    reached: float
    now: float
    lost: float
    """Share of what was gained before."""


@dataclass(frozen=True)
class SignalLevel:
    """What the clauses read of one signal."""

    halves: tuple[float, float]
    past_cells: tuple[float, ...]
    past: float
    start: float
    ordered: tuple[float, ...]
    sigma: float
    quarters: tuple[float, float, float]
    """Levels at a half, at three quarters and at the end of the course."""

    @property
    def high(self) -> float:
        """What the last rows are at least."""
        return min(self.halves)

    @property
    def low(self) -> float:
        """What the last rows are at most."""
        return max(self.halves)

    @property
    def now(self) -> float:
        return (self.halves[0] + self.halves[1]) / 2

    @property
    def top(self) -> float:
        """Mean of the highest eighth of the past, the very highest left out."""
        n = max(1, len(self.ordered) // 8)
        # One lucky evaluation is no level to fall from.
        return sum(self.ordered[-n - 1 : -1]) / n

    @cached_property
    def settled(self) -> Settled | None:
        """The level that it has come down to for good; None where it has not."""
        return _settled((*self.past_cells, self.now))

    @property
    def bottom(self) -> float:
        """Mean of the lowest eighth of the past, the very lowest left out."""
        n = max(1, len(self.ordered) // 8)
        return sum(self.ordered[1 : n + 1]) / n


def _lags(x: SignalLevel, amount: float, y: SignalLevel) -> bool:
    """The relative gain since the start is below a share of another signal's."""
    if x.start <= 0 or y.start <= 0:
        return False
    return x.now / x.start - 1 < amount * (y.now / y.start - 1)


def _falls_with(x: SignalLevel, y: SignalLevel) -> bool:
    """The other signal has come down from its best by at least as large a factor."""
    if x.top <= 0 or y.top <= 0 or x.low < 0 or y.low < 0:
        return False
    return y.low * x.top <= x.low * y.top


def _pays(x: SignalLevel, share: float, y: SignalLevel) -> bool:
    """What falls is paid for: the other signal has risen since the half of the way, and holds it.

    It rises by a share of all that it has gained, far outside its noise, and what it gained is not
    lost again; or it stands still at the highest that it ever was, which bounds it.
    """
    half = (_before(x, up=False) + x.now) / 2
    left = next((k for k, level in enumerate(reversed(x.past_cells)) if level >= half), 0)
    at = len(y.past_cells) - round(left / len(x.past_cells) * len(y.past_cells))
    before, after = y.past_cells[:at], y.past_cells[at:]
    first = _mean(before[: max(1, len(before) // 4)]) if before else y.start
    if y.low == y.high == y.ordered[-1] > first:
        return True
    if len(before) < 2 or len(after) < 2:
        return False
    near = max(1, len(y.past_cells) // 16)
    then, late = _local(y.past_cells, at), _mean(after[-max(2, len(after) // 2) :])
    noise = y.sigma * math.sqrt(1 / (2 * near) + 1 / max(2, len(after) // 2))
    rose = late - then >= max(share * (late - first), _PAID_SIGMA * noise)
    return rose and y.now - then >= _PAID_KEPT * (late - then)


def _accelerates(x: SignalLevel, amount: float) -> bool:
    half, three, end = x.quarters
    return end - three > amount * max(three - half, 0.0) and end > three


def _stands_near(x: SignalLevel, amount: float, center: float) -> bool:
    """The whole course stays near a value, and its last half hugs it."""
    late = x.past_cells[len(x.past_cells) // 2 :]
    early = x.past_cells[: len(x.past_cells) // 2]
    near = abs(_mean(late) - center) <= amount and abs(_mean(early) - center) <= 2 * amount
    return near and abs(x.now - center) <= 0.1


def _stays_within(x: SignalLevel, share: float) -> bool:
    """Neither its levels nor the last rows have left the start by more than a share of it."""
    levels = (*x.quarters, *x.halves)
    return all(abs(level - x.start) <= share * abs(x.start) for level in levels)


def _lies_at_zero(x: SignalLevel, most: float) -> bool:
    """Whether the course, its first quarter left out, and the last rows lie between 0 and a bound."""
    late = x.past_cells[len(x.past_cells) // 4 :]
    return all(0 <= level <= most for level in (*late, *x.halves))


def _moves(x: SignalLevel) -> bool:
    """Whether the course is measured: what stands still excuses nothing."""
    return x.ordered[-1] - x.ordered[0] > 1e-3 * abs(x.ordered[-1])


HOW: Mapping[str, Callable[[SignalLevel, float, SignalLevel], bool]] = {
    "over": lambda x, a, _: x.high >= a,
    "under": lambda x, a, _: x.low <= a,
    "was under": lambda x, a, _: x.start <= a,
    "was over": lambda x, a, _: x.start >= a,
    "past over": lambda x, a, _: x.past >= a,
    "times past": lambda x, a, _: x.high >= a * x.past and x.high > 0,
    "times start": lambda x, a, _: x.high >= a * x.start and x.high > 0,
    "times lowest": lambda x, a, _: x.high >= a * x.bottom and x.high > 0,
    "share of past": lambda x, a, _: x.low <= a * x.past and x.past > 0,
    "share of best": lambda x, a, _: x.low <= a * x.top and x.top > 0,
    "sigma above past": lambda x, a, _: x.high - x.past >= a * x.sigma,
    "sigma below past": lambda x, a, _: x.past - x.low >= a * x.sigma,
    "sigma above start": lambda x, a, _: x.high - x.start >= a * x.sigma,
    "sigma above lowest": lambda x, a, _: x.high - x.bottom >= a * x.sigma,
    "sigma below best": lambda x, a, _: x.top - x.low >= a * x.sigma,
    "below start by": lambda x, a, _: x.low <= x.start - a * abs(x.start),
    "lost of the gain": lambda x, a, _: x.top - x.low >= a * (x.top - min(x.start, x.bottom)),
    _SETTLES: lambda x, a, _: x.settled is not None and x.settled.lost >= a,
    "gave the gain back": lambda x, a, _: x.high - x.bottom >= a * (max(x.start, x.top) - x.bottom),
    "not rising": lambda x, a, _: x.quarters[2] <= x.quarters[1] + a * x.sigma,
    "accelerates": lambda x, a, _: _accelerates(x, a),
    "times other": lambda x, a, y: x.low >= a * y.high > 0,
    "at most start": lambda x, a, _: x.start > 0 and _moves(x) and x.high <= a * x.start,
    "near best": lambda x, a, _: x.low >= a * x.top > 0,
    "lags": _lags,
    "falls with": lambda x, _a, y: _falls_with(x, y),
    "pays": _pays,
    "is zero": lambda x, _a, _y: x.ordered[0] == x.ordered[-1] == x.high == x.low == 0,
    "stays within": lambda x, a, _: _stays_within(x, a),
    "lies at zero": lambda x, a, _: _lies_at_zero(x, a),
    "leapt and grows": lambda x, a, _: (
        x.quarters[1] >= 2 * x.quarters[0] > 0 and x.quarters[2] >= a * x.quarters[1]
    ),
    "rises on": lambda x, a, _: x.quarters[0] + a * x.sigma < x.quarters[1] < x.quarters[2],
    _NEAR_A_HALF: lambda x, a, _: _stands_near(x, a, 0.5),
    "logged": lambda _x, _a, _y: True,
}
"""How a clause judges: (level of its signal, amount, level of the other signal) -> it holds."""


@dataclass(frozen=True, kw_only=True)
class DomainDetector:
    """The signs of one kind of training; see the module."""

    name: str
    signs: tuple[DomainSign, ...]
    accept_checks: int = 16

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """All signals that its signs read."""
        return tuple(dict.fromkeys(s for sign in self.signs for s in sign.signals))

    @cached_property
    def _mains(self) -> Mapping[int, tuple[int, ...]]:
        """Index of a signal -> the signs that it leads."""
        return {
            i: tuple(k for k, sign in enumerate(self.signs) if sign.signal == name)
            for name, i in self._places.items()
        }

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.signals)}

    def start(self) -> DomainState:
        """Return the state before any row."""
        courses = tuple(Course(width=1 if s in _SPARSE else 4) for s in self.signals)
        return DomainState(courses, (Told(),) * len(self.signs))

    def update(self, state: DomainState, row: Row) -> tuple[DomainState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        courses, told = list(state.courses), list(state.told)
        logged = [(i, v) for i, v in enumerate(row.values.tolist()) if math.isfinite(v)]
        found = self._take(courses, told, RowPlace(row.index, row.step), logged)
        return DomainState(tuple(courses), tuple(told)), tuple(found)

    def update_rows(
        self, state: DomainState, rows: Rows
    ) -> tuple[DomainState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; only rows that end a wait need work."""
        courses, told = list(state.courses), list(state.told)
        finite = np.isfinite(rows.values)
        # Of what no row here has nothing is due, and nothing changes.
        logged = {
            i: _Logged.of(rows, i, np.flatnonzero(finite[:, i]))
            for i in np.flatnonzero(finite.any(axis=0)).tolist()
        }
        leads = [i for i, signs in self._mains.items() if signs and i in logged]
        findings: list[Finding] = []
        while True:
            ends = [logged[i].end_of_wait(courses[i]) for i in leads]
            at = min((k for k in ends if k >= 0), default=-1)
            for i, some in logged.items():
                courses[i] = some.extend(courses[i], at)
            if at < 0:
                break
            place = RowPlace(int(rows.index[at]), float(rows.step[at]))
            here = [i for i in self._mains if finite[at, i] and _is_due(courses[i])]
            findings += self._judge(courses, told, place, here)
        return DomainState(tuple(courses), tuple(told)), tuple(findings)

    def _take(
        self,
        courses: list[Course],
        told: list[Told],
        row: RowPlace,
        logged: Iterable[tuple[int, float]],
    ) -> list[Finding]:
        """Judge one row, given as (index of a signal, finite value); the lists become the state."""
        due: list[int] = []
        for i, value in logged:
            courses[i] = _extended(courses[i], value, row)
            if _is_due(courses[i]):
                due.append(i)
        return self._judge(courses, told, row, due)

    def _judge(
        self, courses: list[Course], told: list[Told], row: RowPlace, due: Sequence[int]
    ) -> list[Finding]:
        """Check the signs that signals lead of which a wait ends here."""
        levels: dict[str, SignalLevel | None] = {}
        findings: list[Finding] = []
        for k in (k for i in due for k in self._mains[i]):
            told[k], found = self._check(self.signs[k], told[k], courses, levels, row)
            findings += found
        return findings

    def _check(
        self,
        sign: DomainSign,
        told: Told,
        courses: Sequence[Course],
        levels: dict[str, SignalLevel | None],
        row: RowPlace,
    ) -> tuple[Told, list[Finding]]:
        course = courses[self._places[sign.signal]]
        if course.num_rows < min(sign.min_rows, _FEWEST_ROWS):
            return told, []
        if any(not courses[self._places[c.signal]].num_rows for c in sign.all):
            return told, []  # it cannot hold, and never did
        for name in sign.signals:
            if name not in levels:
                levels[name] = _level(courses[self._places[name]])
        main = levels[sign.signal]
        if main is None:
            return told, []
        if told.stage:
            return self._follow(sign, told, main, row, holds=_holds(sign, levels))
        few = course.num_rows < sign.min_rows and not told.num_held
        if few and not _came_at_once(main, up=sign.way == "up"):
            return told, []
        if not _holds(sign, levels):
            return (changed(told, num_held=0) if told.num_held else told), []
        # A value of an evaluation is a mean over many samples; two of them are enough, but for a
        # sign that asks for more.
        more = course.width > 1 or sign.checks > _USUAL_CHECKS
        if told.num_held < sign.checks - 1 and more:
            return changed(told, num_held=told.num_held + 1), []
        up = sign.way == "up"
        settled = main.settled if sign.all[0].how == _SETTLES else None
        before = settled.reached if settled else _before(main, up=up)
        place = _onset(course, main, before)
        told = Told(
            stage=1,
            onset_row=int(place[0]),
            onset=place[1],
            before=before,
            worst=main.now,
            worst_row=row.index,
            worst_step=row.step,
            score=min(abs(main.now - before) / max(main.sigma, 1e-12), 99.0),
        )
        return told, [self._finding(sign, told, row, "open")]

    def _follow(
        self, sign: DomainSign, told: Told, main: SignalLevel, row: RowPlace, *, holds: bool
    ) -> tuple[Told, list[Finding]]:
        sign_of = 1.0 if sign.way == "up" else -1.0
        half = 0.5 * sign_of * (told.worst - told.before)
        # A level that was abnormal from the first row on has no way to be half back on.
        back = not holds and sign_of * (main.now - told.before) < half
        if told.stage == 2:
            # What was told to be for good is taken back, however late.
            over = back and sign.is_for_good
            found = [self._finding(sign, told, row, "back")] if over else []
            return (Told() if back else told), found
        told = changed(told, age=told.age + 1)
        if sign_of * (main.now - told.worst) > 0:
            told = changed(told, worst=main.now, worst_row=row.index, worst_step=row.step)
        if back:
            return Told(), [self._finding(sign, told, row, "back")]
        if told.age >= self.accept_checks:
            return changed(told, stage=2), [self._finding(sign, told, row, "lasting")]
        return told, []

    def _finding(self, sign: DomainSign, told: Told, row: RowPlace, how: str) -> Finding:
        ended = how == "back"
        label = sign.signal.replace("_", " ")
        same = told.before == told.worst
        numbers = number(told.worst) if same else f"{number(told.before)} → {number(told.worst)}"
        return Finding(
            detector=f"sign-{sign.id}",
            kind=sign.kind,
            signal=sign.signal,
            severity="info" if ended and sign.is_for_good else sign.severity,
            row=row.index,
            step=row.step,
            onset_row=told.onset_row,
            onset=told.onset,
            peak_row=told.worst_row,
            peak=told.worst_step,
            end_row=row.index if ended else None,
            end=row.step if ended else None,
            value=told.worst,
            expected=told.before,
            score=told.score,
            direction="up" if sign.way == "up" else "down",
            closed=how != "open",
            text=f"{sign.title}: {label} {numbers}"
            + {"open": "", "back": ", back", "lasting": ", lasting"}[how],
        )


def _holds(sign: DomainSign, levels: Mapping[str, SignalLevel | None]) -> bool:
    def holds(c: Clause) -> bool:
        x = levels[c.signal]
        y = levels[c.other] if c.other else x
        return x is not None and y is not None and HOW[c.how](x, c.amount, y)

    # Any order gives the same answer; the first clause is the one that seldom holds.
    return (
        all(map(holds, sign.all))
        and (not sign.any or any(map(holds, sign.any)))
        and not any(map(holds, sign.unless))
    )


def _extended(c: Course, value: float, row: RowPlace) -> Course:
    """Return a course with one more value."""
    first = not c.part and c.num_rows % c.width == 0
    new = changed(
        c,
        num_rows=c.num_rows + 1,
        recent=(*c.recent[1 - _RECENT :], value),
        recent_rows=(*c.recent_rows[1 - _RECENT :], float(row.index)),
        recent_steps=(*c.recent_steps[1 - _RECENT :], row.step),
        part=(*c.part, value),
        part_row=float(row.index) if first else c.part_row,
        part_step=row.step if first else c.part_step,
    )
    size = min(new.width, 4)
    # Sparse signals start with cells of one value, and come to medians of four when they are wide.
    if len(new.part) < size:
        return new
    total = c.sum + _median(sorted(new.part))
    if new.num_rows % new.width:
        return changed(new, part=(), sum=total)
    return _with_cell(new, total / (new.width // size))


def _is_due(c: Course) -> bool:
    """Whether the signs that a signal leads are checked at its last value."""
    return c.num_rows % min(c.width, _LONGEST_WAIT_ROWS) == 0


@dataclass
class _Logged:
    """The finite values of one signal in a stretch of rows, and how many were taken."""

    at: list[int]
    """Their rows, from the first of the stretch."""
    values: list[float]
    rows: list[float]
    steps: list[float]
    num_taken: int = 0

    @classmethod
    def of(cls, rows: Rows, signal: int, at: NDArray[np.intp]) -> "_Logged":
        index = rows.index[at].astype(np.float64)
        return cls(
            at.tolist(), rows.values[at, signal].tolist(), index.tolist(), rows.step[at].tolist()
        )

    def end_of_wait(self, c: Course) -> int:
        """Return the row at which the signs are due next; -1: not in this stretch."""
        wait = min(c.width, _LONGEST_WAIT_ROWS)
        last = self.num_taken + wait - c.num_rows % wait - 1
        return self.at[last] if last < len(self.at) else -1

    def extend(self, c: Course, last: int) -> Course:
        """Return a course with the values up to a row; -1: all of them."""
        first = self.num_taken
        self.num_taken = len(self.at) if last < 0 else bisect_right(self.at, last, first)
        while first < self.num_taken:
            # To the end of a cell at most.
            stop = min(self.num_taken, first + c.width - c.num_rows % c.width)
            c = _extended_by(c, *(x[first:stop] for x in (self.values, self.rows, self.steps)))
            first = stop
        return c


def _extended_by(
    c: Course, values: Sequence[float], at: Sequence[float], steps: Sequence[float]
) -> Course:
    """Return what `_extended` gives for values one after the other, within one cell."""
    first = not c.part and c.num_rows % c.width == 0
    size = min(c.width, 4)
    waiting = (*c.part, *values)
    num_whole = len(waiting) - len(waiting) % size
    total = c.sum
    for k in range(0, num_whole, size):
        total += _median(sorted(waiting[k : k + size]))
    new = changed(
        c,
        num_rows=c.num_rows + len(values),
        recent=(*c.recent, *values)[-_RECENT:],
        recent_rows=(*c.recent_rows, *at)[-_RECENT:],
        recent_steps=(*c.recent_steps, *steps)[-_RECENT:],
        part=waiting[num_whole:],
        part_row=at[0] if first else c.part_row,
        part_step=steps[0] if first else c.part_step,
        sum=total,
    )
    return new if new.num_rows % new.width else _with_cell(new, total / (new.width // size))


def _with_cell(c: Course, level: float) -> Course:
    """Return a course whose cell under way has ended."""
    cells = (*c.cells, level)
    rows, steps, width = (*c.rows, c.part_row), (*c.steps, c.part_step), c.width
    if len(cells) == _MOST_CELLS:
        cells = tuple((a + b) / 2 for a, b in zip(cells[::2], cells[1::2], strict=True))
        rows, steps, width = rows[::2], steps[::2], 2 * width
    return changed(c, part=(), sum=0.0, cells=cells, rows=rows, steps=steps, width=width)


def _held_back(c: Course) -> int:
    """Return how many of the last rows are no past."""
    return 2 if c.width == 1 else _RECENT


def _level(c: Course) -> SignalLevel | None:
    """Return what the clauses read of a course; None while its past is too short."""
    hold = _held_back(c)
    num_past = min(len(c.cells), max(0, c.num_rows - hold) // c.width)
    if num_past < _LEAST_PAST or len(c.recent) < hold:
        return None
    past = c.cells[:num_past]
    last = c.recent[-hold:]
    half = hold // 2
    ordered = tuple(sorted(past))
    middle = _median(ordered)
    bends = sorted(abs(a - 2 * b + d) for a, b, d in zip(past, past[1:], past[2:], strict=False))
    rows = min(half, 4) if c.width > 1 else 1
    # The noise of a cell is that of a mean of its medians; `now` is of fewer rows.
    sigma = MAD_TO_SIGMA * _median(bends) / _SECOND * math.sqrt(c.width / rows)
    quarter = max(1, num_past // 4)
    return SignalLevel(
        halves=(_median(sorted(last[:half])), _median(sorted(last[half:]))),
        past_cells=past,
        past=middle,
        start=_median(sorted(past[:quarter])),
        ordered=ordered,
        sigma=max(sigma, _FLOOR_SHARE * abs(middle), 1e-12),
        quarters=(
            _local(past, num_past // 2),
            _local(past, num_past - quarter),
            _mean(past[-max(1, len(past) // 16) :]),
        ),
    )


def _local(cells: Sequence[float], at: int) -> float:
    near = max(1, len(cells) // 16)
    return _mean(cells[max(0, at - near) : at + near])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _settled(cells: Sequence[float]) -> Settled | None:
    """Return the level that a course has come down to for good, None where it has not.

    reached   highest mean of an eighth of the cells, two at least
    now       median of the last sixth, two at least
    above     from the first to the last cell over the middle of the two; the tail is what follows

    What is above holds stands apart from the tail by `_APART` times the noise of both, and by more
    where it is short, or all that had been gained is lost again, by `_HUMP` times the noise of the
    rows before and behind; the tail is a sixth of the course, three cells at least, and three times as
    long as any stay below the middle before: a run that fell as long and came back may do so again.
    """
    num = len(cells)
    eighth, sixth = max(2, num // 8), max(2, num // 6)
    now = _median(sorted(cells[-sixth:]))
    sums = list(accumulate(cells, initial=0.0))
    means = [(sums[k + eighth] - sums[k]) / eighth for k in range(num - eighth + 1)]
    at = max(range(len(means)), key=means.__getitem__)
    reached = means[at]
    middle = (reached + now) / 2
    over = [k for k, level in enumerate(cells) if level > middle]
    if not over or reached <= now:
        return None
    above, tail = cells[over[0] : over[-1] + 1], cells[over[-1] + 1 :]
    if len(above) < 2 or len(tail) < max(_FEWEST_BELOW, _BELOW_SHARE * num):
        return None
    stay = max(b - a - 1 for a, b in pairwise(over)) if len(over) > 1 else 0
    if _STAYS * stay > len(tail):
        return None
    noise = max(math.hypot(_spread(above), _spread(tail)), 1e-12)
    apart = _median(sorted(above)) - _median(sorted(tail))
    gain = reached - min(cells[: at + 1])
    stands_apart = apart >= _APART * (1 + _FEW_ABOVE / len(above)) * noise
    # A hump has no level of its own to be apart: what all of it was gained from and lost to has one.
    base = max(_spread(tail), _spread(cells[: over[0]]) if over[0] > 1 else 0.0, 1e-12)
    is_hump = reached - now >= max(_ALL * gain, _HUMP * base)
    if not (stands_apart and gain >= _GAINED * noise) and not is_hump:
        return None
    return Settled(reached, now, (reached - now) / gain)


def _spread(cells: Sequence[float]) -> float:
    middle = _median(sorted(cells))
    return math.sqrt(_mean([(level - middle) ** 2 for level in cells]))


def _came_at_once(level: SignalLevel, *, up: bool) -> bool:
    """Whether most of a change lies behind the last quarter of the past, far outside the noise."""
    late = level.past_cells[-max(1, len(level.past_cells) // 4) :]
    last = _median(sorted(late))
    change = level.high - last if up else last - level.low
    way = abs(level.now - _before(level, up=up))
    return change >= max(_AT_ONCE_SHARE * way, _AT_ONCE_SIGMA * level.sigma)


def _before(level: SignalLevel, *, up: bool) -> float:
    """Return the level that is told as the one before: of the past, or of its better part."""
    return min(level.past, level.start) if up else max(level.past, level.start)


def _onset(c: Course, level: SignalLevel, before: float) -> tuple[float, float]:
    """Return row and step of the first cell past half of the way that no later one goes back."""
    half = (before + level.now) / 2
    sign = 1.0 if level.now >= before else -1.0
    hold = _held_back(c)
    place = (c.recent_rows[-hold], c.recent_steps[-hold])
    num_past = len(level.past_cells)
    for k in reversed(range(num_past)):
        if sign * (c.cells[k] - half) < 0:
            break
        place = (c.rows[k], c.steps[k])
    return place
