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
