"""TensorBoard's download of one scalar whose file has lost its name."""

from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze
from trimtab.errors import ReadError


def _write(path: Path, values: np.ndarray) -> Path:
    lines = ["Wall time,Step,Value"]
    lines += [f"{1.7e9 + i},{10 * i},{v:.5f}" for i, v in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_one_that_falls_is_taken_for_a_loss_and_a_note_says_so(tmp_path: Path) -> None:
    noise = 0.02 * np.random.default_rng(0).normal(size=200)
    record = (
        analyze(_write(tmp_path / "a.csv", 1 + np.exp(-np.arange(200) / 30) + noise)).runs[0].record
    )
    assert record.keys["loss"] == "Value"
    assert any("nothing says which scalar" in note for note in record.notes)


def test_one_that_rises_may_be_anything(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.csv", np.linspace(0.1, 0.9, 200))
    with pytest.raises(ReadError, match=r"run-NAME-tag-TAG\.csv"):
        analyze(path)
