"""Lists of a JSON document that are counted by steps of their own."""

import json
from pathlib import Path

import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

N, EVERY = 120, 4
STEPS = [100 * (i + 1) for i in range(N)]
LOSS = [round(3 / (1 + 0.05 * i) + 1, 4) for i in range(N)]
AT = STEPS[EVERY - 1 :: EVERY]
VAL = [round(3 / (1 + 0.005 * s / 10) + 1.2, 4) for s in AT]


def read(tmp_path: Path, document: object) -> RunRecord:
    path = tmp_path / "losses.json"
    path.write_text(json.dumps(document))
    return read_run(path)


def steps_of(record: RunRecord, name: str) -> list[float]:
    return [float(s) for s in record.step[record.columns[name].present]]


@pytest.mark.parametrize(
    ("steps", "loss", "own", "val"),
    [
        ("train_steps", "train_losses", "valid_steps", "valid_losses"),
        ("steps", "loss", "eval_steps", "eval_loss"),
        ("iters", "train_loss", "val_iters", "validation_loss"),
        ("train_iterations", "training_loss", "test_iterations", "test_loss"),
        ("steps", "losses", "eval_iters", "val_losses"),
    ],
)
def test_held_out_values_lie_at_their_own_steps(
    tmp_path: Path, steps: str, loss: str, own: str, val: str
) -> None:
    record = read(tmp_path, {steps: STEPS, loss: LOSS, own: AT, val: VAL})
    assert (record.axis, record.num_rows) == ("step", N)
    assert steps_of(record, "loss") == STEPS
    assert steps_of(record, "val_loss") == AT
    assert record.columns["val_loss"].logged().tolist() == VAL
    assert not record.unread


def test_epochs_are_an_axis_of_their_own(tmp_path: Path) -> None:
    epochs = list(range(1, N + 1))
    record = read(
        tmp_path,
        {"epochs": epochs, "train_loss": LOSS, "val_epochs": epochs[3::4], "val_loss": VAL},
    )
    assert record.axis == "epoch"
    assert steps_of(record, "val_loss") == epochs[3::4]


@pytest.mark.parametrize("from_one", [False, True])
def test_steps_of_evaluations_alone_count_the_losses(tmp_path: Path, from_one: bool) -> None:
    at = [i + from_one for i in range(EVERY - 1, N, EVERY)]
    record = read(tmp_path, {"train_losses": LOSS, "val_losses": VAL, "val_steps": at})
    assert record.num_rows == N
    assert steps_of(record, "val_loss") == at


def test_without_steps_they_lie_evenly(tmp_path: Path) -> None:
    record = read(tmp_path, {"steps": STEPS, "train_loss": LOSS, "val_loss": VAL})
    assert steps_of(record, "val_loss") == AT
    assert "val_loss: 30 values for 120 losses, taken as evenly spread" in record.notes


def test_lists_of_one_length_belong_row_by_row(tmp_path: Path) -> None:
    val = [x + 0.2 for x in LOSS]
    record = read(tmp_path, {"steps": STEPS, "loss": LOSS, "val_loss": val, "warmup_steps": [1, 2]})
    assert steps_of(record, "val_loss") == STEPS
