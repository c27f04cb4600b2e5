"""Self-test by injection: would the judge have seen a fault in this run, had there been one?

A shadow judge receives copies of stretches of the run's own rows with a fault added
(`INJECTED_FAULTS`), each from the state in which the real judge met the first of them. The rows of
the record, its findings and its incidents are never touched. What counts as seen is an alarm that
the rows as they are do not raise: in a finished log one that stands at the end of the stretch,
rules in hindsight included; in a log that grows one that is raised at all.

Faults of a large size tell whether the judge works. Others, around the smallest size that is seen,
tell what it would have missed (`PowerCurve`). Places are spread over the log, one in each of equal
parts, and drawn, like the sizes, from the record itself: the same rows give the same figures.

Blind to what the table does not hold, and to detectors of a user's own, which take no part.

Cost: some 90 stretches of 4 to 400 records and the detectors that read the signal, whatever the
length of the log: 0.15 to 0.3 s. A log that grows pays for a few at each look.
"""

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.injected_faults import (
    INJECTED_FAULTS,
    InjectedFault,
    noise_of,
    with_fault,
)
from trimtab.analysis.power_curve import SEEN_SHARE, PowerCurve
from trimtab.detectors.contract import Finding
from trimtab.detectors.excess import excess_findings
from trimtab.detectors.few_rows import FEWEST_ROWS, LASTS
from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.judge import DETECTORS, Judge, JudgeState, rows_of
from trimtab.detectors.offline import HINDSIGHT, LOSS_SHAPES
from trimtab.detectors.swells import swell_findings
from trimtab.incidents import latest_tellings
from trimtab.readers.rank_values import is_of_rank
from trimtab.record import Attempt, Column, RunRecord
from trimtab.text import OTHER
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["FaultPower", "SelfTest", "SelfTester"]

MIN_RECORDS = 30
"""With fewer train losses the streaming judge has no past to compare with: the rules on few rows
judge there, and the faults injected are of a size that matters whatever the noise. With fewer than
`FEWEST_ROWS` nothing is injected, and nothing said of health."""
BAR = 0.7
"""Share of the large faults of each required kind that must be seen. Ours: with three in ten
missed, silence says little about the log."""
LATE_BAR = 0.8
"""The same of the second half of the log alone, where the whole is below `BAR`: while a loss falls
steeply, a rise that is large beside its later noise is lost in the fall. Ours."""
NOTICED_BAR = 0.5
"""Share of the large faults, past the first `WARM_ROWS` records, that the streaming judge must
notice at all, alarm or note: below it a detector is dead, whatever hindsight finds. Ours."""
WARM_ROWS = 48
"""Records of an attempt before which the streaming judge may know too little to notice. Ours."""
LEAST_LEVEL = 0.02
"""Of the first losses: twice less than that is still next to nothing. Ours."""
_PLACES = 16
_SPARE = 8
_BEFORE_ROWS = 160
"""Records before a fault that rules in hindsight are shown; five of their blocks of noise."""
_AFTER_ROWS = 48
_WHOLE_ROWS = 192
"""An attempt up to this long is shown whole to rules in hindsight, and to all of them."""
_LEFT_OUT = frozenset(("val_loss", "yardstick_evidence"))
"""Signals that are left out beside another one; a detector that judges them has nothing to say."""
_MOST_STRETCH = 16
"""A stretch is cut at so many rows for each record that it should hold: signals may be rare."""
_FEWEST_LATE = 6
"""Trials of the second half, large and graded, that say something of it."""
_PER_LOOK = 8
"""Faults injected at each look at a log that grows, after the first."""


