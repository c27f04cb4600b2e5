"""Lines of an evaluation, of times and of a pace, as common scripts write them."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run


def test_the_starred_line_of_an_epoch_is_held_out(tmp_path: Path) -> None:
    text = []
    for epoch in range(8):
        text += [
            f"Epoch: [{epoch}][{k}/78]\tTime  0.047 ( 0.043)\tLoss {2 / (1 + epoch + k / 78):.4e}"
            for k in range(12, 78, 13)
        ]
        text.append(f" *   Acc@1 {20 + epoch}.733  Loss {2.5 - epoch / 10:.4f}")
    path = tmp_path / "train.log"
    path.write_text("\n".join(text))
    record = read_run(path)
    assert record.columns["val_loss"].logged() == pytest.approx(2.5 - np.arange(8) / 10)
    assert int(record.columns["loss"].present.sum()) == 48


def test_the_time_of_a_batch_and_a_pace_in_brackets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(
            f"it {10 * k:5d}/1400  loss: {2 - k / 200:.4f}  data: 0.{k:02d}ms  batch: {9 + k / 100:.2f}ms"
            f"  ({6300 - k} img/s)"
            for k in range(1, 90)
        )
    )
    record = read_run(path)
    k = np.arange(1, 90)
    assert record.step.tolist() == (10 * k).tolist()
    assert record.columns["step_time_s"].values == pytest.approx((9 + k / 100) / 1000, abs=1e-5)
    assert record.columns["throughput"].values == pytest.approx(6300 - k)


def test_a_score_and_a_loss_on_a_line_that_counts_nothing_are_held_out(tmp_path: Path) -> None:
    text = []
    for epoch in range(1, 13):
        text += [
            f"2024-03-11 09:{epoch + 10}:02,000 P2 INFO ************ Epoch={epoch} start ************",
            f"2024-03-11 09:{epoch + 10}:23,288 P2 INFO Train loss: {0.5 - epoch / 100:.6f}",
            f"2024-03-11 09:{epoch + 10}:23,288 P2 INFO ===> [Metrics] AUC: 0.{60 + epoch}1 - logloss:"
            f" {0.49 + epoch / 200:.6f}",
        ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(text))
    record = read_run(path)
    assert record.columns["val_loss"].logged() == pytest.approx(0.49 + np.arange(1, 13) / 200)
    assert len(record.columns["loss"].logged()) == 12


@pytest.mark.parametrize("key", ["eval_legal_loss", "val_loss_dev_clean"])
def test_a_set_beside_another_is_a_set(tmp_path: Path, key: str) -> None:
    other = key.replace("legal", "general").replace("clean", "telephone")
    lines = []
    for k in range(40):
        lines.append(str({"loss": 2 - k / 100, "learning_rate": 1e-5, "epoch": k / 40}))
        if k % 4 == 3:
            lines.append(str({key: 2 - k / 100, "epoch": k / 40}))
            lines.append(str({other: 2 + k / 100, "epoch": k / 40}))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    record = read_run(path)
    sets = {n: c for n, c in record.columns.items() if n.startswith("val_loss/")}
    assert len(sets) == 2
    assert all(int(c.present.sum()) == 10 for c in sets.values())
