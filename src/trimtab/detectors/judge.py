"""The judge: all detectors over one stream of rows, live or from a log.

`Judge` is settings, `JudgeState` a value. The guard feeds it step by step; `judge_record` feeds it
stretches of a record, which a detector may take at once (`WholeDetector`) but must judge as if row
by row, so both give the same findings. An attempt that continues another starts from the judge as
it was at the step it resumed from, exactly as a rollback restores it.
"""

import hashlib
import math
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.after_change import AfterChangeDetector
from trimtab.detectors.batch import BatchDetector
from trimtab.detectors.clip_phase import ClipPhaseDetector
from trimtab.detectors.contract import (
    AnyDetector,
    Finding,
    Row,
    Rows,
    state_from_json,
    state_to_json,
    step_through,
)
from trimtab.detectors.corrupt import CorruptDetector
from trimtab.detectors.creep import CreepDetector
from trimtab.detectors.domain_signs import DOMAIN_DETECTORS
from trimtab.detectors.drop import DropDetector
from trimtab.detectors.frozen import FrozenDetector
from trimtab.detectors.guessing import GuessingDetector
from trimtab.detectors.held_out import HeldOutDetector
from trimtab.detectors.layer_gradients import LayerGradientsDetector
from trimtab.detectors.learned_by_heart import LearnedByHeartDetector
from trimtab.detectors.level import CALM_SIGNALS, LevelDetector
from trimtab.detectors.lost_validation import LostValidationDetector
from trimtab.detectors.lr_change import LrChangeDetector
from trimtab.detectors.never_learns import NeverLearnsDetector
from trimtab.detectors.no_gradient import NoGradientDetector
from trimtab.detectors.nonfinite import NonFiniteDetector
from trimtab.detectors.overfitting import OverfittingDetector
from trimtab.detectors.pace import PaceDetector
from trimtab.detectors.policy_break import PolicyBreakDetector
from trimtab.detectors.rate_climb import RateClimbDetector
from trimtab.detectors.rate_ended import RateEndedDetector
from trimtab.detectors.reversal import ReversalDetector
from trimtab.detectors.rewritten import RewrittenDetector
from trimtab.detectors.rough_start import RoughStartDetector
from trimtab.detectors.same_batch import SameBatchDetector
from trimtab.detectors.saturation import SaturationDetector
from trimtab.detectors.scale_collapse import ScaleCollapseDetector
from trimtab.detectors.scale_drift import ScaleDriftDetector
from trimtab.detectors.setting_change import SettingChangeDetector
from trimtab.detectors.settings import load_detectors, with_thresholds
from trimtab.detectors.silent_nan import SilentNanDetector
from trimtab.detectors.skipped import SkippedDetector
from trimtab.detectors.spike import SpikeDetector
from trimtab.detectors.suspect_change import SuspectChangeDetector
from trimtab.detectors.unannounced_change import UnannouncedChangeDetector
from trimtab.errors import ConfigError, ReadError, TrimtabError
from trimtab.kinds import KIND_BY_NAME, SEVERITIES
from trimtab.record import RunRecord

__all__ = [
    "DETECTORS",
    "Judge",
    "JudgeState",
    "JudgedSoFar",
    "judge_record",
    "make_judge",
    "rows_of",
]

DETECTORS: tuple[AnyDetector, ...] = (
    NonFiniteDetector(),
    LostValidationDetector(),
    SpikeDetector(),
    LevelDetector(),
    CreepDetector(),
    DropDetector(),
    ClipPhaseDetector(),
    ReversalDetector(),
    ScaleCollapseDetector(),
    ScaleDriftDetector(),
    LrChangeDetector(),
    SkippedDetector(),
    FrozenDetector(),
    PaceDetector(),
    SaturationDetector(),
    BatchDetector(),
    SameBatchDetector(),
    CorruptDetector(),
    *DOMAIN_DETECTORS,
    PolicyBreakDetector(),
    LevelDetector(name="signs", signals=CALM_SIGNALS),
    SettingChangeDetector(),
    UnannouncedChangeDetector(),
    NeverLearnsDetector(),
    GuessingDetector(),
    RateEndedDetector(),
    RateClimbDetector(),
    LayerGradientsDetector(),
    NoGradientDetector(),
    OverfittingDetector(),
    LearnedByHeartDetector(),
    RoughStartDetector(),
    RewrittenDetector(),
    SilentNanDetector(),
    HeldOutDetector(),
    AfterChangeDetector(),
    SuspectChangeDetector(),
)
"""The built-in detectors with their default settings."""

