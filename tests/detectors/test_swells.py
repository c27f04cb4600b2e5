"""Rows that are high together, and parts of a loss that rise by themselves."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.detectors.offline import all_findings
from trimtab.detectors.swells import swell_findings
from trimtab.readers import read_run
from trimtab.record import RunRecord

_T = np.arange(300)
_FALL = 0.63 + 2.1 * np.exp(-_T / 30)


def _noise(seed: int, rho: float = 0.0) -> np.ndarray:
    rng, out = np.random.default_rng(seed), np.zeros(len(_T))
    white = rng.normal(size=len(_T))
    for t in range(len(_T)):
        out[t] = (rho * out[t - 1] if t else 0.0) + white[t] * np.sqrt(1 - rho**2)
    return out


def _record(path: Path, columns: dict[str, np.ndarray]) -> RunRecord:
    file = path / "log.jsonl"
    rows = (
        json.dumps({"step": t, **{k: float(v[t]) for k, v in columns.items()}}) for t in range(300)
    )
    file.write_text("\n".join(rows))
    return read_run(file)


@pytest.mark.parametrize("rows", [6, 130], ids=["six-rows", "lasting"])
def test_swells_rows_that_no_single_one_gives_away_are_an_alarm(tmp_path: Path, rows: int) -> None:
    loss = _FALL + 0.1 * _noise(3)
    loss[170 : 170 + rows] += 0.45
    found = swell_findings(_record(tmp_path, {"loss": loss}))
    assert [(f.severity, abs(f.onset_row - 170) <= 4) for f in found] == [("warning", True)]
    assert found[0].kind == ("spike" if rows == 6 else "shift")


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
def test_swells_noise_on_a_descent_is_none(tmp_path: Path, rho: float) -> None:
    for seed in range(10):
        assert not swell_findings(_record(tmp_path, {"loss": _FALL + 0.1 * _noise(seed, rho)}))


def test_parts_one_task_that_falls_to_chance_is_named(tmp_path: Path) -> None:
    digit, mod3 = _FALL + 0.05 * _noise(1), 0.4 * _FALL + 0.05 * _noise(2)
    calm = {"total_loss": digit + mod3, "loss_digit": digit, "loss_mod3": mod3.copy()}
    assert not all_findings(_record(tmp_path, calm))
    mod3[170:] += 0.8
    bad = {"total_loss": digit + mod3, "loss_digit": digit, "loss_mod3": mod3}
    record = _record(tmp_path, bad)
    assert {"loss/digit", "loss/mod3"} <= set(record.columns)
    told = {f.signal for f in all_findings(record) if f.severity != "info"}
    assert "loss/mod3" in told
    assert "loss/digit" not in told


def test_parts_are_read_from_lines_of_text(tmp_path: Path) -> None:
    lines = "".join(
        f"step {t} total_loss {2 - t / 99:.3f} loss_digit {1 - t / 99:.3f} loss_mod3 1.0\n"
        for t in range(60)
    )
    (tmp_path / "a.log").write_text(lines)
    record = read_run(tmp_path / "a.log")
    assert {"loss", "loss/digit", "loss/mod3"} <= set(record.columns)
    assert not record.unread
