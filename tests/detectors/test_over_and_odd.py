"""What is over, and what is the data's own: notes, with the twins that stay alarms."""

import json
from pathlib import Path

import numpy as np

from trimtab import analyze


def _jsonl(path: Path, **columns: np.ndarray) -> Path:
    n = len(next(iter(columns.values())))
    rows = ({"step": i, **{k: float(v[i]) for k, v in columns.items()}} for i in range(n))
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def _alarms(path: Path) -> list[str]:
    return [ia.incident.kind for ia in analyze(path).incidents if ia.severity != "info"]


def _validated(tmp_path: Path, rise: np.ndarray) -> Path:
    t, rng = np.arange(250), np.random.default_rng(2)
    train = 0.42 + np.exp(-t / 20) + 0.03 * rng.standard_normal(250)
    val = 0.31 + 1.05 * np.exp(-t / 18) + 0.002 * rng.standard_normal(250) + rise
    return _jsonl(tmp_path / "run.jsonl", loss=train - 0.0002 * t, val_loss=val)


def test_validation_that_has_come_back_is_no_overfitting(tmp_path: Path) -> None:
    t = np.arange(250)
    bump = 0.07 * np.exp(-(((t - 236) / 5) ** 2))
    assert _alarms(_validated(tmp_path, bump)) == []


def test_validation_that_stays_up_is_overfitting(tmp_path: Path) -> None:
    t = np.arange(250)
    assert "overfitting" in _alarms(_validated(tmp_path, 0.002 * np.maximum(t - 120, 0)))


def test_one_evaluation_that_is_high_is_a_note(tmp_path: Path) -> None:
    t, rng = np.arange(50), np.random.default_rng(4)
    train = 1 + 2 * np.exp(-t / 10) + 0.01 * rng.standard_normal(50)
    val = 1.1 + 2 * np.exp(-t / 10) + 0.05 * rng.standard_normal(50)
    val[16] = 5.7
    assert _alarms(_jsonl(tmp_path / "run.jsonl", loss=train, val_loss=val)) == []


def test_odd_batches_that_come_again_and_again_are_notes_and_a_lasting_rise_is_not(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(7)
    n = 3000
    loss = 0.4 * np.exp(0.35 * rng.standard_normal(n)) + 2 * np.exp(-np.arange(n) / 100)
    odd = rng.choice(np.arange(300, n - 300), 9, replace=False)
    loss[odd] *= np.exp(rng.uniform(3.6, 6, 9))
    assert _alarms(_jsonl(tmp_path / "odd.jsonl", loss=loss)) == []
    loss[2000:2040] *= 40
    assert _alarms(_jsonl(tmp_path / "bad.jsonl", loss=loss)) != []
