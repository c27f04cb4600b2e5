"""Losses on several held-out sets, named by the sets alone, in tables and in text."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers import read_run

Floats = NDArray[np.float64]
N = 200
STEP = 50 * (1 + np.arange(N))
LOSS = 3 + 6 * np.exp(-np.arange(N) / 40) + np.random.default_rng(0).normal(0, 0.02, N)
AT = range(9, N, 10)


# A table in Markdown as a script of language-model training appends it, a row each 50 steps.
def markdown(folder: Path, first: Floats, second: Floats) -> Path:
    path = folder / "run.md"
    lines = ["| step | tokens (B) | train CE | val c4 | val pile | lr | grad | tok/s/gpu |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for i in range(N):
        held = f"{first[i]:.4f} | {second[i]:.4f}" if i in AT else " | "
        lines.append(
            f"| {STEP[i]} | {i * 0.21:.3f} | {LOSS[i]:.4f} | {held} | 3.00e-04 | 0.3{i % 9} | 52{i:02d} |"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_in_markdown(tmp_path: Path) -> None:
    record = read_run(markdown(tmp_path, LOSS + 0.05, LOSS - 0.2))
    assert (record.axis, record.num_rows) == ("step", N)
    assert record.keys["loss"] == "train CE"
    assert record.keys["val_loss/c4"] == "val c4"
    assert record.keys["val_loss/pile"] == "val pile"
    assert record.keys["grad_norm"] == "grad"
    assert record.keys["throughput"] == "tok/s/gpu"
    assert record.columns["val_loss/c4"].present.sum() == len(AT)


def test_scores_of_sets_are_no_losses(tmp_path: Path) -> None:
    rising = 1 - LOSS / 12
    record = read_run(markdown(tmp_path, rising, rising / 2))
    assert not any(name.startswith("val_loss") for name in record.keys)
    # As high as the loss, but it rises.
    record = read_run(markdown(tmp_path, 12 - LOSS, 11 - LOSS))
    assert not any(name.startswith("val_loss") for name in record.keys)


# A trainer of several languages by hand: a line per 50 steps, one per evaluation, indented.
def lines(folder: Path, sets: dict[str, Floats], says: str = "eval @") -> Path:
    path = folder / "train.txt"
    out: list[str] = []
    for i in range(N):
        out.append(f"step {STEP[i]:6d} | train {LOSS[i]:.4f} | lr 3.00e-04")
        if i in AT:
            held = "  ".join(f"{name} {values[i]:.4f}" for name, values in sets.items())
            out.append(f"  {says} {STEP[i]}: {held}")
    path.write_text("\n".join(out) + "\n")
    return path


def test_languages_on_a_line_of_an_evaluation(tmp_path: Path) -> None:
    worse = LOSS + np.where(np.arange(N) > 120, 0.01 * (np.arange(N) - 120), 0)
    record = read_run(lines(tmp_path, {"en": LOSS + 0.1, "de": worse, "code": LOSS * 0.8}))
    assert {n for n in record.keys if n.startswith("val_loss")} == {
        "val_loss/en",
        "val_loss/de",
        "val_loss/code",
    }
    german = record.columns["val_loss/de"]
    assert german.present.sum() == len(AT)
    assert record.step[german.present].tolist() == [STEP[i] for i in AT]
    assert record.num_loss_rows == N


def test_scores_on_a_line_of_an_evaluation(tmp_path: Path) -> None:
    tasks = {"mmlu": 0.8 - LOSS / 12, "arc": 0.9 - LOSS / 11, "boolq": 1 - LOSS / 13}
    assert not any(n.startswith("val_loss") for n in read_run(lines(tmp_path, tasks)).keys)


def test_one_name_on_a_line_of_an_evaluation_is_no_set(tmp_path: Path) -> None:
    record = read_run(lines(tmp_path, {"gap": LOSS + 0.1}))
    assert not any(n.startswith("val_loss") for n in record.keys)


def test_names_on_a_line_of_training_are_no_sets(tmp_path: Path) -> None:
    record = read_run(lines(tmp_path, {"en": LOSS, "de": LOSS + 0.1}, says="took"))
    assert not any(n.startswith("val_loss") for n in record.keys)


# A net with three tasks by hand: a total, its parts, and each of them on held-out data.
def tasks(folder: Path, names: tuple[str, ...], total: str = "total", held: str = "dev_") -> Path:
    path = folder / "log.tsv"
    draw = np.random.default_rng(3)
    parts = [np.abs(LOSS / (k + 3) + draw.normal(0, 0.1, N)) for k in range(len(names))]
    rows = ["\t".join(["iter", total, *names, *(held + n for n in names if held)])]
    for i in range(N):
        values = [sum(p[i] for p in parts), *(p[i] for p in parts)]
        own = [f"{p[i] + 0.05:.5f}" if i in AT else "" for p in parts if held]
        rows.append("\t".join([str(STEP[i]), *(f"{v:.5f}" for v in values), *own]))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_total_of_tasks_with_their_validation(tmp_path: Path) -> None:
    record = read_run(tasks(tmp_path, ("depth", "seg", "normal")))
    assert record.keys["loss"] == "total"
    assert record.keys["loss/normal"] == "normal"
    assert record.keys["val_loss/normal"] == "dev_normal"
    assert record.columns["val_loss/depth"].present.sum() == len(AT)


def test_a_total_of_what_nothing_says_is_a_loss(tmp_path: Path) -> None:
    # Parts of a step's time add up, too, and nothing is measured of them on held-out data.
    path = tasks(tmp_path, ("forward", "backward", "optimizer"), held="")
    with pytest.raises(ReadError, match="no known signal"):
        read_run(path)


def test_a_quote_that_is_never_closed_leaves_a_row_without_cells(tmp_path: Path) -> None:
    """A Markdown table, damaged: one row is lost, and said, and no more."""
    rows = [f"| {k} | {3 / (k + 1):.3f} | 0.1 |\n" for k in range(20)]
    rows[-1] = rows[-1].replace("| 19", '|"19')
    path = tmp_path / "run.md"
    path.write_text("| step | loss | lr |\n|---|---|---|\n" + "".join(rows))
    assert len(read_run(path).step) == 19
