"""TensorBoard event files: both forms of scalars, several files, restarts, damage."""

import gzip
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.logs.event_logs import Form, encode_event, frame, write_event_file
from trimtab.errors import ReadError
from trimtab.readers import read, read_each, read_run
from trimtab.readers.crc32c import byte_effects, crc32c, crc32c_rows
from trimtab.readers.given_columns import columns_given
from trimtab.readers.tags import choose_tags, might_be_loss, signal_of_tag
from trimtab.readers.tensorboard import TensorBoardReader
from trimtab.readers.tfevents import parse_events
from trimtab.readers.tfrecord import find_frames
from trimtab.record import RunRecord

NAME = "events.out.tfevents.1700000000.host.1.0"


def steps_of(first: int, end: int, by: int = 1) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(first, end, by, dtype=np.int64)


def write(
    path: Path,
    first: int = 1,
    end: int = 301,
    *,
    wall: float = 1.7e9,
    form: Form = "simple",
    level: float = 2.0,
) -> Path:
    steps = steps_of(first, end)
    noise = np.random.default_rng(first).standard_normal(len(steps)).astype(np.float32)
    columns = {
        "train/loss": (level + noise).astype(np.float64),
        "train/lr": np.full(len(steps), 0.5),
        "perf/tokens": noise.astype(np.float64),
    }
    return write_event_file(path, columns, steps, first_wall_s=wall, form=form)


@pytest.mark.parametrize("form", ["simple", "tensor", "tensor-content"])
def test_both_forms_of_scalars(tmp_path: Path, form: Form) -> None:
    record = read_run(write(tmp_path / NAME, end=20_001, form=form))
    assert (record.format, record.axis, record.num_loss_rows) == ("tensorboard", "step", 20_000)
    known = {"loss": "train/loss", "lr": "train/lr"}
    assert record.keys == known | {"other/perf/tokens": "perf/tokens"}
    assert record.step.tolist() == list(range(1, 20_001))
    written = record.columns["wall_time_s"]
    assert written.present.all()
    np.testing.assert_allclose(np.diff(written.values), 0.5)
    noise = np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    np.testing.assert_array_equal(record.columns["loss"].values, (2.0 + noise).astype(np.float32))
    assert not record.notes


def event_file(events: Sequence[bytes]) -> bytes:
    return frame(b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2") + b"".join(events)


def read_bytes(tmp_path: Path, data: bytes) -> RunRecord:
    path = tmp_path / NAME
    path.write_bytes(data)
    return read_run(path)


def test_values_that_share_an_event_and_nonfinite_ones(tmp_path: Path) -> None:
    values = [2.0, math.nan, math.inf, 1.0]
    events = [encode_event(i, [("loss", v), ("lr", 0.25)]) for i, v in enumerate(values)]
    record = read_bytes(tmp_path, event_file(events))
    assert record.columns["lr"].logged().tolist() == [0.25] * 4
    assert record.columns["loss"].logged()[[0, 3]].tolist() == [2.0, 1.0]
    assert math.isnan(record.columns["loss"].values[1])
    assert record.columns["loss"].values[2] == math.inf


def test_rewound_steps_begin_an_attempt_and_the_lr_follows(tmp_path: Path) -> None:
    steps = [1, 2, 3, 4, 3, 4, 5]
    events: list[bytes] = []
    for i, step in enumerate(steps):
        events.append(encode_event(step, [("lr", float(i))]))
        events.append(encode_event(step, [("loss", 10.0 + i)]))
    record = read_bytes(tmp_path, event_file(events))
    assert record.step.tolist() == steps
    assert record.columns["lr"].values.tolist() == list(range(7))
    assert [(a.first_row, a.end_row) for a in record.attempts] == [(0, 4), (4, 7)]
    assert record.attempts[1].why == "the step falls back to 3"


def test_late_validation_is_no_restart(tmp_path: Path) -> None:
    events = [encode_event(s, [("loss", 3.0)]) for s in range(1, 11)]
    events.insert(8, encode_event(5, [("eval/loss", 3.5)]))
    record = read_bytes(tmp_path, event_file(events))
    assert len(record.attempts) == 1
    assert record.columns["val_loss"].values[4] == 3.5


def test_negative_and_constant_steps(tmp_path: Path) -> None:
    events = [encode_event(s, [("loss", 3.0)]) for s in (-2, -1, 0)]
    assert read_bytes(tmp_path, event_file(events)).step.tolist() == [-2, -1, 0]
    events = [encode_event(0, [("loss", float(i))]) for i in range(9)]
    record = read_bytes(tmp_path, event_file(events))
    assert (record.axis, record.num_loss_rows, record.step[-1]) == ("row", 9, 8)


# --- several files of one run ------------------------------------------------------------------


def test_files_of_a_directory_are_one_run_in_order_of_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "events.out.tfevents.9.host", 101, 201, wall=1.70e9)
    write(run / "events.out.tfevents.10.host", 151, 301, wall=1.71e9)
    (run / "notes.txt").write_text("nothing to read\n")
    found = dict(read_each(run))
    record = found[str(run)]
    assert isinstance(record, RunRecord)
    assert [record.step[a.first_row] for a in record.attempts] == [101, 151]
    assert "a new event file begins" in record.attempts[1].why
    assert list(found) == [str(run)]
    assert any("1 other file" in note for note in record.notes)


