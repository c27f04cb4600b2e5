"""What a guard adds to a trainer's own checkpoint: with it, a run goes on bit for bit."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.tiny import differences, events_of, guard_of, make, state_of, train_guarded
from trimtab.errors import ActError, ConfigError

pytestmark = pytest.mark.torch

STEPS = 40
HARD: dict[str, Any] = {"shuffle": True, "schedule": "onecycle", "dropout": 0.2}


def stopped(folder: Path, at: int = 23) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run until a step; return what a trainer would save.

    And the companion, both through a file.
    """
    s = make(**HARD)
    guard = guard_of(s, folder, steps=STEPS, mode="act")
    train_guarded(s, guard, until=at)
    file = io.BytesIO()
    states = {
        "model": s.model.state_dict(),
        "optimizer": s.optimizer.state_dict(),
        "scheduler": s.scheduler.state_dict(),
    }
    torch.save({**states, "companion": guard.companion()}, file)
    guard.close()
    file.seek(0)
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    return saved, saved.pop("companion")


def loaded(saved: dict[str, Any]) -> Any:
    s = make(**HARD)
    s.model.load_state_dict(saved["model"])
    s.optimizer.load_state_dict(saved["optimizer"])
    s.scheduler.load_state_dict(saved["scheduler"])
    torch.manual_seed(99)  # as anything else the new process drew
    return s


def test_a_run_goes_on_bit_for_bit_from_a_trainers_checkpoint(tmp_path: Path) -> None:
    whole = make(**HARD)
    losses = train_guarded(whole, guard_of(whole, tmp_path / "whole", steps=STEPS, mode="act"))
    saved, companion = stopped(tmp_path / "run")
    s = loaded(saved)
    guard = guard_of(
        s, tmp_path / "run", steps=STEPS, mode="act", loaded_step=23, companion=companion
    )
    assert guard.step_number == 23
    rest = train_guarded(s, guard)
    assert rest == losses[23:]
    assert differences(state_of(whole), state_of(s)) == []
    (attempt,) = [
        e.data for e in events_of(tmp_path / "run", "attempt") if e.data["number"] == "1.1"
    ]
    assert (attempt["parent"], attempt["parent_step"]) == ("1.0", 23)


def test_decisions_taken_since_stay_and_later_checkpoints_are_moved_aside(tmp_path: Path) -> None:
    saved, companion = stopped(tmp_path / "run")
    s = loaded(saved)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, loaded_step=23, companion=companion)
    train_guarded(s, guard, until=30)
    guard.scale_lr(0.5, why="a test")
    guard.checkpoint()
    guard.close()
    s = loaded(saved)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, loaded_step=23, companion=companion)
    assert guard.lr_factor == 0.5
    assert [p.name for p in (tmp_path / "run" / "aside").iterdir()] == ["step-00000030"]
    assert len(train_guarded(s, guard)) == STEPS - 23


def test_without_a_companion_it_goes_on_and_says_what_is_new(tmp_path: Path) -> None:
    saved, _ = stopped(tmp_path / "theirs")
    s = loaded(saved)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, loaded_step=23)
    assert len(train_guarded(s, guard)) == STEPS - 23
    (note,) = [e.data["text"] for e in events_of(tmp_path / "run", "note")]
    assert "holds nothing of the guard's" in note


def test_a_companion_of_another_step_or_not_legible_is_refused(tmp_path: Path) -> None:
    saved, companion = stopped(tmp_path / "run")
    broken = copy.deepcopy(companion)
    broken["rest"] = broken["rest"][:-9]
    for step, given, words in ((24, companion, "of step 23"), (23, broken, "not legible")):
        with pytest.raises(ActError, match=words):
            guard_of(
                loaded(saved), tmp_path / "run", steps=STEPS, loaded_step=step, companion=given
            )
    s = make(**HARD)
    guard = guard_of(s, tmp_path / "new", steps=STEPS)
    for _ in guard:
        with pytest.raises(ConfigError, match="a step is under way"):
            guard.companion()
        break
    guard.close()
