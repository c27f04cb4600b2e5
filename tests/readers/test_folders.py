"""Directories are their runs, once each; other files are passed over and counted."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.logs.event_logs import write_event_file
from trimtab.readers import read, read_each, read_newest
from trimtab.record import RunRecord

_ROWS = [{"step": s, "epoch": s / 100, "loss": 3.0 - s / 400} for s in range(10, 310, 10)]
_CSV = "step,train_loss\n" + "".join(f"{r['step']},{r['loss']}\n" for r in _ROWS)
_LOG = "".join(f"step {r['step']} loss {r['loss']:.4f}\n" for r in _ROWS)
_WEIGHTS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "training_args.bin", "rng_0.pth")


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def events(path: Path, tag: str, steps: Sequence[int] = range(10, 310, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    at = np.array(steps, dtype=np.int64)
    write_event_file(path, {tag: 3.0 - at / 400}, at)


def only_run(root: Path) -> RunRecord:
    """Return the one record of a directory in which nothing is told as an error."""
    ((_, record),) = list(read_each(root))
    assert isinstance(record, RunRecord), record
    return record


def hugging_face(root: Path, *, last: bool = True) -> None:
    for step in (100, 200):
        for name in _WEIGHTS:
            written(root / f"checkpoint-{step}" / name, b"\x80\x02}q\x00." * 50)
        for name in ("config.json", "tokenizer.json", "vocab.json", "generation_config.json"):
            written(root / f"checkpoint-{step}" / name, '{"vocab_size": 3}')
        history = [r for r in _ROWS if r["step"] <= step]
        state = json.dumps({"log_history": history})
        written(root / f"checkpoint-{step}" / "trainer_state.json", state)
    written(root / "all_results.json", '{"train_loss": 2.5, "epoch": 3.0}')
    written(root / "README.md", "# A model\nloss 2.5\n")
    if last:
        written(root / "trainer_state.json", json.dumps({"log_history": _ROWS}))


@pytest.mark.parametrize("last", [True, False])
def test_a_hugging_face_folder_is_one_run(tmp_path: Path, *, last: bool) -> None:
    hugging_face(tmp_path / "out", last=last)
    assert only_run(tmp_path).num_loss_rows == (30 if last else 20)


def test_events_of_a_hugging_face_run_are_the_same_run(tmp_path: Path) -> None:
    hugging_face(tmp_path, last=False)
    events(tmp_path / "runs" / "Nov22_host" / "events.out.tfevents.1.host.1.0", "train/loss")
    record = only_run(tmp_path)
    assert record.format == "tensorboard"  # goes on behind the last checkpoint
    assert record.num_loss_rows == 30


def test_lightning_logs_are_a_run_a_version(tmp_path: Path) -> None:
    for version in (0, 1):
        folder = tmp_path / "lightning_logs" / f"version_{version}"
        written(folder / "metrics.csv", _CSV)
        written(folder / "hparams.yaml", "lr: 0.1\n")
        written(folder / "checkpoints" / "epoch=1-step=10.ckpt", b"PK\x03\x04" * 9)
        events(folder / "events.out.tfevents.1.host", "train_loss")
    outcomes = list(read_each(tmp_path))
    assert [type(found) for _, found in outcomes] == [RunRecord, RunRecord]


def test_a_folder_of_wandb_is_a_run_each_without_its_own_logs(tmp_path: Path) -> None:
    folder = tmp_path
    for name in ("run-20240101_120000-abc", "run-20240102_120000-def"):
        folder = tmp_path / "wandb" / name
        written(folder / "run.wandb", b":W&B no history here")
        written(folder / "files" / "output.log", _LOG)
        written(folder / "files" / "wandb-summary.json", '{"loss": 2.0}')
        written(folder / "files" / "config.yaml", "lr: 0.1\n")
        written(folder / "logs" / "debug.log", "loss 1.0\n" * 40)
        written(folder / "logs" / "debug-internal.log", "{}\n" * 40)
    (tmp_path / "wandb" / "latest-run").symlink_to(folder)
    assert [r.num_loss_rows for r in read(tmp_path)] == [30, 30]
    assert all(isinstance(found, RunRecord) for _, found in read_each(tmp_path))


def test_hydra_outputs_are_a_run_each(tmp_path: Path) -> None:
    for time in ("12-00-00", "13-00-00"):
        folder = tmp_path / "outputs" / "2024-01-01" / time
        written(folder / ".hydra" / "config.yaml", "lr: 0.1\n")
        written(folder / "train.log", _LOG)
        written(folder / "setup.log", "[2024-01-01 12:00:00,000][main][INFO] - ready\n")
    assert [r.num_loss_rows for r in read(tmp_path)] == [30, 30]
    assert len(list(read_each(tmp_path))) == 2


def test_train_and_validation_folders_of_events_are_one_run(tmp_path: Path) -> None:
    events(tmp_path / "train" / "events.out.tfevents.1.host.v2", "epoch_loss")
    events(tmp_path / "validation" / "events.out.tfevents.1.host.v2", "epoch_loss")
    record = only_run(tmp_path)
    assert {"loss", "val_loss"} <= set(record.columns)


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    written(tmp_path / "train.log", _LOG)
    for name in _WEIGHTS:
        written(tmp_path / name, b"\0\1\2" * 99)
    written(tmp_path / "notes.txt", "we lost the data\n")
    assert any("6 other files" in note for note in only_run(tmp_path).notes)


def test_a_damaged_log_in_a_directory_is_still_told(tmp_path: Path) -> None:
    written(tmp_path / "a.log", _LOG)
    written(tmp_path / "b.csv", "step,loss\n" + "1,oops\n" * 30)
    written(tmp_path / "report.html", "<html>loss 2.1</html>\n")  # which trimtab wrote: no log
    kinds = {Path(p).name: type(found).__name__ for p, found in read_each(tmp_path)}
    assert kinds == {"a.log": "RunRecord", "b.csv": "ReadError"}


def test_folders_in_folders_are_no_recursion(tmp_path: Path) -> None:
    written(tmp_path / "train.log", _LOG)
    folders = [str(tmp_path)]
    for _ in range(1500):
        folders.append(f"{folders[-1]}/d")
        Path(folders[-1]).mkdir()
    try:
        found = dict(read_each(tmp_path))
    finally:
        for folder in reversed(folders[1:]):  # pytest's own clean-up recurses
            Path(folder).rmdir()
    assert sum(isinstance(f, RunRecord) for f in found.values()) == 1
    assert len(found) == 2


def test_the_newest_run_of_a_directory_is_the_one_to_watch(tmp_path: Path) -> None:
    for number, name in enumerate(("old.log", "new.log")):
        os.utime(written(tmp_path / name, _LOG), (1e9 + number, 1e9 + number))
    assert read_newest(tmp_path).source.endswith("new.log")
