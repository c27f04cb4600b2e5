"""What healthy everyday logs look like, beside the faults that they resemble."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import analyze
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


@pytest.mark.parametrize(("held_out", "told"), [(0.005, False), (0.9, True)])
def test_the_fixed_batches_of_a_guard_tell_a_solved_task_from_one_learned_by_heart(
    held_out: float, *, told: bool
) -> None:
    loss = fall(1500, 0.004, 2.3, 60, 0.1, 0)
    read = np.where(np.arange(1500) % 80 == 79, np.maximum(loss, held_out), np.nan)
    columns = {"epochs_seen": 20.0 * np.arange(1500) / 1500, "yardstick_loss": read}
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


@pytest.mark.parametrize(
    ("first", "last", "size", "told"),
    [
        (600, 600, 0.0, False),
        (600, 660, 1.5, True),  # between two edges, at the restart
        (640, 670, 1.5, True),  # after it
        (1240, 1320, 0.4, True),  # more than twice the restart before
        (900, 1200, 2.0, True),  # to the level of a guess, up to the next
    ],
    ids=["none", "edges", "late", "larger", "guess"],
)
@pytest.mark.parametrize("warmed", [1, 20])
def test_a_restart_explains_what_is_of_its_place_size_and_shape(
    first: int, last: int, size: float, warmed: int, *, told: bool
) -> None:
    phase = np.arange(1800) % 600
    part = np.minimum(1, (phase + 1) / warmed) * 0.5 * (1 + np.cos(np.pi * phase / 600))
    loss = fall(1800, 0.3, 2.3, 200, 0.03, 3) + 0.1 * part
    loss[first:last] += size
    assert bool(alarms(loss, lr=0.1 * part + 1e-6) & set(RISES)) is told


def test_a_fault_leaves_the_restart_before_it_a_note() -> None:
    part = 0.5 * (1 + np.cos(np.pi * (np.arange(2400) % 600) / 600))
    loss = fall(2400, 0.3, 2.3, 150, 0.03, 4) + 0.2 * part
    loss[2050:] = 2.3 * np.exp(0.03 * np.random.default_rng(4).standard_normal(350))
    columns = {"loss": loss, "lr": 0.1 * part + 1e-4}
    found = all_findings(derive(record_of(np.arange(2400.0), columns)))
    onsets = [f.onset_row for f in found if f.severity != "info" and f.kind in RISES]
    assert onsets
    assert min(onsets) > 2000


def test_a_collapse_in_a_short_log_with_restarts_is_told() -> None:
    part = 0.5 * (1 + np.cos(np.pi * (np.arange(40) % 10) / 10))
    loss = fall(40, 0.35, 2.3, 6, 0.05, 5) * (1 + 0.25 * part)
    loss[24:] = 2.3 * np.exp(0.04 * np.random.default_rng(5).standard_normal(16))
    assert alarms(loss, lr=0.1 * part) & set(RISES)


@pytest.mark.parametrize("size", [0.0, 4.0])
def test_a_weight_explains_no_more_than_its_part(size: float) -> None:
    t = np.arange(2000)
    recon, weight = fall(2000, 0.5, 1.0, 500, 0.03, 1), np.clip(t / 500, 0, 1)
    kl = 1 + 0.05 * np.random.default_rng(2).standard_normal(2000)
    loss = recon + 0.8 * weight * kl + size * (t >= 300)
    found = alarms(loss, recon_loss=recon, latent_kl=kl, kl_weight=weight) & set(RISES)
    assert bool(found) is bool(size)


def test_a_weight_that_falls_makes_no_loss_too_good() -> None:
    t = np.arange(2000)
    kl = 20 + 0.4 * np.random.default_rng(6).standard_normal(2000)
    recon = fall(2000, 85, 180, 100, 0.01, 6)
    loss = recon + (t < 1000) * kl
    assert "too-good" in alarms(loss)
    assert "too-good" not in alarms(loss, recon_loss=recon, latent_kl=kl)


@pytest.mark.parametrize(("sign", "told"), [(1, False), (-1, True)])
def test_a_loss_may_grow_with_the_reward(sign: int, *, told: bool) -> None:
    t, rng = np.arange(3000) / 3000, np.random.default_rng(0)
    loss = (0.5 * np.exp(0.5 * rng.standard_normal(3000)) + 0.2 * t) * (1 + 3 * t)
    reward = 100 + sign * 95 * (2 * t - 1) + 15 * rng.standard_normal(3000)
    assert bool(alarms(loss, reward=reward) & set(RISES)) is told


@pytest.mark.parametrize("last", [0.0, 0.2])
def test_a_validation_loss_of_exactly_0_is_told(last: float) -> None:
    val = fall(40, 0.2, 0.9, 8, 0.02, 7)
    val[16:] = np.where(last, val[16:], 0.0)
    found = alarms(fall(40, 0.1, 0.9, 12, 0.03, 8), val_loss=val)
    assert ("frozen-signal" in found) is not bool(last)


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


@pytest.mark.parametrize(
    ("fault", "told"),
    [("", False), ("spike", True), ("shift", True), ("same window each round", True)],
)
def test_a_rise_that_comes_back_and_wears_off_is_a_note(fault: str, *, told: bool) -> None:
    """Five passes, each of which ends 12 % below its start; no learning rate is logged."""
    num, period = 2500, 500
    rng, row = np.random.default_rng(3), np.arange(num)
    saw = 1 - (0.0 if fault == "same window each round" else 0.12) * (row % period) / period
    loss = (0.3 + 2 * np.exp(-row / 300)) * np.exp(0.03 * rng.normal(size=num)) * saw
    if fault == "spike":
        loss[3 * period : 3 * period + 40] += 1.0
    elif fault == "shift":
        loss[3 * period :] += 0.3
    elif fault:
        loss += 0.5 * (row % period < 25) * (row > period)
    assert bool(alarms(loss)) is told


@pytest.mark.parametrize("fault", ["", "spike", "one more"])
def test_restarts_that_are_each_twice_as_far_are_notes(fault: str) -> None:
    """A cosine with `T_mult=2` whose rate is not logged: the loss rises and falls with it."""
    at = np.array([0, 150, 450, 1050, 2250])
    rng, row = np.random.default_rng(3), np.arange(3000)
    k = np.searchsorted(at, row, side="right") - 1
    share = (row - at[k]) / (150 * 2.0**k)
    loss = 2 + 2 * (1 + row / 50) ** -0.5 + 0.15 * np.cos(np.pi * share / 2) * (k > 0)
    loss += 0.02 * rng.normal(size=3000)
    if fault == "spike":
        loss[1600:1640] += 1.0
    elif fault:
        loss[1500:] += 0.15 * np.exp(-np.arange(1500) / 300)
    assert bool(alarms(loss) - {"plateau"}) is bool(fault)


@pytest.mark.parametrize("logged", [True, False])
def test_a_large_vocabulary_that_is_warmed_up_is_no_run_that_never_learns(*, logged: bool) -> None:
    rows = np.arange(600)
    noise = 0.01 * np.random.default_rng(0).standard_normal(600)
    loss = 9.6 - 6 * (1 - np.exp(-np.maximum(rows - 55, 0) / 200)) + noise
    rate = {"lr": 1e-3 * np.minimum(1, (rows + 1) / 50)} if logged else {"grad_norm": 1 + noise}
    told = all_findings(derive(record_of(rows.astype(np.float64), {"loss": loss, **rate})))
    assert not any(f.kind == "never-learns" and f.severity != "info" for f in told)


def test_rows_out_of_the_middle_of_an_epoch_at_the_level_of_a_guess_are_no_guess() -> None:
    """A mean over the epoch stands near ln 101, in the 17th epoch; of the first it would be told."""
    rng = np.random.default_rng(0)
    loss = np.log(101) + rng.normal(0, 0.002, 62)
    places = np.arange(62) * 0.0075
    assert not analyze({"epoch": 16.69 + places, "loss": loss}).incidents
    assert analyze({"epoch": places, "loss": loss}).incidents
