"""Validation alone that is not finite: its data or its format, and no reason to go back."""

from pathlib import Path

import numpy as np
import pytest

import trimtab


def log(path: Path, *, first: int, breaks_training: bool = False) -> Path:
    noise = 0.01 * np.random.default_rng(0).normal(size=24)
    loss = 0.5 + 2 * np.exp(-np.arange(24) / 8) + noise
    lines = []
    for i, value in enumerate(loss):
        val = "nan" if i >= first else f"{value + 0.1:.4f}"
        train = "nan" if i >= first and breaks_training else f"{value:.4f}"
        lines.append(f"Epoch {i + 1}/24 - loss: {train} - val_loss: {val} - val_acc: {i / 30:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("first", [0, 12])
def test_validation_alone_that_is_nan_asks_for_no_rollback(first: int, tmp_path: Path) -> None:
    (incident,) = trimtab.analyze(log(tmp_path / "train.log", first=first)).incidents
    assert (incident.kind, incident.severity) == ("non-finite", "warning")
    assert incident.diagnosis.top.cause == "undefined-held-out"
    assert [remedy.remedy for remedy in incident.plan.remedies] == ["guard-the-loss"]


def test_training_that_breaks_with_it_is_another_matter(tmp_path: Path) -> None:
    found = trimtab.analyze(log(tmp_path / "train.log", first=12, breaks_training=True)).incidents
    causes = {c.cause for incident in found for c in incident.diagnosis.causes[:1]}
    assert causes
    assert "undefined-held-out" not in causes


def test_a_table_that_holds_nan_throughout_beside_a_score_was_not_left_empty(
    tmp_path: Path,
) -> None:
    lines = ["epoch,train_loss,val_loss,val_accuracy,grad_norm"]
    for i in range(1, 61):
        lines.append(f"{i},{2.3 * 0.97**i + 0.1:.4f},nan,{1 - 0.9 * 0.97**i:.4f},nan")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    report = trimtab.analyze(path)
    (incident,) = report.incidents
    assert (incident.kind, incident.diagnosis.top.cause) == ("non-finite", "undefined-held-out")
    path.write_text(path.read_text().replace("val_accuracy", "memory_mb"))
    assert trimtab.analyze(path).incidents == ()
