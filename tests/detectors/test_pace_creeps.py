"""Steps that take longer and longer, by no step that `pace` could see."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.pace_creeps import pace_creeps_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
N = 1200
T = np.arange(float(N))


def _time(rise: float, seed: int = 0, noise: float = 0.05) -> Floats:
    creeps = 1 + rise * np.clip((T - 300) / 900, 0, 1)
    heavy = np.random.default_rng(seed).standard_t(3, N)
    return 0.85 * creeps * np.exp(noise * heavy)


def _told(**columns: Floats) -> list[int]:
    return [f.onset_row for f in pace_creeps_findings(record_of(T, columns))]


def test_a_pace_that_creeps_is_told_from_where_it_was_best() -> None:
    (onset,) = _told(step_time_s=_time(0.25))
    assert onset < 600
    assert _told(throughput=1 / _time(0.25))
    (f,) = pace_creeps_findings(record_of(T, {"step_time_s": _time(0.25)}))
    assert f.severity == "warning"
    assert "1.2" in f.text


@pytest.mark.parametrize("seed", range(10))
def test_noise_a_step_and_what_comes_back_are_other_cases(seed: int) -> None:
    rng = np.random.default_rng(seed)
    walk = np.cumsum(rng.normal(0, 0.004, N))
    assert not _told(step_time_s=_time(0.0, seed))
    assert not _told(step_time_s=0.85 * np.exp(walk - walk.min()) ** 0.2)
    assert not _told(step_time_s=_time(0.0, seed) * np.where(T > 700, 1.4, 1.0))
    back = 1 + 0.3 * (1 - np.abs(T / 600 - 1))
    assert not _told(step_time_s=_time(0.0, seed) * back)


def test_longer_episodes_and_stated_changes_cost_time_by_design() -> None:
    assert not _told(step_time_s=_time(0.4), reward=T)
    assert not _told(step_time_s=_time(0.4), batch_size=np.where(T > 600, 64.0, 32.0))


def test_a_log_of_few_rows_is_told_where_it_slows_down_twice() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(40)
    for factor, is_told in ((8.0, True), (1.4, False)):
        speed = 0.6 * factor ** -(t / 40) * np.exp(0.1 * rng.standard_normal(40))
        record = record_of(t.astype(float), {"loss": np.ones(40), "throughput": speed})
        assert bool(pace_creeps_findings(record)) == is_told
    warm = np.where(t < 4, 1.0, 5.0) * np.exp(0.1 * rng.standard_normal(40))
    record = record_of(t.astype(float), {"loss": np.ones(40), "step_time_s": warm})
    assert not pace_creeps_findings(record)