def test_an_evaluation_only_file_is_no_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "events.out.tfevents.1.a", 1, 101)
    steps = np.array([100], dtype=np.int64)
    later = run / "events.out.tfevents.2.a"
    write_event_file(later, {"eval/loss": np.array([1.5])}, steps, first_wall_s=1.8e9)
    record = read(run)[0]
    assert len(record.attempts) == 1
    assert record.columns["val_loss"].values[99] == 1.5


def test_what_stands_below_eval_is_no_training_loss(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        (tmp_path / name).mkdir()
        steps = steps_of(1, 11)
        write_event_file(tmp_path / name / NAME, {"loss": np.ones(10)}, steps)
    (record,) = read(tmp_path)  # Keras writes one run so
    assert set(record.columns) == {"loss", "val_loss", "wall_time_s"}
    (evaluation,) = read(tmp_path / "eval")
    assert set(evaluation.columns) == {"val_loss"}


def test_another_ranks_file_is_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "events.out.tfevents.1.rank0")
    write(run / "events.out.tfevents.1.rank1", wall=1.7e9 + 0.1)
    record = read(run)[0]
    assert record.num_loss_rows == 300
    assert any("another rank" in note for note in record.notes)


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "events.out.tfevents.1.a")
    (run / "events.out.tfevents.2.a").write_bytes(b"")
    record = read(run)[0]
    assert record.num_loss_rows == 300
    assert any("empty" in note for note in record.notes)


# --- damage ------------------------------------------------------------------------------------


def test_a_torn_last_record_is_left_out(tmp_path: Path) -> None:
    data = write(tmp_path / NAME).read_bytes()
    for cut in (1, 5, 40):
        record = read_bytes(tmp_path, data[:-cut])
        assert record.num_loss_rows == 300
        assert "the last event was torn in mid-write and left out" in record.notes


def test_a_wrong_checksum_costs_one_event(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / NAME).read_bytes())
    at = data.index(b"train/loss", len(data) // 2) + len("train/loss") + 2
    data[at] ^= 1
    record = read_bytes(tmp_path, bytes(data))
    assert record.num_loss_rows == 299
    assert record.notes == ("1 event with a wrong checksum left out",)


def test_a_damaged_length_costs_little(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / NAME, end=5001).read_bytes())
    start = int(find_frames(bytes(data)).start[7000])
    data[start - 12] ^= 0xFF
    record = read_bytes(tmp_path, bytes(data))
    assert record.num_loss_rows >= 4999
    assert any("could not be read" in note for note in record.notes)


