"""A level that is higher for good, by about the noise of single rows."""

import numpy as np
import pytest

from trimtab.detectors.offline import all_findings
from trimtab.detectors.risen import risen_findings
from trimtab.testing.curves import record_of

NUM = 268
AT = 200


def _noise(seed: int, rho: float = 0.0, num: int = NUM) -> np.ndarray:
    rng, out = np.random.default_rng(seed), np.zeros(num)
    white = rng.normal(size=num)
    for t in range(num):
        out[t] = (rho * out[t - 1] if t else 0.0) + white[t] * np.sqrt(1 - rho**2)
    return out


def _told(loss: np.ndarray) -> list[int]:
    record = record_of(np.arange(float(len(loss))), {"loss": loss})
    return [f.onset_row for f in risen_findings(record) if f.severity == "warning"]


@pytest.mark.parametrize("fall", [0.0, 1.0], ids=["level", "descent"])
def test_a_lasting_rise_of_two_standard_deviations_is_told(fall: float) -> None:
    t, found = np.arange(NUM), 0
    for seed in range(1100, 1120):
        loss = 1 + fall * np.exp(-t / 50) + 0.1 * _noise(seed)
        loss[AT:] += 0.2
        told = _told(loss)
        assert all(abs(row - AT) <= 12 for row in told)
        found += len(told)
    assert found >= 17


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num", [70, 268, 1000])
def test_noise_that_depends_on_its_neighbors_is_none(rho: float, num: int) -> None:
    t = np.arange(num)
    told = [
        seed
        for seed in range(1120, 1150)
        if _told(1 + np.exp(-5 * t / num) + 0.1 * _noise(seed, rho, num))
    ]
    assert len(told) <= 1


def test_what_falls_back_is_no_new_level() -> None:
    loss = 1 + 0.1 * _noise(1150)
    loss[120:180] += 0.4
    assert not _told(loss)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_loss_does_not_matter(scale: float) -> None:
    loss = 1 + 0.1 * _noise(1151)
    loss[AT:] += 0.3
    assert _told(loss * scale) == _told(loss) != []


def test_steps_between_equal_digits_and_broken_rows_are_borne() -> None:
    loss = np.where(np.arange(NUM) < AT, 1.0, 1.5)
    assert _told(loss) == [AT]
    loss[[3, 90]] = np.nan
    loss[150] = np.inf
    assert len(_told(loss)) == 1
    assert not _told(np.full(NUM, 2.0))
    assert not _told(np.full(NUM, np.nan))


def test_a_rise_that_no_row_gives_away_is_an_alarm_of_the_whole_judge() -> None:
    loss = 1 + 0.1 * _noise(1152)
    loss[AT:] += 0.25
    record = record_of(np.arange(float(NUM)), {"loss": loss})
    alarms = [f for f in all_findings(record) if f.severity != "info"]
    assert {f.detector for f in alarms} >= {"risen"}


def test_the_place_is_where_the_rows_rise_and_not_the_noisy_ones_before() -> None:
    draw = np.random.default_rng(7)
    loss = 0.5 + 0.1 * draw.standard_normal(420)
    loss[297:300] = (0.58, 0.32, 0.45)
    loss[300:] += 1.8 + 3.0 * np.exp(-np.arange(120) / 20)
    (found,) = risen_findings(record_of(np.arange(420.0), {"loss": loss}))
    assert found.onset_row == 300


@pytest.mark.parametrize(("level", "told"), [(0.0, False), (1.0, True)])
def test_a_difference_of_two_terms_has_no_level_that_is_worse(level: float, told: bool) -> None:
    """An energy model: the two energies come to be alike, and their difference swings about 0."""
    loss = level + 0.02 * _noise(1153, num=500)
    loss[:60] -= 0.08
    assert bool(_told(loss)) is told


def test_a_tower_where_the_level_rises_does_not_move_the_place() -> None:
    t = np.arange(1000)
    for seed in range(5):
        loss = np.where(t < 600, 0.4, 1.45) + 0.15 * _noise(seed, num=1000)
        loss[600:603] = 3.0, 14.0, 23.0
        assert all(abs(onset - 600) <= 3 for onset in _told(loss))
