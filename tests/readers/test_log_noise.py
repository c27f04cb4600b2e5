"""What a text log says too often, and counts that are no shares."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

WARNING = "[rank3] UserWarning: the codec of item {} is deprecated, falling back"


def read(tmp_path: Path, lines: list[str]) -> RunRecord:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_run(path)


def log(num_rows: int, per_row: int, text: str = WARNING) -> list[str]:
    lines: list[str] = []
    for step in range(num_rows):
        lines.append(f"step {step} | loss {3 - step / 100:.4f} | lr 1.0e-4")
        lines += [text.format(7 * step + k) for k in range(per_row)]
    return lines


@pytest.mark.covers("S97")
@pytest.mark.parametrize("text", [WARNING, "WARNING: no free port, trying again"])
def test_a_warning_that_fills_the_log_is_named_once_with_what_to_do(
    tmp_path: Path, text: str
) -> None:
    record = read(tmp_path, log(60, 6, text))
    (note,) = [n for n in record.notes if "fills the log" in n]
    assert "360 lines or 6 per record" in note
    assert text.split("{}")[0].strip() in note
    assert "silence it at its source" in note
    assert record.num_loss_rows == 60


@pytest.mark.covers("S97")
def test_codecarbon_in_a_megatron_log_is_named(tmp_path: Path) -> None:
    lines: list[str] = []
    for step in range(1, 61):
        lines.append(
            f" [2026-03-01 22:{step:02d}:00] iteration {step:8d}/ 1000 | lm loss: {9 - step / 100}"
            " | learning rate: 1.000E-04 | grad norm: 1.000 |"
        )
        lines += [
            f"[codecarbon WARNING @ 22:{step:02d}:{k:02d}] Background scheduler didn't run for a"
            f" long period ({30 + k}s), results might be inaccurate"
            for k in range(6)
        ]
    (note,) = [n for n in read(tmp_path, lines).notes if "fills the log" in n]
    assert "360 lines or 6 per record" in note
    assert "Background scheduler" in note


@pytest.mark.parametrize(("num_rows", "per_row"), [(60, 4), (12, 6)])
def test_some_warnings_per_record_are_usual(tmp_path: Path, num_rows: int, per_row: int) -> None:
    assert not [n for n in read(tmp_path, log(num_rows, per_row)).notes if "fills the log" in n]


def test_deepspeed_counts_skipped_steps_from_the_start(tmp_path: Path) -> None:
    totals = [8, 9, 9, 9, 14, 14]
    lines = [
        f"[INFO] step={10 * (k + 1)}, skipped={n}, lr=[1e-4], mom=[(0.9, 0.95)]\n"
        f"epoch: 0|step: {10 * (k + 1)}|loss: {2 - k / 10}"
        for k, n in enumerate(totals)
    ]
    lines += [
        f"[INFO] step={10 * (k + 1)}, skipped=14, lr=[1e-4], mom=[(0.9, 0.95)]\n"
        f"epoch: 0|step: {10 * (k + 1)}|loss: {1.4 - k / 100}"
        for k in range(6, 30)
    ]
    record = read(tmp_path, lines)
    skipped = record.columns["skipped"]
    np.testing.assert_allclose(skipped.logged()[:7], [0.8, 0.1, 0.0, 0.0, 0.5, 0.0, 0.0])
    assert any("count" in n for n in record.notes)
