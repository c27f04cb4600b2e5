"""A loss that stays where it began, while the gradients that should move it die away."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab

Floats = NDArray[np.float64]
N = 240


def noise(size: float, seed: int) -> Floats:
    return size * np.random.default_rng(seed).standard_normal(N)


def told(loss: Floats, norm: Floats) -> list[tuple[str, str]]:
    found = trimtab.analyze({"step": np.arange(N), "loss": loss, "grad_norm": norm})
    return [
        (i.kind, i.causes[0].cause if i.causes else "")
        for i in found.incidents
        if i.severity != "info"
    ]


ROW = np.arange(N)
DIES = (0.25 + 2.5 * np.exp(-ROW / 8)) * np.exp(noise(0.1, 1))
STEADY = np.exp(noise(0.1, 2))


def test_hardly_moved_of_a_loss_that_stays_while_norms_die_away() -> None:
    loss = 2.26 + 0.04 * np.exp(-ROW / 3) + noise(0.02, 3)
    assert told(loss, DIES) == [("never-learns", "chance-from-start")]


def test_hardly_moved_of_a_loss_that_was_broken_after_some_steps() -> None:
    """A rate too high: it was lower for some rows, leapt, and stands above its first row."""
    loss = np.where(ROW < 8, 2.3 - 0.03 * ROW, 2.38) + noise(0.02, 3)
    loss[8] = 20.0
    norm = np.where(ROW < 5, 0.4, np.where(ROW < 10, 6.0, 0.15)) * np.exp(noise(0.1, 1))
    assert ("never-learns", "chance-from-start") in told(loss, norm)


@pytest.mark.parametrize(
    ("loss", "norm"),
    [
        (2.35 + noise(0.05, 4), STEADY),  # fine-tuned from its floor: norms of noise stay
        (1.0 + 1.3 * np.exp(-ROW / 60) + noise(0.05, 5), DIES),  # learned, so norms fall
        (0.25 + noise(0.005, 6), DIES),  # next to nothing was to be had
    ],
)
def test_hardly_moved_is_silent_where_it_learned_or_had_learned(loss: Floats, norm: Floats) -> None:
    assert ("never-learns", "chance-from-start") not in told(loss, norm)


@pytest.mark.parametrize(
    ("top", "fall", "expected"),
    [(1e-7, 0.0, [("never-learns", "rate-at-zero")]), (1e-7, 0.5, []), (3e-5, 0.0, [])],
    ids=["told", "learns", "short-excerpt"],
)
def test_a_warm_up_that_outlasts_the_run_is_told(
    top: float, fall: float, expected: list[tuple[str, str]]
) -> None:
    t = np.arange(N)
    loss = 2.9 - fall * t / N + noise(0.1, 5)
    found = trimtab.analyze({"step": t, "loss": loss, "lr": top * (t + 1) / N})
    alarms = [i for i in found.incidents if i.severity != "info"]
    assert [(i.kind, i.causes[0].cause) for i in alarms] == expected


@pytest.mark.parametrize("num_rows", [40, 80, 300])
def test_a_loss_that_creeps_in_a_straight_line_is_of_a_rate_far_too_low(num_rows: int) -> None:
    epochs = np.arange(float(num_rows))
    rng = np.random.default_rng(num_rows)
    loss = 0.697 - 0.0001 * epochs + rng.normal(0, 5e-6, num_rows)
    told = trimtab.analyze({"epoch": epochs, "loss": loss, "lr": np.full(num_rows, 2e-6)})
    (incident,) = [i for i in told.incidents if i.severity != "info"]
    assert incident.kind == "never-learns"
    assert incident.causes[0].cause == "rate-too-low"


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_bends_swings_or_falls_far_is_of_no_rate_too_low(seed: int) -> None:
    rng, t = np.random.default_rng(seed), np.arange(80.0)
    for loss in (
        0.95 - 0.02 * (1 - np.exp(-t / 20)) + rng.normal(0, 5e-6, 80),
        0.95 - 0.0001 * t + rng.normal(0, 2e-3, 80),
        0.95 - 0.002 * t + rng.normal(0, 5e-6, 80),
    ):
        told = trimtab.analyze({"epoch": t, "loss": loss, "lr": np.full(80, 1e-4)})
        assert not [i for i in told.incidents if i.kind == "never-learns"]


@pytest.mark.parametrize(("level", "is_told"), [(0.7, True), (0.2, False), (0.0, False)])
def test_a_run_that_starts_over_and_stands_far_above_is_told(level: float, is_told: bool) -> None:
    before = 0.2 + 0.5 * np.exp(-np.arange(80) / 15)
    rng = np.random.default_rng(0)
    after = level + 0.01 * level * rng.standard_normal(120)
    if not level:
        before = np.linspace(0.7, 0.0, 80)
    loss = np.concatenate([before, after])
    steps = np.concatenate([np.arange(80.0), np.arange(120.0)])
    found = trimtab.analyze({"step": steps, "loss": loss})
    said = [f.text for i in found.incidents for f in i.incident.findings]
    assert any("started over" in text and "has stood" in text for text in said) is is_told


def test_what_was_learned_and_lost_is_not_said_to_have_learned_nothing() -> None:
    loss = np.where(ROW < 110, 4.0 - 2.3 * np.minimum(ROW / 60, 1), 4.1) + noise(0.03, 9)
    norm = np.where(ROW < 110, 1.0, 0.02) * np.exp(noise(0.1, 1))
    assert "never-learns" not in [kind for kind, _ in told(loss, norm)]
