"""What healthy everyday logs look like, beside the faults that they resemble."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.offline import all_findings
from trimtab.signals import derive
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
RISES = ("spike", "unrecovered-spike", "shift", "drift", "divergence")


def alarms(loss: Floats, **columns: Floats) -> set[str]:
    columns.setdefault("lr", np.full(len(loss), 1e-3))
    record = derive(record_of(np.arange(len(loss), dtype=np.float64), {"loss": loss, **columns}))
    return {f.kind for f in all_findings(record) if f.severity != "info"}


def fall(rows: int, low: float, high: float, tau: float, noise: float, seed: int) -> Floats:
    t = np.arange(rows)
    normal = np.random.default_rng(seed).standard_normal(rows)
    return np.asarray((low + (high - low) * np.exp(-t / tau)) * np.exp(noise * normal))


@pytest.mark.parametrize(
    ("passes", "tau", "told"),
    [(0.0, 60, False), (0.9, 60, False), (3.0, 60, False), (20.0, 150, True)],
    ids=["unknown", "first-pass", "solved-in-the-first-pass", "many-passes"],
)
def test_learned_by_heart_needs_evidence(passes: float, tau: float, *, told: bool) -> None:
    loss = fall(1500, 0.004, 2.3, tau, 0.1, 0)
    columns = {"epochs_seen": passes * np.arange(1500) / 1500} if passes else {}
    assert ("memorised" in alarms(loss, **columns)) is told


@pytest.mark.parametrize("noise", [0.15, 0.3, 0.5])
def test_a_noisy_start_is_no_climb(noise: float) -> None:
    runs = [fall(400, 0.2, 2.2, 150, noise, seed) for seed in range(2)]
    assert not set().union(*(alarms(loss) for loss in runs)) & set(RISES)


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_climb_at_the_start_is_told(noise: float) -> None:
    loss = fall(400, 0.5, 2.2, 150, noise, 0)
    loss[2:14] *= 1.6
    assert "spike" in alarms(loss)


@pytest.mark.parametrize(("seed", "size"), [(0, 0.25), (1, 0.1), (2, 0.5)])
@pytest.mark.parametrize("heals", [True, False])
def test_a_restart_of_the_rate_may_lift_the_loss(seed: int, size: float, *, heals: bool) -> None:
    part = 0.5 * (1 + np.cos(np.pi * (np.arange(1800) % 600) / 600))
    loss = fall(1800, 0.3, 2.3, 400, 0.03, seed) + size * part
    if not heals:
        loss[1200:] = 1.0 + size + 0.02 * np.random.default_rng(seed).standard_normal(600)
    found = alarms(loss, lr=0.1 * part + 1e-4) & set(RISES)
    assert bool(found) is not heals


@pytest.mark.parametrize("falls", [True, False])
def test_a_part_of_the_loss_is_warmed_up(*, falls: bool) -> None:
    t = np.arange(2000)
    recon = fall(2000, 0.5, 1.0, 500, 0.03, 1)
    if not falls:
        recon[200:] += 0.4 * np.clip((t[200:] - 200) / 300, 0, 1)
    kl = 3 - 2 * np.clip(t / 500, 0, 1) + 0.05 * np.random.default_rng(2).standard_normal(2000)
    loss = recon + 0.8 * np.clip(t / 500, 0, 1)
    found = alarms(loss, recon_loss=recon, latent_kl=kl) & set(RISES)
    assert bool(found) is not falls


def test_an_explosion_late_in_a_short_log_is_no_missing_warm_up() -> None:
    loss = fall(40, 0.3, 2.3, 10, 0.03, 1)
    loss[28:] = 5.0 * 10.0 ** np.arange(12)
    columns = {"loss": loss, "lr": np.full(40, 1e-3)}
    found = all_findings(derive(record_of(np.arange(40.0), columns)))
    assert not any(f.detector.startswith("rough-start") for f in found)
    assert any(f.severity == "critical" for f in found)
