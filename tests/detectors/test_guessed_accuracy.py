"""A loss that stays where a guess has it, borne out by an accuracy that is that of the guess."""

import numpy as np
import pytest

from trimtab import analyze
from trimtab.analysis.assemble import make_account
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _flat(n: int, level: float, spread: float, seed: int) -> Floats:
    return np.asarray(level + spread * np.random.default_rng(seed).normal(size=n))


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("classes", [3, 6, 7, 20, 37])
def test_guessed_accuracy_tells_that_nothing_is_learned(classes: int, scale: float) -> None:
    loss = _flat(40, np.log(classes), 0.01, classes)
    right = scale * _flat(40, 1 / classes, 0.03 / classes, 99)
    found = analyze({"epoch": np.arange(1.0, 41), "loss": loss, "accuracy": right})
    assert found.verdict == "incident"
    (told,) = [i for i in found.incidents if i.incident.kind == "never-learns"]
    assert f"a guess among {classes} classes" in told.headline


@pytest.mark.parametrize(("level", "right"), [(1.2, 0.55), (0.05, 0.98), (2.9, 0.38), (0.8, 0.71)])
def test_guessed_accuracy_of_a_trained_model_that_stays_is_no_guess(
    level: float, right: float
) -> None:
    columns = {"loss": _flat(60, level, 0.01, 3), "accuracy": _flat(60, right, 0.01, 4)}
    found = analyze({"epoch": np.arange(1.0, 61), **columns})
    assert not [i for i in found.incidents if i.incident.kind == "never-learns"]


def test_guessed_accuracy_that_rises_later_is_no_run_that_never_learns() -> None:
    loss = np.r_[_flat(20, np.log(6), 0.01, 5), np.log(6) * np.exp(-np.arange(40) / 12)]
    columns = {"loss": loss, "accuracy": np.minimum(np.exp(-loss) * 1.02, 1.0)}
    found = analyze({"epoch": np.arange(1.0, 61), **columns})
    assert not [
        i for i in found.incidents if i.incident.kind == "never-learns" and i.incident.end is None
    ]


@pytest.mark.parametrize("n", [12, 40])
def test_overfitting_in_few_rows_has_its_cause_and_keeps_the_best_checkpoint(n: int) -> None:
    late = np.maximum(np.arange(n) - n // 3, 0) / n
    fell = 0.3 + np.exp(-np.arange(n) / (n / 4))
    noise = np.random.default_rng(1).normal(size=n) * 0.01
    columns = {"loss": fell * np.exp(-late), "val_loss": fell + 0.8 * late + noise}
    account = make_account(record_of(np.arange(float(n)), columns))
    (told,) = [i for i in account.incidents if i.incident.kind == "overfitting"]
    assert told.diagnosis.top.cause == "overfitting"
    assert [r.remedy for r in told.plan.remedies] == ["keep-best", "regularize"]
