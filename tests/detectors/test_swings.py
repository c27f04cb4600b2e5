"""Losses that go up and down with a schedule, and those that stay at a guess while they learn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab

Columns = dict[str, Any]


def judged(columns: Columns, folder: Path, *, first: int = 0) -> Any:
    """Return the incidents of a log, read as a user's."""
    rows = zip(*(np.asarray(c, dtype=float).tolist() for c in columns.values()), strict=True)
    lines = (
        json.dumps({"step": first + 10 * i, **dict(zip(columns, row, strict=True))})
        for i, row in enumerate(rows)
    )
    path = folder / "log.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return [i for i in trimtab.analyze(path).incidents if i.severity != "info"]


def alarms(columns: Columns, folder: Path, *, first: int = 0) -> set[str]:
    return {i.kind for i in judged(columns, folder, first=first)}


def cycle(num: int, period: int, seed: int, *, amplitude: float = 0.05) -> Columns:
    """Return a loss that goes up and down with a rate, from a fall at the beginning on."""
    rng, k = np.random.default_rng(seed), np.arange(num)
    swing = np.sin(2 * np.pi * k / period)
    loss = 0.42 + 0.3 * np.exp(-k / 6) + amplitude * swing + rng.normal(0, 0.004, num)
    return {"loss": loss, "lr": (1.2e-3 + 1e-3 * swing)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("num", "period", "logged"), [(80, 10, False), (80, 10, True), (300, 30, True)]
)
def test_a_loss_that_swings_with_the_rate_is_no_spike_and_no_repeat(
    num: int, period: int, logged: bool, seed: int, tmp_path: Path
) -> None:
    columns = cycle(num, period, seed)
    if not logged:
        del columns["lr"]
    assert alarms(columns, tmp_path) == set()


def test_one_rise_in_a_smooth_log_stays_told(tmp_path: Path) -> None:
    columns = cycle(80, 10, 0, amplitude=0.002)
    for i, rise in enumerate((0.2, 0.3, 0.25, 0.15, 0.05)):
        columns["loss"][40 + i] += rise
    assert "spike" in alarms(columns, tmp_path)


def restarts(seed: int, *, rate: str) -> Columns:
    """Return a loss that leaps every 50 rows and soon comes back, with the rate or without it."""
    rng, k = np.random.default_rng(seed), np.arange(300)
    loss = 0.5 + np.exp(-k / 60) + 0.3 * np.exp(-(k % 50) / 6) * (k >= 50)
    within = k % 50 / 50 if rate == "restarts" else k / 300
    columns = {"loss": (loss + rng.normal(0, 0.01, 300))}
    if rate != "not logged":
        columns["lr"] = 5e-4 * (1 + np.cos(np.pi * within))
    return columns


@pytest.mark.parametrize("seed", range(4))
def test_rises_with_each_restart_of_the_rate_are_its_schedule(seed: int, tmp_path: Path) -> None:
    assert alarms(restarts(seed, rate="restarts"), tmp_path) == set()
    for rate in ("falls", "not logged"):
        (told,) = judged(restarts(seed, rate=rate), tmp_path)
        assert told.causes[0].cause == "data-order"
        assert ("which is not logged" in told.incident.headline) is (rate == "not logged")


def test_a_rise_at_a_restart_that_stays_is_told(tmp_path: Path) -> None:
    columns = restarts(0, rate="restarts")
    columns["loss"][200:] += 0.8
    assert alarms(columns, tmp_path)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num", [12, 60, 400])
@pytest.mark.parametrize("learns", [False, True])
def test_preferences_are_learned_while_the_loss_stays_at_ln_2(
    num: int, seed: int, learns: bool, tmp_path: Path
) -> None:
    rng, k = np.random.default_rng(seed), np.arange(num) / num
    gain = 0.02 if learns else 0.0
    columns = {
        "loss": (np.log(2) - gain / 2 * k + rng.normal(0, 0.003, num)),
        "rewards/margins": (gain * k + rng.normal(0, 0.003, num)),
        "rewards/accuracies": (0.5 + 20 * gain * k + rng.normal(0, 0.03, num)),
        "lr": np.linspace(5e-7, 5e-8, num),
    }
    told = alarms(columns, tmp_path, first=5000 if num == 12 else 0)
    assert told == set() if learns else "never-learns" in told or num == 12


def test_a_weight_that_is_warmed_up_turns_no_loss_round(tmp_path: Path) -> None:
    k, rng = np.arange(20), np.random.default_rng(1)
    beta = np.minimum(k / 18, 1.0)
    loss = 62 + 100 * np.exp(-k / 3) + 28 * beta + rng.normal(0, 0.1, 20)
    columns = {"loss": loss, "val_loss": (loss + 1.5)}
    assert alarms(columns, tmp_path) == {"divergence"}
    assert alarms({**columns, "beta": beta}, tmp_path) == set()


def window(seed: int, *, low: float, num: int, peak: float, stays: float = 0.0) -> Columns:
    """Return a loss that falls out of its level for some rows, and leaps back over it."""
    rng, t = np.random.default_rng(seed), np.arange(300)
    before = 0.3 * np.exp(0.15 * rng.standard_normal(350)) + 2 * np.exp(-np.arange(350) / 40)
    during = np.maximum(0.3 * np.exp(-1.5 * np.arange(num)), low)
    after = (0.3 + stays) * np.exp(0.15 * rng.standard_normal(300)) + peak * np.exp(-t / 10)
    return {"loss": np.concatenate((before, during, after)), "lr": np.full(650 + num, 1e-3)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("low", "num", "peak"), [(3e-8, 60, 38.0), (0.05, 30, 0.5)])
def test_a_window_of_low_losses_is_told_and_not_the_way_back(
    low: float, num: int, peak: float, seed: int, tmp_path: Path
) -> None:
    found = judged(window(seed, low=low, num=num, peak=peak), tmp_path)
    assert {i.severity for i in found} == {"warning"}
    assert "too-good" in {i.kind for i in found}
    assert {i.kind for i in found} <= {"too-good", "plateau"}


def test_a_leap_that_goes_on_above_the_old_level_stays_told(tmp_path: Path) -> None:
    found = judged(window(0, low=0.05, num=30, peak=0.5, stays=0.6), tmp_path)
    assert {i.kind for i in found} & {"spike", "unrecovered-spike", "shift", "divergence"}
