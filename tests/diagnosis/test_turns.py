"""Targets that leak, terms that drop out and labels that change are told from learning and rate."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab

Floats = NDArray[np.float64]
ROWS, AT, EVERY = 320, 128, 20
K: Floats = np.arange(ROWS, dtype=np.float64)
SINCE = np.maximum(K - AT, 0)


def rows(levels: Floats, seed: int, noise: float = 0.08) -> Floats:
    return levels * np.exp(noise * np.random.default_rng(seed).normal(size=ROWS))


def checks(levels: Floats, seed: int) -> Floats:
    return np.where(K % EVERY == EVERY - 1, rows(levels, seed + 40, 0.03), np.nan)


def causes(**columns: Floats) -> list[list[str]]:
    """Return the causes of each alarm, the likeliest first."""
    found = trimtab.analyze({"step": 5 * K, **columns})
    return [[c.cause for c in i.causes] for i in found.incidents if i.severity != "info"]


def learned(k: Floats) -> Floats:
    return 0.2 + 2.3 * np.exp(-k / 40)


@pytest.mark.parametrize("seed", range(3))
def test_targets_that_come_into_the_input_are_not_overfitting(seed: int) -> None:
    """Training comes to next to nothing within one interval, and validation to many times itself."""
    loss = rows(learned(K) * np.exp(-SINCE / 6) + 1e-5, seed)
    val = checks(learned(K) * 1.1 + np.where(K >= AT, 5 + SINCE / 40, 0.0), seed)
    found = causes(loss=loss, val_loss=val, lr=1e-3 * (1 - K / 400))
    assert found
    assert {c[0] for c in found} == {"leaked-targets"}


@pytest.mark.parametrize("seed", range(3))
def test_a_term_that_drops_out_of_the_loss_is_not_overfitting(seed: int) -> None:
    """The training loss does not show it; validation has ten times its lowest at once."""
    loss = rows(learned(K) * np.exp(-K / 120), seed)
    held = learned(np.minimum(K, AT)) * np.exp(-np.minimum(K, AT) / 120)
    val = checks(held * 1.1 * np.where(K >= AT, 10 + SINCE / 15, 1.0), seed)
    found = causes(loss=loss, val_loss=val, lr=1e-3 * (1 - K / 400))
    assert found
    assert {c[0] for c in found} <= {"leaked-targets", "evaluation-differs"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pace", [60, 120])
def test_validation_that_turns_over_several_evaluations_is_overfitting(
    pace: float, seed: int
) -> None:
    loss = rows(learned(K) * np.exp(-K / 90), seed)
    val = checks(learned(np.minimum(K, AT)) + SINCE / pace, seed)
    found = causes(loss=loss, val_loss=val, lr=1e-3 * (1 - K / 400))
    assert found
    assert "overfitting" in found[0][:2]
    assert all("leaked-targets" not in c[:2] for c in found)


def stepped(seed: int, times: float, norm: float) -> dict[str, Floats]:
    """The loss steps to many times its level, and falls slowly from there."""
    after = times * (0.2 + 0.8 * np.exp(-SINCE / 12))
    return {
        "loss": rows(learned(K) + np.where(K >= AT, after, 0.0), seed),
        "grad_norm": rows(
            2.5 * np.where(K >= AT, 1 + (norm - 1) * np.exp(-SINCE / 12), 1.0), seed + 9
        ),
        "lr": 1e-3 * (1 - K / 400),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("times", "norm"), [(6, 2), (15, 4)])
def test_other_labels_or_another_loss_lead_before_a_rate_that_did_not_change(
    times: float, norm: float, seed: int
) -> None:
    (found,) = causes(**stepped(seed, times, norm))
    assert found[0] == "own-doing"
    assert "learning-rate-too-high" in found


@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_is_a_mean_of_both_sides_and_no_norm_do_not_hide_it(seed: int) -> None:
    log = stepped(seed, 15, 4)
    del log["grad_norm"]
    log["loss"][AT] = 0.8 * log["loss"][AT - 1] + 0.2 * log["loss"][AT]
    (found,) = causes(**log)
    assert found[0] == "own-doing"


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_climbs_or_whose_weights_broke_is_still_the_rates(seed: int) -> None:
    broken = stepped(seed, 6, 300)
    climbs = stepped(seed, 6, 3)
    up = np.where(K >= AT, 12 * (1 - np.exp(-SINCE / 10)), 0.0)
    climbs["loss"] = rows(learned(K) + up, seed)
    raised = stepped(seed, 6, 2)
    raised["lr"] = np.where(K >= AT, 1e-2, 1e-3)
    for log in (broken, climbs, raised):
        assert all(c[0] != "own-doing" for c in causes(**log))
