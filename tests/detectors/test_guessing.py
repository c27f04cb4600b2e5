"""A model that only guesses: accuracies of 1 / k beside a loss about ln k."""

import math

import numpy as np
import pytest

from trimtab.detectors.guessing import GuessingDetector
from trimtab.detectors.judge import judge_record
from trimtab.testing.contract import find_all
from trimtab.testing.curves import record_of


def dead(*, level: float, share: float, rows: int = 300, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    loss = level + 0.02 * draw.standard_normal(rows)
    loss[:5] += 3.0  # the leap with which it died
    score = np.full(rows, np.nan)
    score[9::10] = share + 0.003 * draw.choice((-1, 0, 1), size=len(score[9::10]))
    return {"loss": loss, "eval_score": score}


def test_a_dead_network_is_told_once_with_what_it_guesses() -> None:
    found = find_all(GuessingDetector(), dead(level=2.5, share=0.1))
    assert [f.detector for f in found] == ["guessing-worse"]
    assert "held-out accuracy of 0.101 at 8 readings: a guess among 10 classes" in found[0].text
    assert (found[0].onset_row, found[0].row) == (0, 79)


def test_a_constant_answer_is_not_worse_than_a_guess() -> None:
    (found,) = find_all(GuessingDetector(), dead(level=math.log(10), share=0.1))
    assert found.detector == "guessing"


def test_per_cent_and_training_accuracy_count_as_well() -> None:
    rows = dead(level=2.5, share=0.1)
    assert find_all(
        GuessingDetector(), {"loss": rows["loss"], "accuracy": 100 * rows["eval_score"]}
    )


@pytest.mark.parametrize(
    ("level", "share"),
    [
        (1.5, 0.5),  # image classes: half right
        (3.0, 0.35),  # tokens
        (2.5, 0.30),  # a loss that is far from ln 3
        (0.69, 0.62),  # of two classes more than half
        (0.3, 0.1),  # a small loss, so that the score is something else
    ],
)
def test_what_knows_something_is_left_alone(level: float, share: float) -> None:
    assert find_all(GuessingDetector(), dead(level=level, share=share)) == ()


def test_one_that_learns_after_all_is_no_trouble_any_more() -> None:
    rows = dead(level=math.log(10), share=0.1)
    rows["loss"][200:] -= np.linspace(0, 1.5, 100)
    rows["eval_score"][200:] += np.linspace(0, 0.5, 100)
    told, over = find_all(GuessingDetector(), rows)
    assert (told.severity, over.severity) == ("warning", "info")
    assert told.key == over.key
    assert over.end_row is not None


def test_one_that_has_known_better_did_not_guess_from_the_start() -> None:
    rows = dead(level=math.log(10), share=0.1)
    rows["eval_score"][:100] += 0.3
    assert find_all(GuessingDetector(), rows) == ()


def test_a_score_that_climbs_past_a_half_is_no_guess() -> None:
    rows = 84
    loss = np.linspace(0.98, 0.79, rows)
    score = 0.25 + 0.28 * (1 - np.exp(-np.arange(rows) / 25.0))  # a rank correlation
    assert not find_all(GuessingDetector(), {"loss": loss, "eval_score": score})


@pytest.mark.parametrize(("first", "told"), [(0, True), (12_510, False)])
def test_an_excerpt_that_lies_at_a_guess_by_chance_is_no_guess(first: int, told: bool) -> None:
    steps = (first + 10.0 * np.arange(1, 301)).astype(np.float64)
    loss = math.log(27) - 0.003 + 0.03 * np.random.default_rng(1).standard_normal(300)
    found = judge_record(record_of(steps, {"loss": loss}))
    assert any(f.kind == "never-learns" for f in found) == told
