"""Findings, incidents and signals in the loggers of others: the real packages, read back."""

import json
import math
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.guard.tiny import events_of, guard_of, make, rows_of, train_guarded
from trimtab.chronicle.journal import Event
from trimtab.errors import ConfigError
from trimtab.integrations import loggers
from trimtab.plan.policy import Policy
from trimtab.readers import read
from trimtab.readers.leveldb_log import LogDamage, log_records
from trimtab.readers.wandb import history_row

pytestmark = pytest.mark.torch


SNAPSHOTS = Policy(
    snapshot_every_steps=2, checkpoint_every_steps=1000, checkpoint_in_background=False
)


def run_with(folder: Path, *listeners: Any, steps: int = 12) -> Path:
    """A short run with a NaN loss at step 6, which opens an incident."""
    s = make()
    guard = guard_of(s, folder / "run", steps=steps)
    guard.listen(*listeners)
    for batch in guard:
        loss = s.loss(batch)
        if guard.step_number in (6, 7, 8):
            loss = loss * math.nan
        guard.backward(loss)
        guard.step()
    return folder / "run"


def losses_of(run: Path) -> list[float]:
    return [float(row["loss"]) for row in rows_of(run, "1.0")]


def assert_same(got: list[float], run: Path) -> None:
    expected = losses_of(run)
    assert any(map(math.isnan, expected))
    assert got == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "tb") as writer:
        run = run_with(tmp_path, loggers.TensorBoard(writer))
    record = next(iter(read(tmp_path / "tb")))
    column = record.columns["loss"]
    assert_same([float(v) for v in column.values[column.present]], run)
    raw = b"".join(p.read_bytes() for p in (tmp_path / "tb").glob("events*"))
    assert b"trimtab/chronicle" in raw
    assert b"non-finite" in raw


