"""Several optimizers and schedulers in one guard: saved, put back, cut and skipped together."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.guard.tiny import Setup, differences, make, rows_of, train_plain
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy


def two(s: Setup) -> tuple[list[torch.optim.Optimizer], list[Any]]:
    """Muon for the hidden matrix, AdamW for the rest, each with a schedule of its own."""
    model = s.model
    muon = torch.optim.Muon([model.hidden.weight], lr=2e-2, weight_decay=0.0)
    rest = [p for p in model.parameters() if p is not model.hidden.weight]
    adamw = torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.1, foreach=True)
    schedulers = [
        lr_scheduler.LambdaLR(muon, lambda done: min(1.0, (done + 1) / 5)),
        lr_scheduler.ExponentialLR(adamw, 0.99),
    ]
    return [muon, adamw], schedulers


def guarded(s: Setup, run: Path, **settings: Any) -> tuple[Guard, list[Any], list[Any]]:
    optimizers, schedulers = two(s)
    settings = {
        "clip": 1.0,
        "say": lambda _line: None,
        "policy": Policy(checkpoint_in_background=False, checkpoint_every_steps=5),
        **settings,
    }
    guard = Guard(s.model, optimizers, data=s.loader, scheduler=schedulers, run=run, **settings)
    return guard, optimizers, schedulers


def train(s: Setup, guard: Guard, until: int | None = None) -> list[float]:
    losses = []
    for batch in guard:
        loss = s.loss(batch)
        guard.backward(loss)
        guard.step()
        losses.append(float(loss.detach()))
        if until is not None and guard.step_number >= until:
            break
    return losses


def train_two_plain(s: Setup, steps: int) -> list[float]:
    optimizers, schedulers = two(s)
    losses: list[float] = []
    while True:
        for batch in s.loader:
            loss = s.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
            for one in (*optimizers, *schedulers):
                one.step()
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
            if len(losses) == steps:
                return losses


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_two_optimizers_train_as_without_the_guard(tmp_path: Path, mode: str) -> None:
    plain = train_two_plain(make(shuffle=True), 25)
    s = make(shuffle=True)
    guard, _, _ = guarded(s, tmp_path / "run", mode=mode, steps=25)
    assert train(s, guard) == plain


def test_a_resumed_run_of_two_optimizers_is_the_uninterrupted_one(tmp_path: Path) -> None:
    s = make(shuffle=True)
    guard, whole, whole_schedules = guarded(s, tmp_path / "a", mode="act", steps=23)
    losses = train(s, guard)
    model = s.model.state_dict()

    s = make(shuffle=True)
    guard, _, _ = guarded(s, tmp_path / "b", mode="act", steps=23)
    first = train(s, guard, until=12)
    guard.close()
    s = make(shuffle=True, seed=8)
    guard, resumed, schedules = guarded(s, tmp_path / "b", mode="act", steps=23)
    assert guard.step_number == 10  # the newest checkpoint
    second = train(s, guard)
    assert first[:10] + second == losses
    assert not differences(s.model.state_dict(), model)
    for a, b in zip((*whole, *whole_schedules), (*resumed, *schedules), strict=True):
        assert not differences(a.state_dict(), b.state_dict())


def test_a_rate_cut_and_a_rollback_reach_every_optimizer(tmp_path: Path) -> None:
    s = make()
    policy = Policy(snapshot_every_steps=5)
    guard, (muon, adamw), _ = guarded(s, tmp_path / "run", mode="act", steps=30, policy=policy)
    seen: list[tuple[float, float]] = []
    muon.register_step_pre_hook(
        lambda *_: seen.append((muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]))
    )
    steps = iter(guard)

    def one() -> None:
        guard.backward(s.loss(next(steps)))
        guard.step()

    for _ in range(10):
        one()
    buffer = muon.state[s.model.hidden.weight]["momentum_buffer"].clone()
    moment = adamw.state[s.model.output.weight]["exp_avg"].clone()
    for _ in range(3):
        one()
    guard.roll_back(10, why="test", confirm=True)
    assert torch.equal(muon.state[s.model.hidden.weight]["momentum_buffer"], buffer)
    assert torch.equal(adamw.state[s.model.output.weight]["exp_avg"], moment)
    uncut = seen[10]
    guard.scale_lr(0.5, why="test")
    steps = iter(guard)
    one()
    assert seen[-1] == pytest.approx((uncut[0] / 2, uncut[1] / 2))


def test_a_bad_gradient_leaves_both_updates_out(tmp_path: Path) -> None:
    s = make()
    guard, _, _ = guarded(s, tmp_path / "run", mode="act", steps=12)
    steps = iter(guard)
    for number in range(5):
        loss = s.loss(next(steps))
        before = {k: v.clone() for k, v in s.model.state_dict().items()}
        guard.backward(loss * float("nan") if number == 4 else loss)
        guard.step()
    assert not differences(before, dict(s.model.state_dict()))


def test_beta2_goes_to_the_optimizer_that_has_one(tmp_path: Path) -> None:
    s = make()
    guard, (muon, adamw), _ = guarded(s, tmp_path / "run", mode="observe", steps=3)
    guard.set_optimizer(beta2=0.95, eps=1e-6, why="test")
    assert adamw.param_groups[0]["betas"] == (0.9, 0.95)
    assert adamw.param_groups[0]["eps"] == 1e-6
    assert muon.param_groups[0]["eps"] == 1e-7
    assert "betas" not in muon.param_groups[0]


def test_a_parameter_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    s = make()
    twice = [s.optimizer, torch.optim.SGD([s.model.output.weight], lr=0.1)]
    with pytest.raises(ConfigError, match=r"in optimizer 0 \(AdamW\) and in optimizer 1 \(SGD\)"):
        Guard(s.model, twice, data=s.loader, run=tmp_path / "run")
    with pytest.raises(ConfigError, match="optimizer is empty"):
        Guard(s.model, [], data=s.loader, run=tmp_path / "run")
    with pytest.raises(ConfigError, match="scheduler is 3"):
        Guard(s.model, [s.optimizer], scheduler=[3], data=s.loader, run=tmp_path / "run")


def test_a_list_of_one_is_that_one(tmp_path: Path) -> None:
    plain = train_plain(make(), 6)
    s = make()
    guard = Guard(
        s.model,
        [s.optimizer],
        data=s.loader,
        scheduler=[s.scheduler],
        clip=1.0,
        steps=6,
        run=tmp_path / "run",
        mode="observe",
        say=lambda _line: None,
    )
    assert train(s, guard) == plain
    assert len(rows_of(tmp_path / "run")) == 6
