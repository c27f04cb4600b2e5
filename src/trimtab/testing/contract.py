"""The contract of a detector, as checks that you can run on a detector of your own.

    from trimtab.testing.contract import ContractCase, check_detector

    check_detector(MyDetector(), finds=["spike"])  # raises AssertionError, naming the check

or one test per check: `@pytest.mark.parametrize("check", checks_for(case))`, then
`check.run(case)`.

What every detector owes is always checked: NaN and Inf enter no statistic, flat input is quiet,
nothing looks ahead, live and offline agree, the state is a value that survives JSON, a lucky batch
locks nothing up, quiet runs raise at most one alarm per 20,000 rows. What it says it finds
(`finds`) is checked besides. All curves are simulated; the seeds from 100 on are for evaluation.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Detector, Finding, Rows
from trimtab.detectors.judge import Judge, JudgeState, judge_record
from trimtab.detectors.nonfinite import NonFiniteDetector
from trimtab.kinds import KIND_BY_NAME
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.curves import CurveKind, NoiseKind, make_quiet
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = [
    "CHECKS",
    "Ability",
    "Check",
    "ContractCase",
    "check_detector",
    "checks_for",
    "count_false_alarms",
    "eventful_record",
    "find_all",
]

Ability = Literal["non-finite", "jump", "spike", "shift", "frozen"]
"""non-finite: NaN and Inf. jump: a lasting change to several times the level. spike: rows far above
the level, also soon after another. shift: a lasting +6 % of a signal on a linear scale.
frozen: a value that repeats itself, so that a constant is told once instead of never."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ContractCase:
    """A detector, what it says it finds, and the signal it is tested on."""

    detector: Detector[Any]
    finds: frozenset[Ability] = frozenset()
    signal: str = "loss"

    def __str__(self) -> str:
        return self.detector.name

    @property
    def linear(self) -> bool:
        """Whether the signal's noise is even on a linear scale."""
        return SIGNAL_BY_NAME[self.signal].scale == "linear"

    @property
    def jump(self) -> float:
        """Factor of a change that nobody could miss, in the bad direction."""
        down = SIGNAL_BY_NAME[self.signal].bad == "down"
        return 1 / 64 if down else 2.0 if self.linear else 8.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise; `needs` names the abilities of which a case must have one, none for all."""

    name: str
    run: Callable[[ContractCase], None]
    needs: frozenset[Ability] = frozenset()

    def __str__(self) -> str:
        return self.name


def check_detector(
    detector: Detector[Any], *, finds: Iterable[Ability] = (), signal: str | None = None
) -> None:
    """Hold a detector to the whole contract.

    Args:
        detector: Any object with the form of `trimtab.detectors.contract.Detector`.
        finds: What it says it finds; the default holds it only to what every detector owes.
        signal: The signal to test on; the default is the loss, or else its first signal.

    Raises:
        AssertionError: A check failed; the message names it.

    Cost: about 10 seconds, most of it for the false alarms.
    """
    chosen = signal or ("loss" if "loss" in detector.signals else detector.signals[0])
    case = ContractCase(detector=detector, finds=frozenset(finds), signal=chosen)
    for check in checks_for(case):
        check.run(case)


def checks_for(case: ContractCase) -> tuple[Check, ...]:
    """Return the checks that apply to a case."""
    return tuple(c for c in CHECKS if not c.needs or c.needs & case.finds)


def find_all(
    detector: Detector[Any], columns: Mapping[str, Floats], *, nan_is_missing: bool = False
) -> tuple[Finding, ...]:
    """Return the findings of one detector, fed row by row; steps are rows + 1."""
    judge = Judge((detector,))
    state, findings = judge.start(), list[Finding]()
    for i in range(len(next(iter(columns.values())))):
        row = {name: float(values[i]) for name, values in columns.items()}
        if nan_is_missing:
            row = {name: value for name, value in row.items() if np.isfinite(value)}
        state, found = judge.update(state, i, i + 1.0, row)
        findings += found
    return tuple(findings)


def count_false_alarms(
    case: ContractCase, seed: int, *, noise: NoiseKind, curve: CurveKind, num_rows: int
) -> int:
    """Return how many alarms (warning or critical, one per condition) a quiet run raises.

    A detector that can take many rows at once does, as it does of a log: a tenth of the time.
    """
    judge = Judge((case.detector,))
    index = np.arange(num_rows)
    values = np.full((num_rows, len(judge.signals)), np.nan)
    column = judge.signals.index(case.signal)
    values[:, column] = make_quiet(case.signal, num_rows, seed, noise=noise, curve=curve)
    rows = Rows(index, (index + 1).astype(np.float64), values, ~np.isnan(values))
    return len(_alarms(judge.update_rows(judge.start(), rows)[1]))


def eventful_record(
    case: ContractCase, seed: int, *, num_rows: int = 600, fork: bool = False
) -> RunRecord:
    """Return a record of all the detector's signals with a jump, single outliers, NaN and gaps.

    With `fork`, a second attempt resumes from two thirds of the first, in the middle of the jump.
    """
    rng = np.random.default_rng(seed)
    columns = {
        n: make_quiet(n, num_rows, seed + 1000 + i) for i, n in enumerate(case.detector.signals)
    }
    main = columns[case.signal]
    main[num_rows // 2 : num_rows * 3 // 4] *= case.jump
    main[[num_rows // 3, num_rows // 3 + 1]] *= case.jump
    main[num_rows // 5], main[num_rows * 4 // 5] = np.nan, np.inf
    missing = {n: rng.random(num_rows) < 0.05 for n in columns}
    builder = RecordBuilder("eventful", "simulated")
    for i in range(num_rows):
        builder.add(i + 1.0, {n: float(v[i]) for n, v in columns.items() if not missing[n][i]})
    if fork:
        resumed = num_rows * 2 // 3
        builder.start_attempt(number="1.1", parent="1.0", parent_step=float(resumed))
        for i in range(resumed, num_rows):
            builder.add(i + 1.0, {n: float(v[i - resumed // 2]) for n, v in columns.items()})
    return builder.build()


def _alarms(findings: Iterable[Finding]) -> dict[tuple[str, str, int], Finding]:
    """Return the last telling of each condition that was an alarm at its last telling or before."""
    told: dict[tuple[str, str, int], Finding] = {}
    for f in findings:
        if f.severity != "info" or f.key in told:
            told[f.key] = f
    return told


def _require(ok: object, case: ContractCase, check: str, said: str) -> None:
    if not ok:
        raise AssertionError(f"{case.detector.name} on {case.signal}: {check}: {said}")


def _tell(findings: Iterable[Finding]) -> str:
    lines = [f"row {f.row}: {f.kind} since row {f.onset_row}, {f.text}" for f in findings]
    return "; ".join(lines[:6]) or "nothing was found"


def _values_of(record: RunRecord, row: int) -> dict[str, float]:
    return {n: float(c.values[row]) for n, c in record.columns.items() if c.present[row]}


# What every detector owes


def check_well_formed(case: ContractCase) -> None:
    """Check that findings name seen rows, the detector's signals and known kinds, and are few."""
    record = eventful_record(case, 100)
    findings = judge_record(record, Judge((case.detector,)))
    for f in findings:
        ok = 0 <= f.onset_row <= f.peak_row <= f.row and f.onset == record.step[f.onset_row]
        ok = ok and (f.end_row is None or f.onset_row <= f.end_row <= f.row)
        _require(ok and f.step == record.step[f.row], case, "rows in order", _tell([f]))
        _require(f.signal in case.detector.signals, case, "signal is its own", _tell([f]))
        _require(f.kind in KIND_BY_NAME, case, "kind is of the list", _tell([f]))
    for key, times in Counter(f.key for f in findings).items():
        _require(times <= 3, case, "at most three tellings", f"{times} of {key}")


