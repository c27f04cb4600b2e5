"""Keys that are a signal by what their values do: the time of a step, the scale of a scaler."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

N = 400
DRAW = np.random.default_rng(0)
LOSS = 0.3 + 3 / (1 + 0.05 * np.arange(N)) + DRAW.normal(0, 0.02, N)
TIME = np.round(0.003 * (1 + 0.03 * DRAW.standard_normal(N)), 5)
SCALE = np.repeat([65536.0, 32768.0, 65536.0, 16384.0], N // 4)
FORMS = ("csv", "jsonl", "text", "padded")


def write(folder: Path, form: str, key: str, values: Sequence[float]) -> Path:
    path = folder / f"log.{form}"
    shown = [f"{v:.10g}" for v in values]
    if form == "csv":
        rows = [f"{i},{LOSS[i]:.5f},{shown[i]}" for i in range(N)]
        path.write_text("\n".join([f"step,loss,{key}", *rows]))
    elif form == "jsonl":
        path.write_text(
            "\n".join(
                json.dumps({"step": i, "loss": round(LOSS[i], 5), key: float(shown[i])})
                for i in range(N)
            )
        )
    elif form == "text":
        path.write_text(
            "\n".join(f"step {i} loss={LOSS[i]:.5f} {key}={shown[i]}" for i in range(N))
        )
    else:
        rows = [f"{i:>8}  {LOSS[i]:>10.5f}  {shown[i]:>12}" for i in range(N)]
        path.write_text("\n".join([f"{'step':>8}  {'loss':>10}  {key:>12}", *rows]))
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "key", ["sec", "secs", "dt", "time", "elapsed", "time_per_iteration", "iter_s"]
)
def test_a_time_that_does_not_add_up_is_that_of_a_step(tmp_path: Path, form: str, key: str) -> None:
    record = read_run(write(tmp_path, form, key, TIME.tolist()))
    assert record.columns["step_time_s"].logged() == pytest.approx(TIME, abs=1e-9)
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["sec", "time", "elapsed"])
def test_a_time_that_rises_is_none(tmp_path: Path, form: str, key: str) -> None:
    path = write(tmp_path, form, key, np.cumsum(TIME).tolist())
    assert "step_time_s" not in read_run(path).columns
    # Since the epoch began: it rises, and falls once in each.
    of_epoch = np.cumsum(TIME.reshape(-1, 20), axis=1).reshape(-1)
    path = write(tmp_path, form, key, of_epoch.tolist())
    assert "step_time_s" not in read_run(path).columns


def test_thousandths_are_scaled(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "csv", "time (ms)", (TIME * 1000).tolist()))
    assert record.columns["step_time_s"].logged() == pytest.approx(TIME)


def test_one_that_is_known_by_its_name_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{i},{LOSS[i]:.5f},{TIME[i]},{2 * TIME[i]:.5f}" for i in range(N)]
    path.write_text("\n".join(["step,loss,time,step_time", *rows]))
    assert read_run(path).keys["step_time_s"] == "step_time"


@pytest.mark.parametrize("key", ["sec", "time"])
def test_a_loader_that_becomes_slow_is_found(tmp_path: Path, key: str) -> None:
    slow = np.where(np.arange(N) < 250, TIME, TIME + 0.01)
    run = trimtab.analyze(write(tmp_path, "csv", key, slow.tolist()))
    assert any(i.kind == "slowdown" for i in run.incidents), [i.kind for i in run.incidents]
    sound = trimtab.analyze(write(tmp_path, "csv", key, TIME.tolist()))
    assert not [i for i in sound.incidents if i.severity != "info"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "key", ["scaler", "amp_scale", "scaler_scale", "grad_scaler", "fp16_scale"]
)
def test_the_scale_of_a_scaler(tmp_path: Path, form: str, key: str) -> None:
    record = read_run(write(tmp_path, form, key, SCALE.tolist()))
    assert record.columns["loss_scale"].logged() == pytest.approx(SCALE)


@pytest.mark.parametrize("form", FORMS)
def test_a_scaler_of_other_numbers_is_none(tmp_path: Path, form: str) -> None:
    record = read_run(write(tmp_path, form, "scaler", (SCALE * 3).tolist()))
    assert "loss_scale" not in record.columns
