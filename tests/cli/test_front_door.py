"""Sentences of the checklist that speak of a log, through the door of a user: a log in, words out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.conftest import Run, parse

Floats = NDArray[np.float64]


def write(path: Path, **columns: Floats) -> Path:
    """Write columns as JSON lines, a step each; what is NaN was not logged."""
    names = list(columns)
    with path.open("w", encoding="utf-8") as file:
        for step, row in enumerate(zip(*columns.values(), strict=True), start=1):
            told = {n: float(v) for n, v in zip(names, row, strict=True) if np.isfinite(v)}
            file.write(json.dumps({"step": step, **told}) + "\n")
    return path


def falling(num_rows: int, *, seed: int = 100, noise: float = 0.02) -> Floats:
    steps = np.arange(num_rows)
    loss = 2.2 + 4 * np.exp(-steps / (0.15 * num_rows))
    return np.asarray(loss + noise * np.random.default_rng(seed).standard_normal(num_rows))


def incidents(run: Run, log: Path, *more: str) -> list[dict[str, Any]]:
    found = parse(run("inspect", log, "--json", *more)[1])["runs"][0]["incidents"]
    assert isinstance(found, list)
    return found


@pytest.mark.covers("S79")
def test_a_slowdown_is_of_the_system_and_a_divergence_numeric(run: Run, tmp_path: Path) -> None:
    time = 0.5 * np.exp(0.01 * np.random.default_rng(1).standard_normal(400))
    slow, once = time.copy(), time.copy()
    slow[300:] *= 1.25
    once[300] *= 1.25
    (found,) = incidents(run, write(tmp_path / "a.jsonl", loss=falling(400), step_time_s=slow))
    assert found["kind"] == "slowdown"
    assert found["nature"] == "system"
    assert abs(found["onset_row"] - 300) <= 16
    assert not incidents(run, write(tmp_path / "b.jsonl", loss=falling(400), step_time_s=once))
    spoilt = falling(400)
    spoilt[250:] = np.nan
    spoilt[200:250] += np.linspace(0, 6, 50)
    bad = incidents(run, write(tmp_path / "c.jsonl", loss=spoilt, step_time_s=time))
    assert {i["nature"] for i in bad if i["severity"] != "info"} == {"numeric"}


@pytest.mark.covers("S29")
def test_two_runs_are_overlaid_and_one_is_called_worse_by_so_many_nats(
    run: Run, tmp_path: Path
) -> None:
    small = write(tmp_path / "small.jsonl", loss=falling(600))
    large = write(tmp_path / "large.jsonl", loss=falling(600, seed=101) + 0.25)
    page = tmp_path / "both.html"
    code, text, _ = run("compare", small, large, "--html", page)
    assert code == 0
    assert "large.jsonl is worse" in text.splitlines()[1]
    told = parse(run("compare", small, large, "--json")[1])
    assert told["worse"] == "b"
    assert told["worse_by"] == pytest.approx(0.25, abs=0.02)
    assert "small.jsonl" in page.read_text()
    assert "large.jsonl" in page.read_text()


@pytest.mark.covers("S221")
@pytest.mark.parametrize(
    ("line", "crash_class"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_xid"),
        ("[rank5]: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80)",
         "nccl_timeout"),
        ("gpu7:91:120 [3] NCCL WARN NET/IB : Got async event : port error", "nccl_error"),
        ("FATAL: the shard map is torn", "unknown"),
    ],
)  # fmt: skip
def test_the_class_of_a_cuda_or_nccl_error_is_told(
    run: Run, tmp_path: Path, line: str, crash_class: str
) -> None:
    log = tmp_path / "train.log"
    rows = [f"step {i} | loss {v:.4f} | lr 0.0003" for i, v in enumerate(falling(200).tolist())]
    log.write_text("\n".join([*rows, line]))
    (told,) = parse(run("inspect", log, "--json")[1])["runs"]
    assert told["verdict"] == "ended-badly"
    assert told["ending"]["crash_class"] == crash_class


@pytest.mark.covers("S49")
def test_a_scale_on_its_floor_for_fifty_steps_is_critical_no_learning(
    run: Run, tmp_path: Path
) -> None:
    scale = np.concatenate([np.full(300, 65536.0), 65536.0 / 2.0 ** np.arange(1, 17)])
    scale = np.concatenate([scale, np.full(80, 1.0)])
    log = write(tmp_path / "a.jsonl", loss=falling(len(scale)), loss_scale=scale)
    told = [i for i in incidents(run, log) if i["severity"] == "critical"]
    assert any("no learning" in json.dumps(i) for i in told)


@pytest.mark.covers("S56")
def test_a_loss_far_below_what_it_was_is_too_good(run: Run, tmp_path: Path) -> None:
    low = falling(1500)
    low[900:] -= 0.6
    found = incidents(run, write(tmp_path / "a.jsonl", loss=low))
    assert [(i["kind"], i["severity"]) for i in found] == [("too-good", "warning")]
    assert abs(found[0]["onset_row"] - 900) <= 8


@pytest.mark.slow
@pytest.mark.covers("S263")
def test_a_loss_that_stands_still_late_at_a_high_rate_is_a_warning(
    run: Run, tmp_path: Path
) -> None:
    steps = np.arange(10_000) + 1.0
    loss = 10 - np.log(steps)
    noise = 0.005 * np.random.default_rng(100).standard_normal(10_000)
    still = loss.copy()
    still[-500:] = still[-500]
    high, low = np.linspace(3e-4, 6e-5, 10_000), np.linspace(3e-4, 1e-6, 10_000)
    (found,) = incidents(run, write(tmp_path / "a.jsonl", loss=still + noise, lr=high))
    assert (found["kind"], found["severity"]) == ("plateau", "warning")
    assert not incidents(run, write(tmp_path / "b.jsonl", loss=still + noise, lr=low))
    assert not incidents(run, write(tmp_path / "c.jsonl", loss=loss + noise, lr=high))
