"""Validation that drops at once far below training is told; what lies there from the start is not."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab

Floats = NDArray[np.float64]
ROWS, EVERY = 1200, 40
STEPS: Floats = np.arange(ROWS, dtype=np.float64)


def descent(seed: int) -> Floats:
    return 2.4 + 4 * np.exp(-STEPS / 200) + 0.05 * np.random.default_rng(seed).normal(size=ROWS)


def checked(levels: Floats, seed: int) -> Floats:
    """Return the evaluations of a level, every `EVERY` rows; NaN between."""
    noise = np.random.default_rng(seed + 50).normal(size=ROWS)
    return np.where(STEPS % EVERY == EVERY - 1, levels * np.exp(0.01 * noise), np.nan)


def told(loss: Floats, val_loss: Floats, **more: Floats) -> list[tuple[str, str, str, float]]:
    """Return kind, signal, first cause and onset of each alarm."""
    columns = {"step": STEPS, "loss": loss, "val_loss": val_loss, **more}
    return [
        (i.kind, i.incident.findings[0].signal, i.causes[0].cause, i.onset)
        for i in trimtab.analyze(columns).incidents
        if i.severity != "info"
    ]


def smooth(seed: int) -> Floats:
    return 2.4 + 4 * np.exp(-STEPS / 200)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.3, 0.55])
def test_validation_that_leaks_into_training_is_told(share: float, seed: int) -> None:
    level = smooth(seed) * np.where(STEPS < 600, 1.02, share)
    found = told(descent(seed), checked(level, seed))
    assert found == [("too-good", "val_loss", "evaluation-differs", 639.0)]
    slow = smooth(seed) * np.where(STEPS < 600, 1.02, np.where(STEPS < 640, 0.8, share))
    (first,) = told(descent(seed), checked(slow, seed))
    assert first[:3] == ("too-good", "val_loss", "evaluation-differs")


def below_from_the_start(seed: int) -> tuple[Floats, Floats]:
    """Dropout, augmentation or smoothed labels: validation is the easier of the two."""
    return descent(seed) + 1.2, smooth(seed) * 0.6


def at_a_cut_of_the_rate(seed: int) -> tuple[Floats, Floats]:
    cut = np.where(STEPS < 600, 1.0, 0.45)
    return descent(seed) * cut, smooth(seed) * cut * np.where(STEPS < 600, 1.0, 0.9)


def averaged_late(seed: int) -> tuple[Floats, Floats]:
    """Averaged weights are evaluated from some step on: better, and not far below."""
    return descent(seed), smooth(seed) * np.where(STEPS < 600, 1.1, 0.8)


def regularized_averaged_late(seed: int) -> tuple[Floats, Floats]:
    return descent(seed) + 1.5, smooth(seed) * np.where(STEPS < 600, 0.9, 0.55)


def one_easy_evaluation(seed: int) -> tuple[Floats, Floats]:
    return descent(seed), smooth(seed) * np.where(np.abs(STEPS - 639) < 10, 0.3, 1.02)


def falls_steeply_first(seed: int) -> tuple[Floats, Floats]:
    """The first evaluations fall far, the rows between them as well."""
    fast = 0.3 + 6 * np.exp(-STEPS / 40)
    noise = np.exp(0.03 * np.random.default_rng(seed).normal(size=ROWS))
    return (fast + 0.15) * noise, fast


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "make",
    [
        below_from_the_start,
        at_a_cut_of_the_rate,
        averaged_late,
        regularized_averaged_late,
        one_easy_evaluation,
        falls_steeply_first,
    ],
)
def test_validation_below_training_for_a_reason_is_sound(
    make: Callable[[int], tuple[Floats, Floats]], seed: int
) -> None:
    loss, level = make(seed)
    rate = np.where(STEPS < 600, 1e-3, 1e-4)
    assert not [f for f in told(loss, checked(level, seed), lr=rate) if f[1] == "val_loss"]
