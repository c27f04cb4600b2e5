"""Numbers that no alias knows are kept, judged by their shape, and named as not understood."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import Analysis, analyze

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
