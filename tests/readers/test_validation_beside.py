"""A validation loss whose name nobody listed is known by that of the training loss."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run


@pytest.mark.parametrize(
    ("train", "held_out", "other"),
    [
        ("training/ce", "validation/ce", "validation/acc"),
        ("train/box_loss", "val/box_loss", "val/cls_loss"),
        ("train_mse_loss", "test_mse_loss", "test_mae"),
        ("train_logloss", "val_logloss", "val_auc"),
        ("loss", "val_logloss", "val_auc"),
        ("TrainLogloss", "ValidLogloss", "ValidAUC"),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_same_name_of_held_out_data(
    tmp_path: Path, train: str, held_out: str, other: str, form: str
) -> None:
    rows = [
        {"step": i, train: 3 - i / 100, **({held_out: 3.1 - i / 100, other: 0.5} if i % 5 == 0 else {})}
        for i in range(100)
    ]  # fmt: skip
    path = tmp_path / f"log.{form}"
    if form == "jsonl":
        path.write_text("\n".join(json.dumps(r) for r in rows))
    else:
        keys = ("step", train, held_out, other)
        lines = [",".join(keys), *(",".join(str(r.get(k, "")) for k in keys) for r in rows)]
        path.write_text("\n".join(lines))
    record = read_run(path)
    assert record.keys["loss"] == train
    assert record.keys["val_loss"] == held_out
    column = record.columns["val_loss"]
    assert int(column.present.sum()) == 20
    assert np.allclose(column.values[column.present], 3.1 - np.arange(0, 100, 5) / 100)


def test_without_a_training_loss_of_that_name_it_is_none(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"step": i, "loss": 3 - i / 100, "val/box_loss": 1.0} for i in range(100)]
    path.write_text("\n".join(json.dumps(r) for r in rows))
    assert "val_loss" not in read_run(path).columns


@pytest.mark.parametrize("line", ["batch {b}/100 - loss: {x:.4f}", "Step {b} | loss {x:.4f}"])
def test_batches_that_begin_again_under_a_line_of_the_epoch_are_one_attempt(
    tmp_path: Path, line: str
) -> None:
    text = []
    for epoch in range(1, 6):
        text.append(f"Epoch {epoch}/5")
        text += [
            line.format(b=b, x=3 - epoch / 3 - b / 1000 + 0.01 * (b % 7)) for b in range(1, 101, 5)
        ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(text))
    record = read_run(path)
    assert (record.num_rows, len(record.attempts), record.axis) == (100, 1, "epoch")
    assert bool((np.diff(record.step) > 0).all())


@pytest.mark.parametrize(("train", "held"), [("train_mse", "val_rmse"), ("loss", "valid_rmse")])
def test_validation_by_the_name_of_its_function_is_read(
    tmp_path: Path, train: str, held: str
) -> None:
    rows = [{"step": i, train: 3 / (1 + i), held: 1 + 3 / (1 + i)} for i in range(60)]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert read_run(path).keys["val_loss"] == held


def test_the_evaluation_of_an_estimator_is_no_training(tmp_path: Path) -> None:
    lines = []
    for i in range(200):
        lines.append(f"INFO:tensorflow:loss = {0.5 - i / 2000:.5f}, step = {i * 100} (1.2 sec)")
        if i % 10 == 9:
            lines.append(
                f"INFO:tensorflow:Saving dict for global step {i * 100}: auc = 0.75{i:03}, "
                f"global_step = {i * 100}, logloss = {0.45 + i / 1000:.5f}"
            )
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert record.columns["val_loss"].logged() == pytest.approx(
        0.45 + np.arange(9, 200, 10) / 1000, abs=1e-4
    )
    assert record.num_loss_rows == 200