@dataclass(frozen=True, kw_only=True)
class FaultPower:
    """What the self-test found out about one fault of the table."""

    fault: InjectedFault
    injected: int
    """Large faults injected."""
    seen: int
    """Of them, seen."""
    noticed: tuple[int, int]
    """(noticed by the streaming judge, injected) past the first rows of an attempt."""
    trials: tuple[tuple[float, bool], ...]
    """(size in standard deviations of the noise, whether it was seen), large ones included."""
    sigma: float
    """The noise, on the signal's scale."""
    smallest: float | None
    """Smallest size seen with 95 %, standard deviations; None: too many large ones are missed."""
    share: float
    """How often that size is seen; below 0.95 in a log with places that are blind to any size."""
    within_rows: int | None
    """Records within which 95 % of the faults of about that size were seen."""
    late_trials: tuple[tuple[float, bool], ...] = ()
    """Those of `trials` that began in the second half of the log."""
    late_noticed: tuple[int, int] = (0, 0)
    """`noticed` of those."""

    @property
    def size(self) -> float | None:
        """Smallest size seen: in the signal's unit, or as a factor where its scale is a log."""
        if self.smallest is None or not math.isfinite(self.sigma):
            return None
        return self._in_units(self.smallest)

    @property
    def largest(self) -> float:
        """The large size, as `size`."""
        return self._in_units(self.fault.large)

    def _in_units(self, size: float) -> float:
        if SIGNAL_BY_NAME[self.fault.signal].scale == "log":
            return math.exp(min(size * self.sigma, 700.0))
        return size * self.sigma

    def power(self, size: float) -> float:
        """Return the probability that a fault of this size, in standard deviations, is seen."""
        return PowerCurve(self.trials).power(size)

    @cached_property
    def share_large(self) -> float:
        """Share of the large faults that is seen; what the graded ones say of it is counted in."""
        if not self.injected:
            return 1.0
        return self.power(self.fault.large) if self.fault.num_graded else self.seen / self.injected

    @cached_property
    def share_late(self) -> float:
        """The same of those that began in the second half of the log."""
        if len(self.late_trials) < _FEWEST_LATE:
            return self.share_large
        return PowerCurve(self.late_trials).power(self.fault.large)

    @property
    def late_only(self) -> bool:
        """Whether the first half of the log alone hides too many of them."""
        return self.share_large < BAR and self.share_late >= LATE_BAR

    @property
    def works(self) -> bool:
        """Whether enough of the large faults were seen, and the streaming judge noticed them."""
        noticed, warm = self.late_noticed if self.late_only else self.noticed
        if self.share_large < BAR and not self.late_only:
            return False
        return warm < 2 or noticed >= NOTICED_BAR * warm


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """What faults injected into copies of a run's rows showed."""

    faults: tuple[FaultPower, ...]
    rows: int
    """Train-loss records of the log."""
    doubling: float | None = None
    """Chance that a lasting rise by as much as the loss is now would be seen; None: the loss has
    no level to speak of (it is negative somewhere, or next to nothing), or no rise was tried."""

    @property
    def injected(self) -> int:
        """Large faults injected, of all kinds."""
        return sum(f.injected for f in self.faults)

    @property
    def seen(self) -> int:
        """Of them, seen."""
        return sum(f.seen for f in self.faults)

    @property
    def failing(self) -> tuple[FaultPower, ...]:
        """Required faults that the judge would miss too often."""
        return tuple(f for f in self.faults if f.fault.required and not f.works)

    @property
    def passed(self) -> bool:
        """Whether a run without an alarm may be called healthy."""
        return not self.failing and any(f.fault.required and f.injected for f in self.faults)

    def of(self, name: str) -> FaultPower | None:
        """Return what was found out about one fault; None where it was not injected."""
        return next((f for f in self.faults if f.fault.name == name), None)

    def to_json(self) -> dict[str, object]:
        """Return what `inspect --json` holds as `judged.self_test`."""
        return {
            "injected": self.injected,
            "seen": self.seen,
            "passed": self.passed,
            "doubling": self.doubling,
            "faults": [
                {
                    "fault": f.fault.name,
                    "signal": f.fault.signal,
                    "injected": f.injected,
                    "seen": f.seen,
                    "required": f.fault.required,
                    "smallest_sigma": f.smallest if f.fault.num_graded else None,
                    "smallest": f.size if f.fault.num_graded else None,
                    "share": f.share if f.fault.num_graded else None,
                    "within_rows": f.within_rows if f.fault.num_graded else None,
                    "noise": f.sigma if math.isfinite(f.sigma) else None,
                }
                for f in self.faults
            ],
        }


