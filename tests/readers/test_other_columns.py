"""Numbers that no alias knows are kept, judged by their shape, and named as not understood."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.logs.event_logs import write_event_file
from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab import Analysis, analyze
from trimtab.readers.other_columns import is_measured, is_seldom
from trimtab.record import Column

Floats = NDArray[np.float64]

N = 400
T = np.arange(N)


def _rows(**more: Floats) -> list[dict[str, float | None]]:
    rng = np.random.default_rng(0)
    loss = 1 + 2 * np.exp(-T / 60) + 0.02 * rng.normal(size=N)
    columns = {"step": T, "loss": loss, **more}
    return [
        {k: None if v[i] is None else float(v[i]) for k, v in columns.items()} for i in range(N)
    ]


def _analyzed(path: Path, **more: Floats) -> Analysis:
    rows = _rows(**more)
    if path.suffix == ".csv":
        lines = [",".join(rows[0])]
        lines += [",".join("" if v is None else f"{v:.6g}" for v in r.values()) for r in rows]
    elif path.suffix == ".jsonl":
        lines = [json.dumps(r) for r in rows]
    else:
        lines = ["  ".join(f"{k}: {v:.6g}" for k, v in r.items()) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return analyze(path)


def _stored(path: Path, **more: Floats) -> Analysis:
    """The same rows in a tracker's store; an `event` file as TensorBoard writes it."""
    rows = _rows(**more)
    if path.suffix == ".wandb":
        path.write_bytes(encode_wandb_log([{**r, "_step": i} for i, r in enumerate(rows)]))
    elif path.suffix == ".db":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE {_MLFLOW}")
            for i, r in enumerate(rows):
                for k, v in r.items():
                    cells = (k, v, 1_700_000_000_000 + 2000 * i, i)
                    connection.execute("INSERT INTO metrics VALUES (?, ?, ?, 'a', ?, 0)", cells)
    else:
        columns = {k: np.array([r[k] for r in rows], float) for k in rows[0] if k != "step"}
        write_event_file(path, columns, T)
    return analyze(path)


_MLFLOW = (
    "metrics (key TEXT, value REAL, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOL)"
)


@pytest.mark.parametrize("name", ["run-a.wandb", "mlflow.db", "events.out.tfevents.1.host.1.0"])
def test_a_trackers_store_keeps_them_too(tmp_path: Path, name: str) -> None:
    values = _noisy(3.0)
    (tmp_path / "a").mkdir()
    assert _stored(tmp_path / "a" / name, calib_err=values).verdict == "healthy"
    values[250:] *= 2.0
    found = _stored(tmp_path / name, calib_err=values)
    assert found.verdict == "incident"
    assert [i.incident.onset for i in found.incidents] == [250]


def test_of_many_in_a_store_the_first_are_kept(tmp_path: Path) -> None:
    many = {f"calib_{chr(97 + i)}": _noisy(3.0, i) for i in range(20)}
    record = _stored(tmp_path / "run-a.wandb", **many).runs[0].record
    kept = [k for k in record.columns if k.startswith("other/")]
    assert kept == [f"other/calib_{chr(97 + i)}" for i in range(16)]
    assert set(record.unread) == {f"calib_{chr(97 + i)}" for i in range(16, 20)}


@pytest.mark.parametrize("suffix", [".wandb", ".db", ".trackio"])
def test_the_clock_of_a_store_shows_a_pace_that_halves(tmp_path: Path, suffix: str) -> None:
    at = 1.7e9 + np.cumsum(np.where(T < 250, 2.0, 4.0) + 0.05 * _noisy(1.0))
    rows = _rows()
    path = tmp_path / f"run-a{suffix.replace('.trackio', '.db')}"
    if suffix == ".wandb":
        stamped = [{**r, "_step": i, "_timestamp": at[i]} for i, r in enumerate(rows)]
        path.write_bytes(encode_wandb_log(stamped))
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            shape = _MLFLOW if suffix == ".db" else _TRACKIO
            connection.execute(f"CREATE TABLE {shape}")
            for i, r in enumerate(rows):
                said = datetime.fromtimestamp(at[i], tz=UTC).isoformat()
                cells: tuple[object, ...] = ("loss", r["loss"], int(1000 * at[i]), "a", i, 0)
                if suffix == ".trackio":
                    cells = (i, said, "a", i, json.dumps({"loss": r["loss"]}))
                marks = ", ".join("?" * len(cells))
                connection.execute(f"INSERT INTO metrics VALUES ({marks})", cells)
    found = analyze(path)
    assert [(i.incident.kind, i.severity) for i in found.incidents] == [("slowdown", "warning")]
    assert abs(found.incidents[0].incident.onset - 250) <= 2