@pytest.mark.slow
def test_wandb_takes_steps_that_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(project="x", dir=tmp_path, settings=wandb.Settings(silent=True)) as theirs:
        logger = loggers.WandB(theirs)
        run = run_with(tmp_path, logger)
        logger.sample(3, {"loss": 1.25}, attempt="1.1")
    path = next((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    deadline = time.monotonic() + 120  # a process of theirs writes it, a while after `finish`
    while b"trimtab: " not in path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.2)
    record = next(iter(read(path)))
    column = record.columns["loss"]
    assert_same([float(v) for v in column.values[column.present]][:-1], run)
    assert float(column.values[column.present][-1]) == 1.25
    assert b"trimtab: " in path.read_bytes()  # the alert


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    theirs = client.create_run(client.create_experiment("x")).info.run_id
    run = run_with(tmp_path, loggers.MLflow(client, theirs))
    assert_same([m.value for m in client.get_metric_history(theirs, "trimtab/loss")], run)
    assert client.get_run(theirs).data.tags["trimtab.last"]


def rolled_back(folder: Path, *listeners: Any) -> dict[int, float]:
    """A run that goes back twice by hand, the second time beyond the first; its final lineage."""
    s, back = make(), {10: 6, 14: 4}
    guard = guard_of(s, folder / "run", mode="act", steps=16, policy=SNAPSHOTS)
    guard.listen(*listeners)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        target = back.pop(guard.step_number, None)
        if target is not None:
            guard.roll_back(target, why="a test", confirm=True)
    assert not back
    column = next(iter(read(folder / "run")))
    rows = column.lineage_rows()
    found = dict(
        zip(column.step[rows].tolist(), column.columns["loss"].values[rows].tolist(), strict=True)
    )
    assert sorted(found) == list(range(1, 17))
    return found


def test_after_rollbacks_tensorboard_shows_the_final_lineage_and_the_rest_apart(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "tb") as writer:
        final = rolled_back(tmp_path, loggers.TensorBoard(writer, purge=True))
    theirs = EventAccumulator(str(tmp_path / "tb")).Reload()
    shown = {e.step: e.value for e in theirs.Scalars("trimtab/loss")}
    assert len(theirs.Scalars("trimtab/loss")) == 16
    assert shown == pytest.approx(final, rel=1e-6)
    apart = [t for t in theirs.Tags()["scalars"] if t.startswith("trimtab-given-up/")]
    assert {t.split("/")[1] for t in apart} == {"1.0", "1.1"}
    steps = {t: [e.step for e in theirs.Scalars(t)] for t in apart if t.endswith("/loss")}
    assert sorted(steps["trimtab-given-up/1.0/loss"]) == [5, 6, 7, 8, 9, 10]
    assert steps["trimtab-given-up/1.1/loss"] == [7, 8, 9, 10, 11, 12, 13, 14]
    with pytest.raises(ConfigError, match="purge needs an open SummaryWriter"):
        loggers.TensorBoard(Mock(spec=["add_scalar"]), purge=True)


@pytest.mark.slow
def test_after_rollbacks_the_last_row_of_each_step_is_the_final_lineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    run_id = client.create_run(client.create_experiment("x")).info.run_id
    with wandb.init(project="x", dir=tmp_path, settings=wandb.Settings(silent=True)) as theirs:
        final = rolled_back(tmp_path, loggers.MLflow(client, run_id), loggers.WandB(theirs))
    found = client.get_metric_history(run_id, "trimtab/loss")
    assert {m.step: m.value for m in found} == pytest.approx(final)
    assert client.get_metric_history(run_id, "trimtab-given-up/1.0/loss")
    path = next((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    until, shown = time.monotonic() + 20, dict[object, object]()
    # W&B's own process may write the last rows after `finish` has returned.
    while len(shown) < len(final) and time.monotonic() < until:
        rows = [row for row in history_of(path) if "trimtab/loss" in row]
        shown = {row["trimtab/step"]: row["trimtab/loss"] for row in rows}
    assert shown == pytest.approx(final)


def history_of(path: Path) -> list[dict[str, object]]:
    """The rows of an offline run as they lie in its file."""
    records = log_records(path.read_bytes(), 7, LogDamage())
    return [dict(history_row(record)) for record in records]


@pytest.mark.slow
def test_trackio(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = f"""
import os, sys
from pathlib import Path
os.environ["TRACKIO_DIR"] = {str(tmp_path / "trackio")!r}
import trackio
from tests.integrations.test_loggers import run_with
from trimtab.integrations import loggers
theirs = trackio.init(project="x", name="n")
run_with(Path({str(tmp_path)!r}), loggers.Trackio(theirs))
theirs.finish()
"""  # a process of its own: the folder is read when the package is imported
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "trackio" / "x.db")) as base:
        rows = [json.loads(r[0]) for r in base.execute("select metrics from metrics order by step")]
    assert_same([float(m["trimtab/loss"]) for m in rows if "trimtab/loss" in m], tmp_path / "run")
    assert any("non-finite" in m.get("trimtab/chronicle", "") for m in rows)


def test_prometheus(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    run = run_with(tmp_path, loggers.Prometheus(client, registry))
    assert registry.get_sample_value("trimtab_step") == 12
    last = registry.get_sample_value("trimtab_signal", {"name": "loss"})
    assert last == pytest.approx(losses_of(run)[-1], nan_ok=True)
    findings = events_of(run, "finding")
    kind, severity = findings[0].data["kind"], findings[0].data["severity"]
    same = [e for e in findings if (e.data["kind"], e.data["severity"]) == (kind, severity)]
    labels = {"kind": kind, "severity": severity}
    assert registry.get_sample_value("trimtab_findings_total", labels) == len(same) > 0
    opened = [e for e in events_of(run, "incident") if e.data["state"] == "open"]
    labels = {name: opened[0].data[name] for name in ("kind", "severity")}
    assert registry.get_sample_value("trimtab_incidents_total", labels) == 1


class Failing:
    """A logger that fails at its third step."""

    def __init__(self) -> None:
        self.seen = 0

    def sample(self, step: int, values: Any, *, attempt: str) -> None:
        del values, attempt
        self.seen += 1
        if step == 3:
            raise ConnectionError("no route")

    def event(self, event: Event) -> None:
        del event

    def close(self) -> None:
        raise ConnectionError("no route")


def test_a_logger_that_fails_is_left_out_and_the_run_is_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Failing()
    s, plain = make(), make()
    guard = guard_of(s, tmp_path / "run", steps=12)
    guard.listen(failing)
    torch.manual_seed(1)
    losses = train_guarded(s, guard)
    torch.manual_seed(1)
    assert losses == train_guarded(plain, guard_of(plain, tmp_path / "plain", steps=12))
    assert failing.seen == 3
    notes = [e.data["text"] for e in events_of(tmp_path / "run", "note")]
    assert [n for n in notes if "Failing failed and is left out" in n and "no route" in n]
    assert events_of(tmp_path / "run", "fault") == []
    assert "left out" in capsys.readouterr().err


def test_signals_can_be_thinned(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every_steps is 0"):
        loggers.Trackio(Mock(), every_steps=0)
    logged: list[int] = []

    class Run:
        def log(self, metrics: dict[str, Any], step: int) -> None:
            if "trimtab/loss" in metrics:
                logged.append(step)

    run_with(tmp_path, loggers.Trackio(Run(), every_steps=5))
    assert logged == [5, 10]
