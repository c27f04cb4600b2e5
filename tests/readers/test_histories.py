"""One history in every form: TensorBoard, JSONL and CSV give the same series.

Validation beside training.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.logs.event_logs import write_event_file
from trimtab.analysis.assemble import make_account
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.html import page_data
from trimtab.testing.tr8_104b import print_log

FALLING = [0.3 + 2 * 0.93**i for i in range(60)]


def history() -> dict[str, list[float]]:
    rng = np.random.default_rng(7)
    loss = 3.0 + 2.0 * np.exp(-np.arange(120) / 40) + 0.02 * rng.standard_normal(120)
    norm = np.exp(0.2 * rng.standard_normal(120))
    return {
        "loss": [float(np.float32(x)) for x in loss],
        "grad_norm": [float(np.float32(x)) for x in norm],
        "lr": [float(np.float32(1e-3 * min(1.0, (i + 1) / 20))) for i in range(120)],
    }


def write(form: str, folder: Path, columns: dict[str, list[float]]) -> Path:
    """Write a history, step 10, 20, ..., in one form; returns its file."""
    rows: list[dict[str, float]] = [
        {"step": 10 * (i + 1)} | {n: v[i] for n, v in columns.items()} for i in range(120)
    ]
    path = folder / {"jsonl": "log.jsonl", "csv": "log.csv"}.get(form, "events.out.tfevents.1.h")
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif form == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        steps = np.arange(10, 1210, 10, dtype=np.int64)
        write_event_file(path, {n: np.array(v) for n, v in columns.items()}, steps)
    return path


def series(record: RunRecord) -> dict[str, list[tuple[float, float]]]:
    return {
        n: [
            (float(s), float(v))
            for s, v, p in zip(record.step, c.values, c.present, strict=True)
            if p
        ]
        for n, c in record.columns.items()
        if n in ("loss", "grad_norm", "lr")
    }


@pytest.mark.covers("S36")
def test_a_history_reads_alike_from_tensorboard_jsonl_and_csv(tmp_path: Path) -> None:
    columns = history()
    found = []
    for form in ("tensorboard", "jsonl", "csv"):
        (tmp_path / form).mkdir()
        found.append(series(read_run(write(form, tmp_path / form, columns))))
    assert found[0] == found[1] == found[2]
    assert found[0]["loss"] == [(10.0 * (i + 1), x) for i, x in enumerate(columns["loss"])]


@pytest.mark.covers("S13")
def test_a_validation_loss_stands_at_its_step_beside_the_training_loss(tmp_path: Path) -> None:
    path = tmp_path / "main.log"
    path.write_text(print_log(), encoding="utf-8")
    record = read_run(path)
    loss, validation = record.columns["loss"], record.columns["val_loss"]
    row = int(np.flatnonzero(validation.present & (record.step == 7000))[0])
    assert validation.values[row] == pytest.approx(7.1742)
    assert loss.present[row]
    assert not loss.present[validation.present & ~loss.present].any()
    data = page_data(make_account(record))
    panel, *_ = data["panels"]
    shown = [(x, y) for d in panel["dots"] for x, y in zip(data["xs"][d["x"]], d["y"], strict=True)]
    assert (7000.0, pytest.approx(7.1742)) in shown


@pytest.mark.parametrize("label", ["train history: ", "history = ", "History:"])
def test_a_history_that_is_printed_behind_a_word_is_read(label: str, tmp_path: Path) -> None:
    loss = [round(0.3 + 2 * 0.9**k, 4) for k in range(30)]
    path = tmp_path / "train_history.txt"
    path.write_text(
        f"{label}{ ({'acc': [1 - v / 4 for v in loss], 'loss': loss, 'val_loss': loss}) }\n accuracy: 0.7\n"
    )
    record = read_run(path)
    assert record.columns["loss"].logged().tolist() == loss
    assert "val_loss" in record.columns


# Keras: `history.history`, a list per metric with a value an epoch.
def test_the_history_of_keras_counts_epochs(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    columns = {
        "loss": FALLING,
        "acc": [1 - x / 4 for x in FALLING],
        "val_loss": [x + 0.1 for x in FALLING],
    }
    path.write_text(json.dumps(columns))
    record = read_run(path)
    assert (record.axis, record.step[0], record.num_rows) == ("epoch", 1, 60)
    assert any("an epoch" in note for note in record.notes)
    # Nothing says that a list of losses alone is of epochs.
    other = tmp_path / "losses.json"
    other.write_text(json.dumps({"loss": FALLING, "lr": FALLING}))
    assert read_run(other).axis == "row"
