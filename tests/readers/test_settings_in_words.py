"""Columns that say in words what is learned: `phase`, `stage`, `task`, `dataset`, `image_size`."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

N = 300
WORDS = ["warmup"] * 100 + ["main"] * 120 + ["anneal"] * 80


def write(tmp_path: Path, form: str, key: str, values: Sequence[object], jump: float = 0) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.01, N)
    rows = [
        {"step": i, "loss": round(1 + 2 / (1 + 0.03 * i) + float(noise[i]) + jump * (i >= 220), 4)}
        | {key: values[i]}
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
@pytest.mark.parametrize(
    "key", ["phase", "stage", "task", "dataset", "curriculum", "image_size", "Phase"]
)
def test_words_that_are_held_and_change_state_a_setting(
    tmp_path: Path, form: str, key: str
) -> None:
    record = read_run(write(tmp_path, form, key, WORDS))
    column = record.columns["stated_setting"]
    assert record.keys["stated_setting"] == key
    assert column.logged().tolist() == [1.0] * 100 + [2.0] * 120 + [3.0] * 80
    assert any("1 is 'warmup', 2 is 'main', 3 is 'anneal'" in note for note in record.notes)
    assert "stage" not in record.columns
    assert key not in record.unread


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize(
    "key", ["dataset", "task", "image_size", "seq_len", "phase", "curriculum_stage"]
)
def test_so_do_numbers(tmp_path: Path, form: str, key: str) -> None:
    values = [128] * 100 + [192] * 120 + [256] * 80
    record = read_run(write(tmp_path, form, key, values))
    assert np.flatnonzero(np.diff(record.columns["stated_setting"].values)).tolist() == [99, 219]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize(
    "values",
    [
        ["train"] * N,
        ["a", "b"] * (N // 2),
        ["train"] * 200 + ["val"] * 100,
        [f"shard {i}" for i in range(N)],
        [""] * 100 + ["None"] * 200,
    ],
    ids=["one", "turns", "split", "always new", "nothing"],
)
def test_other_words_state_none(tmp_path: Path, form: str, values: Sequence[str]) -> None:
    record = read_run(write(tmp_path, form, "phase", values))
    assert "stated_setting" not in record.columns
    assert record.num_rows == N


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_rows_of_held_out_data_are_no_change(tmp_path: Path, form: str) -> None:
    values = ["valid" if i % 20 == 19 else WORDS[i] for i in range(N)]
    record = read_run(write(tmp_path, form, "phase", values))
    assert "val_loss" in record.columns
    logged = record.columns["stated_setting"].logged()
    assert np.count_nonzero(np.diff(logged)) == 2


def test_a_step_of_the_loss_with_a_stage_in_numbers_is_no_incident(tmp_path: Path) -> None:
    told = trimtab.analyze(write(tmp_path, "csv", "seq_len", [512] * 220 + [2048] * 80, jump=0.4))
    assert [i.kind for i in told.incidents if i.severity != "info"] == []


def test_a_step_of_the_loss_with_the_data_is_no_incident(tmp_path: Path) -> None:
    told = trimtab.analyze(write(tmp_path, "jsonl", "dataset", WORDS, jump=0.4))
    silent = trimtab.analyze(write(tmp_path, "jsonl", "host", WORDS, jump=0.4))
    alarms = [[i.kind for i in r.incidents if i.severity != "info"] for r in (told, silent)]
    assert alarms[0] == []
    assert alarms[1]
