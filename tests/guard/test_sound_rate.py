"""The rate to go back to, in a schedule whose rate comes back."""

import math
from dataclasses import replace

import pytest

from tests.guard.test_by_design import alarm
from trimtab.guard.recovery.learning_rate import find_lr_jump, lr_rise, sound_lr
from trimtab.incidents import Incident
from trimtab.record import RecordBuilder, RunRecord
from trimtab.vocabulary import Severity

HIGH = 3e-3


def cycles(factor: float) -> RunRecord:
    """Cycles of 100 steps, the last of which is so many times as high."""
    builder = RecordBuilder("run", "jsonl")
    for t in range(1, 311):
        rate = HIGH * (0.501 + 0.5 * math.cos(math.pi * ((t - 1) % 100) / 100))
        builder.add(t, {"loss": 1.0, "lr": rate * (factor if t > 300 else 1.0)})
    return builder.build()


def trouble(value: float, severity: Severity) -> Incident:
    rate = replace(
        alarm(301, "setting-jump", "lr-change"),
        signal="lr", value=value, expected=3e-6, severity=severity,
    )  # fmt: skip
    return Incident(
        kind="spike", attempt="1.0", severity="warning", onset_row=302, onset=303, peak_row=302,
        peak=303, end_row=None, end=None, signals=("loss",), headline="", findings=(rate,),
    )  # fmt: skip


def test_rate_to_go_back_to_is_the_highest_that_was_in_force_not_the_trough() -> None:
    record = cycles(30.0)
    jump = find_lr_jump(trouble(30 * HIGH, "warning"), record, ())
    assert jump is not None
    assert jump.before == pytest.approx(HIGH, rel=0.01)


def test_rate_that_came_back_is_neither_a_jump_nor_a_rise() -> None:
    record = cycles(1.0)
    assert find_lr_jump(trouble(HIGH, "info"), record, ()) is None
    assert lr_rise(record, 303, ()) == (False, None)
    assert sound_lr(record, 299, HIGH, ()) == HIGH
    assert sound_lr(record, 99, HIGH, ()) < HIGH / 100  # it has not come back by then


def test_a_jump_is_the_scripts_and_its_rates_are_those_before_the_guards_factors() -> None:
    builder = RecordBuilder("run", "jsonl")
    for t in range(1, 311):
        builder.add(t, {"loss": 1.0, "lr": 0.1 * HIGH * (3.0 if t > 300 else 1.0)})
    record = builder.build()
    rate = replace(
        alarm(301, "setting-jump", "lr-change"), signal="lr", value=0.3 * HIGH, expected=0.1 * HIGH
    )
    found = replace(trouble(0.3 * HIGH, "warning"), findings=(rate,))
    jump = find_lr_jump(found, record, ((0, 0.1),))
    assert jump is not None
    assert (jump.before, jump.after) == pytest.approx((HIGH, 3 * HIGH))
    # the guard itself has given a part of its cut back
    assert find_lr_jump(found, record, ((0, 0.1), (301, 3.0))) is None
