"""Columns that say when a row was written, in JSON lines and CSV; durations are none."""

import csv
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run
from trimtab.readers.stamps import without_summer_time

BEGIN = datetime(2024, 5, 1, 12, 0, 3, 123000, tzinfo=UTC)
N = 200
KEYS = (
    *("timestamp", "time", "ts", "datetime", "date", "wall_time", "_timestamp", "logged_at"),
    *("Time", "Wall time"),
)
FORMS: dict[str, Callable[[datetime], object]] = {
    "seconds": lambda t: t.timestamp(),
    "whole seconds as text": lambda t: str(int(t.timestamp())),
    "milliseconds": lambda t: round(t.timestamp() * 1e3),
    "nanoseconds": lambda t: round(t.timestamp() * 1e9),
    "ISO": lambda t: t.strftime("%Y-%m-%dT%H:%M:%S"),
    "ISO with Z": lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "ISO with a zone": lambda t: t.astimezone(timezone(timedelta(hours=2))).isoformat(),
    "logging": lambda t: t.strftime("%Y-%m-%d %H:%M:%S,") + f"{t.microsecond // 1000:03d}",
    "slashes": lambda t: t.strftime("%Y/%m/%d %H:%M:%S"),
    "compact": lambda t: t.strftime("%Y%m%d-%H%M%S"),
}


def times(seconds: Sequence[float]) -> list[datetime]:
    return [BEGIN + timedelta(seconds=float(s)) for s in np.cumsum([0.0, *seconds])]


def write(tmp_path: Path, columns: dict[str, Sequence[object]], form: str) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.02, N)
    rows = [
        {"step": 10 * i, "loss": round(2 + 3 / (1 + 0.05 * i) + float(noise[i]), 4)}
        | {k: v[i] for k, v in columns.items()}
        for i in range(N)
    ]
    path = tmp_path / f"log.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("how", FORMS)
def test_a_clock_is_when_the_row_was_written(tmp_path: Path, form: str, how: str) -> None:
    at = times([7.0] * (N - 1))
    path = write(tmp_path, {"timestamp": [FORMS[how](t) for t in at]}, form)
    record = read_run(path)
    wall = record.columns["wall_time_s"]
    assert record.keys["wall_time_s"] == "timestamp"
    assert wall.present.all()
    np.testing.assert_allclose(wall.values, [t.timestamp() for t in at], rtol=0, atol=1.0)
    np.testing.assert_allclose(np.diff(wall.values), 7.0, atol=1e-3)
    assert "timestamp" not in record.unread


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("key", KEYS)
def test_by_every_name(tmp_path: Path, form: str, key: str) -> None:
    at = times([7.0] * (N - 1))
    record = read_run(write(tmp_path, {key: [t.isoformat() for t in at]}, form))
    assert record.keys["wall_time_s"] == key


@pytest.mark.parametrize(
    "values",
    [
        [7.0 * i for i in range(N)],  # since the start
        [0.5 + 0.01 * (i % 7) for i in range(N)],  # of each step
        [500 + i % 7 for i in range(N)],  # of each step, in milliseconds
        [BEGIN.timestamp()] * N,  # of the launch
        ["2024-05-01"] * N,
        [f"0:{i // 60:02d}:{i % 60:02d}" for i in range(N)],
        [f"{i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}" for i in range(N)],
        [BEGIN.timestamp() - 7.0 * (i % 2) for i in range(N)],  # up and down
    ],
    ids=["elapsed", "step", "ms", "launch", "day", "h:m:s", "hh:mm:ss", "falls"],
)
@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("key", ["time", "timestamp"])
def test_what_is_no_clock_is_none(
    tmp_path: Path, form: str, values: list[object], key: str
) -> None:
    record = read_run(write(tmp_path, {key: values}, form))
    assert "wall_time_s" not in record.columns
    assert "step_time_s" not in record.columns


def test_the_duration_of_a_step_stays_what_it_is(tmp_path: Path) -> None:
    columns: dict[str, Sequence[object]] = {
        "time": [0.5] * N,
        "step_time": [0.5 + 0.01 * (i % 3) for i in range(N)],
        "time/time_elapsed": [0.5 * i for i in range(N)],
    }
    record = read_run(write(tmp_path, columns, "jsonl"))
    assert record.keys["step_time_s"] == "step_time"
    assert "wall_time_s" not in record.columns


def test_evaluations_get_no_clock_and_a_clock_makes_no_row(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines: list[str] = []
    for i in range(60):
        now = BEGIN.timestamp() + 7 * i
        lines.append(json.dumps({"step": i, "loss": 3 - 0.01 * i, "timestamp": now}))
        if i % 10 == 9:
            lines.append(json.dumps({"step": i, "val_loss": 3 - 0.01 * i, "timestamp": now + 3}))
            lines.append(json.dumps({"step": i, "message": "saved", "timestamp": now + 4}))
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert record.num_rows == 60
    assert np.diff(record.columns["wall_time_s"].logged()).tolist() == [7.0] * 59


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_stop_of_an_hour_is_told(tmp_path: Path, form: str) -> None:
    seconds = 6.3 * np.exp(np.random.default_rng(1).normal(0, 0.03, N - 1))
    seconds[120] = 4000.0
    at = [t.isoformat(sep=" ") for t in times(seconds.tolist())]
    report = trimtab.analyze(write(tmp_path, {"time": at}, form))
    assert [(i.kind, i.onset) for i in report.incidents if i.kind == "hang"] == [("hang", 1200)]


def test_the_hour_of_summer_time_did_not_pass(tmp_path: Path) -> None:
    # Sunday, 31 March 2024: 01:59:59 is followed by 03:00:00.
    begin = datetime(2024, 3, 31, 1, 50, 0, tzinfo=UTC)
    at = [begin + timedelta(seconds=7 * i) for i in range(N)]
    shown = [t + timedelta(hours=t.hour >= 2) for t in at]
    path = write(tmp_path, {"time": [t.strftime("%Y-%m-%d %H:%M:%S") for t in shown]}, "csv")
    assert set(np.diff(read_run(path).columns["wall_time_s"].values)) == {7.0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num", [1, 2])
def test_a_row_or_two_have_no_clock(tmp_path: Path, num: int) -> None:
    table = tmp_path / "log.csv"
    rows = [f"{i},2.5{i},2024-05-01 12:00:0{i}" for i in range(num)]
    table.write_text("\n".join(["step,loss,time", *rows]) + "\n")
    assert "wall_time_s" not in read_run(table).columns
    assert without_summer_time(np.arange(float(num))).tolist() == list(range(num))
