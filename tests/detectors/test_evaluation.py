"""Validation that is measured otherwise than training, losses that grow with what is learned."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab

Floats = NDArray[np.float64]


def told(num_rows: int = 40, **columns: Floats) -> list[tuple[str, str, str]]:
    """Return kind, severity and first cause of what is told of a log."""
    found = trimtab.analyze({"step": np.arange(num_rows), **columns})
    return [
        (i.kind, i.severity, i.causes[0].cause if i.causes else "")
        for i in found.incidents
        if i.severity != "info"
    ]


def wave(size: float, seed: int = 0, num_rows: int = 40) -> Floats:
    return size * np.random.default_rng(seed).standard_normal(num_rows)


TRAIN = 0.4 + 2 * np.exp(-np.arange(40) / 9) + wave(0.02)


def test_validation_that_never_falls_while_training_falls_is_another_evaluation() -> None:
    assert told(loss=TRAIN, val_loss=2.3 + wave(0.3, 2)) == [
        ("never-learns", "warning", "evaluation-differs")
    ]


@pytest.mark.parametrize(
    "val",
    [
        TRAIN + 0.5 + wave(0.03, 2),  # the gap of a small set
        0.6 + wave(0.03, 2),  # pretrained: low from the start
        1.1 + 1.2 * np.exp(-np.arange(40) / 3) + wave(0.05, 2),  # learns little, but learns
    ],
)
def test_validation_with_a_gap_is_healthy(val: Floats) -> None:
    assert told(loss=TRAIN, val_loss=val) == []


def test_validation_that_jumps_between_two_evaluations_is_no_overfitting() -> None:
    val = TRAIN + 0.1 + wave(0.03, 3)
    val[20:] += 2.8
    assert told(loss=TRAIN, val_loss=val) == [("shift", "warning", "evaluation-differs")]


def test_loss_that_falls_to_a_tenth_in_one_row_is_too_good() -> None:
    loss = TRAIN.copy()
    loss[12:] = 0.002 + wave(2e-4, 4)[12:]
    assert told(loss=loss, val_loss=loss + 1e-4) == [("too-good", "warning", "leaked-targets")]
    rate = np.where(np.arange(40) < 12, 1e-3, 1e-5)
    assert told(loss=loss, val_loss=loss + 1e-4, lr=rate) == []


@pytest.mark.parametrize(("sign", "alarms"), [(1, False), (-1, True), (0, True)])
def test_loss_that_grows_is_no_alarm_while_the_reward_rises(sign: int, alarms: bool) -> None:
    row = np.arange(40)
    loss = (0.02 + 1.4 * row / 40) * np.exp(wave(0.05, 5))
    reward = 60 + sign * 4.0 * row + wave(6.0, 6)
    assert bool(told(loss=loss, reward=reward)) is alarms


def curriculum(*, wears_off: bool) -> tuple[Floats, Floats]:
    stage, row = np.divmod(np.arange(40), 10)
    loss = 0.5 + 0.2 * stage + 2.3 * np.exp(-row / 5) + wave(0.03, 7)
    if not wears_off:
        loss[30:] = loss[29] + 0.4 * np.arange(1, 11)
    return stage.astype(np.float64), loss


def test_loss_of_a_logged_curriculum_is_no_alarm_where_each_stage_wears_off() -> None:
    stage, loss = curriculum(wears_off=True)
    assert told(loss=loss, stage=stage) == []
    stage, loss = curriculum(wears_off=False)
    assert told(loss=loss, stage=stage)


def test_validation_that_jumps_after_a_steep_fall_dates_from_its_first_high_one() -> None:
    row = np.arange(25)
    val = 0.4 + 1.9 * np.exp(-row / 2.5)
    val[10:] = 1.33 + 0.02 * (row[10:] - 10)
    train = 0.35 + 2 * np.exp(-row / 4)
    found = trimtab.analyze({"step": 40 * row, "loss": train, "val_loss": val})
    (told_of,) = [i for i in found.incidents if i.severity != "info"]
    assert (told_of.kind, told_of.onset, told_of.causes[0].cause) == (
        "shift",
        400,
        "evaluation-differs",
    )


@pytest.mark.parametrize("name", ["val_loss", "yardstick_loss"])
@pytest.mark.parametrize(("times", "alarms"), [(500, True), (1.3, False)])
def test_evaluation_far_above_training_from_the_first_on(
    name: str, times: float, *, alarms: bool
) -> None:
    expected = [("never-learns", "warning", "evaluation-differs")] if alarms else []
    rows = [
        {"step": i, "loss": float(x)} | ({name: times * float(x)} if i % 10 == 9 else {})
        for i, x in enumerate(TRAIN)
    ]
    columns = {k: np.array([r.get(k, np.nan) for r in rows]) for k in ("step", "loss", name)}
    found = trimtab.analyze(columns)
    assert [
        (i.kind, i.severity, i.causes[0].cause) for i in found.incidents if i.severity != "info"
    ] == expected


def test_validation_that_stands_while_its_score_rises_is_learning() -> None:
    val = 0.95 + wave(0.05, 2)
    train = 1.9 * TRAIN / TRAIN[0]
    score = 0.63 + 0.08 * (1 - np.exp(-np.arange(40) / 6)) + wave(0.008, 5)
    assert "never-learns" in {k for k, _, _ in told(loss=train, val_loss=val + 1.0)}
    assert "never-learns" not in {
        k for k, _, _ in told(loss=train, val_loss=val + 1.0, eval_score=score)
    }
    # Where training had come to after a while, and no better since.
    stands, gains = 0.7 + wave(0.02, 5), 0.53 + 0.3 * (1 - np.exp(-np.arange(40) / 9))
    for level, learned in ((0.0, True), (-0.2, False)):
        found = told(loss=train, val_loss=val + 1.0, eval_score=stands + level, accuracy=gains)
        assert ("never-learns" in {k for k, _, _ in found}) is not learned
