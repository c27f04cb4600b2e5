"""Lines of a text that announce another phase or setting, and lines that only seem to."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

N = 240
AT = (80, 160)
ANNOUNCE = [
    "=== phase {k}: seq_len {n} ===",
    "[stage {k}] switching to batch size {n}",
    "Starting curriculum stage {k} (resolution {n})",
    "Unfreezing backbone group {k}",
    "increasing sequence length to {n}",
    "2024-05-01 12:00:0{k} INFO switching to dataset part{k}",
    "Phase {k}",
    "--- curriculum level: {k} ---",
    "Changing image size from 224 to {n}",
    "Entering stage {k}",
    "data mixture switched: web 0.82 -> web 0.4{k}",
    "switching criterion: CrossEntropyLoss(label_smoothing=0.{k})",
    "Changing the loss function to focal, gamma {k}",
    "turning off mixup (group {k})",
]
SILENT = [
    ">> LR drop: lr=1e-{k} <<",
    "Reducing learning rate of group 0 to 1e-{k}",
    "Starting validation phase {k}",
    "phase {k} done in {n} s",
    "Loading dataset shard {k}",
    "saved checkpoint of stage {k}",
    "Starting epoch {k}",
    "will switch to batch size {n} later",
    "batch size {n}, resolution {n}",
    "the backbone has {n} layers",
    "WARNING: batch size changed to {n}",
    "the dataset has {n} rows",
    "switching off the lights {k}",
    "Enabling checkpointing {k}",
    "enabled dropout rng tracker {k}",
    "dataset changed on disk: refreshing cache {k}",
    "turning on loss function cache {k}",
    "GC: freezing objects to speed up fork {k}",
    "Changing task {k} to worker 2",
]


def write(
    tmp_path: Path, between: Mapping[int, str], jump: float = 0.0, form: str = "step {i} loss {x}"
) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.01, N)
    lines: list[str] = []
    for i in range(N):
        if i in between:
            lines.append(between[i])
        loss = 1 + 2 / (1 + 0.03 * i) + float(noise[i]) + jump * (i >= AT[1])
        lines.append(form.format(i=i, x=f"{loss:.4f}"))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def changes(path: Path) -> list[int]:
    column = read_run(path).columns.get("stated_setting")
    return [] if column is None else (np.flatnonzero(np.diff(column.values)) + 1).tolist()


@pytest.mark.parametrize("text", ANNOUNCE)
def test_an_announced_change_is_one_of_a_stated_setting(tmp_path: Path, text: str) -> None:
    between = {i: text.format(k=k, n=512 * k) for k, i in enumerate(AT, 2)}
    path = write(tmp_path, between)
    assert changes(path) == list(AT)
    record = read_run(path)
    assert record.num_rows == N
    assert record.keys["stated_setting"].startswith("announced ")
    assert any(repr(between[AT[0]].strip()) in note for note in record.notes)


@pytest.mark.parametrize("text", SILENT)
def test_what_announces_nothing(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, {i: text.format(k=k, n=512 * k) for k, i in enumerate(AT, 2)})
    assert changes(path) == []


@pytest.mark.parametrize(
    "text",
    ["=== stage 1: training ===", "Epoch {k}: entering phase 2", "[stage 2] entering phase {k}"],
)
def test_what_comes_with_every_epoch_announces_nothing(tmp_path: Path, text: str) -> None:
    assert changes(write(tmp_path, {i: text.format(k=i // 12) for i in range(12, N, 12)})) == []


def test_a_stage_on_every_row_is_no_announcement(tmp_path: Path) -> None:
    path = write(tmp_path, {}, form="[stage 2] step {i} loss {x}")
    assert changes(path) == []


def test_two_kinds_of_changes_are_one_signal(tmp_path: Path) -> None:
    path = write(tmp_path, {80: "Entering phase 2", 160: "increasing resolution to 256"})
    assert changes(path) == list(AT)
    assert read_run(path).keys["stated_setting"] == "announced phase, announced resolution"


@pytest.mark.parametrize("jump", [0.4, -0.4])
def test_a_step_of_the_loss_that_is_announced_is_no_incident(tmp_path: Path, jump: float) -> None:
    said = {AT[1]: "=== phase 2: seq_len 1024 ==="}
    told = trimtab.analyze(write(tmp_path, said, jump))
    assert [i.kind for i in told.incidents if i.severity != "info"] == []
    silent = trimtab.analyze(write(tmp_path, {}, jump))
    assert [i.kind for i in silent.incidents if i.severity != "info"]


@pytest.mark.parametrize("said", ["data mixture switched: code 0.35", ""])
def test_a_loss_that_drops_where_the_data_change_is_a_note(tmp_path: Path, said: str) -> None:
    path = write(tmp_path, {AT[1]: said} if said else {}, form="step {i} loss {x} lr 4e-4")
    text = path.read_text().splitlines()
    for i, line in enumerate(text):
        words = line.split()
        if words[0] == "step" and int(words[1]) >= AT[1]:
            words[3] = f"{0.83 * float(words[3]):.4f}"
            text[i] = " ".join(words)
    path.write_text("\n".join(text))
    told = [i.kind for i in trimtab.analyze(path).incidents if i.severity != "info"]
    assert told == ([] if said else ["too-good"])


def test_a_loss_that_is_lost_where_a_phase_begins_is_told(tmp_path: Path) -> None:
    told = trimtab.analyze(write(tmp_path, {AT[1]: "Entering phase 2"}, 3.0))
    assert [i.severity for i in told.incidents if i.severity != "info"] == ["critical"]
