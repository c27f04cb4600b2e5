"""Held-out scores that sink from their best while training goes on, seen in hindsight."""

import numpy as np
import pytest

from trimtab import Analysis, analyze

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _judged(score: Floats, seed: int = 0, *, name: str = "val_acc", **more: Floats) -> Analysis:
    at, rng = np.arange(float(len(score))), np.random.default_rng(seed)
    loss = 2 * np.exp(-4 * at / len(at)) + 0.05 + rng.normal(0, 0.01, len(at))
    return analyze({"epoch": at, "train_loss": loss, name: score, **more})


def _onsets(found: Analysis) -> list[float]:
    return [
        i.incident.onset
        for i in found.incidents
        if i.severity != "info" and i.incident.kind == "overfitting"
    ]


def _turns(n: int, seed: int) -> Floats:
    """Rises for three tenths of the run, then loses what it gained."""
    x = np.arange(n) / n
    curve = np.where(x < 0.3, 0.3 + 0.5 * x / 0.3, 0.8 - 0.3 * (x - 0.3) / 0.7)
    return np.asarray(curve + np.random.default_rng(seed).normal(0, 0.01, n))


@pytest.mark.parametrize("n", [20, 40, 100, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_a_score_that_sinks_is_told_from_its_best_on(n: int, seed: int) -> None:
    (onset,) = _onsets(_judged(_turns(n, seed), seed))
    assert 0.2 * n <= onset <= 0.5 * n


@pytest.mark.parametrize("seed", range(3))
def test_an_error_that_climbs_is_told_as_a_score_that_sinks(seed: int) -> None:
    assert len(_onsets(_judged(1 - _turns(60, seed), seed, name="val_error"))) == 1


@pytest.mark.parametrize("seed", range(8))
def test_noise_a_plateau_and_a_score_that_comes_back_are_left_alone(seed: int) -> None:
    rng, x = np.random.default_rng(seed), np.arange(60) / 60
    flat = 0.6 + rng.normal(0, 0.03, 60)
    saturates = 0.9 - 0.6 * np.exp(-8 * x) - 0.02 * x + rng.normal(0, 0.01, 60)
    returns = 0.7 + 0.2 * np.cos(4 * np.pi * x) + rng.normal(0, 0.01, 60)
    for score in (flat, saturates, returns):
        assert not _onsets(_judged(score, seed))


def test_where_training_gets_worse_too_it_is_no_overfitting() -> None:
    score = _turns(60, 1)
    at = np.arange(60.0)
    loss = np.where(at < 18, 2 - at / 12, 0.5 + (at - 18) / 20)
    loss += np.random.default_rng(3).normal(0, 0.01, 60)
    assert not _onsets(analyze({"epoch": at, "train_loss": loss, "val_acc": score}))


def test_an_agent_is_judged_by_its_rewards() -> None:
    reward = np.linspace(0, 100, 60) + np.random.default_rng(0).normal(0, 3, 60)
    assert not _onsets(_judged(_turns(60, 1), reward=reward))


def test_the_training_score_alone_says_that_training_goes_on() -> None:
    rng, x = np.random.default_rng(0), np.arange(40) / 40
    train = 0.99 - 0.5 * np.exp(-5 * x) + rng.normal(0, 0.003, 40)
    found = analyze({"epoch": np.arange(40.0), "train_acc": train, "val_acc": _turns(40, 1)})
    assert len(_onsets(found)) == 1


def test_a_setting_excuses_a_score_only_where_it_moves() -> None:
    harder = np.round(10 * np.maximum(np.arange(60) / 60 - 0.3, 0))
    assert not _onsets(_judged(_turns(60, 1), curriculum_level=harder))
    assert _onsets(_judged(_turns(60, 1), curriculum_level=np.full(60, 3.0)))
