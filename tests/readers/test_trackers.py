"""Stores of experiment trackers: W&B's offline log, MLflow's directories, SQLite databases."""

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab.errors import ReadError
from trimtab.readers import read, read_each, read_run
from trimtab.readers.leveldb_log import LogDamage, log_records
from trimtab.record import RunRecord

# --- W&B ---------------------------------------------------------------------------------------


def wandb_rows(num: int = 400) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {"train/loss": 3.0 - i / num, "optim/lr": 0.1, "trainer/global_step": 10 * i, "_step": i}
        for i in range(num)
    ]
    rows[5]["eval/loss"] = 3.5
    rows[6]["caption"] = "some words about the sample that was drawn here, and more"
    rows[7]["hist"] = {"_type": "histogram", "values": [1, 2]}
    return rows


def read_wandb(tmp_path: Path, data: bytes) -> RunRecord:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    return read_run(path)


@pytest.mark.parametrize("nested", [False, True])
def test_wandb_history(tmp_path: Path, nested: bool) -> None:
    data = encode_wandb_log(wandb_rows(), nested=nested, output_lines=2)
    assert len(data) > 3 * (1 << 15)
    record = read_wandb(tmp_path, data)
    assert (record.format, record.axis, record.num_loss_rows) == ("wandb", "step", 400)
    assert record.step.tolist() == list(range(400))
    assert record.columns["val_loss"].logged().tolist() == [3.5]
    assert record.keys["lr"] == "optim/lr"
    note = "rows are counted by W&B's _step; 0 to 399 there are trainer/global_step 0 to 3990"
    assert record.notes == (note,)


def test_wandb_nan_is_a_value_and_null_is_none(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"loss": v, "_step": i} for i, v in enumerate([1.0, math.nan, None, "Infinity", 10**400])
    ]
    record = read_wandb(tmp_path, encode_wandb_log(rows))
    loss = record.columns["loss"]
    assert record.step.tolist() == [0, 1, 3]
    assert math.isnan(loss.values[1])
    assert loss.values[2] == math.inf


def test_wandb_losses_per_batch_stand_before_those_per_epoch(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"train_loss_batch": math.nan, "_step": i, **({"train_loss": 1.0} if i == 9 else {})}
        for i in range(10)
    ]
    assert read_wandb(tmp_path, encode_wandb_log(rows)).num_loss_rows == 10


def test_wandb_damage(tmp_path: Path) -> None:
    data = bytearray(encode_wandb_log(wandb_rows(), output_lines=2))
    torn = read_wandb(tmp_path, bytes(data[:-20]))
    assert torn.num_loss_rows == 399
    assert "the last record was torn in mid-write and left out" in torn.notes
    data[40_000] ^= 0xFF
    hurt = read_wandb(tmp_path, bytes(data))
    assert 250 < hurt.num_loss_rows < 400
    assert any("damaged in 1 place" in note for note in hurt.notes)


def test_wandb_without_history(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="without history"):
        read_wandb(tmp_path, encode_wandb_log([]) + bytes(9))
    with pytest.raises(ReadError, match=r"found '_step', 'colour'|found 'colour'"):
        read_wandb(tmp_path, encode_wandb_log([{"colour": 1, "_step": 0}]))


@given(st.data())
def test_mutated_framing_is_no_crash(data: st.DataObject) -> None:
    raw = bytearray(encode_wandb_log(wandb_rows(20), output_lines=8))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    damage = LogDamage()
    assert len(list(log_records(bytes(raw), 7, damage))) <= 180


# --- MLflow ------------------------------------------------------------------------------------


def mlflow_run(root: Path, name: str, steps: Sequence[int]) -> Path:
    run = root / "0" / name
    (run / "metrics" / "train").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: x\n")
    loss = [f"{1_700_000_000_000 + i} {3.0 - i / 10} {s}\n" for i, s in enumerate(steps)]
    (run / "metrics" / "train" / "loss").write_text("".join(loss))
    (run / "metrics" / "lr").write_text("".join(loss))
    (run / "metrics" / "reward").write_text("1 2 3\n")
    return run


def test_mlflow_runs_are_records(tmp_path: Path) -> None:
    mlflow_run(tmp_path / "mlruns", "a", [1, 2, 3, 2, 3])
    mlflow_run(tmp_path / "mlruns", "b", [1, 2])
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: x\n")
    records = read(tmp_path)
    assert [r.num_loss_rows for r in records] == [5, 2]
    assert records[0].format == "mlflow"
    assert [a.first_row for a in records[0].attempts] == [0, 3]
    assert records[0].columns["lr"].present.all()


