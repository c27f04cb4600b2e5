"""How far to roll back."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.api.analysis import analyze
from trimtab.plan.rollback import (
    CheckpointInfo,
    choose_target,
    parse_candidate,
    wanted_distance,
)


def at(*steps: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(step=s) for s in steps]


@pytest.mark.covers("S99")
def test_newest_before_the_onset_not_before_the_detection() -> None:
    choice = choose_target(at(800, 900, 1000, 1100), 1050, 0)  # detected at 1120, say
    assert choice.target == CheckpointInfo(step=1000)


@pytest.mark.covers("S100")
def test_candidates_of_the_chronicle_come_with_scores_earlier_than_the_precursor_first() -> None:
    # BigScience tr8-104B, Try 4: 6K, 4K and 3K in increasing order of preference.
    drift = choose_target(at(6000, 4000, 3000), 4700, 0)  # loss scale drifts from 4 700 on
    assert {c.checkpoint.step for c in drift.candidates[:2]} == {4000, 3000}
    assert drift.candidates[-1].checkpoint.step == 6000
    assert "after the first sign at 4700" in drift.candidates[-1].reason

    again = choose_target(
        at(6000, 4000, 3000), 6900, 1, failed_distance=800, resumed_at=6210, sooner=True
    )
    assert [c.checkpoint.step for c in again.candidates] == [3000, 4000, 6000]
    scores = [c.score for c in again.candidates]
    assert scores == sorted(scores, reverse=True)
    assert again.further_back_than == 6210
    assert again.at_most == 3700


@pytest.mark.covers("S101")
def test_the_plan_goes_back_before_the_onset_of_the_drift_of_the_loss_scale(tmp_path: Path) -> None:
    row = np.arange(7400)
    rng = np.random.default_rng(3)
    loss = 2.5 + 4 * (row + 50.0) ** -0.35 + 0.02 * rng.standard_normal(len(row))
    loss += np.clip((row - 7000) * 0.05, 0.0, 4.5)
    scale = 2.0 ** np.where(row < 4700, 19, np.maximum(18 - (row - 4700) // 180, 0))
    for step in (3000, 4500, 6210, 6900):
        (tmp_path / f"global_step{step}").mkdir()
        (tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt").write_bytes(b"x")
    log = {"step": row + 1, "loss": loss, "loss_scale": scale, "lr": np.full(len(row), 1e-4)}
    told = analyze(log, checkpoints=str(tmp_path)).runs[0].incidents[0]
    assert (told.incident.kind, told.incident.precursor) == ("unrecovered-spike", 4701)
    assert told.plan.remedies[0].remedy == "roll-back"
    assert 4500 in told.plan.remedies[0].values.values()


def test_before_the_first_precursor_not_before_the_spike() -> None:
    spike, loss_scale_drift = 7000, 4700
    assert choose_target(at(3000, 4500, 6210, 6900), spike, 0).target == CheckpointInfo(step=6900)
    choice = choose_target(at(3000, 4500, 6210, 6900), loss_scale_drift, 0)
    assert choice.target == CheckpointInfo(step=4500)


@pytest.mark.covers("S102")
def test_each_recurrence_doubles_the_distance() -> None:
    assert wanted_distance(100, 2) == 2 * wanted_distance(100, 1)
    first = choose_target(at(*range(0, 1000, 50)), 1000, 1, failed_distance=100, resumed_at=900)
    second = choose_target(at(*range(0, 1000, 50)), 1000, 2, failed_distance=100, resumed_at=900)
    assert first.target == CheckpointInfo(step=800)
    assert second.target == CheckpointInfo(step=600)


def test_what_was_tried_is_no_target_again() -> None:
    choice = choose_target(at(6210, 6600), 6900, 1, failed_distance=800, resumed_at=6210)
    assert choice.target is None
    assert all("6210" in c.reason for c in choice.candidates)


def test_grades() -> None:
    checkpoints = [
        CheckpointInfo(step=900, grade="poisoned"),
        CheckpointInfo(step=850, grade="suspect"),
        CheckpointInfo(step=700),
    ]
    assert choose_target(checkpoints, 1000, 0).target == checkpoints[2]
    assert choose_target(checkpoints[:1], 1000, 0).target is None
    assert choose_target(checkpoints[:2], 1000, 0).target == checkpoints[1]


def test_nothing_to_go_back_to() -> None:
    choice = choose_target([], 50, 3, failed_distance=40, resumed_at=10)
    assert choice.target is None
    assert choice.at_most == 0


def test_margin() -> None:
    assert choose_target(at(90, 98, 99), 100, 0, margin_steps=2).target == CheckpointInfo(step=98)


@given(
    steps=st.lists(st.integers(min_value=0, max_value=2000), max_size=30, unique=True),
    first_sign=st.integers(min_value=1, max_value=2000),
    recurrences=st.integers(min_value=0, max_value=4),
    failed=st.integers(min_value=1, max_value=500),
)
def test_a_target_lies_before_the_first_sign_and_further_back_than_what_failed(
    steps: list[int], first_sign: int, recurrences: int, failed: int
) -> None:
    resumed = first_sign - failed
    choice = choose_target(
        at(*steps), first_sign, recurrences, failed_distance=failed, resumed_at=resumed
    )
    assert len(choice.candidates) == len(steps)
    if choice.target is not None:
        assert choice.target.step < first_sign
        if recurrences:
            assert choice.target.step < resumed
    elif not recurrences:
        assert all(s >= first_sign for s in steps)
    good = [s for s in steps if s <= choice.at_most and (not recurrences or s < resumed)]
    if good:
        assert choice.target == CheckpointInfo(step=max(good))


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("global_step6210", 6210),
        ("/ckpt/iter_0003000", 3000),
        ("step-00001200", 1200),
        ("out/checkpoint-500", 500),
        ("3000", 3000),
        ("latest", None),
        ("", None),
    ],
)
def test_parse_candidate(text: str, step: int | None) -> None:
    found = parse_candidate(text)
    assert (None if found is None else found.step) == step
