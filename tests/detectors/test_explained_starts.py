"""Rises that what is held out, a range test or a first row without an update explain."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import analyze

Floats = NDArray[np.float64]


def _alarms(**columns: Floats) -> list[str]:
    found = analyze(columns).incidents
    return [i.incident.kind for i in found if i.severity != "info"]


@pytest.mark.parametrize("gains", [True, False])
def test_harder_data_that_makes_validation_better_is_no_trouble(gains: bool) -> None:
    """A curriculum that nobody states: the training loss leaps, and validation falls with it."""
    rng = np.random.default_rng(3)
    k = np.arange(60.0)
    part = k % 20
    loss = (0.3 * np.exp(-part / 8) + 0.02) * (1 + 0.04 * rng.normal(size=60))
    held_out = 3.0 * np.exp(-k / 25) * np.where(k >= 20, 0.6, 1) * np.where(k >= 40, 0.6, 1)
    if not gains:
        held_out = 3.0 * np.exp(-part / 25)
    alarms = _alarms(epoch=k, loss=loss, val_loss=held_out)
    assert bool(alarms) is not gains


def _sweep(n: int = 60) -> tuple[Floats, Floats]:
    rate = 1e-6 * 1.3 ** np.arange(n)
    loss = 2.5 - 1.3 / (1 + (0.3 / rate) ** 1.2) + np.where(rate > 2, 0.7 * rate, 0)
    return np.asarray(rate, dtype=np.float64), np.asarray(loss, dtype=np.float64)


def test_a_range_test_is_no_divergence_and_a_warm_up_that_diverges_is_one() -> None:
    rate, loss = _sweep()
    after = 1.2 * np.exp(-np.arange(200.0) / 60) + 0.2
    steps = np.arange(260.0)
    lr = np.append(rate, np.full(200, 0.02))
    assert not _alarms(step=steps, loss=np.append(loss, after), lr=lr)
    # linear, and kept: a warm-up
    warm = np.append(np.linspace(1e-4, 10, 60), np.full(200, 10.0))
    assert _alarms(step=steps, loss=np.append(loss, np.full(200, 9.0)), lr=warm)


def test_a_loss_that_is_nan_before_the_first_update_is_a_note(tmp_path: Path) -> None:
    lines = [f"Ep {k} | return {10 + k % 7} | loss nan" for k in range(1, 10)]
    lines += [
        f"Ep {k} | return {10 + k % 7} | loss {0.3 + 0.01 * (k % 5):.3f}" for k in range(10, 90)
    ]
    path = tmp_path / "dqn.txt"
    path.write_text("\n".join(lines) + "\n")
    broken = [i.severity for i in analyze(path).incidents if i.incident.kind == "non-finite"]
    assert broken == ["info"]
    last = [f"Ep {k} | return {10 + k % 7} | loss nan" for k in range(90, 95)]
    path.write_text("\n".join([*lines, *last]) + "\n")
    broken = [i.severity for i in analyze(path).incidents if i.incident.kind == "non-finite"]
    assert "critical" in broken


def test_a_range_test_alone_is_no_divergence() -> None:
    t = np.arange(200)
    loss = 2 + 3 * np.exp(-t / 30) + 0.03 * np.random.default_rng(0).standard_normal(200)
    loss[140:] *= np.exp(0.06 * np.arange(60))
    rate = 1e-7 * 10 ** (7 * t / 199)
    for lr in (rate, np.round(rate, 8)):
        found = analyze({"step": t, "loss": loss, "lr": lr})
        assert [i.kind for i in found.incidents if i.severity != "info"] == []
