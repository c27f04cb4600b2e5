"""Every built-in detector keeps the shipped contract, and the contract has teeth."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detectors.contract import Finding, Row
from trimtab.detectors.domain_signs import DOMAIN_DETECTORS
from trimtab.detectors.judge import DETECTORS, Judge, judge_record
from trimtab.testing.contract import (
    CHECKS,
    Ability,
    Check,
    ContractCase,
    check_detector,
    checks_for,
    count_false_alarms,
    eventful_record,
)

FINDS: dict[str, frozenset[Ability]] = {
    "non-finite": frozenset({"non-finite"}),
    "lost-validation": frozenset(),
    "spike": frozenset({"jump", "spike"}),
    "level": frozenset({"jump", "shift"}),
    "creep": frozenset({"jump", "shift"}),
    "drop": frozenset(),
    "clip-phase": frozenset(),
    "reversal": frozenset(),
    "scale-collapse": frozenset({"jump"}),
    "lr-change": frozenset({"jump"}),
    "scale-drift": frozenset(),
    "skipped": frozenset(),
    "frozen": frozenset({"frozen"}),
    "pace": frozenset({"jump"}),
    "saturation": frozenset(),
    "batch": frozenset(),
    "same-batch": frozenset(),
    "corrupt": frozenset(),
    **{d.name: frozenset() for d in DOMAIN_DETECTORS},
    "policy-break": frozenset(),
    "signs": frozenset({"jump", "shift"}),
    "setting-change": frozenset(),
    "unannounced-change": frozenset(),
    "after-change": frozenset(),
    "suspect-change": frozenset(),
    "never-learns": frozenset(),
    "guessing": frozenset(),
    "rate-ended": frozenset(),
    "rate-climb": frozenset(),
    "layer-gradients": frozenset(),
    "no-gradient": frozenset(),
    "overfitting": frozenset(),
    "by-heart": frozenset(),
    "rough-start": frozenset(),
    "rewritten": frozenset(),
    "silent-nan": frozenset(),
    "held-out": frozenset(),
}
CASES = tuple(
    ContractCase(
        detector=d,
        finds=FINDS[d.name],
        signal="loss" if "loss" in d.signals else d.signals[0],
    )
    for d in DETECTORS
)
PAIRS = [(case, check) for case in CASES for check in checks_for(case)]


@pytest.mark.parametrize(
    ("case", "check"), PAIRS, ids=[f"{a.detector.name}-{b.name}" for a, b in PAIRS]
)
def test_a_built_in_detector_keeps_the_contract(case: ContractCase, check: Check) -> None:
    check.run(case)


def test_every_detector_is_held_to_what_all_owe_and_every_check_is_used() -> None:
    universal = {c.name for c in CHECKS if not c.needs}
    for case in CASES:
        assert universal <= {c.name for c in checks_for(case)}
    assert {check.name for _, check in PAIRS} == {c.name for c in CHECKS}


@pytest.mark.slow
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 599), which=st.sampled_from(CASES))
def test_findings_of_any_prefix_are_the_prefix_of_the_findings(
    seed: int, cut: int, which: ContractCase
) -> None:
    record, judge = eventful_record(which, seed), Judge()
    whole = judge_record(record, judge)
    state, found = judge.start(), list[Finding]()
    for row in range(cut):
        logged = {n: float(c.values[row]) for n, c in record.columns.items() if c.present[row]}
        state, new = judge.update(state, row, float(record.step[row]), logged)
        found += new
    assert repr(found) == repr([f for f in whole if f.row < cut])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 106))
@pytest.mark.parametrize("case", [c for c in CASES if c.signal == "loss"], ids=str)
def test_false_alarms_on_more_seeds(case: ContractCase, seed: int) -> None:
    for noise in ("ar1", "t3"):
        for curve in ("flat", "lm"):
            n = count_false_alarms(case, seed, noise=noise, curve=curve, num_rows=20_000)
            assert n <= 1, (noise, curve)


# The contract has teeth: each broken detector fails the check that it breaks


@dataclass(frozen=True)
class Last:
    """State of the toy: the last value and how often it was seen."""

    value: float = 0.0
    num_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """A toy of a third party: a value that doubles from one row to the next."""

    name: str = "doubling"
    signals: tuple[str, ...] = ("loss",)
    flaw: str = ""

    def start(self) -> Last:
        return Last()

    def update(self, state: Last, row: Row) -> tuple[Last, tuple[Finding, ...]]:
        value = float(row.values[0])
        if not np.isfinite(value) and self.flaw != "eats NaN":
            return state, ()
        new = Last(value, state.num_rows + 1)
        up = state.num_rows > 0 and not value < 1.9 * state.value
        at_last = state.num_rows == 5 if self.flaw == "noisy" else False
        if self.flaw == "for ever" and state.num_rows > 20:
            up, new = value > 1.5 * state.value, replace(state, num_rows=state.num_rows + 1)
        if self.flaw == "blind":
            up = False
        if not (up or at_last):
            return new, ()
        finding = Finding(
            detector=self.name,
            kind="spike",
            signal="loss",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=row.index + (self.flaw == "foresees"),
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=value,
            expected=state.value,
            score=2.0,
            text="doubled",
        )
        return new, (finding,)


def test_a_sound_detector_of_a_third_party_passes() -> None:
    check_detector(Doubling(), finds=["jump"])


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ("eats NaN", "NaN enters no statistic"),
        ("noisy", "quiet|alarm"),
        ("for ever", "a plateau is one condition"),
        ("blind", "sees on after NaN"),
        ("foresees", "rows in order"),
    ],
)
def test_a_flawed_detector_fails(flaw: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_detector(Doubling(flaw=flaw), finds=["jump"])


class Counting:
    """Keeps its state in itself, as no detector may."""

    name = "counting"
    signals = ("loss",)

    def __init__(self) -> None:
        self.seen = 0

    def start(self) -> Last:
        return Last()

    def update(self, state: Last, row: Row) -> tuple[Last, tuple[Finding, ...]]:
        self.seen += 1
        finding = Finding(
            detector="counting",
            kind="spike",
            signal="loss",
            severity="info",
            row=row.index,
            step=row.step,
            onset_row=row.index,
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=float(self.seen),
            expected=0.0,
            score=0.0,
            text="counted",
        )
        return state, (finding,)


def test_a_detector_that_hides_its_state_fails() -> None:
    hidden: Any = Counting()
    with pytest.raises(AssertionError, match="no look-ahead"):
        check_detector(hidden)
