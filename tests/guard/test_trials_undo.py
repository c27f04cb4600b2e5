"""Changes taken back: at once where that is harmless, after a dry run where it is not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.inner import inner
from tests.guard.tiny import (
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
)
from trimtab.checkpoints.manifest import list_checkpoints
from trimtab.errors import ActError, ConfigError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def guard_at(run: Path, step: int, **settings: Any) -> tuple[Guard, Any]:
    s = make(shuffle=True)
    policy = Policy(
        checkpoint_every_steps=10, snapshot_every_steps=5, checkpoint_in_background=False
    )
    guard = guard_of(s, run, steps=40, mode="act", policy=policy, **settings)
    train_guarded(s, guard, until=step)
    return guard, s


@pytest.mark.covers("S141")
def test_raising_the_rate_back_is_a_dry_run_until_it_is_confirmed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, s = guard_at(run, 12)
    guard.scale_lr(0.5, why="a test")
    before = state_of(s)
    told = guard.undo("lower-lr", why="it is calm again")
    assert told.startswith("dry run: take the factor 0.5 off the learning rate")
    assert guard.lr_factor == 0.5
    assert differences(before, state_of(s)) == []
    (line,) = [e for e in events_of(run, "decision") if e.data["what"] == "dry run: undo lower-lr"]
    assert (
        "it raises the learning rate, so it needs confirm=True (it is calm again)"
        in line.data["why"]
    )
    guard.undo("lower-lr", why="it is calm again", confirm=True)
    assert guard.lr_factor == 1.0
    done = events_of(run, "action")[-1].data
    assert (done["remedy"], done["values"]["confirmed"]) == ("undo lower-lr", True)
    with pytest.raises(ConfigError, match="no such change stands"):
        guard.undo("lower-lr", why="twice", confirm=True)
    guard.close()


@pytest.mark.covers("S141")
@pytest.mark.covers("S251")
def test_a_rollback_by_hand_gives_up_steps_only_when_confirmed_and_is_one_record(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    guard, s = guard_at(run, 33)
    before = state_of(s)
    told = guard.roll_back(17, why="a rough patch", lr_factor=0.5)
    assert told.startswith(
        "dry run: go back from step 33 to 15, 18 steps given up, learning rate x 0.5"
    )
    assert guard.step_number == 33
    assert differences(before, state_of(s)) == []
    assert [c.step for c in list_checkpoints(run / "checkpoints")] == [10, 20, 30]
    guard.roll_back(17, why="a rough patch", lr_factor=0.5, confirm=True)
    assert (guard.step_number, guard.lr_factor) == (15, 0.5)
    (action,) = events_of(run, "action")
    assert action.data["remedy"] == "roll-back+lower-lr"
    assert (action.data["values"]["to_step"], action.data["values"]["factor"]) == (15, 0.5)
    assert sorted(p.name for p in (run / "aside").iterdir()) == ["step-00000020", "step-00000030"]
    train_guarded(s, guard)
    rates = {r["step"]: r["lr"] for r in rows_of(run, "1.1")}
    assert sorted(rates) == list(range(16, 41))
    assert set(rates.values()) == {1.5e-3}
    (outcome,) = events_of(run, "outcome")  # steps 16-40 are earlier ones than those before it
    assert (outcome.data["label"], outcome.data["verdict"]) == ("unclear", "unclear")


@pytest.mark.covers("S120")
def test_a_tighter_clip_says_that_it_may_only_delay_and_is_undone_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, _ = guard_at(run, 12)
    guard.tighten_clip(0.5, why="single large gradients")
    assert events_of(run, "action")[-1].data["values"]["evidence"] == "delays only?"
    assert inner(guard).engine.decisions.clip_factor == 0.5
    assert guard.undo("tighten-clip", why="no difference").startswith("divide the clip's factor")
    assert inner(guard).engine.decisions.clip_factor == 1.0
    guard.close()


def test_settings_and_skipped_samples_are_taken_back_and_stay_so_after_a_restart(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    guard, s = guard_at(run, 12)
    guard.set_optimizer(beta2=0.9, eps=1e-6, why="a test")
    guard.skip_samples(100, 107, why="a test")
    guard.close()
    guard, s = guard_at(run, 20)
    assert s.optimizer.param_groups[0]["betas"] == (0.9, 0.9)
    guard.undo("adam-beta2", why="no effect")
    guard.undo("skip-data", why="the data is fine")
    assert guard.skipped_samples == ()
    guard.close()
    guard, s = guard_at(run, 30)
    for group in s.optimizer.param_groups:
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)
    assert guard.skipped_samples == ()
    guard.close()


def test_what_cannot_be_taken_back_says_so(tmp_path: Path) -> None:
    guard, _ = guard_at(tmp_path / "run", 12)
    guard.reset_moments(why="a test", rewarm_steps=5)
    with pytest.raises(ConfigError, match="cannot be taken back in mid-run; go back"):
        guard.undo("optimizer-reset", why="a test")
    with pytest.raises(ActError, match="no whole and healthy state lies at or before it"):
        guard.roll_back(-1, why="a test", confirm=True)
    with pytest.raises(ConfigError, match="never raised"):
        guard.roll_back(10, why="a test", lr_factor=2.0, confirm=True)
    guard.close()


def test_a_number_format_that_was_kept_holds_after_a_restart_until_it_is_undone(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"

    def open_run() -> tuple[Guard, Any]:
        s = make(precision="fp16")
        policy = Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
        return guard_of(s, run, steps=40, mode="act", policy=policy), s

    guard, s = open_run()
    train_guarded(s, guard, until=10)
    inner(guard).engine.set_precision("bf16")
    inner(guard).log.note("roll-back+bf16", {"precision": "bf16"}, "fp16 overflowed")
    train_guarded(s, guard, until=13)
    guard.close()
    guard, s = open_run()
    seen: list[Any] = []
    s.model.output.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    train_guarded(s, guard, until=15)
    assert set(seen) == {torch.bfloat16}
    guard.undo("bf16", why="the cause is gone")
    train_guarded(s, guard, until=18)
    assert seen[-1] == torch.float16
    guard.close()
    rows = {r["step"]: r for n in ("1.0", "1.1") for r in rows_of(run, n)}
    assert ["loss_scale" in rows[t] for t in (10, 14, 15, 16)] == [True, False, False, True]


@pytest.mark.covers("S138")
def test_starting_over_is_the_next_major_number_and_keeps_what_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, _ = guard_at(run, 23)
    guard.scale_lr(0.5, why="a test")
    guard.skip_samples(400, 407, why="bad")
    assert guard.start_over(why="lineage 1 keeps failing").startswith("dry run: start over as 2.0")
    assert guard.step_number == 23
    guard.start_over(why="lineage 1 keeps failing", confirm=True)
    assert list(guard) == []  # the loop ends
    assert list((run / "checkpoints").iterdir()) == []
    assert len(list((run / "aside").iterdir())) == 2
    again, s = guard_at(run, 12)
    assert (again.step_number, again.lr_factor) == (12, 1.0)
    assert again.skipped_samples == ((400, 407),)
    numbers = [e.data["number"] for e in events_of(run, "attempt")]
    assert numbers == ["1.0", "2.0"]
    assert events_of(run, "attempt")[1].data["parent"] is None
    fresh = make(shuffle=True)
    plain = guard_of(fresh, tmp_path / "plain", steps=40)
    train_guarded(fresh, plain, until=12)
    assert differences(state_of(fresh)["model"], state_of(s)["model"]) == []
    for g in (again, plain):
        g.close()


def test_a_held_rate_lasts_over_rollback_and_restart_until_it_is_taken_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, s = guard_at(run, 12)
    asked = guard.next_lr
    early = inner(guard).engine.snapshot()
    guard.limit_lr(asked / 4, why="a test")
    assert guard.next_lr == pytest.approx(asked / 4, rel=1e-12)
    inner(guard).engine.restore(early)
    assert guard.next_lr == pytest.approx(asked / 4, rel=1e-12)
    train_guarded(s, guard, until=20)
    guard.checkpoint()
    guard.close()
    assert {r["lr"] for r in rows_of(run)[12:]} == {asked / 4}
    s = make(shuffle=True)
    guard = guard_of(s, run, steps=40, mode="act")
    assert guard.next_lr == pytest.approx(asked / 4, rel=1e-12)
    told = guard.undo("lower-lr", why="it is calm again")
    assert told.startswith("dry run: no longer hold the learning rate at")
    guard.undo("lower-lr", why="it is calm again", confirm=True)
    assert guard.next_lr == pytest.approx(asked, rel=1e-12)
    guard.close()


@pytest.mark.parametrize("limit", [0.0, -1e-3, float("nan"), float("inf"), "1e-3"])
def test_a_limit_that_is_no_rate_is_refused(tmp_path: Path, limit: Any) -> None:
    guard, _ = guard_at(tmp_path / "run", 2)
    with pytest.raises(ConfigError, match=r"expected a (finite rate above 0|number)"):
        guard.limit_lr(limit, why="a test")
    guard.close()