def check_no_look_ahead(case: ContractCase) -> None:
    """The findings of a prefix are the prefix of the findings."""
    record = eventful_record(case, 101)
    judge = Judge((case.detector,))
    whole = judge_record(record, judge)
    rng = np.random.default_rng(101)
    for cut in sorted(rng.integers(1, record.num_rows, 12).tolist()):
        state, found = judge.start(), list[Finding]()
        for row in range(cut):
            state, new = judge.update(state, row, float(record.step[row]), _values_of(record, row))
            found += new
        expected = [f for f in whole if f.row < cut]
        _require(_same(found, expected), case, f"no look-ahead, cut at {cut}", _tell(found))


def check_live_is_offline(case: ContractCase) -> None:
    """A record read at once and fed step by step agree, across a rollback too."""
    record = eventful_record(case, 102, fork=True)
    judge = Judge((case.detector,))
    again, resumed = record.attempts[1].first_row, record.attempts[1].parent_step
    state, live, saved = judge.start(), list[Finding](), ""
    for row in range(record.num_rows):
        if row == again:  # as a guard does: back from the checkpoint
            state = judge.state_from_json(json.loads(saved))
        step = float(record.step[row])
        state, found = judge.update(state, row, step, _values_of(record, row))
        live += found
        if row < again and step == resumed:
            saved = _dump(judge, state)
    offline = judge_record(record, judge)
    _require(_same(live, offline), case, "live = offline", f"{_tell(live)} / {_tell(offline)}")


