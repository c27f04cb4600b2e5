"""Logs whose columns have the names that their writer gave them."""

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
