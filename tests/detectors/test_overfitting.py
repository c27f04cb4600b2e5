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
