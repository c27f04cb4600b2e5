"""Logs of validation alone: it is judged as the loss, and that is said."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.api.analysis import Analysis

NUM = 100


def _analysis(tmp_path: Path, loss: np.ndarray, key: str = "val_loss") -> Analysis:
    rows = "".join(f"{100 * i},{x:.4f}\n" for i, x in enumerate(loss))
    (tmp_path / "log.csv").write_text(f"step,{key}\n{rows}")
    return trimtab.analyze(tmp_path / "log.csv")


def _sound(seed: int) -> np.ndarray:
    noise = 0.02 * np.random.default_rng(seed).normal(size=NUM)
    fall: np.ndarray = 0.6 + 1.5 * np.exp(-np.arange(NUM) / 15) + noise
    return fall


@pytest.mark.parametrize("key", ["val_loss", "eval/loss", "test_loss"])
def test_sound_validation_is_healthy_and_what_is_missing_is_named(tmp_path: Path, key: str) -> None:
    found = _analysis(tmp_path, _sound(1), key)
    assert found.verdict == "healthy"
    assert "no train loss is logged" in found.judgement.not_judged


@pytest.mark.parametrize(
    ("wrong", "kind"), [("jump", "unrecovered-spike"), ("climb", "unrecovered-spike")]
)
def test_trouble_in_it_is_an_alarm(tmp_path: Path, wrong: str, kind: str) -> None:
    loss, t = _sound(2), np.arange(NUM)
    loss += 1.0 * (t >= 60) if wrong == "jump" else 0.03 * np.maximum(t - 50, 0)
    (incident,) = _analysis(tmp_path, loss).incidents
    assert incident.severity != "info"
    assert kind in (incident.kind, *incident.incident.also)


def test_nan_in_it_is_critical(tmp_path: Path) -> None:
    loss = _sound(3)
    loss[60:] = np.nan
    (incident,) = _analysis(tmp_path, loss).incidents
    assert (incident.kind, incident.severity) == ("non-finite", "critical")


def test_a_climb_row_by_row_is_overfitting_before_all_else(tmp_path: Path) -> None:
    t = np.arange(NUM)
    (climbs,) = _analysis(tmp_path, _sound(4) + 0.03 * np.maximum(t - 50, 0)).incidents
    assert climbs.causes[0].cause == "overfitting"
    (jumps,) = _analysis(tmp_path, _sound(4) + 1.0 * (t >= 60)).incidents
    assert jumps.causes[0].cause != "overfitting"


def test_beside_a_train_loss_it_stays_validation(tmp_path: Path) -> None:
    loss = _sound(5)
    rows = "".join(f"{100 * i},{x:.4f},{x + 0.1:.4f}\n" for i, x in enumerate(loss))
    (tmp_path / "log.csv").write_text(f"step,loss,val_loss\n{rows}")
    found = trimtab.analyze(tmp_path / "log.csv")
    assert not any("in its place" in note for run in found.runs for note in run.record.notes)