def check_state_survives_json(case: ContractCase) -> None:
    """The state goes through JSON bit by bit, at any row, and `update` leaves the old one alone."""
    record = eventful_record(case, 103)
    judge = Judge((case.detector,))
    straight, saved = judge.start(), judge.start()
    for row in range(record.num_rows):
        step, values = float(record.step[row]), _values_of(record, row)
        after, said = judge.update(straight, row, step, values)
        again, told = judge.update(saved, row, step, values)
        _require(_same(said, told), case, "state survives JSON", f"differs at row {row}")
        if row % 6 == 0:  # rows with NaN and Inf among them
            text = _dump(judge, again)
            _require(text == _dump(judge, after), case, "state survives JSON", f"row {row}")
            judge.update(again, row + 1, step + 1, values)
            _require(text == _dump(judge, again), case, "update changes no state", f"row {row}")
            again = judge.state_from_json(json.loads(text))
        straight, saved = after, again


def _same(found: Iterable[Finding], expected: Iterable[Finding]) -> bool:
    """Whether the findings are equal field by field; a NaN equals itself here."""
    return repr(list(found)) == repr(list(expected))


def _dump(judge: Judge, state: JudgeState) -> str:
    return json.dumps(state.to_json(judge), allow_nan=False)


def check_nonfinite_does_not_blind(case: ContractCase) -> None:
    """One NaN and one Inf are told by the judge and change nothing of what else is found."""
    values = make_quiet(case.signal, 800, 104)
    values[600:] *= case.jump
    values[150], values[300] = np.nan, np.inf
    if case.signal in NonFiniteDetector().signals:
        told = find_all(NonFiniteDetector(), {case.signal: values})
        rows = [f.onset_row for f in told if not f.closed]
        _require(rows == [150, 300], case, "NaN and Inf are told", _tell(told))
    if "non-finite" not in case.finds:
        found = find_all(case.detector, {case.signal: values})
        expected = find_all(case.detector, {case.signal: values}, nan_is_missing=True)
        _require(_same(found, expected), case, "NaN enters no statistic", _tell(found))
        seen = any(f.onset_row >= 584 for f in found) or "jump" not in case.finds
        _require(seen, case, "sees on after NaN", _tell(found))


def check_flat_input(case: ContractCase) -> None:
    """A constant says nothing (once, if it finds those).

    A jump out of it is found where jumps are.
    """
    values = np.full(800, float(make_quiet(case.signal, 1, 0, noise="none")[0]))
    values[600:] *= case.jump
    found = find_all(case.detector, {case.signal: values})
    early = [f for f in found if f.row < 600]
    told = 1 if "frozen" in case.finds else 0
    _require(len(early) == told, case, "flat input is quiet", _tell(early))
    seen = any(600 - 16 <= f.onset_row <= 616 for f in found) or "jump" not in case.finds
    _require(seen, case, "a jump out of flat input is found", _tell(found))


def check_lucky_batch(case: ContractCase) -> None:
    """One batch 20 % below the level (100 % above, where low is bad) locks nothing up."""
    values = make_quiet(case.signal, 3000, 105)
    lucky = 2.0 if case.jump < 1 else 0.8
    values[400] *= lucky
    found = _alarms(find_all(case.detector, {case.signal: values})).values()
    _require(not found, case, "a lucky batch raises no alarm", _tell(found))
    values[600:] *= case.jump
    later = find_all(case.detector, {case.signal: values})
    seen = any(584 <= f.onset_row <= 616 for f in later) or "jump" not in case.finds
    _require(seen, case, "no lock-up after a lucky batch", _tell(later))