def test_links_to_directories_are_not_followed(tmp_path: Path) -> None:
    mlflow_run(tmp_path, "a", [1, 2])
    (tmp_path / "0" / "latest").symlink_to(tmp_path / "0" / "a")
    (tmp_path / "0" / "loop").symlink_to(tmp_path)
    assert len(read(tmp_path)) == 1


def test_mlflow_lines_without_step_or_value(tmp_path: Path) -> None:
    run = mlflow_run(tmp_path, "a", [1, 2])
    (run / "metrics" / "train" / "loss").write_text("1 2.0\n2 nan\n3 x 4\n\n4\n")
    record = read_run(run)
    assert record.columns["loss"].logged()[0] == 2.0
    assert math.isnan(record.columns["loss"].logged()[1])
    assert "train/loss: 2 lines that are no values left out" in record.notes


# --- SQLite ------------------------------------------------------------------------------------


def database(path: Path, table: str, rows: Iterable[Sequence[object]]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {table}")
        for row in rows:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO metrics VALUES ({marks})", row)
    return path


MLFLOW = "metrics (key TEXT, value REAL, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOL)"
TRACKIO = "metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INT, metrics TEXT)"


def test_mlflow_database_with_two_runs(tmp_path: Path) -> None:
    rows = [("loss", 3.0 - i, 100 + i, "a", i, i == 2) for i in range(4)]
    rows += [("loss", 9.0, 100 + i, "b", i, False) for i in range(2)]
    path = database(tmp_path / "mlflow.db", MLFLOW, rows)
    found = dict(read_each(path))
    assert sorted(found) == [f"{path}#a", f"{path}#b"]
    first = read_run(f"{path}#a")
    assert first.step.tolist() == [0, 1, 2, 3]
    assert math.isnan(first.columns["loss"].values[2])
    with pytest.raises(ReadError, match="holds 2 logs"):
        read_run(path)


def test_trackio_database(tmp_path: Path) -> None:
    rows: list[Sequence[object]] = [
        (None, "t", "calm", i, json.dumps({"train/loss": "NaN" if i == 1 else 2.0, "x": "y"}))
        for i in range(3)
    ]
    rows.append((None, "t", "calm", 3, "{broken"))
    record = read_run(database(tmp_path / "project.db", TRACKIO, rows))
    assert (record.format, record.source) == ("trackio", f"{tmp_path / 'project.db'}#calm")
    assert record.step.tolist() == [0, 1, 2]
    assert math.isnan(record.columns["loss"].values[1])


def test_a_table_with_a_column_per_signal(tmp_path: Path) -> None:
    rows = [(i, 2.0, 1e-3) for i in range(5)]
    record = read_run(database(tmp_path / "x.db", "metrics (step INT, loss REAL, lr REAL)", rows))
    assert (record.format, record.num_loss_rows, record.axis) == ("sqlite", 5, "step")


def test_databases_that_are_none(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "metrics (a INT, b TEXT)", [(1, "x")])
    with pytest.raises(ReadError, match="no table with steps and values"):
        read_run(path)
    data = path.read_bytes()
    path.write_bytes(data[:200])
    with pytest.raises(ReadError, match=r"broken SQLite file|no table"):
        read_run(path)
    path.write_bytes(data[:16] + b"\xff" * (len(data) - 16))
    with pytest.raises(ReadError, match=r"broken SQLite file"):
        read_run(path)


def test_wandb_csv_export_names_the_run_before_the_key(tmp_path: Path) -> None:
    keys = [f"calm-sun-7 - train/{k}{b}" for k in ("loss", "lr") for b in ("", "__MIN", "__MAX")]
    lines = [",".join(["Step", *keys])]
    lines += [",".join([str(i), *[str(float(j)) for j in range(6)]]) for i in range(5)]
    path = tmp_path / "wandb_export.csv"
    path.write_text("\n".join(f"{line}" for line in lines))
    record = read_run(path)
    assert record.axis == "step"
    assert record.columns["loss"].values.tolist() == [0.0] * 5
    assert record.columns["lr"].values.tolist() == [3.0] * 5


def test_a_table_whose_name_is_no_text_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE metrics (run TEXT, step INTEGER, loss REAL)")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET name = X'6d657472696373'")
        database.commit()
    with pytest.raises(ReadError) as caught:
        read_run(path)
    assert "fault of trimtab" not in str(caught.value)
