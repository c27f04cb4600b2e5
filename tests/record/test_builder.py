"""The record: attempts out of falling steps, merged rows, missing apart from NaN."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.record import Column, RecordBuilder, RunRecord

ROWS = st.lists(
    st.tuples(st.integers(1, 12), st.one_of(st.none(), st.floats(-5, 5), st.just(math.nan))),
    max_size=40,
)


def build(rows: list[tuple[int, float | None]]) -> RunRecord:
    builder = RecordBuilder("made up", "test")
    for step, loss in rows:
        builder.add(step, {} if loss is None else {"loss": loss})
    return builder.build()


def test_steps_that_fall_start_an_attempt() -> None:
    record = build([(1, 3.0), (2, 2.0), (3, 1.0), (2, 2.5), (3, 2.4)])
    assert [a.number for a in record.attempts] == ["1.0", "1.1"]
    assert [(a.first_row, a.end_row) for a in record.attempts] == [(0, 3), (3, 5)]
    assert record.attempts[1].parent == "1.0"
    assert record.step[record.lineage_rows()].tolist() == [1, 2, 3]
    assert record.lineage_rows().tolist() == [0, 3, 4]


def test_missing_is_not_nan() -> None:
    record = build([(1, 3.0), (2, None), (3, math.nan)])
    loss = record.columns["loss"]
    assert loss.present.tolist() == [True, False, True]
    assert math.isnan(loss.values[2])
    assert record.num_loss_rows == 2


def test_same_step_merges_and_the_first_value_stands() -> None:
    builder = RecordBuilder("made up", "test")
    builder.add(5, {"loss": 2.0})
    builder.add(5, {"val_loss": 2.1})
    builder.add(5, {"loss": 9.0})
    record = builder.build()
    assert record.num_rows == 1
    assert record.columns["loss"].values.tolist() == [2.0]
    assert record.columns["val_loss"].values.tolist() == [2.1]
    assert record.notes == ("values repeated at the same step: 1 left out",)


@pytest.mark.parametrize(("step", "row"), [(10, 0), (15, 1), (20, 1)])
def test_a_late_validation_value_is_no_restart(step: int, row: int) -> None:
    builder = RecordBuilder("made up", "test")
    for s in (10, 20, 30):
        builder.add(s, {"loss": 2.0})
    builder.add(step, {"val_loss": 7.0})
    record = builder.build()
    assert len(record.attempts) == 1
    assert record.columns["val_loss"].present.nonzero()[0].tolist() == [row]


def test_numbers_go_on_from_the_last_one_and_never_collide() -> None:
    builder = RecordBuilder("made up", "test")
    builder.start_attempt(number="12.3", settings={"seed": "7"}, why="told")
    builder.add(10, {"loss": 1.0})
    builder.add(5, {"loss": 1.0})
    builder.start_attempt(number="12.4", parent="12.3", parent_step=8, trial=True)
    builder.add(9, {"loss": 1.0})
    record = builder.build()
    assert [a.number for a in record.attempts] == ["12.3", "12.5", "12.4"]
    assert record.attempts[0].settings == {"seed": "7"}
    assert (record.attempts[2].parent, record.attempts[2].parent_step) == ("12.3", 8.0)
    assert record.attempts[2].trial


def test_many_falls_are_remarked_on() -> None:
    record = build([(s, 1.0) for _ in range(30) for s in (1, 2)])
    assert any("falls back 29 times" in note for note in record.notes)


@given(ROWS)
def test_rows_keep_file_order_and_attempts_tile_them(
    rows: list[tuple[int, float | None]],
) -> None:
    record = build(rows)
    assert [a.first_row for a in record.attempts[1:]] == [a.end_row for a in record.attempts[:-1]]
    for index, attempt in enumerate(record.attempts):
        steps = record.step[attempt.first_row : attempt.end_row]
        assert (np.diff(steps) > 0).all()
        assert (record.attempt[attempt.first_row : attempt.end_row] == index).all()


@given(ROWS, st.integers(0, 40))
def test_a_prefix_of_the_rows_gives_a_prefix_of_the_record(
    rows: list[tuple[int, float | None]], length: int
) -> None:
    whole, part = build(rows), build(rows[:length])
    assert part.step.tolist() == whole.step[: part.num_rows].tolist()
    if "loss" in part.columns:
        settled = part.num_rows - 1  # a later line at the same step may still add to the last row
        np.testing.assert_array_equal(
            part.columns["loss"].values[:settled], whole.columns["loss"].values[:settled]
        )


@given(st.lists(ROWS, max_size=4))
def test_extend_is_add_for_each_row(parts: list[list[tuple[int, float | None]]]) -> None:
    bulk = RecordBuilder("made up", "test")
    for part in parts:
        steps = np.array([s for s, _ in part], dtype=np.float64)
        values = np.array([math.nan if v is None else v for _, v in part], dtype=np.float64)
        present = np.array([v is not None for _, v in part], dtype=np.bool_)
        bulk.extend(steps, {"loss": Column(values, present)})
    got, want = bulk.build(), build([row for part in parts for row in part])
    assert got.step.tolist() == want.step.tolist()
    assert got.attempts == want.attempts
    assert got.notes == want.notes
    if want.num_loss_rows:
        np.testing.assert_array_equal(got.columns["loss"].values, want.columns["loss"].values)
        np.testing.assert_array_equal(got.columns["loss"].present, want.columns["loss"].present)
