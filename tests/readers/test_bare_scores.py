"""`Train: .. Val: .. Test: ..` beside a loss, as PyTorch Geometric's examples print accuracies."""

from pathlib import Path

import numpy as np
import pytest

import trimtab


def _log(tmp_path: Path, form: str) -> Path:
    rng = np.random.default_rng(0)
    lines = []
    for k in range(1, 29):
        score = 0.79 * (1 - 0.85 * np.exp(-k / 6)) + 0.004 * rng.normal()
        loss = 0.25 + 1.7 * np.exp(-k / 8)
        lines.append(form.format(k=k, loss=loss, score=score, rise=2.0 + 0.5 * loss))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "form",
    [
        "Epoch: {k:03d}, Loss: {loss:.4f}, Train: {score:.4f}, Val: {score:.4f}, Test: {score:.4f}",
        "Epoch: {k:03d}, Loss: {loss:.4f}, Val Acc: {score:.4f}, Test: {score:.4f}",
    ],
)
def test_shares_that_rise_as_the_loss_falls_are_a_score(tmp_path: Path, form: str) -> None:
    path = _log(tmp_path, form)
    (record,) = trimtab.read(path)
    assert "val_loss" not in record.columns
    assert "eval_score" in record.columns
    assert trimtab.analyze(path).verdict == "healthy"


def test_values_that_fall_with_the_loss_are_still_a_loss(tmp_path: Path) -> None:
    (record,) = trimtab.read(_log(tmp_path, "Epoch: {k:03d}, Loss: {loss:.4f}, Val: {rise:.4f}"))
    assert record.keys["val_loss"].lower() == "val"
