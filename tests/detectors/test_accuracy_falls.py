"""The accuracy on the data of training, which falls while their loss does not rise."""

import numpy as np
import pytest

import trimtab
from trimtab.analysis.account import IncidentAccount

N = 400


def _alarms(falls: float, since: float, *, slowly: bool, seed: int) -> list[IncidentAccount]:
    rng = np.random.default_rng(seed)
    f = np.arange(N) / N
    way = np.clip((f - since) / (1 - since), 0, 1) if slowly else (f >= since)
    accuracy = 0.75 * (1 - np.exp(-f * 12)) - falls * way + 0.01 * rng.standard_normal(N)
    loss = 2 + 4 * (1 + f * N / 20) ** -0.4 + 0.03 * rng.standard_normal(N)
    columns = {"step": 10 * np.arange(N), "loss": loss, "accuracy": accuracy}
    (run,) = trimtab.analyze(columns).runs
    return [i for i in run.incidents if i.severity != "info"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("falls", "slowly"), [(0.3, False), (0.15, False), (0.3, True)])
def test_an_accuracy_that_falls_beside_a_calm_loss_is_told(
    falls: float, slowly: bool, seed: int
) -> None:
    (alarm,) = _alarms(falls, 0.6, slowly=slowly, seed=seed)
    assert alarm.kind == "signal-abnormal"
    assert abs(alarm.onset / 10 - 0.6 * N) <= 0.12 * N


@pytest.mark.parametrize("seed", range(8))
def test_an_accuracy_that_is_learned_is_none(seed: int) -> None:
    assert not _alarms(0.0, 0.6, slowly=False, seed=seed)
