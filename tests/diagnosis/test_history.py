"""Lineage, learning-rate jumps, warm-up ends, recurrences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trimtab.diagnosis.history import (
    comes_back,
    find_lr_jump,
    find_recurrence,
    find_warm_up_end,
    rows_before,
    warm_up_label,
)
from trimtab.incidents import Incident
from trimtab.record import RecordBuilder, RunRecord


def schedule(n: int, *, peak: float = 1e-3, warm_up: int = 50) -> NDArray[np.float64]:
    t = np.arange(1, n + 1)
    cosine = 0.5 * peak * (1 + np.cos(np.pi * np.clip((t - warm_up) / 1000, 0, 1)))
    return np.asarray(np.where(t <= warm_up, peak * t / warm_up, cosine))


def incident(attempt: str, onset: float, row: int, *, severity: str = "critical") -> Incident:
    return Incident(
        kind="unrecovered-spike",
        attempt=attempt,
        severity=severity,  # type: ignore[arg-type]
        onset_row=row,
        onset=onset,
        peak_row=row,
        peak=onset,
        signals=("loss",),
        headline="",
    )


def two_attempts(*, parent_step: float | None, seeds: tuple[str, str] = ("42", "43")) -> RunRecord:
    """Steps of the tr8-104B chronicle: 7000, 7010, 7220, then 6900 to 6940 after a restart."""
    builder = RecordBuilder("tr8", "megatron")
    builder.start_attempt(number="1.0", settings={"seed": seeds[0]})
    for step, loss in ((7000, 6.44), (7010, 11.42), (7220, 7.16)):
        builder.add(step, {"loss": loss})
    builder.start_attempt(number="2.0", parent_step=parent_step, settings={"seed": seeds[1]})
    for step, loss in ((6900, 6.37), (6910, 6.6), (6920, 7.31), (6930, 9.12), (6940, 10.24)):
        builder.add(step, {"loss": loss})
    return builder.build()


def test_warm_up_and_cosine_are_no_jump() -> None:
    lr = schedule(600)
    steps = np.arange(1.0, 601)
    assert all(find_lr_jump(steps[:n], lr[:n]) is None for n in range(5, 600, 7))


@given(at=st.integers(min_value=70, max_value=500), ratio=st.floats(min_value=1.6, max_value=50))
def test_a_jump_after_the_warm_up_is_found_where_it_set_in(at: int, ratio: float) -> None:
    lr = schedule(at + 20)
    lr[at:] *= ratio
    jump = find_lr_jump(np.arange(1.0, at + 21), lr)
    assert jump is not None
    assert jump.index == at
    assert jump.ratio == pytest.approx(ratio, rel=0.05)  # the cosine moves a little meanwhile


def test_a_ramp_to_a_far_higher_rate_is_a_jump() -> None:
    lr = np.concatenate([schedule(300), schedule(300)[-1] * np.linspace(1, 10, 30)])
    jump = find_lr_jump(np.arange(1.0, 331), lr)
    assert jump is not None
    assert jump.ratio == pytest.approx(10, rel=0.01)


def test_a_new_warm_up_after_a_restart_is_no_jump() -> None:
    lr = np.concatenate([schedule(300), schedule(300)[-1] * np.linspace(0.02, 1, 60)])
    assert find_lr_jump(np.arange(1.0, 361), lr) is None


def test_a_schedule_with_restarts_comes_back_and_a_warm_up_does_not() -> None:
    steps = np.arange(300)
    assert not comes_back(schedule(300))
    assert not comes_back(np.array([]))
    assert not comes_back(np.where(steps < 150, 1.0, 0.1))
    for decay in (1.0, 0.7):
        assert comes_back(decay ** (steps // 100) * (1.001 + np.cos(np.pi * (steps % 100) / 100)))


def test_a_jump_long_ago_is_not_put_before_the_incident() -> None:
    lr = np.concatenate([np.full(100, 1e-4), np.full(400, 1e-3)])
    assert find_lr_jump(np.arange(1.0, 501), lr) is None


def test_end_of_warm_up() -> None:
    assert find_warm_up_end(schedule(300, warm_up=80)) == 79
    assert find_warm_up_end(np.full(100, 6e-5)) is None  # an excerpt says nothing
    assert find_warm_up_end(schedule(40, warm_up=80)) is None  # still rising


@pytest.mark.covers("S55")
def test_events_near_the_end_of_warm_up_are_labelled() -> None:
    # BigScience tr8-104B tries 1 and 2, in samples, and tr1-13B, in steps.
    assert warm_up_label(260_912, 216_320) == "warm-up end"
    assert warm_up_label(252_272, 216_320) == "warm-up end"
    assert warm_up_label(29_000, 25_000) == "warm-up end"
    assert warm_up_label(4 * 216_320, 216_320) == ""
    assert warm_up_label(100, 0) == ""


@pytest.mark.covers("S41")
def test_recurs_k_steps_earlier() -> None:
    record = two_attempts(parent_step=6210)
    again = find_recurrence(record, incident("2.0", 6920, 5), [incident("1.0", 7010, 1)])
    assert again is not None
    assert again.sooner_by == 90
    assert again.resumed_at == 6210
    assert again.failed_distance == 800
    assert again.other_data is True
    assert again.data_change == "seed 42 -> 43"


def test_same_seed_is_the_same_data() -> None:
    record = two_attempts(parent_step=6210, seeds=("42", "42"))
    again = find_recurrence(record, incident("2.0", 6920, 5), [incident("1.0", 7010, 1)])
    assert again is not None
    assert again.other_data is False


def test_an_excerpt_does_not_say_where_it_resumed() -> None:
    record = two_attempts(parent_step=None)
    again = find_recurrence(record, incident("2.0", 6920, 5), [incident("1.0", 7010, 1)])
    assert again is not None
    assert again.resumed_at is None


def test_what_is_no_recurrence() -> None:
    record = two_attempts(parent_step=6210)
    here = incident("2.0", 6920, 5)
    assert find_recurrence(record, here, []) is None
    assert find_recurrence(record, here, [incident("1.0", 7010, 1, severity="info")]) is None
    assert find_recurrence(record, here, [incident("2.0", 6910, 4)]) is None
    assert find_recurrence(record, here, [incident("1.0", 6000, 0)]) is None  # before the restart
    first = incident("1.0", 7010, 1)
    assert find_recurrence(record, first, [here]) is None  # a later attempt is not the past


def test_rows_before_leave_the_dead_branch_out() -> None:
    builder = RecordBuilder("x", "csv")
    for step in range(1, 11):
        builder.add(step, {"loss": 1.0})
    builder.start_attempt(number="1.1", parent_step=6)
    for step in range(7, 12):
        builder.add(step, {"loss": 1.0})
    record = builder.build()
    rows = rows_before(record, 1, 13)
    assert record.step[rows].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
