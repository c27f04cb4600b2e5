"""Small lasting changes and slow rises, found in time and not found in noise."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.api.analysis import analyze
from trimtab.detectors.contract import Finding
from trimtab.detectors.creep import CreepDetector
from trimtab.detectors.judge import judge_record
from trimtab.errors import ConfigError
from trimtab.testing.contract import find_all
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise, record_of

AT = 4000
Floats = NDArray[np.float64]


def noise(num_rows: int, seed: int, kind: NoiseKind = "gaussian") -> Floats:
    return make_noise(num_rows, kind, np.random.default_rng(seed))


def after(num_rows: int) -> Floats:
    return np.clip(np.arange(num_rows, dtype=np.float64) - AT, 0.0, None)


def loss_alarms(loss: Floats) -> list[Finding]:
    return [f for f in find_all(CreepDetector(), {"loss": loss}) if f.severity != "info"]


@pytest.mark.covers("S45")
@pytest.mark.parametrize("seed", range(100, 105))
def test_half_a_per_cent_in_100_steps_is_told_within_300_steps_and_is_no_spike(seed: int) -> None:
    level = lm_curve(6000)
    loss = level + 0.005 * level[AT] * after(6000) / 100 + 0.01 * noise(6000, seed)
    found = judge_record(record_of(np.arange(1.0, 6001.0), {"loss": loss}))
    told = [f for f in found if f.severity != "info"]
    assert AT <= told[0].row <= AT + 300
    assert told[0].kind == "drift"
    assert any(f.kind == "divergence" and f.severity == "critical" for f in told)
    assert not any("spike" in f.kind for f in told)
    assert not [f for f in found if f.row < AT and f.severity != "info"]


@pytest.mark.parametrize("kind", ["gaussian", "t3"])
@pytest.mark.parametrize(("share", "rows"), [(0.015, 128), (0.012, 256)])
def test_a_lasting_shift_of_little_more_than_one_per_cent_is_told(
    kind: NoiseKind, share: float, rows: int
) -> None:
    for seed in range(100, 105):
        loss = lm_curve(6000) + 0.02 * noise(6000, seed, kind)
        loss[AT:] *= 1 + share
        told = loss_alarms(loss)
        assert AT <= told[0].row <= AT + rows
        assert abs(told[0].onset_row - AT) <= 48
        assert told[-1].kind in ("shift", "drift")
        assert told[-1].closed


def test_a_small_wave_that_goes_back_ends_as_a_note() -> None:
    loss = 2.5 + 0.01 * noise(3000, 100)
    loss[1500:1580] += 0.05
    found = find_all(CreepDetector(), {"loss": loss})
    assert [(f.severity, f.closed) for f in found] == [("warning", False), ("info", True)]
    assert found[-1].end_row is not None
    assert abs(found[-1].end_row - 1580) <= 32


def test_a_step_down_makes_nobody_expect_the_next() -> None:
    loss = 5.0 + 0.02 * noise(3000, 100)
    loss[1600:] -= 2.5
    assert not find_all(CreepDetector(), {"loss": loss})


def drifting(num_rows: int) -> Floats:
    return np.linspace(0.20, 0.25, num_rows)


def standing(num_rows: int) -> Floats:
    return np.full(num_rows, 0.20)


@pytest.mark.slow
@pytest.mark.covers("S51")
@pytest.mark.parametrize("kind", ["ar1", "t3"])
@pytest.mark.parametrize(("curve", "found"), [(drifting, True), (standing, False)])
def test_a_grad_norm_that_drifts_by_a_quarter_in_20000_steps_is_told_and_noise_is_not(
    kind: NoiseKind, curve: Callable[[int], Floats], found: bool
) -> None:
    norm = curve(20_000) * np.exp(0.05 * noise(20_000, 100, kind))
    told = analyze({"loss": lm_curve(20_000), "grad_norm": norm}).runs[0].incidents
    assert [(t.incident.kind, t.incident.severity) for t in told] == [
        ("grad-drift", "info")
    ] * found


def test_a_norm_that_doubles_is_a_warning() -> None:
    norm = np.exp(0.1 * noise(6000, 100)) * np.linspace(1.0, 2.0, 6000).clip(1.2)
    assert not [f for f in find_all(CreepDetector(), {"grad_norm": norm}) if f.severity != "info"]
    norm = np.exp(0.1 * noise(6000, 100) + np.linspace(0, 1.2, 6000))
    assert "warning" in {f.severity for f in find_all(CreepDetector(), {"grad_norm": norm})}


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_rows=2"):
        CreepDetector(block_rows=2)
