"""A short log whose loss steps down between two flat stretches; what steps down for a reason."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab

Floats = NDArray[np.float64]


def descent(num: int, seed: int, noise: float) -> Floats:
    """A loss that comes down to its floor over the first sixth of the rows."""
    level = 0.4 + 0.9 * np.exp(-np.arange(num) / (num / 18))
    return level * np.exp(noise * np.random.default_rng(seed).normal(size=num))


def told(loss: Floats, **more: Floats) -> list[tuple[str, str, float]]:
    """Return kind, first cause and onset of each alarm."""
    found = trimtab.analyze({"step": np.arange(len(loss), dtype=np.float64), "loss": loss, **more})
    return [(i.kind, i.causes[0].cause, i.onset) for i in found.incidents if i.severity != "info"]


def rate(num: int, cut: float = 1.0, at: float = 0.4) -> Floats:
    return np.where(np.arange(num) < at * num, 1e-3, 1e-3 * cut)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num", [50, 80, 150, 360])
def test_a_loss_that_steps_down_to_a_part_of_itself_is_told(num: int, seed: int) -> None:
    at = num * 2 // 5
    for left in (0.16, 0.35):
        noise = 0.13 if left < 0.2 else 0.05
        loss = descent(num, seed, noise) * np.where(np.arange(num) < at, 1.0, left)
        (found,) = told(loss, lr=rate(num))
        assert found[:2] == ("too-good", "leaked-targets")
        assert abs(found[2] - at) <= 1
        checks = np.where(np.arange(num) % 10 == 9, descent(num, seed + 9, 0.02) * 1.1, np.nan)
        assert [f[0] for f in told(loss, lr=rate(num), val_loss=checks)] == ["too-good"]


def cut_of_the_rate(num: int, seed: int) -> dict[str, Floats]:
    left = np.where(np.arange(num) < 0.4 * num, 1.0, 0.45)
    return {"loss": descent(num, seed, 0.04) * left, "lr": rate(num, 0.1)}


def stage(num: int, seed: int) -> dict[str, Floats]:
    late = np.arange(num) >= 0.4 * num
    loss = descent(num, seed, 0.04) * np.where(late, 0.4, 1.0)
    return {"loss": loss, "lr": rate(num), "stage": late.astype(np.float64)}


def unfrozen(num: int, seed: int) -> dict[str, Floats]:
    """More weights learn from some row on: a slide over many rows."""
    slide = 1 / (1 + np.exp((np.arange(num) - 0.5 * num) / (num / 25)))
    loss = (0.15 + 0.85 * slide) * descent(num, seed, 0.05)
    return {"loss": loss, "lr": rate(num)}


def held_out_data_share_it(num: int, seed: int) -> dict[str, Floats]:
    left = np.where(np.arange(num) < 0.4 * num, 1.0, 0.35)
    loss = descent(num, seed, 0.04) * left
    val = np.where(np.arange(num) % 5 == 4, descent(num, seed + 9, 0.02) * left * 1.1, np.nan)
    return {"loss": loss, "lr": rate(num), "val_loss": val}


def back_from_a_rise(num: int, seed: int) -> dict[str, Floats]:
    at = np.arange(num)
    rise = np.where((at > 0.4 * num) & (at < 0.7 * num), 3.0, 1.0)
    return {"loss": descent(num, seed, 0.04) * rise, "lr": rate(num)}


def off_the_first_plateau(num: int, seed: int) -> dict[str, Floats]:
    left = np.where(np.arange(num) < 0.4 * num, 1.0, 0.3)
    noise = np.exp(0.02 * np.random.default_rng(seed).normal(size=num))
    return {"loss": 2.3 * left * noise, "lr": rate(num)}


def passes(num: int, seed: int) -> dict[str, Floats]:
    """A staircase: the same data again, pass by pass."""
    step = 0.5 ** (np.arange(num) // (num // 5))
    return {"loss": descent(num, seed, 0.03) * step, "lr": rate(num)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num", [80, 150, 360])
@pytest.mark.parametrize(
    "make",
    [
        cut_of_the_rate,
        stage,
        unfrozen,
        held_out_data_share_it,
        back_from_a_rise,
        off_the_first_plateau,
        passes,
    ],
)
def test_a_loss_that_steps_down_for_a_reason_is_no_step(
    make: Callable[[int, int], dict[str, Floats]], num: int, seed: int
) -> None:
    found = trimtab.analyze({"step": np.arange(num, dtype=np.float64), **make(num, seed)})
    texts = [f.text for i in found.incidents for f in i.incident.findings if f.severity != "info"]
    assert not [t for t in texts if "flat before and behind" in t]
