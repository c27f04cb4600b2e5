"""Lines of trainers of images: times beside their means, losses below 0, distillation, memory."""

from pathlib import Path

import numpy as np

from trimtab.readers import read_run
from trimtab.record import RunRecord

N = 60
DRAW = np.random.default_rng(0)
LOSS = 0.3 + 2 * np.exp(-np.arange(N) / 15) + DRAW.normal(0, 0.01, N)


def read(folder: Path, lines: list[str], name: str = "train.log") -> RunRecord:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return read_run(path)


# timm: each value, then its mean so far in brackets; an evaluation shows its last batch.
def test_times_of_timm(tmp_path: Path) -> None:
    lines: list[str] = []
    for i, x in enumerate(LOSS):
        e, k = divmod(i, 5)
        took = 0.4 + 0.01 * k
        lines.append(
            f"Train: {e} [{250 * k:4d}/1251 ({20 * k:3d}%)]  Loss: {x:.3f} ({x:.2f})  Time: {took:.3f}s,"
            f" {1000 + k:7.2f}/s  ({took + 1:.3f}s, {900 + k:7.2f}/s)  LR: 1.000e-04  Data: 0.01{k} (0.050)"
        )
        if k == 4:
            lines.append(
                f"Test: [  48/48]  Time: 0.183 (0.291)  Loss:  {x + 1:.3f} ( {x:.3f})"
                f"  Acc@1:   {40 + e:.3f} (  {30 + e:.3f})  Acc@5:  75.036 ( 76.875)"
            )
    record = read(tmp_path, lines)
    assert (record.axis, record.num_loss_rows) == ("epoch", N)
    main = np.flatnonzero(record.columns["loss"].present)
    for name, first, more in (
        ("step_time_s", 0.4, 0.01),
        ("data_time_s", 0.01, 0.001),
        ("throughput", 1000, 1),
    ):
        assert np.allclose(record.columns[name].values[main][:5], first + more * np.arange(5)), name
    # Of a set the mean counts, and not its last batch.
    assert np.allclose(record.columns["val_loss"].logged(), LOSS[4::5], atol=1e-3)
    assert record.columns["eval_score"].logged().tolist() == [30 + e for e in range(12)]
    assert "accuracy" not in record.columns


# Self-supervised training by hand: the loss is called as the method, and is below 0.
def test_a_loss_called_as_its_method(tmp_path: Path) -> None:
    lines = [
        f"[{i:03d}] simsiam={-1 + x / 3:.4f} std={1 / (1 + i / 9):.4f} knn@5={90 + i / 10:.2f}% lr=0.0300 ({0.8 + i / 99:.2f}s/it)"
        for i, x in enumerate(LOSS)
    ]
    record = read(tmp_path, lines)
    assert record.keys["loss"] == "simsiam"
    assert record.keys["embedding_std"] == "std"
    assert record.keys["eval_score"] == "knn@5"
    assert record.columns["step_time_s"].values[0] == 0.8
    assert record.num_loss_rows == N


def test_a_std_beside_another_loss_is_none_of_representations(tmp_path: Path) -> None:
    lines = [f"step {i} loss={x:.4f} std={1 + i % 7:.4f}" for i, x in enumerate(LOSS)]
    assert "embedding_std" not in read(tmp_path, lines).keys


# PyTorch Geometric's examples: the loss, then an accuracy under the name of each set.
def test_accuracies_by_set_beside_a_loss(tmp_path: Path) -> None:
    lines = [
        f"Epoch: {i:03d}, Loss: {x:.4f}, Train: {0.99 - x / 4:.4f}, Val: {0.97 - x / 4:.4f}, Test: {0.9 - x / 4:.4f}"
        for i, x in enumerate(LOSS)
    ]
    keys = read(tmp_path, lines).keys
    assert (keys["accuracy"], keys["eval_score"], keys["other/test"]) == ("train", "val", "test")
    # Where they are losses, they stay what they were.
    losses = [
        f"Epoch: {i:03d}, Loss: {x:.4f}, Train: {x + 0.01:.4f}, Val: {x + 0.02:.4f}"
        for i, x in enumerate(LOSS)
    ]
    keys = read(tmp_path, losses).keys
    assert keys["val_loss"] == "val"
    assert "accuracy" not in keys


# Distillation by hand: the terms stand beside each other and have no sum.
def test_terms_of_a_distillation(tmp_path: Path) -> None:
    lines = [
        f"step {i} ce={x:.4f} kd={3 * x:.4f} hint={0.5 + x / 9:.4f} lr=1.0e-03"
        for i, x in enumerate(LOSS)
    ]
    keys = read(tmp_path, lines).keys
    assert (keys["loss"], keys["loss/kd"], keys["loss/hint"]) == ("ce", "kd", "hint")
    table = ["step,ce,kd,hint"]
    table += [f"{i},{x:.4f},{3 * x:.4f},{0.5 + x / 9:.4f}" for i, x in enumerate(LOSS)]
    keys = read(tmp_path, table, "log.csv").keys
    assert (keys["loss"], keys["loss/kd"], keys["loss/hint"]) == ("ce", "kd", "hint")
    # Without a term that says so a hint may be anything.
    plain = [f"step {i} ce={x:.4f} hint={0.5 + x / 9:.4f}" for i, x in enumerate(LOSS)]
    assert "loss/hint" not in read(tmp_path, plain).keys


# A notebook's loop by hand: memory in use and the seconds of the epoch behind the losses.
def epochs(seconds: np.ndarray) -> list[str]:
    return [
        f"epoch {i:2d} | train {x:.4f} | valid {x + 0.1:.4f} | acc {90 + i / 10:.2f}% | host mem {839 + 29 * i} MB"
        f" | {seconds[i]:.2f} s"
        for i, x in enumerate(LOSS)
    ]


def test_memory_and_seconds_of_an_epoch(tmp_path: Path) -> None:
    record = read(tmp_path, epochs(0.2 + 0.01 * np.arange(N) + DRAW.uniform(0, 0.1, N)))
    assert record.axis == "epoch"
    assert record.columns["step_time_s"].present.all()
    assert record.columns["other/host mem"].values[1] == 868
    # Seconds that never fall are those since the start.
    record = read(tmp_path, epochs(3.0 * np.arange(N)))
    assert "step_time_s" not in record.columns
