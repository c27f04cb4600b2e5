"""Held-out scores that are better when higher: lost, or exactly 0 from the first row on."""

import numpy as np
import pytest

from trimtab import Analysis, analyze

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _judged(loss: Floats, score: Floats, **more: Floats) -> Analysis:
    epochs = np.arange(float(len(loss)))
    return analyze({"epoch": epochs, "loss": loss, "val_accuracy": score, **more})


def _told(found: Analysis, detector: str) -> list[float]:
    return [
        i.incident.onset
        for i in found.incidents
        if any(f.detector == detector for f in i.incident.findings)
    ]


def _curves(n: int, seed: int) -> tuple[Floats, Floats]:
    rng, at = np.random.default_rng(seed), np.arange(n)
    loss = 0.1 + 0.9 * np.exp(-at / 8) * (1 + 0.02 * rng.normal(size=n))
    score = 0.95 - 0.6 * np.exp(-at / 6) + 0.01 * rng.normal(size=n)
    return np.asarray(loss), np.asarray(score)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize(("n", "since"), [(20, 14), (45, 30), (200, 150)])
def test_score_lost_is_told_with_its_place_while_the_loss_falls(
    n: int, since: int, scale: float
) -> None:
    loss, score = _curves(n, n)
    score[since:] = 0.1 + 0.01 * np.random.default_rng(2).normal(size=n - since)
    found = _judged(loss, scale * score)
    assert found.verdict == "incident"
    (onset,) = _told(found, "sign-score-lost")
    assert abs(onset - since) <= max(2, n // 32)
    (cause, other) = found.incidents[0].diagnosis.causes[:2]
    assert {cause.cause, other.cause} == {"overfitting", "evaluation-differs"}


@pytest.mark.parametrize("seed", range(6))
def test_score_lost_is_not_said_of_noise_or_of_one_bad_evaluation(seed: int) -> None:
    loss, score = _curves(40, seed)
    noisy = score + 0.05 * np.random.default_rng(seed + 50).normal(size=40)
    assert not _told(_judged(loss, noisy), "sign-score-lost")
    score[25] = 0.1
    assert not _told(_judged(loss, score), "sign-score-lost")


def test_score_lost_is_not_said_of_a_policy_that_explores() -> None:
    loss, score = _curves(60, 1)
    score[40:] = 0.2
    assert _told(_judged(loss, score), "sign-score-lost")
    entropy = np.full(60, 0.7)
    assert not _told(_judged(loss, score, policy_entropy=entropy), "sign-score-lost")


def test_score_of_zero_in_every_evaluation_beside_a_flat_loss_is_a_run_that_never_learns() -> None:
    flat = 0.45 + 0.001 * np.random.default_rng(0).normal(size=25)
    assert len(_told(_judged(flat, np.zeros(25)), "sign-score-zero")) == 1
    falls, _ = _curves(25, 3)
    assert not _told(_judged(falls, np.zeros(25)), "sign-score-zero")
    assert not _told(_judged(flat, np.full(25, 0.3)), "sign-score-zero")


def test_score_lost_with_the_loss_is_no_overfitting() -> None:
    loss, score = _curves(12, 4)
    loss[6:], score[6:] = np.nan, 0.1
    found = _judged(loss, score)
    (first, *_) = found.incidents
    assert first.incident.kind == "non-finite"
    assert not {c.cause for c in first.diagnosis.causes} & {"overfitting", "evaluation-differs"}
