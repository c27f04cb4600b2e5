"""Logs that give the perplexity alone: its logarithm is judged as the loss."""

import math
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run
from trimtab.signals import derive


def falling(num: int = 60) -> list[float]:
    noise = np.random.default_rng(3).normal(0, 0.02, num)
    return [float(4 + 5 * math.exp(-i / 15) + noise[i]) for i in range(num)]


def saved(folder: Path, text: str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def printed(losses: list[float]) -> str:
    """A translator's lines, as the reference implementation of TensorFlow prints them."""
    return "".join(
        f"  global step {100 * i} lr 1 step-time 0.32s wps 12.28K ppl {math.exp(loss):.2f} bleu {i / 4:.2f}\n"
        for i, loss in enumerate(losses, 1)
    )


def test_the_logarithm_of_a_perplexity_is_judged_as_the_loss(tmp_path: Path) -> None:
    record = read_run(saved(tmp_path, printed(falling())))
    assert (record.axis, record.num_rows, record.keys["perplexity"]) == ("step", 60, "ppl")
    derived = derive(record)
    assert derived.columns["loss"].values == pytest.approx(falling(), abs=1e-3)
    assert derived.keys["loss"] == "ppl"
    assert any("the loss is the logarithm of 'ppl'" in note for note in derived.notes)
    assert trimtab.analyze(saved(tmp_path, printed(falling()))).verdict == "healthy"


def test_a_perplexity_that_explodes_is_an_incident(tmp_path: Path) -> None:
    losses = [*falling(40), *(4.2 + 1.5 * i for i in range(1, 21))]
    found = trimtab.analyze(saved(tmp_path, printed(losses)))
    assert found.verdict == "incident"
    assert any(4000 <= i.onset <= 4300 for i in found.incidents)


@pytest.mark.parametrize(
    ("count", "train", "held_out"),
    [
        ("epoch", "train_ppl", "valid_ppl"),
        ("step", "ppl", "val_perplexity"),
        ("epoch", "train_perplexity", "test_ppl"),
    ],
)
def test_columns_of_perplexity(tmp_path: Path, count: str, train: str, held_out: str) -> None:
    rows = "".join(
        f"{i},{math.exp(loss):.4f},{math.exp(loss + 0.2):.4f}\n"
        for i, loss in enumerate(falling(30), 1)
    )
    path = saved(tmp_path, f"{count},{train},{held_out}\n{rows}", "log.csv")
    derived = derive(read_run(path))
    assert derived.columns["loss"].values == pytest.approx(falling(30), abs=1e-3)
    assert derived.columns["val_loss"].values == pytest.approx(
        np.array(falling(30)) + 0.2, abs=1e-3
    )
    assert (derived.keys["loss"], derived.keys["val_loss"]) == (train, held_out)


def test_epochs_in_words(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {i} | train ppl {math.exp(loss):.2f} | valid ppl {math.exp(loss + 0.1):.2f}\n"
        for i, loss in enumerate(falling(20), 1)
    )
    derived = derive(read_run(saved(tmp_path, text)))
    assert derived.axis == "epoch"
    assert derived.columns["loss"].values == pytest.approx(falling(20), abs=1e-3)
    assert derived.keys["val_loss"] == "valid ppl"


def test_the_perplexity_of_an_evaluation_is_held_out(tmp_path: Path) -> None:
    lines = printed(falling()).splitlines(keepends=True)
    for i in range(59, -1, -10):
        lines.insert(i, f"  eval dev: perplexity {math.exp(falling()[i]) + 3:.2f}, time 5s\n")
    record = read_run(saved(tmp_path, "".join(lines)))
    assert record.columns["perplexity"].present.sum() == 60
    assert record.columns["val_perplexity"].present.sum() == 6
    derived = derive(record)
    assert derived.columns["val_loss"].present.sum() == 6


def test_a_perplexity_beside_a_validation_loss_alone_is_of_that(tmp_path: Path) -> None:
    rows = "".join(f"{i},{loss:.4f},{math.exp(loss):.4f}\n" for i, loss in enumerate(falling(30)))
    derived = derive(read_run(saved(tmp_path, f"epoch,val_loss,ppl\n{rows}", "log.csv")))
    assert derived.keys["loss"] == "val_loss"


def test_a_loss_by_name_stays(tmp_path: Path) -> None:
    rows = "".join(f"{i},{loss:.4f},{math.exp(loss):.4f}\n" for i, loss in enumerate(falling(30)))
    derived = derive(read_run(saved(tmp_path, f"step,loss,ppl\n{rows}", "log.csv")))
    assert derived.keys["loss"] == "loss"
    assert not any("logarithm" in note for note in derived.notes)
