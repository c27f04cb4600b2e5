"""Logs in which nothing has a known name: what a person sees to be the loss is read, else nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.errors import ReadError
from trimtab.readers.given_columns import columns_given

NUM = 40
FALLS = 0.3 + 2 * np.exp(-np.arange(NUM) / 9) + 0.01 * np.random.default_rng(0).normal(size=NUM)
HELD_OUT = FALLS + 0.1 + 0.02 * np.random.default_rng(1).normal(size=NUM)
RISES = 1 - FALLS / 4


def _table(path: Path, columns: dict[str, np.ndarray]) -> Path:
    rows = zip(*(c.tolist() for c in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(f"{v:.6g}" for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("train", "held_out"), [("train", "valid"), ("train", " test"), ("tr_ssl", "va_ssl")]
)
def test_a_pair_of_training_and_held_out_data_is_two_losses(
    train: str, held_out: str, tmp_path: Path
) -> None:
    path = _table(tmp_path / "losses.csv", {"": np.arange(NUM), train: FALLS, held_out: HELD_OUT})
    (record,) = trimtab.read(path)
    assert record.columns["loss"].values == pytest.approx(FALLS, rel=1e-4)
    assert record.columns["val_loss"].values == pytest.approx(HELD_OUT, rel=1e-4)
    assert any("nothing is called a training loss" in note for note in record.notes)
    # A loss that rises is still the loss where its partner says what it is.
    path = _table(tmp_path / "risen.csv", {train: 9 * FALLS[::-1], held_out: 90 * HELD_OUT})
    assert "loss" in trimtab.read(path)[0].columns


def test_a_pair_that_rises_to_a_share_is_two_scores(tmp_path: Path) -> None:
    path = _table(tmp_path / "acc.csv", {"train": RISES, "val": RISES - 0.1})
    (record,) = trimtab.read(path)
    assert {"accuracy", "eval_score"} <= record.columns.keys()
    assert "loss" not in record.columns


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 001/120  tr_ssl={a:.4f}  tr_recon={c:.4f}  va_ssl={b:.4f}  (62s)",
        "Epoch [{k}/100] Recon: {a:.4f} | KL: {c:.4f} | Phys: 0.0000 (lambda=0.000)",
        "epoch {k} | D2=+{c:.4f} | cross={a:.4f} rr=0.2651 | 1591.6s",
    ],
)
def test_text_is_read_by_what_falls(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    shown = [
        line.replace("001", f"{k:03d}").format(k=k, a=FALLS[k], b=HELD_OUT[k], c=FALLS[k] / 3)
        for k in range(NUM)
    ]
    path.write_text("\n".join(["Training started", *shown]) + "\n")
    (record,) = trimtab.read(path)
    assert record.axis == "epoch"
    assert record.columns["loss"].values[3] in (
        pytest.approx(FALLS[3], abs=1e-4),
        pytest.approx(FALLS[3] / 3, abs=1e-4),
    )


@pytest.mark.parametrize(
    "columns",
    [
        {"epoch": np.arange(NUM), "eta": FALLS},  # the time that is left
        {"epoch": np.arange(NUM), "quality": RISES},
        {"epoch": np.arange(NUM), "noise level": FALLS},
        {"epoch": np.arange(8), "ce2": FALLS[:8]},
        {"year": np.arange(NUM) + 1980, "crime": FALLS},  # nothing counts its rows
        {"epoch": np.arange(NUM), "w": HELD_OUT[np.random.default_rng(3).permutation(NUM)]},
    ],
)
def test_what_moves_otherwise_is_no_log(columns: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = _table(tmp_path / "table.csv", columns)
    with pytest.raises(ReadError):
        trimtab.read(path)


def test_what_a_person_names_is_not_guessed(tmp_path: Path) -> None:
    path = _table(tmp_path / "t.csv", {"epoch": np.arange(NUM), "a": RISES, "zz": FALLS})
    assert "loss" in trimtab.read(path)[0].columns
    with columns_given({"reward": "a"}):
        (record,) = trimtab.read(path)
    assert "loss" not in record.columns


def test_lists_of_a_document_are_two_losses(tmp_path: Path) -> None:
    path = tmp_path / "losses.json"
    path.write_text(json.dumps({"train": FALLS.tolist(), "val": HELD_OUT.tolist(), "seed": 3}))
    (record,) = trimtab.read(path)
    assert record.columns["val_loss"].values == pytest.approx(HELD_OUT)


def test_columns_without_names_are_read_by_what_falls(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    rate = np.where(np.arange(NUM) < 20, 0.005, 0.0005)
    rows = zip(range(500, 500 * NUM + 1, 500), rate.tolist(), FALLS.tolist(), strict=True)
    path.write_text("".join(f"{step},{lr},{loss:.5f}\n" for step, lr, loss in rows))
    (record,) = trimtab.read(path)
    assert record.columns["loss"].values == pytest.approx(FALLS, abs=1e-5)
    assert record.step[-1] == 500 * NUM
    path.write_text("".join(f"{k},{v:.5f}\n" for k, v in enumerate(RISES.tolist())))
    with pytest.raises(ReadError, match="2 columns of numbers without names"):
        trimtab.read(path)