_TRACKIO = "metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INT, metrics TEXT)"


def _noisy(level: float, seed: int = 1) -> Floats:
    return level * np.exp(0.1 * np.random.default_rng(seed).normal(size=N))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
@pytest.mark.parametrize(
    ("key", "factor", "told"),
    [
        ("calib_err", 2.0, "warning"),
        ("calib_err", 0.5, "info"),
        ("n_modes", 0.4, "warning"),
        ("gpu_temp", 1.6, "info"),
    ],
)
def test_one_that_moves_at_once_for_good_is_told_by_its_key(
    tmp_path: Path, suffix: str, key: str, factor: float, told: str
) -> None:
    values = _noisy(3.0)
    assert _analyzed(tmp_path / f"a{suffix}", **{key: values}).verdict == "healthy"
    values[250:] *= factor
    found = _analyzed(tmp_path / f"b{suffix}", **{key: values})
    assert found.verdict == ("incident" if told == "warning" else "healthy")
    texts = [(i.severity, i.incident.onset, i.incident.findings[0].text) for i in found.incidents]
    if told == "warning":
        ((severity, onset, text),) = texts
        assert severity == told
        assert key.replace("_", " ") in text.replace("_", " ")
        assert abs(onset - 250) <= 2


def test_one_that_stops_being_a_number_is_told_and_one_that_ends_is_a_note(tmp_path: Path) -> None:
    values = _noisy(0.1).astype(object)
    values[200:] = None
    assert _analyzed(tmp_path / "a.jsonl", ece_proxy=values).verdict == "healthy"
    values[200:] = float("nan")
    found = _analyzed(tmp_path / "a.jsonl", ece_proxy=values)
    assert found.verdict == "incident"
    assert found.incidents[0].causes[0].cause == "metric-broken"
    assert found.incidents[0].incident.onset == 200


def test_memory_that_grows_is_told_and_memory_that_settles_is_not(tmp_path: Path) -> None:
    stairs = 20 + np.asarray(6.0 * (T >= 150)) + 6.0 * (T >= 250)
    noise = 0.1 * np.random.default_rng(2).normal(size=N)
    grows = 30 + 0.1 * np.maximum(T - 100, 0) + noise
    found = _analyzed(tmp_path / "a.csv", cpu_ram_gb=grows)
    assert found.incidents[0].causes[0].cause == "memory-kept"
    settles = 30 + 20 * (1 - np.exp(-T / 40)) + noise
    assert _analyzed(tmp_path / "b.csv", cpu_ram_gb=settles).verdict == "healthy"
    assert _analyzed(tmp_path / "c.csv", cpu_ram_gb=stairs + noise).verdict == "healthy"


def test_counters_clocks_and_held_values_are_not_kept(tmp_path: Path) -> None:
    found = _analyzed(
        tmp_path / "a.csv",
        elapsed=np.asarray(1.5 * T),
        widgets=np.floor(T / 3),
        zorgl=_noisy(2.0),
        knob=np.where(T < 200, 3.0, 4.0),
    )
    record = found.runs[0].record
    assert {n for n in record.columns if n.startswith("other/")} == {"other/zorgl"}
    assert record.keys["other/zorgl"] == "zorgl"
    assert "zorgl" in record.unread
    assert found.verdict == "healthy"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
def test_time_beside_data_time_is_that_of_a_step(tmp_path: Path, suffix: str) -> None:
    time, data = _noisy(0.4, 5), _noisy(0.01, 6)
    record = _analyzed(tmp_path / f"a{suffix}", time=time, data_time=data).runs[0].record
    assert record.keys["step_time_s"] == "time"
    assert np.allclose(record.columns["step_time_s"].logged(), time, rtol=1e-4)


def test_constants_take_no_place_of_what_is_measured(tmp_path: Path) -> None:
    constants = {f"const_{chr(97 + i)}": np.full(N, float(i)) for i in range(20)}
    values = _noisy(0.1)
    values[200:] = np.nan
    for stored in (_stored(tmp_path / "run-a.wandb", **constants, zz_gap=values),):
        assert [i.incident.onset for i in stored.incidents] == [200]
    told = _analyzed(tmp_path / "a.jsonl", **constants, zz_gap=values)
    assert [i.incident.onset for i in told.incidents] == [200]


def test_a_column_without_rows_is_neither_measured_nor_seldom() -> None:
    empty = Column(np.zeros(0), np.zeros(0, dtype=np.bool_))
    assert not is_seldom(empty)
    assert not is_measured(empty, "some_gap")
    never = Column(np.full(9, np.nan), np.zeros(9, dtype=np.bool_))
    assert not is_seldom(never)
