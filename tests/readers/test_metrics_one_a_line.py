"""MXNet prints each metric of a batch on a line of its own, or all on one, named by its class."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

EPOCHS, BATCHES = 4, 18
NOISE = np.random.default_rng(0).normal(0, 0.3, EPOCHS * BATCHES)
LOSS = [round(20 + 4 / (1 + 0.1 * i) + float(NOISE[i]), 6) for i in range(EPOCHS * BATCHES)]
ACC = [round(0.87 + 0.001 * i + float(NOISE[i]) / 50, 6) for i in range(EPOCHS * BATCHES)]


def read(tmp_path: Path, lines: list[str]) -> RunRecord:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return read_run(path)


@pytest.mark.parametrize("prefix", ["", "INFO:root:", "2018-04-12 10:00:00,123 "])
def test_the_metrics_of_a_detector_stand_on_lines_of_their_own(tmp_path: Path, prefix: str) -> None:
    # The module's speedometer, with a counter of objects beside it; means are nan when reset.
    lines = ["Start training with (gpu(0)) from pretrained model model/ssd_300"]
    for i, (loss, acc) in enumerate(zip(LOSS, ACC, strict=True)):
        epoch, batch = divmod(i, BATCHES)
        head = (
            f"{prefix}Epoch[{epoch}] Batch [{20 * batch + 20}]\tSpeed: 19.7{i % 10} samples/sec\t"
        )
        lines += [f"{head}Train-Acc={acc:.6f}", f"{head}Train-ObjectAcc=0.60{i % 10}"]
        lines += [f"{head}Train-SmoothL1={loss:.6f}"]
        if batch == BATCHES - 1:
            lines += [f"{prefix}Epoch[{epoch}] Train-{k}=nan" for k in ("Acc", "SmoothL1")]
            lines += [f"{prefix}Epoch[{epoch}] Time cost=585.188"]
            lines += [f"{prefix}Epoch[{epoch}] Validation-Acc=0.9{epoch}2905"]
            lines += [f"{prefix}Epoch[{epoch}] Validation-SmoothL1={loss + 1:.6f}"]
    record = read(tmp_path, lines)
    assert record.keys["loss"] == "train smoothl1"
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.columns["accuracy"].logged().tolist() == ACC
    wanted = [round(LOSS[k], 6) + 1 for k in range(BATCHES - 1, len(LOSS), BATCHES)]
    np.testing.assert_allclose(record.columns["val_loss"].logged(), wanted)
    assert len(record.columns["eval_score"].logged()) == EPOCHS
    assert (record.axis, int(record.step[-1])) == ("epoch", EPOCHS - 1)


@pytest.mark.parametrize(
    ("form", "key"),
    [
        (
            "Epoch[{e}] Batch [{b}]\tSpeed: 916.50 samples/sec\tTrain-accuracy={a:.6f}\t"
            "Train-CrossEntropy={x:.6f}",
            "train crossentropy",
        ),
        (
            "Epoch[{e}] Batch [{b}-{c}]\tSpeed: 916.50 samples/sec\taccuracy={a:.6f}\t"
            "cross-entropy={x:.6f}",
            "cross entropy",
        ),
        (
            "[Epoch {e}][Batch {b}], Speed: 320.52 samples/sec, CrossEntropy={x:.3f},"
            " SmoothL1=2.3{d}, accuracy={a:.6f}",
            "crossentropy",
        ),
        (
            "INFO:root:[Epoch {e}][Batch {b}], Speed: 320.5 samples/sec, SmoothL1=2.3{d},"
            " CrossEntropy={x:.3f}, accuracy={a:.6f}",
            "crossentropy",
        ),
    ],
)
def test_metrics_named_by_their_class(tmp_path: Path, form: str, key: str) -> None:
    lines = []
    for i, (x, a) in enumerate(zip(LOSS, ACC, strict=True)):
        e, b = divmod(i, BATCHES)
        lines.append(form.format(e=e, b=20 * b + 20, c=20 * b + 40, x=x, a=a, d=i % 10))
    record = read(tmp_path, lines)
    assert record.keys["loss"] == key
    np.testing.assert_allclose(record.columns["loss"].logged(), LOSS, atol=1e-3)
    assert record.columns["accuracy"].logged().tolist() == ACC
    assert (record.axis, int(record.step[-1])) == ("epoch", EPOCHS - 1)


def test_an_accuracy_alone_is_read_with_its_checks_between(tmp_path: Path) -> None:
    # A trainer of faces: the accuracy of a batch, and now and then that of pairs of faces.
    lines = []
    for i, a in enumerate(ACC):
        e, b = divmod(i, BATCHES)
        lines.append(
            f"INFO:root:Epoch[{e}] Batch [{20 * b + 20}]\tSpeed: 89{i % 10}.5 samples/sec\tacc={a:.6f}"
        )
        if i % 6 == 5:
            lines += ["testing verification..", "(12000, 512)", "infer time 12.718514"]
            lines += [
                f"[lfw][{1000 + i}]XNorm: 22.1898",
                f"[lfw][{1000 + i}]Accuracy-Flip: 0.996+-0.003",
            ]
    record = read(tmp_path, lines)
    assert record.columns["accuracy"].logged().tolist() == ACC
    assert int(record.step[-1]) == EPOCHS - 1


@pytest.mark.parametrize("head", ["Epoch[{e}] Batch [{b}]\t", "[Epoch {e}][Batch {b}], "])
def test_the_speed_that_a_speedometer_prints_is_the_throughput(tmp_path: Path, head: str) -> None:
    speed = [500.0 + 7 * (i % 5) for i in range(len(ACC))]
    lines = []
    for i, (a, s) in enumerate(zip(ACC, speed, strict=True)):
        e, b = divmod(i, BATCHES)
        lines.append(f"{head.format(e=e, b=20 * b)}Speed: {s:.2f} samples/sec\taccuracy={a:.6f}")
        if b == BATCHES - 1:
            lines.append(f"Epoch[{e}] Time cost={60 + e}.5")
    record = read(tmp_path, lines)
    assert record.columns["throughput"].logged().tolist() == speed
    # What an epoch took is no time of a batch.
    assert "step_time_s" not in record.columns
    assert "speed" not in record.unread


def test_a_speed_without_a_unit_or_of_held_out_data_is_no_throughput(tmp_path: Path) -> None:
    for said in ("Speed: {s:.2f}", "eval speed: {s:.2f} samples/sec"):
        lines = [f"step {i} loss: {x:.6f} {said.format(s=500 + i % 7)}" for i, x in enumerate(LOSS)]
        assert "throughput" not in read(tmp_path, lines).columns


def test_the_cost_in_time_of_an_epoch_is_its_seconds(tmp_path: Path) -> None:
    cost = [60.5 + 3 * (i % 4) for i in range(len(ACC))]
    lines = []
    for e, (x, s) in enumerate(zip(LOSS, cost, strict=True)):
        lines += [f"INFO:root:Epoch[{e}] Train-cross-entropy={x:.6f}"]
        lines += [f"INFO:root:Epoch[{e}] Time cost={s:.3f}"]
    assert read(tmp_path, lines).columns["step_time_s"].logged().tolist() == cost
