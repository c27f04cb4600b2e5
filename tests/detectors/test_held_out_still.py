"""Validation that is of other weights stands still; a small set's score may."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import Analysis, analyze
from trimtab.detectors.held_out_still import held_out_still_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 60
T = np.arange(float(N))


def _loss(seed: int = 0) -> Floats:
    return 0.3 + 2 * np.exp(-T / 12) + 0.01 * np.random.default_rng(seed).normal(size=N)


def _told(**columns: Floats) -> list[tuple[str, int]]:
    return [(f.signal, f.onset_row) for f in held_out_still_findings(record_of(T, columns))]


def test_a_validation_that_repeats_itself_to_the_end_is_told_since_when() -> None:
    val = np.round(_loss(1) + 0.1, 4)
    assert not _told(loss=_loss(), val_loss=val)
    val[12:] = val[12]
    assert _told(loss=_loss(), val_loss=val) == [("val_loss", 12)]


def test_few_digits_gaps_that_are_filled_and_zero_are_none() -> None:
    rounded = np.round(_loss(1), 1)
    filled = np.repeat(_loss(1)[::10], 10)
    assert not _told(loss=_loss(), val_loss=rounded)
    assert not _told(loss=_loss(), val_loss=filled)
    assert not _told(loss=_loss(), val_loss=np.where(T < 30, _loss(1), 0.0))
    assert not _told(loss=np.full(N, 0.5), val_loss=np.full(N, 0.731))


def test_a_score_of_a_small_set_may_stand_still() -> None:
    score = np.minimum(0.2 + T / 40, 0.375)
    assert not _told(loss=_loss(), eval_score=score)


def test_an_error_at_its_worst_while_the_loss_falls_is_told() -> None:
    rng = np.random.default_rng(3)
    error = 1 - 0.004 * rng.random(N)
    assert _told(loss=_loss() - 0.25, eval_error=error) == [("eval_error", 0)]
    assert not _told(loss=_loss() - 0.25, eval_score=0.004 * rng.random(N))  # a hard task
    few = np.where(T < 25, error, np.nan)
    assert not _told(loss=_loss() + 2, eval_error=few)
    # In so many, whatever the loss does.
    assert _told(loss=_loss() + 2, eval_error=error) == [("eval_error", 0)]
    assert not _told(loss=_loss() - 0.25, eval_error=np.where(T < 40, error, 0.8))


def test_a_user_reads_that_the_evaluation_is_of_other_weights(
    tmp_path: Path,
) -> None:
    val = _loss(1) + 0.1
    val[10:] = val[10]
    rows = [f"{i},{a:.4f},{b:.4f}" for i, (a, b) in enumerate(zip(_loss(), val, strict=True))]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["epoch,loss,val_loss", *rows]) + "\n")
    found = analyze(path)
    assert found.verdict == "incident"
    assert found.incidents[0].causes[0].cause == "evaluation-differs"


def test_a_run_that_has_converged_prints_the_same_again() -> None:
    val = np.round(1.87 + 0.5 * np.exp(-T / 5), 2)
    assert not _told(loss=_loss(), val_loss=val)
    solved: Floats = np.maximum(2.3 * np.exp(-T / 8), 0.0412).round(4)
    assert not _told(loss=_loss(), val_loss=solved)
    gaps = np.concatenate([np.full(3, 1.31), np.full(6, 1.22), np.full(N - 9, 1.13)])
    assert not _told(loss=_loss(), val_loss=gaps)


def test_a_validation_that_comes_to_nothing_with_the_training_loss_is_too_good() -> None:
    gone = np.round(4.8 * np.exp(-T / 2), 4)
    assert _told(loss=gone, val_loss=gone) == [("val_loss", 14)]
    # A regression falls as far, and is still measured; by heart is told by others.
    assert not _told(loss=4.8 * np.exp(-T / 6), val_loss=4.8 * np.exp(-T / 6))
    assert not _told(loss=gone, val_loss=_loss(1))
    assert not _told(loss=gone - 1, val_loss=gone - 1)


@pytest.mark.parametrize(
    ("key", "level", "told"),
    [("student_val_acc", 10.3, True), ("val/mrr", 0.07, False), ("val_psnr", 24.0, False)],
)
def test_a_share_that_stays_low_while_the_loss_falls_is_told(
    tmp_path: Path, key: str, level: float, told: bool
) -> None:
    rng = np.random.default_rng(3)
    score = level * (1 + 0.03 * rng.normal(size=N) + 0.1 * T / N)
    path = tmp_path / "a.csv"
    rows = zip(T, _loss(), score, strict=True)
    path.write_text(
        "\n".join([f"epoch,loss,{key}", *(f"{t:g},{x:.5f},{s:.4f}" for t, x, s in rows)])
    )
    assert ("evaluation-differs" in _causes(path)) is told
    # One that is learned, and one of a model that was good before.
    rows = zip(T, _loss(), level * (1 + T / 20), strict=True)
    path.write_text(
        "\n".join([f"epoch,loss,{key}", *(f"{t:g},{x:.5f},{s:.4f}" for t, x, s in rows)])
    )
    assert "evaluation-differs" not in _causes(path)


def _causes(path: Path) -> list[str]:
    return [i.causes[0].cause for i in analyze(path).incidents if i.severity != "info"]


def _overlaps(score: list[float]) -> Analysis:
    rng, steps = np.random.default_rng(0), np.arange(50.0, 5050.0, 50.0)
    loss = 4 * np.exp(-steps / 600) + 1.5 + rng.normal(0, 0.05, len(steps))
    dice = np.full(len(steps), np.nan)
    dice[24::25] = score
    return analyze({"iteration": steps, "loss": loss, "mean_dice": dice})


def test_an_overlap_of_nothing_in_each_evaluation_is_told_while_the_loss_falls() -> None:
    told = _overlaps([0.0, 0.000004, 0.0027, 0.0])
    assert any("never better than" in i.incident.findings[0].text for i in told.incidents)
    assert not _overlaps([0.0, 0.0, 0.02, 0.3]).incidents


@pytest.mark.parametrize("told", [True, False])
def test_an_overlap_of_nothing_in_eleven_epochs_is_told(told: bool) -> None:
    """One loss an epoch, which comes down a hundredfold in the first: nothing is segmented."""
    loss = 0.0197 * np.exp(-np.minimum(np.arange(11.0), 1) * 5.3 - 0.08 * np.arange(11))
    dice = (1.0 if told else 3e4) * np.linspace(1.1e-5, 2e-5, 11)
    found = analyze({"epoch": np.arange(11.0), "loss": loss, "val_dice": dice}).incidents
    kinds = {i.incident.kind for i in found if i.severity != "info"}
    assert ("signal-abnormal" in kinds) is told


def _stands(loss: Floats, accuracy: Floats) -> bool:
    found = analyze({"epoch": T, "loss": loss, "accuracy": accuracy}).incidents
    kinds = [f.detector for i in found for f in i.incident.findings]
    return "score-stands" in kinds


def test_an_accuracy_that_stands_while_the_loss_falls_is_told() -> None:
    stands = np.full(N, 0.894444)
    assert _stands(_loss(), stands)
    assert not _stands(_loss(), stands + 0.001 * (T % 3))
    assert not _stands(_loss(), np.ones(N))
    assert not _stands(_loss(), np.zeros(N))
    assert not _stands(0.7 + 0.01 * np.sin(T), stands)
    # rounded to two digits it may stand by itself
    assert not _stands(_loss(), np.full(N, 0.97))


@pytest.mark.parametrize(("spread", "told"), [(0.005, True), (0.1, False)])
def test_a_low_share_that_hardly_moves_is_told_where_the_loss_comes_down_by_a_tenth(
    tmp_path: Path, spread: float, told: bool
) -> None:
    path = tmp_path / "a.csv"
    rng = np.random.default_rng(1)
    rows = [(t, 11 - 0.07 * t, 6.61 + 6.61 * spread * rng.uniform()) for t in range(30)]
    path.write_text(
        "\n".join(["epoch,loss,val_acc", *(f"{t},{x:.4f},{s:.3f}" for t, x, s in rows)])
    )
    assert ("evaluation-differs" in _causes(path)) is told