def test_compressed_and_cut(tmp_path: Path) -> None:
    data = write(tmp_path / NAME).read_bytes()
    whole = gzip.compress(data)
    path = tmp_path / "events.gz"
    path.write_bytes(whole)
    assert read_run(path).num_loss_rows == 300
    path.write_bytes(whole[: len(whole) // 2])
    assert any("breaks off" in note for note in read_run(path).notes)


def test_no_scalars_and_no_known_tag(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"no known signal.*found no scalars"):
        read_bytes(tmp_path, event_file([]))
    with pytest.raises(ReadError, match="found 'colour'"):
        read_bytes(tmp_path, event_file([encode_event(1, [("colour", 1.0)])]))


@given(data=st.data())
def test_mutated_files_give_a_record_or_an_error(data: st.DataObject) -> None:
    events = [encode_event(i, [("loss", 1.0 * i), ("lr", 0.1)]) for i in range(40)]
    raw = bytearray(event_file(events))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    del raw[data.draw(st.integers(1, len(raw))) :]
    found = parse_events(bytes(raw))
    assert all(len(s.step) == len(s.value) for s in found.series.values())


@given(st.binary(max_size=400))
def test_random_bytes_are_no_crash(raw: bytes) -> None:
    for found in (parse_events(frame(raw) + raw), parse_events(frame(raw) * 6)):
        assert all(len(s.step) == len(s.value) for s in found.series.values())


# --- parts -------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=9, max_size=9), min_size=1, max_size=5))
def test_checksums_by_differences(rows: list[bytes]) -> None:
    table = np.array([list(r) for r in rows], dtype=np.uint8)
    whole = crc32c_rows(table)
    assert whole.tolist() == [crc32c(r) for r in rows]
    effects = byte_effects(9)
    for row, crc in zip(table, whole, strict=True):
        change = [int(effects[j][row[j] ^ table[0][j]]) for j in range(9)]
        assert int(np.bitwise_xor.reduce([int(whole[0]), *change])) == int(crc)


def test_many_tags_of_one_length(tmp_path: Path) -> None:
    steps = steps_of(1, 31)
    columns = {f"layer/{i:03d}": np.full(30, float(i)) for i in range(200)}
    columns["loss"] = np.arange(30.0)
    path = write_event_file(tmp_path / NAME, columns, steps)
    found = parse_events(path.read_bytes())
    assert len(found.series) == 201
    assert all((found.series[f"layer/{i:03d}"].value == i).all() for i in range(200))


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("lm-loss-training/lm loss", "loss"),
        ("lm-loss-training/lm loss vs samples", None),
        ("lm-loss-validation/lm loss validation", "val_loss"),
        ("validation/lm loss", "val_loss"),
        ("Loss/train", "loss"),
        ("train_loss_batch", "loss"),
        ("val_loss_batch_step", "val_loss"),
        ("grad-norm/grad-norm", "grad_norm"),
        ("model/layers.3/norm", None),
        ("train/norm", "grad_norm"),
        ("eval/accuracy", "eval_score"),
        ("calm-sun-7 - train/grad_norm", "grad_norm"),
        ("calm-sun-7 - train/loss__MAX", None),
        ("hparam/loss", None),
    ],
)
def test_what_a_tag_means(tag: str, name: str | None) -> None:
    assert signal_of_tag(tag) == name


def test_the_fullest_tag_stands_and_a_loss_is_found_by_its_looks() -> None:
    chosen, _ = choose_tags({"train_loss": np.ones(2), "train_loss_step": np.ones(50)})
    assert chosen == {"loss": "train_loss_step"}
    chosen, notes = choose_tags({"losses/critic_loss": np.ones(9), "x/value_loss": np.ones(9)})
    # a loss of the critic is a signal of its own, too
    assert chosen == {"loss": "x/value_loss", "value_loss": "x/value_loss"}
    assert "is taken for it" in notes[0]
    assert not might_be_loss("val/task_loss")


def test_sniffing_needs_the_checksum() -> None:
    assert TensorBoardReader().name == "tensorboard"
    assert find_frames(b"\x10" + bytes(40)).start.tolist() == []


def test_a_tag_that_is_given_goes_before_one_that_seems_so(tmp_path: Path) -> None:
    values = {"critic/loss": np.linspace(1, 0.1, 40), "forger/loss": np.linspace(2, 5, 40)}
    write_event_file(tmp_path / NAME, values, np.arange(40))
    with columns_given({"loss": "forger/loss"}):
        (record,) = read(tmp_path)
    assert record.keys["loss"] == "forger/loss"
