"""Phases of clipping, and activation norms that turn upwards."""

import numpy as np
import pytest

from trimtab.detectors.clip_phase import ClipPhaseDetector
from trimtab.detectors.contract import Finding
from trimtab.detectors.reversal import ReversalDetector
from trimtab.testing.contract import find_all


def clips(seed: int, *phases: tuple[int, float]) -> list[Finding]:
    rng = np.random.default_rng(seed)
    flags = np.concatenate([rng.random(n) < share for n, share in phases]).astype(np.float64)
    return list(find_all(ClipPhaseDetector(), {"clipped": flags}))


@pytest.mark.covers("S19")
@pytest.mark.parametrize("seed", range(100, 120))
def test_clipping_that_ends_is_one_change_point(seed: int) -> None:
    (one,) = clips(seed, (1000, 0.3), (600, 0.0))
    assert abs(one.onset_row - 1000) <= 20
    assert one.row <= 1060
    assert (one.kind, one.direction, one.severity) == ("shift", "down", "info")


@pytest.mark.covers("S54")
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_clip_share_that_rises_sharply_with_the_norm_is_an_alarm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flags = (rng.random(1600) < np.repeat([0.02, 0.5], [1000, 600])).astype(np.float64)
    norm = np.repeat([0.3, 1.2], [1000, 600]) * np.exp(0.1 * rng.standard_normal(1600))
    (one,) = find_all(ClipPhaseDetector(), {"clipped": flags, "grad_norm": norm})
    assert abs(one.onset_row - 1000) <= 20
    assert one.row <= 1040
    assert (one.severity, one.direction) == ("warning", "up")
    assert one.expected == pytest.approx(0.02, abs=0.015)
    assert one.value >= 0.25


def test_a_clip_share_alone_is_a_note() -> None:
    (one,) = clips(100, (1000, 0.02), (600, 0.5))
    assert (one.severity, one.direction) == ("info", "up")


@pytest.mark.parametrize(("factor", "severity"), [(1.1, "info"), (1.7, "info"), (3.0, "warning")])
def test_a_norm_that_hardly_moves_across_the_clip_is_no_alarm(factor: float, severity: str) -> None:
    rng = np.random.default_rng(100)
    norm = 0.93 * np.exp(0.04 * rng.standard_normal(1600))
    norm[1000:] *= factor
    flags = (norm > 1.0).astype(np.float64)
    (one,) = find_all(ClipPhaseDetector(), {"clipped": flags, "grad_norm": norm})
    assert (one.severity, one.direction) == (severity, "up")


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_a_steady_clip_share_is_quiet(share: float) -> None:
    assert sum(len(clips(seed, (20_000, share))) for seed in (100, 101, 102)) <= 1


def activations(seed: int, turn: int, num_rows: int = 4000) -> list[Finding]:
    rng = np.random.default_rng(seed)
    t = np.arange(num_rows, dtype=np.float64)
    grown = np.clip(t / 600, 0, 1)
    log = 0.5 * grown - 0.00015 * np.clip(t - 600, 0, None) + 0.0006 * np.clip(t - turn, 0, None)
    norm = 20 * np.exp(log + 0.02 * rng.standard_normal(num_rows))
    return list(find_all(ReversalDetector(), {"activation_norm": norm}))


@pytest.mark.covers("S53")
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_norm_that_decays_and_then_rises_is_told_within_200_steps(seed: int) -> None:
    (one,) = activations(seed, 2500)
    assert 2500 <= one.row <= 2700
    assert abs(one.onset_row - 2500) <= 100
    assert (one.kind, one.severity) == ("activation-reversal", "warning")


@pytest.mark.parametrize("seed", range(100, 110))
def test_a_norm_that_grows_and_then_decays_is_healthy(seed: int) -> None:
    assert not activations(seed, 10_000)
