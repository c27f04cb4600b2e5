"""Scores of training that sink on purpose are no alarm: harder data, a penalty, another score."""

import numpy as np
import pytest

import trimtab

N = 400
F = np.arange(N) / N
RNG = np.random.default_rng(0)
LOSS = 2 + 4 * (1 + np.arange(N) / 20) ** -0.4 + 0.03 * RNG.standard_normal(N)
SINKS = np.where(F < 0.4, F / 0.4, 1 - 0.7 * (F - 0.4) / 0.6) + 0.01 * RNG.standard_normal(N)


def _kinds(**beside: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[str]:
    columns = {"step": 10.0 * np.arange(N), "loss": LOSS} | beside
    (run,) = trimtab.analyze(columns).runs
    return [i.kind for i in run.incidents if i.severity != "info"]


@pytest.mark.parametrize("score", ["accuracy", "reward"])
def test_a_score_that_sinks_is_told_unless_the_log_says_why(score: str) -> None:
    assert _kinds(**{score: SINKS})
    harder = np.round(4 + 60 * np.maximum(F - 0.4, 0))
    for key in ("hard_negatives", "difficulty", "penalty_weight", "mask_ratio"):
        assert not _kinds(**{score: SINKS, key: harder}), key
    held_out = np.where(np.arange(N) % 10 == 0, 0.3 + 0.5 * F, np.nan)
    assert not _kinds(**{score: SINKS, "val_accuracy": held_out})


def test_a_reward_that_sinks_on_purpose_is_noted() -> None:
    harder = np.round(4 + 60 * np.maximum(F - 0.4, 0))
    columns = {"step": 10.0 * np.arange(N), "loss": LOSS, "reward": SINKS, "difficulty": harder}
    (run,) = trimtab.analyze(columns).runs
    notes = [i.headline for i in run.incidents if "reward" in i.incident.signals]
    assert any("the log says what makes it harder" in note for note in notes)


def test_a_cut_of_the_rate_explains_what_follows_it_and_not_what_was_before() -> None:
    rate = np.where(np.arange(N) < 200, 0.1, 0.01)
    falls = LOSS - 1.2 * (np.arange(N) >= 200)
    assert not _kinds(loss=falls, lr=rate)
    early = LOSS - 1.2 * (np.arange(N) >= 160)
    assert "too-good" in _kinds(loss=early, lr=rate)
