"""Validation on lines of a form of its own, and norms between bars, beside lines of training."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.readers.given_columns import columns_given

N, EVERY = 60, 5
LOSS = 0.3 + 4 / (1 + 0.1 * np.arange(1, N + 1))
VAL = LOSS[EVERY - 1 :: EVERY] + 0.2

FORMS = (
    "  >> held-out nll after {step}: {loss}",
    "held-out nll at {step}: {loss}",
    "val nll @ {step}: {loss}",
    "val_loss@{step}: {loss}",
    "eval @ {step}: loss {loss}",
    "held-out nll after {step} steps: {loss}",
    "validation nll (after {step}): {loss}",
    "validation nll [step {step}]: {loss}",
    "unseen nll after {step} = {loss}",
    "nll on held-out data after {step}: {loss}",
    "nll on the validation set after {step} is {loss}",
    "nll (held-out): {loss}",
    "held-out: {loss}",
    "held-out nll {loss} (after {step})",
)
NORMS = ("|g| {g}", "||g|| {g}", "||g||_2={g}", "\u2016g\u2016={g}", "|grad| {g}", "|\u2207|: {g}")


def write(folder: Path, second: str = "", norm: str = "gnorm {g}") -> Path:
    lines: list[str] = []
    for i in range(1, N + 1):
        lines.append(
            f"~ it={10 * i:05d} | nll {LOSS[i - 1]:.4f} nats | {norm.format(g=f'1.{i:03d}')} | eta=3.00e-05"
        )
        if second and i % EVERY == 0:
            lines.append(second.format(step=10 * i, loss=f"{LOSS[i - 1] + 0.2:.4f}"))
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_validation_behind_a_count(tmp_path: Path, form: str) -> None:
    record = read_run(write(tmp_path, form))
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=1e-4)
    column = record.columns["val_loss"]
    assert column.logged() == pytest.approx(VAL, abs=1e-4)
    assert record.step[column.present].tolist() == [50.0 * k for k in range(1, N // EVERY + 1)]


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_between_bars(tmp_path: Path, norm: str) -> None:
    path = write(tmp_path, norm=norm)
    record = read_run(path)
    assert record.columns["grad_norm"].logged() == pytest.approx(1 + np.arange(1, N + 1) / 1000)
    with columns_given({"grad_norm": norm.partition("{")[0].strip(" :=")}):
        assert "grad_norm" in read_run(path).columns


def test_bars_of_cells_and_two_nets_are_no_norm(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"step {i} loss {2 / i:.4f} |d| 0.{500 + i} |g| 0.{700 + i}\n" for i in range(1, 40)
        )
    )
    assert "grad_norm" not in read_run(path).columns


@pytest.mark.parametrize("name", ["|g|", "||grad||"])
def test_a_column_between_bars(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        f"step,loss,{name}\n" + "".join(f"{i},{2 / i:.4f},1.{i}\n" for i in range(1, 40))
    )
    assert read_run(path).keys["grad_norm"] == name


def test_validation_in_a_form_that_is_not_read_is_said(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "we saw on validation, of nll kind, something like <{loss}>"))
    assert "val_loss" not in record.columns
    said = [note for note in record.notes if "held-out" in note]
    assert len(said) == 1
    assert "12 lines" in said[0]
    assert "line 6" in said[0]


def test_recall_at_a_count_is_no_loss(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "held-out recall at 5: 0.31, at 10: 0.42"))
    assert "val_loss" not in record.columns
