"""A held-out set that turns while the others go on."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.data_sets import set_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
N = 1000
T = np.arange(float(N))


def _checks(turns: float, seed: int) -> Floats:
    """Every twentieth row; from the middle on it rises by `turns` of its level."""
    rng = np.random.default_rng(seed)
    fall = 2.9 + 3 * np.exp(-T / 250)
    level = np.where(T < 500, fall, fall[500] * (1 + turns * (1 - np.exp(-(T - 500) / 150))))
    checks = np.full(N, np.nan)
    checks[::20] = (level * (1 + 0.001 * rng.normal(size=N)))[::20]
    return checks


def _told(**turns: float) -> list[str]:
    rng = np.random.default_rng(0)
    sets = {}
    for k, (name, turn) in enumerate(turns.items()):
        column = _checks(turn, k)
        if turn == 0.0:
            rows = np.arange(0, N, 20)
            column[rows] = 2.9 + 3 * np.exp(-T[rows] / 250) * (
                1 + 0.002 * rng.normal(size=len(rows))
            )
        sets[f"val_loss/{name}"] = column
    loss = 2.9 + 3 * np.exp(-T / 250) + 0.03 * rng.normal(size=N)
    record = record_of(T, {"loss": loss, **sets})
    return [f.signal for f in set_findings(record) if f.detector == "set-left-behind"]


def test_the_set_whose_data_is_gone_is_named() -> None:
    assert _told(en=0.0, de=0.02, fr=0.0) == ["val_loss/de"]


@pytest.mark.parametrize("turn", [0.0, 0.001])
def test_sets_that_go_on_or_stand_are_silent(turn: float) -> None:
    assert not _told(en=0.0, de=turn, fr=0.0)


def test_all_sets_turning_is_overfitting_of_the_whole() -> None:
    assert not _told(en=0.02, de=0.02, fr=0.02)
