"""A gradient norm that grows on and on beside a calm loss, and norms that grow as they should."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.norm_climbs import norm_climb_findings
from trimtab.detectors.offline import all_findings
from trimtab.incidents import group_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 1200
T = np.arange(float(N))
CALM = 2.5 + 3.0 * (1 + T / 20) ** -0.6


def _noisy(level: Floats, share: float, seed: int = 0) -> Floats:
    return level * np.exp(share * np.random.default_rng(seed).normal(size=N))


def _told(norm: Floats, loss: Floats) -> list[int]:
    record = record_of(T, {"loss": loss, "grad_norm": norm})
    return [f.onset_row for f in norm_climb_findings(record)]


@pytest.mark.parametrize("times", [10.0, 20.0])
def test_one_that_grows_to_the_end_is_an_alarm_of_the_whole_judge(times: float) -> None:
    grows = 0.33 * np.exp(np.log(times) * np.clip((T - 500) / 700, 0, 1))
    norm, loss = _noisy(grows, 0.1), CALM + 0.02 * np.random.default_rng(1).normal(size=N)
    (onset,) = _told(norm, loss)
    assert 480 <= onset <= 640
    record = record_of(T, {"loss": loss, "grad_norm": norm})
    alarms = [i for i in group_findings(record, all_findings(record)) if i.severity != "info"]
    assert "grad_norm" in {s for i in alarms for s in i.signals}


def test_norms_that_grow_as_they_should_are_none() -> None:
    loss = _noisy(CALM, 0.005)
    assert not _told(_noisy(0.3 * np.exp(1.2 * T / N), 0.1), loss)  # x 3.3
    assert not _told(_noisy(0.3 + 2.0 * (1 - np.exp(-T / 150)), 0.1), loss)  # flattens
    # What becomes sharper falls; a loss below 0 has no level.
    sharper = _noisy(4.0 * np.exp(-2.0 * T / N), 0.01)
    grows = _noisy(0.3 * np.exp(2.5 * T / N), 0.1)
    assert not _told(grows, sharper)
    assert not _told(grows, loss - 4.0)
    assert _told(grows, np.full(N, 2.5))
    assert not _told(np.zeros(N), loss)
    assert not _told(np.where(T == 3, np.nan, 0.3), np.full(N, np.nan))
