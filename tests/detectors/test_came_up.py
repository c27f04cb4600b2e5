"""A loss that has risen ever since its lowest point, slowly, is told; what goes up and down is not."""

import numpy as np
import pytest

from trimtab.detectors.offline import all_findings
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _fall(n: int, seed: int, noise: float = 0.03) -> Floats:
    rng = np.random.default_rng(seed)
    steps = np.arange(1, n + 1) * 3000 / n
    follows = np.convolve(rng.normal(size=n + 20), 0.3 ** np.arange(20.0))[20 : n + 20]
    return np.asarray(2 + 8 * (1 + steps / 20) ** -0.35 + noise * follows)


def _told(loss: Floats, **others: Floats) -> list[tuple[str, str, int]]:
    record = record_of(np.arange(1.0, len(loss) + 1), {"loss": loss, **others})
    last = {f.key: f for f in all_findings(record)}
    alarms = [f for f in last.values() if f.severity != "info" and f.signal == "loss"]
    return [(f.kind, f.severity, f.onset_row) for f in alarms]


def _came_up(loss: Floats, **others: Floats) -> bool:
    record = record_of(np.arange(1.0, len(loss) + 1), {"loss": loss, **others})
    return any(f.detector == "came-up" for f in all_findings(record))


def _climbed(n: int, seed: int, rise: float) -> Floats:
    loss, half = _fall(n, seed), n // 2
    loss[half:] += loss[half] - _fall(n, seed, 0.0)[half:] + rise * np.arange(n - half) / (n - half)
    return loss


@pytest.mark.parametrize("n", [300, 1000, 2000])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_climb_over_half_of_the_run_is_told_however_slow(n: int, seed: int) -> None:
    told = _told(_climbed(n, seed, 0.8))
    assert any(k in ("divergence", "drift", "shift") and at > 0.45 * n for k, _, at in told)
    # the steep descent before it is no matter
    assert _told(_climbed(n, seed, 0.8)[20:])


@pytest.mark.parametrize("seed", range(6))
def test_a_fall_that_ends_flat_is_silent(seed: int) -> None:
    loss = np.maximum(_fall(1000, seed, 0.0), 4.0) + _fall(1000, seed) - _fall(1000, seed, 0.0)
    assert not [k for k, *_ in _told(loss) if k != "plateau"]


def test_a_rise_that_the_run_has_had_before_is_none() -> None:
    waves = _fall(1000, 3) + 0.4 * np.sin(np.arange(1000) * 2 * np.pi / 400)
    assert not _came_up(waves)


def test_an_agents_loss_may_rise() -> None:
    loss = _climbed(1000, 0, 0.8)
    reward = np.linspace(0, 1, 1000)
    assert _came_up(loss)
    assert not _came_up(loss, reward=reward)


@pytest.mark.parametrize(
    ("n", "to", "told"), [(30, 1.04, True), (30, 1.01, False), (20, 1.04, False)]
)
def test_few_rows_are_seen_whole_as_well(n: int, to: float, told: bool) -> None:
    half = n // 2
    up = np.geomspace(0.8, 0.8 * to, n - half + 1)[1:]
    loss = np.concatenate((np.geomspace(0.95, 0.8, half), up))
    assert _came_up(loss) == told


def test_a_stall_that_is_the_way_up_is_a_note() -> None:
    loss = _climbed(300, 1, 0.5)
    assert not [k for k, *_ in _told(loss) if k == "plateau"]