# A log that names a new metric in every row must not grow the cache for ever.
_MAX_PATTERNS = 256
"""Sets of logged names whose masks are cached; beyond that the cache is emptied."""


@dataclass(frozen=True)
class JudgeState:
    """The states of all detectors, in the order of `Judge.detectors`."""

    states: tuple[object, ...]

    def to_json(self, judge: "Judge") -> dict[str, object]:
        """Return the state as JSON values, by detector name."""
        return {d.name: state_to_json(s) for d, s in zip(judge.detectors, self.states, strict=True)}


@dataclass(frozen=True)
class Judge:
    """A set of detectors."""

    detectors: tuple[AnyDetector, ...] = DETECTORS

    def start(self) -> JudgeState:
        """Return the state before any row."""
        return JudgeState(tuple(d.start() for d in self.detectors))

    @cached_property
    def signals(self) -> tuple[str, ...]:
        """Every signal that some detector reads."""
        return tuple(dict.fromkeys(name for d in self.detectors for name in d.signals))

    @cached_property
    def _places(self) -> tuple[NDArray[np.intp], ...]:
        """The indices of each detector's signals in `signals`."""
        return tuple(
            np.array([self.signals.index(n) for n in d.signals], np.intp) for d in self.detectors
        )

    @cached_property
    def _built_in(self) -> tuple[bool, ...]:
        """Which detectors are built in: looked up for each row, each time with many comparisons."""
        return tuple(d in DETECTORS for d in self.detectors)

    @cached_property
    def _patterns(self) -> dict[tuple[str, ...], list[tuple[int, NDArray[np.bool_]]]]:
        return {}

    def _present(self, names: tuple[str, ...]) -> list[tuple[int, NDArray[np.bool_]]]:
        """Return which detectors a row with these names concerns, each with its mask.

        Rows of a run come in few patterns; what a mask costs is paid once for each.
        """
        known = self._patterns.get(names)
        if known is None:
            known = []
            for k, detector in enumerate(self.detectors):
                mask = np.array([name in names for name in detector.signals], dtype=np.bool_)
                # shared by all rows of the pattern, so no detector may write to it
                mask.setflags(write=False)
                if mask.any():
                    known.append((k, mask))
            if len(self._patterns) >= _MAX_PATTERNS:
                self._patterns.clear()
            self._patterns[names] = known
        return known

    def update(
        self,
        state: JudgeState,
        index: int,
        step: float,
        values: Mapping[str, float],
        *,
        spare: Callable[[AnyDetector, Exception], None] | None = None,
        skip: Collection[str] = (),
    ) -> tuple[JudgeState, tuple[Finding, ...]]:
        """Judge one row.

        Args:
            state: The state after the rows before.
            index: Row number; rises by one per row.
            step: Position on the log's axis.
            values: By canonical name; a signal that was not logged has no key, NaN means NaN.
            spare: Called with a detector that is not built in and the error it raised: the row is
                judged without it, and its state stays. None: the error is raised.
            skip: Names of detectors that are left out; their states stay.

        Returns:
            The new state, and what was found at this row.

        Cost: about 75 microseconds at the median with six signals present, and 0.4 milliseconds in
            rows where blocks end; no device work.
        """
        # Row marks an absent value with NaN and the mask
        packed = np.array([values.get(name, math.nan) for name in self.signals], dtype=np.float64)
        states, found = list(state.states), list[Finding]()
        for k, present in self._present(tuple(values)):
            detector, built_in = self.detectors[k], self._built_in[k]
            if skip and detector.name in skip:
                continue
            row = Row(index, step, packed.take(self._places[k]), present)
            try:
                new, given = detector.update(states[k], row)
                findings = given if built_in else _checked(detector, given)
            except Exception as error:
                if spare is not None and not built_in:
                    spare(detector, error)
                    continue
                raise _named(detector, index, error) from error
            states[k] = new
            found += findings
        return JudgeState(tuple(states)), tuple(found)

    def without(self, names: Collection[str]) -> "Judge":
        """Return the judge without some of its detectors, by name."""
        if not names:
            return self
        return Judge(tuple(d for d in self.detectors if d.name not in names))

    def seeing(self, logged: Container[str]) -> "Judge":
        """Return the judge without the detectors none of whose signals is logged.

        They see no row, and their columns would cost a long log memory for nothing.
        """
        seen = tuple(d for d in self.detectors if any(name in logged for name in d.signals))
        return self if len(seen) == len(self.detectors) else Judge(seen)

    def update_rows(self, state: JudgeState, rows: Rows) -> tuple[JudgeState, tuple[Finding, ...]]:
        """Judge rows one after another, as `update` does; their columns are those of `signals`.

        Returns:
            The state after the last row, and what was found, in row order.

        Cost: about 10 microseconds a row with all signals present, a sixth of what `update` takes;
            a detector that is no `WholeDetector` is fed row by row, which costs 3 to 15 each.
        """
        states: list[object] = []
        found: list[Finding] = []
        logged, full = rows.present.any(axis=0), rows.present.all(axis=0)
        for k, (detector, places) in enumerate(zip(self.detectors, self._places, strict=True)):
            old = state.states[k]
            if not logged.take(places).any():
                states.append(old)
                continue
            present = rows.present.take(places, axis=1)
            some = Rows(rows.index, rows.step, rows.values.take(places, axis=1), present)
            # windows count the rows of a detector's own signals, so rows without any are left out
            if not full.take(places).any():
                mine = present.any(axis=1)
                some = Rows(
                    some.index[mine], some.step[mine], some.values[mine], some.present[mine]
                )
            # as `isinstance(detector, WholeDetector)` asks, which takes longer than many detectors
            take = getattr(detector, "update_rows", None)
            try:
                new, findings = take(old, some) if take else step_through(detector, old, some)
            except Exception as error:
                first = int(some.index[0]) if len(some) else 0
                raise _named(detector, first, error) from error
            states.append(new)
            found += findings if self._built_in[k] else _checked(detector, findings)
        return JudgeState(tuple(states)), tuple(sorted(found, key=lambda f: f.row))

    def state_from_json(self, data: Mapping[str, object]) -> JudgeState:
        """Return the state that `JudgeState.to_json` gave.

        A detector that is not built in, and was not there then, starts with its next row.

        Raises:
            ReadError: It was saved by another version of the detectors.
        """
        # By name, not by place: a checkpoint stays readable where the order of detectors changes.
        missing = [d.name for d in self.detectors if d.name not in data]
        built_in = [d.name for d in DETECTORS if d.name in missing]
        if built_in:
            raise ReadError(
                f"judge state: no state of detector {built_in[0]!r}; start the judge anew"
            )
        return JudgeState(
            tuple(
                d.start() if d.name in missing else state_from_json(d.start(), data[d.name])
                for d in self.detectors
            )
        )


