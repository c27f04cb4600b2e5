"""What is named by a set behind it, by a group of parameters or over ranks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.vocabulary import canonical

N = 80
STEP = np.arange(N)
FALLING = 0.3 + np.exp(-STEP / 20) + np.random.default_rng(0).normal(0, 0.01, N)


def table(folder: Path, columns: Mapping[str, Sequence[float] | np.ndarray], comma: str) -> Path:
    path = folder / "log.csv"
    lines = [comma.join(columns)]
    lines += [comma.join(f"{values[i]:g}" for values in columns.values()) for i in range(N)]
    path.write_text("\n".join(lines) + "\n")
    return path


# A loop of regression by hand that writes its metric first, then the set: `mse_train;mse_valid`.
def test_a_metric_with_its_set_behind(tmp_path: Path) -> None:
    columns = {
        "epoch": STEP,
        "mse_train": FALLING,
        "mse_valid": FALLING + 0.1,
        "mae_valid": FALLING / 2,
        "r2_valid": 1 - FALLING / 2,
    }
    keys = read_run(table(tmp_path, columns, ";")).keys
    assert (keys["loss"], keys["val_loss"]) == ("mse_train", "mse_valid")
    assert keys["eval_score"] == "r2_valid"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("r2_valid", "eval_score"),
        ("f1/test", "eval_score"),
        ("ppl_dev", "val_perplexity"),
        ("accuracy_val", "eval_score"),
        ("loss_valid", "val_loss"),
        ("grad_norm_test", None),
        ("lr_test", None),
        ("data_time_val", None),
        ("best_r2_valid", None),
    ],
)
def test_a_set_behind_a_name(key: str, name: str | None) -> None:
    assert canonical(key) == name


# A loss called as training's stays in front of a metric of training.
def test_a_metric_of_training_beside_a_loss(tmp_path: Path) -> None:
    columns = {"step": STEP, "loss": FALLING, "mse_train": FALLING / 3}
    assert read_run(table(tmp_path, columns, ",")).keys["loss"] == "loss"


# Fine-tuning with a rate for each part of the model, 0 while a part is frozen.
def test_rates_by_part_of_the_model(tmp_path: Path) -> None:
    frozen = np.where(STEP < 30, 0.0, 5e-4)
    columns = {"step": STEP, "loss": FALLING, "lr_backbone": frozen, "lr_head": 5e-4 + 0 * STEP}
    record = read_run(table(tmp_path, columns, ","))
    assert record.keys["lr"] == "lr_head"
    assert any("lr_backbone" in note for note in record.notes)


@pytest.mark.parametrize("key", ["lr_max", "min_lr", "lr_scale", "lr_decay"])
def test_settings_of_a_rate_are_none(key: str) -> None:
    assert canonical(key) is None


# Nested JSON lines of a masked language model: accuracy of the masks, examples a second.
def test_accuracy_of_masks_and_examples_a_second(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    rows = (
        {
            "iter": 25 * i,
            "metrics": {"mlm_loss": FALLING[i], "mlm_acc": 1 - FALLING[i] / 2},
            "time": {"step_s": 0.85, "ex_per_s": 2400.0 + i},
        }
        for i in range(N)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = read_run(path).keys
    assert keys["accuracy"] == "metrics/mlm_acc"
    assert keys["throughput"] == "time/ex_per_s"


# A table of a job on many ranks: mean, smallest and largest time of a step, and who took it.
def ranks(folder: Path, slowest: Sequence[int] | np.ndarray, highest: float) -> Path:
    draw = np.random.default_rng(1)
    usual = 1.8 + draw.normal(0, 0.01, N)
    columns = {
        "step": STEP,
        "loss": FALLING,
        "step_time_min": usual,
        "step_time_max": usual * highest,
        "step_time_mean": usual * (1 + highest) / 2,
        "slowest_rank": slowest,
    }
    return table(folder, columns, "\t")


def test_the_mean_over_ranks_is_the_time_of_a_step(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    record = read_run(ranks(tmp_path, draw.integers(0, 64, N), 1.05))
    assert record.keys["step_time_s"] == "step_time_mean"
    assert not any("slow" in note for note in record.notes)


def test_a_rank_that_is_the_slowest_again_and_again_is_told(tmp_path: Path) -> None:
    slowest = np.where(STEP < 30, np.random.default_rng(2).integers(0, 64, N), 37)
    record = read_run(ranks(tmp_path, slowest, 1.35))
    assert any("rank 37 is slow" in note for note in record.notes)
    # As far apart, and each time another: nobody to name.
    other = read_run(ranks(tmp_path, np.random.default_rng(2).integers(0, 64, N), 1.35))
    assert not any("is slow" in note for note in other.notes)
    # One is always last by a hair.
    near = read_run(ranks(tmp_path, slowest, 1.05))
    assert not any("is slow" in note for note in near.notes)


def test_the_largest_is_read_where_no_mean_stands(tmp_path: Path) -> None:
    columns = {
        "step": STEP,
        "loss": FALLING,
        "step_time_min": 1.0 + 0 * STEP,
        "step_time_max": 1.2 + 0 * STEP,
    }
    assert read_run(table(tmp_path, columns, ",")).keys["step_time_s"] == "step_time_max"


def test_rates_by_part_of_the_model_in_text(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"step {i} loss {x:.4f} lr_backbone {0 if i < 30 else 5e-4:.1e} lr_head 5.0e-04\n"
            for i, x in enumerate(FALLING)
        )
    )
    assert read_run(path).keys["lr"] == "lr head"
