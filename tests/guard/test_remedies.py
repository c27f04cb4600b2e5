"""Each remedy does what it says, and no scheduler, restart or rollback undoes it."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.guard.inner import inner
from tests.guard.tiny import (
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def nan_gradient(s: Setup, loss: Tensor, guard: Guard) -> None:
    guard.backward(loss)
    gradient = s.model.hidden.weight.grad
    assert gradient is not None
    gradient[1, 2] = math.nan


def inf_gradient(s: Setup, loss: Tensor, guard: Guard) -> None:
    guard.backward(loss)
    gradient = s.model.embedding.weight.grad
    assert gradient is not None
    gradient[0] = -math.inf


def nan_loss(_s: Setup, loss: Tensor, guard: Guard) -> None:
    guard.backward(loss * math.nan)


def inf_loss(_s: Setup, loss: Tensor, guard: Guard) -> None:
    guard.backward(loss * math.inf)


@pytest.mark.covers("S113")
@pytest.mark.parametrize("fault", [nan_gradient, inf_gradient, nan_loss, inf_loss])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_skipped_step_leaves_weights_and_optimizer_bit_equal(
    tmp_path: Path, fault: Callable[[Setup, Tensor, Guard], None], clip: float | None
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=30, mode="act", clip=clip)
    for batch in guard:
        loss = s.loss(batch)
        if guard.step_number == 12:
            before = state_of(s)
            fault(s, loss, guard)
            guard.step()
            after = state_of(s)
            assert differences(before["model"], after["model"]) == []
            assert differences(before["optimizer"]["state"], after["optimizer"]["state"]) == []
        else:
            guard.backward(loss)
            guard.step()
    assert all(bool(p.isfinite().all()) for p in s.model.parameters())
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows if row["skipped"]] == [13]
    assert guard.step_number == 30
    (action,) = guard.actions  # one is skipped; it needs nothing more
    assert (action["step"], action["remedy"]) == (13, "skip-update")
    (event,) = events_of(tmp_path / "run", "action")
    assert event.data["values"] == action["values"]
    assert action["values"]["num"] == 1  # type: ignore[index]
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.parametrize("schedule", ["lambda", "cosine", "exponential", "chained", "onecycle"])
def test_a_cut_rate_stays_cut_through_the_scheduler_and_a_restart(
    tmp_path: Path, schedule: str
) -> None:
    planned = []
    s = make(schedule=schedule)
    for _ in range(30):
        planned.append(s.optimizer.param_groups[0]["lr"])
        train_plain(s, 1)
    s = make(schedule=schedule)
    guard = guard_of(s, tmp_path / "run", steps=30)
    train_guarded(s, guard, until=8)
    guard.scale_lr(0.5, why="a test")
    train_guarded(s, guard, until=16)
    guard.checkpoint()
    guard.close()
    s = make(schedule=schedule)
    train_guarded(s, guard_of(s, tmp_path / "run", steps=30))
    run = tmp_path / "run"
    lrs = [row["lr"] for row in rows_of(run) + rows_of(run, "1.1")]
    assert lrs[:8] == planned[:8]
    assert lrs[8:] == [0.5 * lr for lr in planned[8:]]
    action = events_of(run, "action")[0].data
    assert (action["remedy"], action["values"]["lr_factor"], action["why"]) == (
        "lower-lr",
        0.5,
        "a test",
    )


@pytest.mark.covers("S119")
@pytest.mark.parametrize("schedule", ["lambda", "cosine", "onecycle"])
def test_an_overridden_scheduler_gives_the_new_plans_value_at_that_step(
    tmp_path: Path, schedule: str
) -> None:
    s = make(schedule=schedule)
    used: list[tuple[float, ...]] = []
    s.optimizer.register_step_post_hook(
        lambda o, *_: used.append(tuple(g["lr"] for g in o.param_groups))
    )
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=7)
    old = used[6]

    def plan(step: int) -> float:
        return 1e-3 / step

    guard.override_lr(plan, why="a new plan")
    train_guarded(s, guard, until=14)
    assert used[7:14] == [(plan(step), plan(step)) for step in range(8, 15)]
    assert used[7] != old
    assert [row["lr"] for row in rows_of(tmp_path / "run")[7:]] == [plan(i) for i in range(8, 15)]
    guard.override_lr(None, why="back to the scheduler")
    train_guarded(s, guard)
    plain = make(schedule=schedule)
    train_plain(plain, 20)
    assert s.optimizer.param_groups[0]["lr"] == plain.optimizer.param_groups[0]["lr"]
    assert [e.data["values"]["on"] for e in events_of(tmp_path / "run", "action")] == [True, False]


def test_a_rate_that_is_undone_behind_the_guards_back_is_a_fault(tmp_path: Path) -> None:
    s = make()

    def undo(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3

    s.optimizer.register_step_pre_hook(undo)
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=5)
    assert events_of(tmp_path / "run", "fault") == []
    guard.override_lr(lambda _: 1e-4, why="a test")
    train_guarded(s, guard)
    fault, *_ = events_of(tmp_path / "run", "fault")
    assert "learning rate 0.0001 was asked for and the optimizer holds 0.003" in fault.data["error"]


def test_an_override_must_be_given_again_at_resume(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=6)
    guard.override_lr(lambda _: 5e-4, why="a test")
    train_guarded(s, guard, until=9)
    guard.checkpoint()
    guard.close()
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    with pytest.raises(ConfigError, match=r"taken over by override_lr at step 7; call guard\.over"):
        train_guarded(s, guard)
    guard.override_lr(lambda _: 5e-4, why="again")
    train_guarded(s, guard)
    assert {row["lr"] for row in rows_of(tmp_path / "run", "1.1")} == {5e-4}


@pytest.mark.parametrize("rate", [math.nan, -1.0, "x", math.inf])
def test_an_override_that_is_no_rate_is_refused_and_changes_nothing(
    tmp_path: Path, rate: object
) -> None:
    s = make(schedule="none")
    guard = guard_of(s, tmp_path / "run", steps=5)
    with pytest.raises(ConfigError, match=r"expected a finite number"):
        guard.override_lr(lambda _: rate, why="a test")  # type: ignore[arg-type,return-value]
    train_guarded(s, guard)
    assert {row["lr"] for row in rows_of(tmp_path / "run")} == {3e-3}


def test_a_tightened_clip_bounds_the_gradient(tmp_path: Path) -> None:
    s = make()
    norms: list[float] = []

    def look(_o: torch.optim.Optimizer, *_: object) -> None:
        norms.append(
            float(
                nn.utils.get_total_norm(
                    [p.grad for p in s.model.parameters() if p.grad is not None]
                )
            )
        )

    s.optimizer.register_step_pre_hook(look)
    guard = guard_of(s, tmp_path / "run", steps=16, clip=0.4)
    train_guarded(s, guard, until=8)
    guard.tighten_clip(0.25, why="a test")
    train_guarded(s, guard)
    assert max(norms[:8]) == pytest.approx(0.4, rel=1e-4)
    assert max(norms[8:]) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.covers("S112")
def test_skipped_samples_are_never_fed_again_after_a_rollback_a_kill_or_an_epoch(
    tmp_path: Path,
) -> None:
    s = make(num_samples=42, shuffle=True)
    fed: list[int] = []

    def note(g: Guard, _: Tensor) -> None:
        first, last = inner(g).fed[0].first, inner(g).fed[-1].last
        fed.extend(range(first, last + 1))

    policy = Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=25, policy=policy)
    train_guarded(s, guard, on_batch=note, until=9)
    back = inner(guard).engine.restore_point(5)
    assert back is not None
    inner(guard).engine.restore(back)  # the rollback
    guard.skip_samples(25, 31, why="unstable")  # batches 24-27 and 28-31 hold them
    inner(guard).engine.begin_attempt(parent="1.0", parent_step=5, why="a test", trial=False)
    fed.clear()
    train_guarded(s, guard, on_batch=note, until=7)
    guard.close()  # as a kill: nothing is saved
    assert fed == [20, 21, 22, 23, 32, 33, 34, 35]
    s = make(num_samples=42, shuffle=True)
    guard = guard_of(s, tmp_path / "run", steps=25)
    assert guard.step_number == 5
    fed.clear()
    train_guarded(s, guard, on_batch=note)
    assert fed[:8] == [20, 21, 22, 23, 32, 33, 34, 35]
    assert not set(fed) & set(range(24, 32))
    assert max(fed) >= 84  # in the third epoch; ids go on
    values = events_of(tmp_path / "run", "action")[0].data["values"]
    assert values == {"skip_samples": [25, 31], "num_samples": 7}


def test_a_rollback_brings_the_very_same_batches_and_losses_back(tmp_path: Path) -> None:
    s = make(shuffle=True, generator=True, schedule="onecycle")
    guard = guard_of(
        s, tmp_path / "run", steps=40, mode="act", policy=Policy(snapshot_every_steps=5)
    )
    first = train_guarded(s, guard, until=38)
    for step in (35, 15, 5, 0):  # through three epochs back
        snapshot = inner(guard).engine.ring.before(step)
        assert snapshot is not None
        assert snapshot.step == step
        inner(guard).engine.restore(snapshot)
        inner(guard).engine.begin_attempt(parent="1.0", parent_step=step, why="a test", trial=False)
        assert train_guarded(s, guard, until=38) == first[step:]
    guard.close()


def test_a_range_that_swallows_all_data_ends_the_run(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=30)
    train_guarded(s, guard, until=3)
    guard.skip_samples(0, 10**9, why="a test", confirm=True)
    assert train_guarded(s, guard) == []
    assert events_of(tmp_path / "run", "end")[0].data["reason"] == "the data is used up"


@pytest.mark.parametrize("factor", [0.0, 1.5, -1.0, math.nan])
def test_a_rate_is_never_raised(tmp_path: Path, factor: float) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=3)
    with pytest.raises(ConfigError, match="never raised"):
        guard.scale_lr(factor, why="a test")
    guard.close()


@pytest.mark.parametrize(("first", "last"), [(5, 4), (-1, 4)])
def test_an_impossible_range_is_refused(tmp_path: Path, first: int, last: int) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=3)
    with pytest.raises(ConfigError, match=f"skip {first}..{last}"):
        guard.skip_samples(first, last, why="a test")
    guard.close()
