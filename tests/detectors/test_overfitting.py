"""Overfitting is the validation's trouble alone."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab


def losses(num_rows: int = 400, *, seed: int = 1) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return 3 * np.exp(-np.arange(num_rows) / 130) + 1.5 + 0.03 * rng.standard_normal(num_rows)


def kinds(train: NDArray[np.float64], val: NDArray[np.float64]) -> list[str]:
    columns = {"step": np.arange(len(train)), "loss": train, "val_loss": val}
    return [i.kind for i in trimtab.analyze(columns).incidents]


@pytest.mark.parametrize("climb", [0.02, 0.1, 1.0])
def test_overfitting_is_not_said_where_the_training_loss_climbs_with_validation(
    climb: float,
) -> None:
    train = losses()
    train[250:] += np.minimum(4.0, climb * np.arange(150))
    found = kinds(train, 1.02 * train)
    assert found
    assert "overfitting" not in found


def test_overfitting_is_said_where_validation_turns_alone() -> None:
    train = losses()
    val = losses(seed=2)
    val[250:] += 0.02 * np.arange(150)
    assert "overfitting" in kinds(train, val)


def wandering(seed: int, num_rows: int = 300) -> NDArray[np.float64]:
    """Return what adds up over some ten validations, as that of a detector's boxes does."""
    rng = np.random.default_rng(seed)
    noise = np.zeros(num_rows)
    for i in range(1, num_rows):
        noise[i] = 0.85 * noise[i - 1] + rng.standard_normal()
    return noise


def test_a_validation_that_wanders_as_it_always_did_is_seldom_overfitting_and_one_that_turns_is() -> (
    None
):
    false = found = 0
    for seed in range(100, 124):
        train = losses(300, seed=seed)
        val = 1.1 * losses(300, seed=seed + 500) + 0.06 * wandering(seed)
        false += "overfitting" in kinds(train, val)
        val[150:] += 0.01 * np.arange(150)
        found += "overfitting" in kinds(train, val)
    assert false <= 4
    assert found == 24


@pytest.mark.parametrize(("turns", "falls", "told"), [(1.0, 1.0, True), (0.0, 1.0, False)])
def test_a_turn_by_four_per_cent_counts_though_the_first_loss_was_high(
    turns: float, falls: float, told: bool
) -> None:
    n = np.arange(56.0)
    rng = np.random.default_rng(2)
    deep = 11 * (1 + 3 * n) ** -0.2
    at = np.minimum(n, 36.0)
    train = np.where(n < 36, deep, 11 * (1 + 3 * at) ** -0.2 - 0.02 * falls * (n - 36))
    val = 11 * (1 + 3 * at) ** -0.2 + 0.008 * turns * (n - at)
    told_kinds = kinds(train + 0.002 * rng.normal(size=56), val + 0.004 * rng.normal(size=56))
    assert ("overfitting" in told_kinds) is told
