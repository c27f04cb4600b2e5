"""A trainer with a loop of its own: its batches, its backward, its epochs, its optimizer's step."""

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.guard.inner import inner
from tests.guard.tiny import Setup, differences, events_of, make, rows_of, state_of
from trimtab.errors import ActError, ConfigError
from trimtab.guard import Guard
from trimtab.integrations.stepping import SteppedOptimizer, SteppedScheduler
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

BATCHES, NUM_BATCHES = 3, 11
"""Batches to a step, batches of an epoch (the last step of an epoch has two)."""


class Trainer:
    """Epochs, accumulation and clipping as trainers do them; with or without a guard."""

    def __init__(self, s: Setup, epochs: int, *, guard: Guard | None = None) -> None:
        self.s, self.epochs, self.guard = s, epochs, guard
        self.optimizer: Any = s.optimizer if guard is None else SteppedOptimizer(s.optimizer, guard)
        self.scheduler: Any = s.scheduler if guard is None else SteppedScheduler(s.scheduler)
        self.losses: list[float] = []

    def train(self) -> list[float]:
        for _ in range(self.epochs):
            group: list[float] = []
            batches = iter(self.s.loader) if self.guard is None else self.guard.epoch()
            for number, batch in enumerate(batches, 1):
                loss = self.s.loss(batch)
                if self.guard is not None:
                    self.guard.note_loss(loss)
                (loss / BATCHES).backward()  # type: ignore[no-untyped-call]
                group.append(float(loss.detach()))
                if number % BATCHES == 0 or number == NUM_BATCHES:
                    self.step()
                    self.losses.append(sum(group) / len(group))
                    group = []
        return self.losses

    def step(self) -> None:
        if self.guard is None:
            torch.nn.utils.clip_grad_norm_(self.s.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()


class Notes:
    """An object of a trainer that must go back with it."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def guard_of(s: Setup, run: Path, steps: int, **more: Any) -> Guard:
    settings: dict[str, Any] = {"mode": "observe", "say": lambda _: None} | more
    return Guard(
        s.model,
        s.optimizer,
        data=s.loader,
        scheduler=s.scheduler,
        clip=1.0,
        steps=steps,
        run=run,
        accumulate=BATCHES,
        **settings,
    )


def test_a_trainer_with_epochs_and_accumulation_is_bitwise_itself_under_the_guard(
    tmp_path: Path,
) -> None:
    plain, guarded = (make(num_samples=4 * NUM_BATCHES, shuffle=True) for _ in range(2))
    torch.manual_seed(9)
    expected = Trainer(plain, 3).train()
    torch.manual_seed(9)
    guard = guard_of(guarded, tmp_path / "run", 12)
    losses = Trainer(guarded, 3, guard=guard).train()
    guard.finish()
    assert losses == expected
    assert differences(state_of(plain), state_of(guarded)) == []
    rows = rows_of(tmp_path / "run", "1.0")
    assert [r["batch_size"] for r in rows] == [12, 12, 12, 8] * 3
    assert [r["loss"] for r in rows] == pytest.approx(expected, rel=1e-6)
    assert events_of(tmp_path / "run", "end")[0].data["reason"] == "all steps done"


def test_a_rollback_within_a_trainer_goes_back_over_an_epoch_with_all_that_is_its_own(
    tmp_path: Path,
) -> None:
    s, notes = make(num_samples=4 * NUM_BATCHES, shuffle=True), Notes()
    guard = guard_of(s, tmp_path / "run", 12, mode="act", extra={"notes": notes})
    seen: list[int] = []
    guard.on_restore(seen.append)
    trainer = Trainer(s, 1, guard=guard)
    trainer.train()
    notes.count = 7
    back = inner(guard).engine.snapshot()
    trainer.losses.clear()
    first = list(trainer.train())
    notes.count = 9
    inner(guard).engine.restore(back)
    inner(guard).engine.begin_attempt(parent="1.0", parent_step=4, why="a test", trial=False)
    assert (seen, guard.step_number, notes.count) == ([4], 4, 7)
    trainer.losses.clear()
    assert trainer.train() == first
    guard.close()


def test_extra_state_is_saved_and_resumed_and_its_lack_is_told(tmp_path: Path) -> None:
    s, notes = make(num_samples=4 * NUM_BATCHES), Notes()
    guard = guard_of(s, tmp_path / "run", 12, extra={"notes": notes})
    Trainer(s, 1, guard=guard).train()
    notes.count = 5
    guard.checkpoint()
    guard.close()
    again = Notes()
    guard_of(make(num_samples=44), tmp_path / "run", 12, extra={"notes": again}).close()
    assert again.count == 5
    with pytest.raises(ActError, match="no 'more'"):
        guard_of(make(num_samples=44), tmp_path / "run", 12, extra={"more": Notes()})


def test_gradients_made_while_batches_are_only_looked_at_are_thrown_away(tmp_path: Path) -> None:
    s = make(num_samples=4 * NUM_BATCHES)
    guard = guard_of(s, tmp_path / "run", 12, mode="act", policy=Policy())
    trainer = Trainer(s, 1, guard=guard)
    trainer.train()
    before = copy.deepcopy(s.model.state_dict())
    recovery = inner(guard).recovery
    recovery.state = dataclasses.replace(recovery.state, phase="probe")
    batches = guard.epoch()
    for _ in range(BATCHES):
        loss = s.loss(next(batches))
        guard.note_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]
    assert guard.probing
    trainer.optimizer.step()
    assert all(p.grad is None for p in s.model.parameters())
    assert differences(before, s.model.state_dict()) == []
    assert guard.step_number == 4
    guard.close()


def test_more_batches_than_make_a_step_are_refused(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", 12)
    batches = iter(guard)
    for _ in range(BATCHES):
        guard.backward(s.loss(next(batches)))
    with pytest.raises(ConfigError, match=r"not called for the last 3 batches.*every 3 batches"):
        next(batches)
    with pytest.raises(ConfigError, match="a step is under way"):
        guard.checkpoint()
    guard.close()
    with pytest.raises(ConfigError, match="accumulate is 0, expected"):
        Guard(s.model, s.optimizer, data=s.loader, run=tmp_path / "third", accumulate=0)


def test_the_stand_ins_are_what_they_wrap_but_for_the_step(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", 12)
    optimizer, scheduler = SteppedOptimizer(s.optimizer, guard), SteppedScheduler(s.scheduler)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is s.optimizer.param_groups
    assert optimizer.state is s.optimizer.state
    last_lr = scheduler.get_last_lr
    assert callable(last_lr)
    assert last_lr() == s.scheduler.get_last_lr()
    before = s.scheduler.state_dict()
    scheduler.step()
    assert s.scheduler.state_dict() == before
    batches = iter(guard)
    calls: list[str] = []

    def closure() -> float:
        loss = s.loss(next(batches))
        guard.note_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        calls.append("closure")
        return 7.5

    assert optimizer.step(closure) == 7.5
    assert (calls, guard.step_number) == (["closure"], 1)
    optimizer.load_state_dict(optimizer.state_dict())
    copied = pickle.loads(pickle.dumps(optimizer))
    assert type(copied) is type(s.optimizer)
    guard.close()


def test_what_is_set_on_a_scheduler_in_its_stand_in_is_in_force() -> None:
    s = make()
    stand_in: Any = SteppedScheduler(s.scheduler)
    stand_in.base_lrs = [10 * x for x in stand_in.base_lrs]
    assert s.scheduler.base_lrs == stand_in.base_lrs
    assert list(vars(stand_in)) == ["scheduler"]


def test_sparse_gradients_are_clipped_by_their_coalesced_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.EmbeddingBag(8, 4, sparse=True), nn.Linear(4, 1))
    data = DataLoader(TensorDataset(torch.randint(0, 8, (16, 3))), batch_size=4)
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data=data, clip=0.5, run=tmp_path / "r"
    )
    for (batch,) in guard:
        guard.backward(100 * model(batch).square().mean())
        guard.step()
        norms = [float(p.grad.to_dense().norm()) for p in model.parameters() if p.grad is not None]
        assert sum(n * n for n in norms) <= 0.26