@dataclass(frozen=True)
class _Trial:
    """One fault that was injected."""

    size: float
    large: bool
    seen: bool = False
    noticed: bool = False
    warm: bool = False
    """Whether enough records of the attempt came before it."""
    late: bool = False
    """Whether it began in the second half of the log."""
    delay: int = 0


@dataclass
class _Known:
    """What is known of one fault; bounded, so that a log that grows keeps the newest trials."""

    trials: deque[_Trial]
    number: int = 0
    """Trials so far, those forgotten included."""


class Deferred:
    """A self-test that is made when it is first asked for; the judge's states are then let go."""

    def __init__(self, make: Callable[[], SelfTest | None]) -> None:
        self._make: Callable[[], SelfTest | None] | None = make
        self._made: SelfTest | None = None

    def __call__(self) -> SelfTest | None:
        """Return it."""
        if self._make is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # as where the rows were judged
                self._made = self._make()
            self._make = None
        return self._made


@dataclass
class SelfTester:
    """Injects faults, all at once for a finished log, or a few at each look at one that grows."""

    hindsight: bool = True
    """Whether rules in hindsight count, as they do for a finished log."""
    known: dict[str, _Known] = field(default_factory=dict, repr=False)
    """What was tried so far, by the name of the fault."""
    _rows: int = 0
    _cursor: int = 0
    _looks: int = 0

    def places(self, record: RunRecord) -> dict[int, JudgeState]:
        """Return rows at which faults may begin; the judge fills in the states it meets them in.

        Args:
            record: With its derived signals, as it will be judged.
        """
        column = record.columns.get("loss")
        if column is None or record.num_loss_rows < FEWEST_ROWS:
            return {}
        rows = np.flatnonzero(column.present)
        # The last rows leave no room for a fault to show; a tenth of a short log at most.
        few = len(rows) < MIN_RECORDS
        rows = rows[LASTS:-LASTS] if few else rows[: len(rows) - min(3, len(rows) // 10)]
        num = min(_PLACES + _SPARE, max(4, len(rows) // 3), len(rows))
        rng = np.random.default_rng(_seed(record))
        at = (np.arange(num) + rng.random(num)) * len(rows) / num
        nothing = JudgeState(())
        return {int(rows[int(k)]): nothing for k in at}

    def run(
        self,
        record: RunRecord,
        judge: Judge,
        findings: Sequence[Finding],
        before: Mapping[int, JudgeState],
    ) -> SelfTest | None:
        """Inject the faults of the table, or the next few of them, and return what they showed.

        Args:
            record: As it was judged; it is not changed.
            judge: The judge that judged it.
            findings: What it found.
            before: As `places` gave it, with the states filled in.

        Returns:
            None where the log has too few train losses.
        """
        states = {row: state for row, state in before.items() if state.states}
        if not states:
            return None
        bench = _Bench(record, judge, findings, states, hindsight=self.hindsight)
        rng = np.random.default_rng(_seed(record) + 1)
        if record.num_rows < self._rows:  # another log, or one that was cut
            self.known, self._looks = {}, 0
        self._rows = record.num_rows
        whole = self._looks == 0
        self._looks += 1
        plan = _plan(bench)
        if not plan:
            return None
        todo = plan if whole else [plan[(self._cursor + k) % len(plan)] for k in range(_PER_LOOK)]
        self._cursor = 0 if whole else (self._cursor + _PER_LOOK) % len(plan)
        order = {name: rng.permutation(len(rows)) for name, rows in bench.places.items()}
        for fault, large in todo:
            num = fault.num_large + fault.num_graded
            known = self.known.setdefault(fault.name, _Known(deque(maxlen=num)))
            rows = bench.places[fault.name]
            row = rows[order[fault.name][known.number % len(rows)]]
            size = fault.large if large else _next_size(fault, known)
            known.trials.append(bench.inject(fault, row, size, large=large))
            known.number += 1
        faults = tuple(
            _power(fault, self.known[fault.name], bench.sigma[fault.name])
            for fault in INJECTED_FAULTS
            if fault.name in self.known and fault.name in bench.sigma
        )
        rise = next((f for f in faults if f.fault.name == "rise"), None)
        return SelfTest(
            faults=faults,
            rows=record.num_loss_rows,
            doubling=None if rise is None else _doubling(record, rise),
        )


def _doubling(record: RunRecord, rise: FaultPower) -> float | None:
    """Return how likely a lasting doubling of the loss is seen at the end of the log."""
    column = record.columns["loss"]
    rows = column.finite_rows(slice(0, record.num_rows))
    losses = column.values[rows]
    if len(losses) < MIN_RECORDS or losses.min() <= 0:
        return None
    level = float(np.median(losses[-MIN_RECORDS:]))
    if level < LEAST_LEVEL * float(np.median(losses[: MIN_RECORDS // 2])):
        return None
    # The sizes of the trials count in the noise of their place: this one lies at the end.
    sigma = noise_of(record, rise.fault.signal, around=int(rows[-1]))
    sigma = sigma if math.isfinite(sigma) else rise.sigma
    # Early places that are blind to any size say nothing of the end.
    most = rise.share_large
    return min(1.0, rise.power(level / sigma) / most) if sigma > 0 and most > 0 else None


def _seed(record: RunRecord) -> int:
    """Return a number that the train losses of a record give, the same on every machine.

    Their order decides, so that a loss in another unit is tested at the same places.
    """
    column = record.columns.get("loss")
    tail = np.zeros(0) if column is None else column.logged()[-256:]
    order = np.argsort(tail, kind="stable").astype("<i4")
    return zlib.crc32(order.tobytes(), record.num_loss_rows & 0xFFFFFFFF)


def _plan(bench: "_Bench") -> list[tuple[InjectedFault, bool]]:
    """Return what is injected: (fault, whether large), the large ones first."""
    able = [fault for fault in INJECTED_FAULTS if bench.places.get(fault.name)]
    large = [(fault, True) for fault in able for _ in range(fault.num_large)]
    return large + [(fault, False) for fault in able for _ in range(fault.num_graded)]


def _next_size(fault: InjectedFault, known: _Known) -> float:
    curve = PowerCurve((t.size, t.seen) for t in known.trials)
    return curve.next_size(known.number, fault.large)


def _power(fault: InjectedFault, known: _Known, sigma: float) -> FaultPower:
    trials = tuple((t.size, t.seen) for t in known.trials)
    large = [t for t in known.trials if t.large]
    warm = [t for t in large if t.warm]
    late = [t for t in warm if t.late]
    size, share = PowerCurve(trials).smallest_seen(fault.large)
    smallest = size if share >= BAR else None
    near = [t.delay for t in known.trials if t.seen and 0.8 * size <= t.size <= 2 * size]
    delays = near or [t.delay for t in known.trials if t.seen]
    return FaultPower(
        fault=fault,
        injected=len(large),
        seen=sum(t.seen for t in large),
        noticed=(sum(t.noticed for t in warm), len(warm)),
        trials=trials,
        sigma=sigma,
        smallest=smallest,
        share=share,
        late_trials=tuple((t.size, t.seen) for t in known.trials if t.late),
        late_noticed=(sum(t.noticed for t in late), len(late)),
        within_rows=math.ceil(float(np.quantile(delays, SEEN_SHARE))) + 1 if delays else None,
    )


class _Bench:
    """One record with the states of its judge, ready for faults."""

    def __init__(
        self,
        record: RunRecord,
        judge: Judge,
        findings: Sequence[Finding],
        states: Mapping[int, JudgeState],
        *,
        hindsight: bool,
    ) -> None:
        self._record, self._states, self._hindsight = record, states, hindsight
        alarms = [f for f in latest_tellings(findings) if f.severity != "info"]
        self._told = {f.key for f in findings}
        self._alarms = {f.key for f in alarms}
        self._shadows = {
            signal: _Shadow.of(judge, signal) for signal in {f.signal for f in INJECTED_FAULTS}
        }
        self._rows: dict[str, NDArray[np.intp]] = {}
        self._noise: dict[tuple[str, int], float] = {}
        self.sigma: dict[str, float] = {}
        self.places: dict[str, list[int]] = {}
        quiet = _quiet(sorted(states), alarms)
        for fault in INJECTED_FAULTS:
            column = record.columns.get(fault.signal)
            blind = not self._shadows[fault.signal].judge.detectors
            if column is None or (blind and not fault.required):
                continue
            if fault.signal not in self._rows:
                self._rows[fault.signal] = np.flatnonzero(column.present)
            sigma = noise_of(record, fault.signal)
            # A drift of 200 records is no fault that 60 could show.
            if (
                math.isfinite(sigma)
                and fault.least_rows <= len(self._rows[fault.signal]) <= fault.most_rows
            ):
                self.sigma[fault.name] = sigma
                self.places[fault.name] = _spread(quiet, _PLACES)

    def inject(self, fault: InjectedFault, row: int, size: float, *, large: bool) -> _Trial:
        """Judge a copy of the rows from `row` on with a fault in them."""
        at = self._rows[fault.signal]
        attempt = self._record.attempts[int(self._record.attempt[row])]
        first = int(np.searchsorted(at, row))
        stop = min(first + fault.horizon_rows, int(np.searchsorted(at, attempt.end_row)))
        began = first - int(np.searchsorted(at, attempt.first_row))
        if stop <= first:
            return _Trial(size, large, late=2 * first >= len(at))
        end = min(int(at[stop - 1]) + 1, row + _MOST_STRETCH * fault.horizon_rows)
        hit = at[first : int(np.searchsorted(at, end))]
        local = self._noise_around(fault.signal, row)
        sigma = local if math.isfinite(local) else self.sigma[fault.name]
        bad = with_fault(fault, self._record.columns[fault.signal].values[hit], size, sigma)
        found = self._shadows[fault.signal].judge_rows(
            self._record, self._states[row], slice(row, end), (hit, bad)
        )
        new = [f for f in found if f.key not in self._told and _near(f, row)]
        told = latest_tellings(found) if self._hindsight else found
        alarms = [
            f for f in told if f.severity != "info" and f.key not in self._alarms and _near(f, row)
        ]
        if not alarms and self._hindsight:
            alarms = self._in_hindsight(fault, attempt, first, (hit, bad))
        # The first telling of what turned out to be an alarm: later ones change its words only.
        keys = {f.key for f in alarms}
        seen_at = min((f.row for f in (*found, *alarms) if f.key in keys), default=row)
        delay = int(np.searchsorted(at, seen_at)) - first
        return _Trial(
            size,
            large,
            seen=bool(alarms),
            noticed=bool(new),
            # A finished log of few rows is judged whole: nothing rests on what came at once.
            warm=began >= WARM_ROWS and not (self._hindsight and len(at) <= _WHOLE_ROWS),
            delay=max(delay, 0),
            late=2 * first >= len(at),
        )

    def _noise_around(self, signal: str, row: int) -> float:
        """Return the noise at a place, which several faults share."""
        if (signal, row) not in self._noise:
            self._noise[signal, row] = noise_of(self._record, signal, around=row)
        return self._noise[signal, row]

    def _in_hindsight(
        self,
        fault: InjectedFault,
        attempt: Attempt,
        first: int,
        changed: tuple[NDArray[np.intp], NDArray[np.float64]],
    ) -> list[Finding]:
        """Return the alarms of rules in hindsight on the rows around a fault."""
        at = self._rows[fault.signal]
        whole = attempt.end_row - attempt.first_row <= _WHOLE_ROWS
        if not whole and not fault.settles:
            return []
        low, high = (
            int(np.searchsorted(at, attempt.first_row)),
            int(np.searchsorted(at, attempt.end_row)),
        )
        begin = attempt.first_row if whole else int(at[max(low, first - _BEFORE_ROWS)])
        stop = min(high, first + fault.num_rows + _AFTER_ROWS)
        end = attempt.end_row if whole else int(at[stop - 1]) + 1
        part = _excerpt(self._record, slice(begin, end), fault.signal, changed)
        # No fault of the table is a shape of the whole curve, and looking for one is dear.
        more = [rule for rule in HINDSIGHT if rule not in LOSS_SHAPES] if whole else []
        rules = [hindsight_findings, excess_findings, *([] if whole else [swell_findings]), *more]
        # Their rows count from the start of the excerpt.
        moved = [_moved(f, begin) for rule in rules for f in rule(part)]
        row = int(at[first])
        return [
            f for f in moved if f.severity != "info" and f.key not in self._alarms and _near(f, row)
        ]


@dataclass(frozen=True)
class _Shadow:
    """The detectors of a judge that read a signal, apart from it."""

    judge: Judge
    places: tuple[int, ...]
    """Their indices in the judge."""
    signal: str
    apart: NDArray[np.bool_]
    """Which of its signals are left out: a fault shows in one, beside what schedules it."""

    @classmethod
    def of(cls, judge: Judge, signal: str) -> "_Shadow":
        # A user's own detector may take a NaN amiss, or keep what it is shown; it is left out.
        ours = tuple(type(d) for d in DETECTORS)
        places = tuple(
            k
            for k, d in enumerate(judge.detectors)
            if signal in d.signals
            and isinstance(d, ours)
            and d.signals[0] not in _LEFT_OUT - {signal}
        )
        own = Judge(tuple(judge.detectors[k] for k in places))
        apart = [n != signal and SIGNAL_BY_NAME[n].bad != "none" for n in own.signals]
        return cls(own, places, signal, np.array(apart, dtype=np.bool_))

    def judge_rows(
        self,
        record: RunRecord,
        state: JudgeState,
        span: slice,
        changed: tuple[NDArray[np.intp], NDArray[np.float64]],
    ) -> tuple[Finding, ...]:
        """Return what is found in rows of a record of which some are changed."""
        if not self.places:
            return ()
        rows = rows_of(record, self.judge.signals, span)
        hit, bad = changed
        rows.values[hit - span.start, self.judge.signals.index(self.signal)] = bad
        rows.present[:, self.apart] = False
        rows.values[:, self.apart] = np.nan
        own = JudgeState(tuple(state.states[k] for k in self.places))
        return self.judge.update_rows(own, rows)[1]


def _quiet(rows: Sequence[int], alarms: Iterable[Finding]) -> list[int]:
    """Return places outside known trouble, where there are enough; else all of them."""
    spans = [(f.onset_row, f.row if f.end_row is None else f.end_row) for f in alarms]
    calm = [row for row in rows if not any(a - 8 <= row <= b + 8 for a, b in spans)]
    return calm if len(calm) >= len(rows) // 3 else list(rows)


def _spread(rows: Sequence[int], most: int) -> list[int]:
    """Return at most so many of some rows, evenly spread over them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[int(k)] for k in (np.arange(most) + 0.5) * len(rows) / most]


def _near(f: Finding, row: int) -> bool:
    """Whether a finding may be of a fault that begins at `row`: its onset is known to its grain."""
    return f.onset_row >= row - max(8, 2 * f.grain_rows)


def _excerpt(
    record: RunRecord,
    span: slice,
    signal: str,
    changed: tuple[NDArray[np.intp], NDArray[np.float64]],
) -> RunRecord:
    """Return rows of one attempt as a record of their own, one signal changed in some of them."""
    columns = {
        n: Column(c.values[span], c.present[span])
        for n, c in record.columns.items()
        # Nothing is changed in them, and the rules on them cost their number each time.
        if not (is_of_rank(n) or n.startswith(OTHER))
    }
    hit, bad = changed
    inside = (hit >= span.start) & (hit < span.stop)
    values = columns[signal].values.copy()
    values[hit[inside] - span.start] = bad[inside]
    columns[signal] = Column(values, columns[signal].present)
    num = span.stop - span.start
    return RunRecord(
        source=record.source,
        format=record.format,
        axis=record.axis,
        attempt=np.zeros(num, dtype=np.int32),
        step=record.step[span],
        columns=columns,
        attempts=(Attempt(number="1.0", first_row=0, end_row=num),),
        facts=record.facts,
    )


def _moved(f: Finding, rows: int) -> Finding:
    return replace(f, row=f.row + rows, onset_row=f.onset_row + rows, peak_row=f.peak_row + rows)
