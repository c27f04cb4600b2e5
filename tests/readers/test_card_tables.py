"""The accuracy in a table of a model card is of the data that the loss beside it is of."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

LOSS = [round(2.5 * float(np.exp(-i / 9)) + 0.4, 3) for i in range(24)]
SCORE = [round(0.5 + 0.02 * i, 3) for i in range(24)]
PAIRS = list(enumerate(zip(LOSS, SCORE, strict=True)))


def read(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> RunRecord:
    lines = [header, [":---:"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)
    path.write_text(text + "\n", encoding="utf-8")
    return read_run(path)


@pytest.mark.parametrize("key", ["Accuracy", "Acc", "accuracy"])
def test_a_bare_accuracy_beside_both_losses_is_of_held_out_data(tmp_path: Path, key: str) -> None:
    header = ["Training Loss", "Epoch", "Step", "Validation Loss", key]
    rows = [
        (x, f"{i}.0", i * 250, x + 0.1, s)
        for i, (x, s) in enumerate(zip(LOSS, SCORE, strict=True), 1)
    ]
    record = read(tmp_path / "README.md", header, rows)
    assert record.columns["eval_score"].logged().tolist() == SCORE
    assert record.keys["eval_score"] == key
    assert "accuracy" not in record.columns


def test_an_accuracy_on_the_rows_of_the_validation_loss(tmp_path: Path) -> None:
    rows = [
        (x, i * 50, f"{x + 0.1:.3f}" if i % 3 == 0 else "No log", s if i % 3 == 0 else "")
        for i, (x, s) in enumerate(zip(LOSS, SCORE, strict=True))
    ]
    header = ["Training Loss", "Step", "Validation Loss", "Accuracy"]
    record = read(tmp_path / "a.md", header, rows)
    assert record.columns["eval_score"].logged().tolist() == SCORE[::3]


def test_a_card_with_words_around_its_table(tmp_path: Path) -> None:
    rows = [
        f"| {x} | {i}.0 | {i * 250} | {x + 0.1:.3f} | {s} |"
        for i, (x, s) in enumerate(zip(LOSS, SCORE, strict=True), 1)
    ]
    head = "| Training Loss | Epoch | Step | Validation Loss | Accuracy |"
    table = "\n".join([head, "|:---:|:---:|:---:|:---:|:---:|", *rows])
    path = tmp_path / "README.md"
    path.write_text(
        f"# a model\n\n- Loss: 0.45\n- Accuracy: 0.9\n\n{table}\n\n### Versions\n\n- 4\n"
    )
    record = read_run(path)
    assert record.columns["eval_score"].logged().tolist() == SCORE
    assert "accuracy" not in record.columns


def test_an_accuracy_between_the_losses_is_of_training(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    lines = [f"epoch {i} train loss {x} acc {s} val loss {x + 0.1:.3f}" for i, (x, s) in PAIRS]
    path.write_text("\n".join(lines))
    assert read_run(path).columns["accuracy"].logged().tolist() == SCORE


@pytest.mark.parametrize(
    ("header", "logs"),
    [
        (("epoch", "loss", "val_loss", "accuracy", "other"), lambda i: True),
        (("epoch", "train_loss", "val_loss", "accuracy", "val_accuracy"), lambda i: True),
        (("epoch", "train_loss", "validation_loss", "train_accuracy", "other"), lambda i: True),
        (("epoch", "train_loss", "eval_loss", "accuracy", "other"), lambda i: i % 3 > 0),
    ],
)
def test_other_accuracies_stay_of_training(
    tmp_path: Path, header: Sequence[str], logs: Callable[[int], bool]
) -> None:
    rows = [
        (i, x, x + 0.1 if logs(i) else "", s, s - 0.05)
        for i, (x, s) in enumerate(zip(LOSS, SCORE, strict=True))
    ]
    record = read(tmp_path / "a.md", header, rows)
    assert record.columns["accuracy"].logged().tolist() == SCORE
