"""Stretches of the loss that no single row shows, whatever the way up and down."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.excess import excess_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 1000
T = np.arange(float(N))
S = 0.04


def _loss(seed: int, rho: float = 0.0, num: int = N) -> Floats:
    rng, noise, t = np.random.default_rng(seed), np.zeros(num), np.arange(num)
    white = rng.normal(size=num)
    for i in range(num):
        noise[i] = (rho * noise[i - 1] if i else 0.0) + white[i] * np.sqrt(1 - rho**2)
    return np.asarray(2 + 1.5 * np.exp(-6 * t / num) + 0.6 * np.exp(-t / num) + S * noise)


def _told(loss: Floats, **more: Floats) -> list[tuple[str, str, int]]:
    columns = {"loss": loss} | {k.replace("__", "/"): v for k, v in more.items()}
    found = excess_findings(record_of(np.arange(float(len(loss))), columns))
    return [(f.signal, f.kind, f.onset_row) for f in found]


def _bump(at: float) -> Floats:
    rise = np.clip((T - at) / 15, 0, 1)
    return np.asarray(rise * np.exp(-np.clip(T - at - 15, 0, None) / 30))


def _heals(at: float) -> Floats:
    return np.where(at <= T, np.exp(-np.clip(T - at, 0, None) / 60), 0.0)


def _shift(at: float) -> Floats:
    return np.where(at <= T, 1.0, 0.0)


SHAPES = {"bump": _bump, "heals": _heals, "shift": _shift}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_six_standard_deviations_of_a_row_are_told_over_sixty_rows(shape: str, rho: float) -> None:
    found = 0
    for seed in range(12):
        told = _told(_loss(seed, rho) + 6 * S * SHAPES[shape](600))
        assert all(k == ("shift" if shape == "shift" else "spike") for _, k, _ in told)
        assert all(abs(row - 604) <= 24 for _, _, row in told)
        found += len(told) == 1
    assert found >= (8 if rho else 11)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num", [60, 300, 1000, 6000])
def test_a_sound_descent_is_silent(rho: float, num: int) -> None:
    assert not [seed for seed in range(25) if _told(_loss(seed, rho, num))]


def test_what_a_run_does_again_and_again_is_its_own_way() -> None:
    waves = 6 * S * np.maximum(np.sin(2 * np.pi * T / 130), 0)
    assert not _told(_loss(1) + waves)


def test_two_stretches_do_not_hide_each_other() -> None:
    loss = _loss(2) + 8 * S * (SHAPES["bump"](400) + SHAPES["bump"](750))
    assert len(_told(loss)) == 2


def test_a_row_far_out_is_a_matter_of_other_rules() -> None:
    loss = _loss(3)
    loss[500] += 2.0
    assert not _told(loss)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_does_not_matter(scale: float) -> None:
    loss = _loss(4) + 8 * S * SHAPES["bump"](600)
    assert _told(loss * scale) == _told(loss)


def test_parts_are_a_matter_of_other_rules() -> None:
    bump = 8 * S * SHAPES["shift"](600)
    parts = {"loss__depth": _loss(6) + bump, "loss__entropy": _loss(7) + bump}
    total = 4 * _loss(5) + bump
    assert {s for s, _, _ in _told(total, **parts)} <= {"loss"}


def test_values_that_are_no_number_are_left_out() -> None:
    loss = _loss(8) + 8 * S * SHAPES["shift"](600)
    loss[100:103] = np.nan
    assert [k for _, k, _ in _told(loss)] == ["shift"]
    assert not _told(np.full(N, 0.5))