def check_false_alarms(case: ContractCase) -> None:
    """At most one alarm per 20,000 quiet rows, AR(1) 0.9 and Student t3, flat and falling."""
    noises: tuple[NoiseKind, ...] = ("ar1", "t3")
    curves: tuple[CurveKind, ...] = ("flat", "lm") if case.linear else ("flat",)
    for noise in noises:
        for curve in curves:
            n = count_false_alarms(case, 100, noise=noise, curve=curve, num_rows=20_000)
            _require(n <= 1, case, "false alarms", f"{n} in 20,000 rows of {noise}, {curve}")


# What some detectors find


def check_finds_nonfinite(case: ContractCase) -> None:
    """NaN and Inf are told at their row, and their end at the next finite one."""
    values = make_quiet(case.signal, 300, 106)
    values[100], values[200] = np.nan, np.inf
    found = find_all(case.detector, {case.signal: values})
    rows = [(f.row, f.onset_row, f.closed) for f in found]
    expected = [(100, 100, False), (101, 100, True), (200, 200, False), (201, 200, True)]
    _require(rows == expected, case, "NaN and Inf found", _tell(found))


def check_spike_after_spike(case: ContractCase) -> None:
    """A row at 100 times the level hides neither of the smaller ones 30 and 60 rows later."""
    values = make_quiet(case.signal, 800, 107)
    values[500] *= 100.0
    values[[530, 560]] *= 6.7
    found = find_all(case.detector, {case.signal: values})
    onsets = {f.onset_row for f in found if "spike" in f.kind}
    _require(onsets == {500, 530, 560}, case, "spike after spike", _tell(found))


def check_plateau(case: ContractCase) -> None:
    """A plateau of 1000 rows is one condition, never called over, and hides no later jump."""
    values = make_quiet(case.signal, 3200, 108)
    values[600:1600] *= case.jump
    values[2600:] *= case.jump
    found = find_all(case.detector, {case.signal: values})
    here = [f for f in found if 584 <= f.onset_row < 1584]
    _require(len({f.key for f in here}) == 1, case, "a plateau is one condition", _tell(here))
    over = [f for f in here if f.row < 1600 and f.end_row is not None]
    _require(not over, case, "a plateau is not over before it is", _tell(over))
    again = [f for f in found if 2584 <= f.onset_row <= 2616]
    _require(bool(again), case, "the next jump is found", _tell(found))


def check_regime_change(case: ContractCase) -> None:
    """A harmless +27 % (+6 %, if it finds shifts) for good is told once and accepted once."""
    _check_accepted(case, 1.27)
    if "shift" in case.finds:
        _check_accepted(case, 1.06)


def _check_accepted(case: ContractCase, factor: float) -> None:
    check = f"a lasting {factor:.2f} is told once, then accepted"
    for seed in (109, 110, 111):
        values = make_quiet(case.signal, 6000, seed)
        values[1000:] *= factor if case.linear else case.jump
        found = find_all(case.detector, {case.signal: values})
        told = list(_alarms(found).values()) if case.signal == "loss" else list(found)[-1:]
        once = len({f.key for f in told}) == 1 and 984 <= told[0].onset_row <= 1016
        _require(once, case, check, _tell(found))
        accepted = told[0].closed and told[0].end_row is None and told[0].row <= 1400
        _require(accepted, case, check + " within 400 rows", _tell(found))


def _check(run: Callable[[ContractCase], None], *needs: Ability) -> Check:
    return Check(name=run.__name__.removeprefix("check_"), run=run, needs=frozenset(needs))


CHECKS: tuple[Check, ...] = (
    _check(check_well_formed),
    _check(check_no_look_ahead),
    _check(check_live_is_offline),
    _check(check_state_survives_json),
    _check(check_nonfinite_does_not_blind),
    _check(check_flat_input),
    _check(check_lucky_batch),
    _check(check_false_alarms),
    _check(check_finds_nonfinite, "non-finite"),
    _check(check_spike_after_spike, "spike"),
    _check(check_plateau, "jump"),
    _check(check_regime_change, "spike", "shift"),
)
"""The whole contract; `checks_for` chooses what applies."""