def _named(detector: AnyDetector, row: int, error: Exception) -> Exception:
    """Return an error of a detector with its name; our own errors say enough as they are."""
    # A fault in our own detector keeps its type and trace; it is a bug to be reported as one.
    if isinstance(error, TrimtabError) or detector in DETECTORS:
        return error
    return ConfigError(
        f"detector {detector.name!r} failed at row {row} or later"
        f" ({type(error).__name__}: {error}); mend it, or leave it out"
    )


def _checked(detector: AnyDetector, findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return findings of a user's detector, whose kinds and severities are on the closed lists.

    Raises:
        ConfigError: One is not.
    """
    for finding in findings:
        if not isinstance(finding, Finding):
            raise ConfigError(
                f"detector {detector.name!r} gave {finding!r}; update returns the new state and a"
                " sequence of findings"
            )
        for what, value, known in (
            ("kind", finding.kind, tuple(KIND_BY_NAME)),
            ("severity", finding.severity, SEVERITIES),
        ):
            if value not in known:
                raise ConfigError(
                    f"detector {detector.name!r} gave a finding of {what} {value!r}; choose one of"
                    f" {', '.join(known)}"
                )
    return findings


def make_judge(
    detectors: Iterable[AnyDetector | str] | AnyDetector = (),
    thresholds: Mapping[str, float] | None = None,
) -> Judge:
    """Return a judge with the built-in detectors, further ones, and changed settings.

    The same judge serves a log and a live run, so both give the same findings.

    Args:
        detectors: Further detectors, or names of entry points in the group `trimtab.detectors`.
        thresholds: `detector.setting` -> number, of built-in and of further detectors.

    Raises:
        ConfigError: A name is not known, or a detector refuses a value.

    Example:
        >>> judge = make_judge(thresholds={"spike.threshold_sigma": 12})
        >>> make_judge(thresholds={"spike.sigma": 12})
        Traceback (most recent call last):
        trimtab.errors.ConfigError: thresholds: no detector has the setting 'spike.sigma'...
    """
    further = load_detectors(detectors, taken=(d.name for d in DETECTORS))
    return Judge(with_thresholds((*DETECTORS, *further), thresholds or {}))


class JudgedSoFar:
    """What the last look judged of a log that grows, so that the next judges its new rows alone.

    Rows that read otherwise than before, a signal that was not logged before, and a new attempt
    have the whole log judged again.
    """

    def __init__(self) -> None:
        """Nothing was judged yet."""
        self.state: JudgeState | None = None
        self.findings: tuple[Finding, ...] = ()
        self._judge: Judge | None = None
        self._num_rows = 0
        self._seen: tuple[object, ...] = ()

    def rows_done(self, record: RunRecord, judge: Judge, rows: Rows) -> int:
        """Return how many rows need not be judged again."""
        num = self._num_rows
        same = judge == self._judge and num <= len(rows)
        return num if same and self._seen == _identity(record, rows, num) else 0

    def keep(
        self, record: RunRecord, judge: Judge, rows: Rows, state: JudgeState, found: list[Finding]
    ) -> None:
        """Note what was judged."""
        self.state, self.findings, self._judge = state, tuple(found), judge
        self._num_rows = len(rows)
        self._seen = _identity(record, rows, len(rows))


def _identity(record: RunRecord, rows: Rows, num: int) -> tuple[object, ...]:
    """Return what tells whether the first rows are those of an earlier look."""
    parts = (rows.step[:num], rows.values[:num], rows.present[:num])
    digests = [hashlib.blake2b(np.ascontiguousarray(a).data).digest() for a in parts]
    begins = [(a.first_row, a.number, a.parent, a.parent_step) for a in record.attempts]
    return (*digests, *begins)


def judge_record(
    record: RunRecord,
    judge: Judge | None = None,
    *,
    before: MutableMapping[int, JudgeState] | None = None,
    so_far: JudgedSoFar | None = None,
) -> tuple[Finding, ...]:
    """Return all findings on a record, in row order, each attempt judged from where it resumed.

    Args:
        record: What the run logged.
        judge: The detectors to use; None: the built-in ones.
        before: Rows whose state is wanted; each gets the state in which `judge.seeing` of what the
            record logs meets it.
        so_far: Of the last look at the same log; not with `before`.
    """
    judge = (judge or Judge()).seeing(record.columns)
    wanted = set() if before is None else {row for row in before if 0 <= row < record.num_rows}
    rows = rows_of(record, judge.signals)
    forks = _fork_rows(record)
    begins = {a.first_row: i for i, a in enumerate(record.attempts) if a.first_row < a.end_row}
    resumed = set(forks.values())
    kept: dict[int, JudgeState] = {}
    findings: list[Finding] = []
    state, done = judge.start(), 0
    if so_far is not None and so_far.state is not None:
        done = so_far.rows_done(record, judge, rows)
    if done and so_far is not None and so_far.state is not None:
        state, findings = so_far.state, [*so_far.findings]
    cuts = {done, len(rows), *begins, *(row + 1 for row in resumed), *wanted}
    for first, end in pairwise(sorted(cut for cut in cuts if cut >= done)):
        if first in begins:
            # what a rollback does live: the judge goes back with the run
            state = kept.get(forks[begins[first]], judge.start())
        if before is not None and first in wanted:
            before[first] = state
        state, found = judge.update_rows(state, rows.part(first, end))
        findings += found
        if end - 1 in resumed:
            # states are values, so keeping one costs a reference
            kept[end - 1] = state
    if so_far is not None:
        so_far.keep(record, judge, rows, state, findings)
    return tuple(findings)


def rows_of(record: RunRecord, signals: Sequence[str], span: slice = slice(None)) -> Rows:
    """Return rows of a record with these signals, as a judge takes them; nothing is shared."""
    steps = record.step[span]
    first = span.indices(record.num_rows)[0]
    shape = (len(steps), len(signals))
    values, present = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    for j, name in enumerate(signals):
        column = record.columns.get(name)
        if column is not None:
            logged = column.present[span]
            present[:, j] = logged
            values[logged, j] = column.values[span][logged]
    return Rows(np.arange(first, first + len(steps)), steps, values, present)


def _fork_rows(record: RunRecord) -> dict[int, int]:
    """Return, per attempt, the row after which it continues; -1 where there is none.

    That row lies in its parent, or further up where the parent began later than the resume.
    """
    found = _fork_attempts(record)
    rising: dict[int, bool] = {}
    rows: dict[int, int] = {}
    for i, (parent, limit) in enumerate(found):
        rows[i] = -1
        if parent == i or parent < 0:
            continue
        steps = record.step[record.rows_of(parent)]
        if parent not in rising:
            # Steps may fall within an attempt (an epoch counter), where bisection is wrong.
            rising[parent] = bool(np.all(np.diff(steps) >= 0))
        last = (
            int(np.searchsorted(steps, limit, "right")) - 1
            if rising[parent]
            else int(np.flatnonzero(steps <= limit)[-1])
        )
        rows[i] = record.attempts[parent].first_row + last
    return rows


def _fork_attempts(record: RunRecord) -> list[tuple[int, float]]:
    """Return, per attempt, its nearest ancestor with a row at or below the limit, and the limit.

    The limit is where the attempt resumed, or the lowest of that and where the ancestors passed on
    the way resumed. The ancestor is -1 where there is none, and the attempt itself where its
    parents go round in a circle.

    Ancestors are passed in blocks of 1, 2, 4 ...: of the block that begins at each attempt it is
    known what its lowest reachable step is (NaN: none) and by how much passing it lowers the limit.
    """
    attempts = record.attempts
    nobody = len(attempts)
    by_number = {a.number: i for i, a in enumerate(attempts)}
    above = np.full(nobody + 1, nobody, dtype=np.int64)
    lowest = np.full(nobody + 1, np.nan)
    lowers = np.full(nobody + 1, np.inf)
    limit = np.full(nobody + 1, np.nan)
    for i, attempt in enumerate(attempts):
        if attempt.parent is not None:
            above[i] = by_number.get(attempt.parent, nobody)
        if attempt.parent_step is not None and not math.isnan(attempt.parent_step):
            lowers[i] = attempt.parent_step
        if attempt.first_row == attempt.end_row:
            continue
        # fmin leaves NaN steps out, where min would make the whole attempt unreachable.
        lowest[i] = np.fmin.reduce(record.step[record.rows_of(i)])
        # the log does not say: after the last row before its first step
        limit[i] = (
            np.nextafter(record.step[attempt.first_row], -np.inf)
            if attempt.parent_step is None
            else attempt.parent_step
        )
    blocks = [(lowest, lowers, above)]
    # A log of a crash loop has thousands of attempts; walking each chain costs their square.
    while 1 << len(blocks) <= nobody:
        low, lower, up = blocks[-1]
        reached = np.where(low[up] <= lower, low[up], np.nan)
        blocks.append((np.fmin(low, reached), np.minimum(lower, lower[up]), up[up]))
    at = above
    for low, lower, up in reversed(blocks):
        # Not `>`: a NaN (no row at all) must be passed, and every comparison with NaN is False.
        passed = ~(low[at] <= limit)
        limit = np.where(passed, np.minimum(limit, lower[at]), limit)
        at = np.where(passed, up[at], at)
    at = np.where(lowest[at] <= limit, at, -1)
    return list(zip(at[:nobody].tolist(), limit[:nobody].tolist(), strict=True))
