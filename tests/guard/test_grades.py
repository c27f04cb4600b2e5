"""The grade of a checkpoint follows the estimated onset, and retention spares what is needed."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guard.inner import inner
from tests.guard.tiny import events_of, guard_of, make, train_guarded
from trimtab.checkpoints.manifest import list_checkpoints, set_grade
from trimtab.detectors.contract import Finding
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def finding(onset: int, told: int, **more: Any) -> Finding:
    """A claim about the loss; critical and lasting unless said otherwise."""
    known: dict[str, Any] = {
        "detector": "level:loss",
        "kind": "divergence",
        "signal": "loss",
        "severity": "critical",
        "row": told - 1,
        "step": float(told),
        "onset_row": onset - 1,
        "onset": float(onset),
        "peak_row": told - 1,
        "peak": float(told),
        "value": 9.0,
        "expected": 2.0,
        "score": 9.0,
        "text": "a test",
    }
    return Finding(**(known | more))


def grades(run: Path) -> dict[int, str]:
    return {c.step: c.grade for c in list_checkpoints(run / "checkpoints")}


def doubted(tmp_path: Path, *claims: Finding, at: int = 47, background: bool = False) -> Path:
    """A run with checkpoints at 10, 20, 30 and 40, in which claims are made after step 47."""
    s = make()
    policy = Policy(
        checkpoint_every_steps=10, checkpoints_kept=9, checkpoint_in_background=background
    )
    guard = guard_of(s, tmp_path / "run", steps=80, policy=policy)
    judge = inner(guard).parts.judgement.judge_row
    train_guarded(s, guard, until=at - 1)
    object.__setattr__(
        inner(guard).parts.judgement, "judge_row", lambda *row: (*judge(*row), *claims)
    )
    train_guarded(s, guard, until=at)
    object.__setattr__(inner(guard).parts.judgement, "judge_row", judge)
    guard.close()
    return tmp_path / "run"


def resumed_at(run: Path) -> int:
    guard = guard_of(make(), run, steps=80)
    guard.close()
    return guard.step_number


def test_what_was_saved_after_an_onset_that_is_told_later_is_suspect(tmp_path: Path) -> None:
    run = doubted(tmp_path, finding(28, 47))
    assert grades(run) == {10: "healthy", 20: "healthy", 30: "suspect", 40: "suspect"}
    told = [(e.data["path"], e.data["grade"]) for e in events_of(run, "checkpoint")][-2:]
    assert told == [("step-00000030", "suspect"), ("step-00000040", "suspect")]
    pinned = [c.step for c in list_checkpoints(run / "checkpoints") if c.pinned]
    assert pinned == [20]
    assert resumed_at(run) == 20


def test_what_was_saved_after_the_end_of_a_spike_stays_healthy(tmp_path: Path) -> None:
    spike = finding(18, 47, kind="spike", severity="warning", end=33.0, end_row=32, closed=True)
    run = doubted(tmp_path, spike)
    assert grades(run) == {10: "healthy", 20: "suspect", 30: "suspect", 40: "healthy"}
    assert resumed_at(run) == 40


def test_what_says_nothing_against_the_weights_undoes_no_saved_work(tmp_path: Path) -> None:
    mild: list[dict[str, Any]] = [
        {"kind": "plateau", "severity": "warning"},
        {"kind": "spike", "severity": "warning", "signal": "grad_norm"},
        {"kind": "spike", "severity": "info"},
        {"kind": "hang", "signal": "step_time_s"},
    ]
    nowhere = dataclasses.replace(finding(18, 47), onset=math.nan)
    run = doubted(tmp_path, *(finding(18, 47, **claim) for claim in mild), nowhere)
    assert set(grades(run).values()) == {"healthy"}
    assert resumed_at(run) == 40


def test_a_checkpoint_that_is_still_being_written_is_graded_too(tmp_path: Path) -> None:
    run = doubted(tmp_path, finding(28, 41), at=41, background=True)
    assert grades(run) == {10: "healthy", 20: "healthy", 30: "suspect", 40: "suspect"}
    assert resumed_at(run) == 20


@pytest.mark.slow
def test_a_loss_that_climbs_slowly_is_resumed_from_before_it_began(tmp_path: Path) -> None:
    """No claim is planted here: the judge finds it from the losses, when some were saved
    already."""
    s = make(num_samples=4000, dropout=0.0)
    policy = Policy(checkpoint_every_steps=4, checkpoints_kept=99, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=600, policy=policy, mode="observe")
    rng = torch.Generator().manual_seed(1)

    def spoil(guard: Any, batch: Tensor) -> None:
        share = (guard.step_number - 200) / 400  # of tokens that are noise, from step 201 on
        noise = torch.randint(0, 13, batch.shape, generator=rng)
        batch.copy_(torch.where(torch.rand(batch.shape, generator=rng) < share, noise, batch))

    train_guarded(s, guard, until=300, on_batch=spoil)
    guard.close()
    run = tmp_path / "run"
    onset = min(
        e.data["onset"]
        for e in events_of(run, "finding")
        if e.data["signal"] == "loss" and e.data["severity"] != "info"
    )
    after = [grade for step, grade in grades(run).items() if step >= onset]
    assert after
    assert set(after) == {"suspect"}
    assert onset - 5 <= resumed_at(run) < onset


@pytest.mark.parametrize("kept", [1, 2])
def test_retention_keeps_the_newest_healthy_ones_and_all_that_are_pinned(
    tmp_path: Path, kept: int
) -> None:
    s = make()
    policy = Policy(checkpoint_every_steps=5, checkpoints_kept=kept, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=80, policy=policy)
    folder = tmp_path / "run" / "checkpoints"
    train_guarded(s, guard, until=7)
    set_grade(folder / "step-00000005", "healthy", "a test", pinned=True)
    train_guarded(s, guard, until=11)
    set_grade(folder / "step-00000010", "suspect", "a test")
    train_guarded(s, guard, until=12)
    assert grades(tmp_path / "run") == {5: "healthy", 10: "suspect"}, "none newer is healthy yet"
    train_guarded(s, guard, until=32)
    assert sorted(grades(tmp_path / "run")) == [5, *[25, 30][-kept:]]
    guard.close()
