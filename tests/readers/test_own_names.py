"""Logs whose columns have the names that their writer gave them."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

NUM_EPOCHS = 40


def curves() -> tuple[list[float], list[float]]:
    """Return losses of training, and on held-out data, of a run that learns its data by heart."""
    epochs = np.arange(NUM_EPOCHS)
    noise = np.random.default_rng(0).normal(0, 0.004, NUM_EPOCHS)
    train = 1.2 * np.exp(-epochs / 2.5) + 0.01
    held_out = 1.2 + 2.6 * (1 - np.exp(-epochs / 9)) + 5 * noise
    return train.tolist(), held_out.tolist()


def table(header: str, *, mark: str = ",") -> str:
    rows = [
        mark.join((str(epoch), f"{a:.4f}", f"{b:.4f}", "3.1"))
        for epoch, (a, b) in enumerate(zip(*curves(), strict=True), 1)
    ]
    return "\n".join([header.replace(",", mark), *rows]) + "\n"


def lines(form: str) -> str:
    pairs = enumerate(zip(*curves(), strict=True), 1)
    return "".join(form.format(epoch=i, n=NUM_EPOCHS, a=a, b=b) + "\n" for i, (a, b) in pairs)


TABLES = [
    "epoch,tr_loss,va_loss,sec",
    "ep,tr_loss,va_loss,sec",
    "epoch,loss_tr,loss_va,sec",
    "epoch,trn_loss,vld_loss,sec",
    "epoch,training loss,held-out loss,sec",
    "epoch,loss,hold_out_loss,sec",
    "epoch,trainLoss,vaLoss,sec",
    "epoch,loss,loss_te,sec",
    "epoch,tr_loss,tst_loss,sec",
    "epoch,L_train,L_val,sec",
    "epoch,tr_mse,va_mse,sec",
]
LINES = [
    "Epoch {epoch:3d} | train {a:.4f} (acc 0.71) | val {b:.4f} (acc 0.58) | 3.17s",
    "[{epoch}/{n}] tr_loss: {a:.4f} va_loss: {b:.4f} tr_acc: 0.71",
    "epoch {epoch} training loss {a:.4f} held-out loss {b:.4f}",
    "epoch {epoch}: tr {a:.4f}, va {b:.4f}",
]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("header", TABLES)
@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_held_out_loss_is_read_in_a_table(tmp_path: Path, header: str, mark: str) -> None:
    path = write(tmp_path / "log.csv", table(header, mark=mark))
    record = read_run(path)
    assert record.axis == "epoch"
    assert record.columns["val_loss"].values == pytest.approx(curves()[1], abs=1e-4)
    assert {i.kind for i in trimtab.analyze(path).incidents} & {"overfitting", "eval-drift"}


@pytest.mark.parametrize("form", LINES)
def test_a_held_out_loss_is_read_in_text(tmp_path: Path, form: str) -> None:
    record = read_run(write(tmp_path / "log.txt", lines(form)))
    assert record.axis in ("epoch", "step")
    assert record.columns["loss"].values == pytest.approx(curves()[0], abs=1e-4)
    assert record.columns["val_loss"].values == pytest.approx(curves()[1], abs=1e-4)


def test_notes_call_a_column_as_the_file_does(tmp_path: Path) -> None:
    header = "Schritt;Verlust_Training;Verlust_Validierung;Lernrate"
    rows = [
        f"{2 * n};{a:.4f};{b:.4f};0.001" for n, (a, b) in enumerate(zip(*curves(), strict=True), 1)
    ]
    path = write(tmp_path / "log.csv", "\n".join([header, *rows]) + "\n")
    record = read_run(path)
    assert record.keys["loss"] == "Verlust_Training"
    assert record.keys["val_loss"] == "Verlust_Validierung"
    assert record.keys["lr"] == "Lernrate"
    assert record.axis == "step"
    assert not any("loss Training" in note for note in record.notes)


@pytest.mark.parametrize("count", ["update", "updates", "step"])
def test_rows_of_evaluations_between_nested_rows_are_held_out(tmp_path: Path, count: str) -> None:
    rows = []
    for n, (a, b) in enumerate(zip(*curves(), strict=True), 1):
        for i in range(5):
            meta = {count: 5 * (n - 1) + i + 1, "ts": 1.7e9 + 5 * n + i}
            rows.append(
                {
                    "event": "train",
                    "meta": meta,
                    "metrics": {"xent": a, "acc": 0.9},
                    "opt": {"lr": 1e-3},
                }
            )
        rows.append({"event": "eval", "meta": {count: 5 * n}, "metrics": {"xent": b, "acc": 0.5}})
    path = write(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    record = read_run(path)
    assert record.axis == "step"
    assert record.step.max() == 5 * NUM_EPOCHS
    assert record.columns["loss"].present.sum() == 5 * NUM_EPOCHS
    assert record.columns["val_loss"].logged() == pytest.approx(curves()[1])
    assert set(record.columns["accuracy"].logged()) == {0.9}
    assert set(record.columns["eval_score"].logged()) == {0.5}
    assert not any("left out" in note for note in record.notes)


@pytest.mark.parametrize("form", ["eta={rate:.2e}", "| eta {rate:.2e}", "eta: {rate:.6f}"])
def test_an_eta_that_is_a_rate_is_one(tmp_path: Path, form: str) -> None:
    rows = [
        f"[it {5 * n:05d}/00400] mse={a:.4f} | |g|=3.2 | {form.format(rate=3e-4 * min(n, 8))}"
        for n, a in enumerate(curves()[0], 1)
    ]
    record = read_run(write(tmp_path / "log.txt", "\n".join(rows) + "\n"))
    assert record.columns["lr"].values == pytest.approx(3e-4 * np.minimum(np.arange(1, 41), 8))


@pytest.mark.parametrize("form", ["eta={left:.1f}s", "eta: 0:{left:02.0f}:10", "ETA {left:.2f}"])
def test_an_eta_that_is_a_time_is_no_rate(tmp_path: Path, form: str) -> None:
    rows = [
        f"step {n} loss {a:.4f} {form.format(left=41 - n)}" for n, a in enumerate(curves()[0], 1)
    ]
    assert "lr" not in read_run(write(tmp_path / "log.txt", "\n".join(rows) + "\n")).columns


def test_an_eta_in_a_table_is_a_rate_by_its_values(tmp_path: Path) -> None:
    for name, left in {"rate.csv": 3e-4, "time.csv": 60.0}.items():
        rows = [f"{n},{a:.4f},{left * (41 - n) / 40:.6f}" for n, a in enumerate(curves()[0], 1)]
        path = write(tmp_path / name, "\n".join(["step,loss,eta", *rows]) + "\n")
        assert ("lr" in read_run(path).columns) == (name == "rate.csv")
