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
    ("count", "train", "held_out"),
    [
        ("", "train", "valid"),
        ("epoch", "train", " test"),
        ("step", "tr_ssl", "va_ssl"),
        ("update", "xent_fit", "xent_held"),
    ],
)
def test_a_pair_of_training_and_held_out_data_is_two_losses(
    count: str, train: str, held_out: str, tmp_path: Path
) -> None:
    path = _table(
        tmp_path / "losses.csv", {count: np.arange(NUM), train: FALLS, held_out: HELD_OUT}
    )
    (record,) = trimtab.read(path)
    assert record.columns["loss"].values == pytest.approx(FALLS, rel=1e-4)
    assert record.columns["val_loss"].values == pytest.approx(HELD_OUT, rel=1e-4)
    assert any("nothing is called a training loss" in note for note in record.notes)


def test_what_is_named_by_its_parts_need_not_fall(tmp_path: Path) -> None:
    columns = {"step": np.arange(NUM), "hits": 1 - FALLS / 4, "xent_fit": 3 * FALLS[::-1]}
    (record,) = trimtab.read(_table(tmp_path / "diverges.csv", columns))
    assert record.keys["loss"] == "xent_fit"


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
        {"epoch": np.arange(NUM), "voltage": FALLS},
        {"epoch": np.arange(NUM), "energy_kwh": FALLS},
        {"scan": np.arange(NUM), "tr": FALLS, "te": HELD_OUT},
        {"epoch": np.arange(NUM), "train_seen": 32 * np.arange(NUM), "val_seen": np.arange(NUM)},
        {"language": np.arange(NUM), "train": 90 - np.arange(NUM), "test": 9 + np.arange(NUM)},
        {"epoch": np.arange(NUM), "train": 9 * FALLS[::-1], "valid": 9 * HELD_OUT[::-1]},
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
    path = _table(tmp_path / "t.csv", {"epoch": np.arange(NUM), "a": RISES, "ssl": FALLS})
    assert "loss" in trimtab.read(path)[0].columns
    with columns_given({"reward": "a"}):
        (record,) = trimtab.read(path)
    assert "loss" not in record.columns


def test_text_that_calls_its_accuracy_train_has_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "acc.log"
    jumps = np.where(np.arange(NUM) < 1, 55.0, 92 + np.random.default_rng(0).normal(size=NUM))
    for scale in (1.0, 0.01):
        rows = [
            f"epoch {k} train {scale * v:.4f} valid {scale * v - scale:.4f}"
            for k, v in enumerate(jumps)
        ]
        path.write_text("\n".join(rows) + "\n")
        with pytest.raises(ReadError, match="rises as scores do"):
            trimtab.read(path)


def test_lists_of_a_document_are_two_losses(tmp_path: Path) -> None:
    path = tmp_path / "losses.json"
    path.write_text(json.dumps({"train": FALLS.tolist(), "val": HELD_OUT.tolist(), "seed": 3}))
    (record,) = trimtab.read(path)
    assert record.columns["val_loss"].values == pytest.approx(HELD_OUT)
