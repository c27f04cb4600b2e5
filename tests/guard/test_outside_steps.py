"""Steps that a loop does beside the guard's are said once, and the guard's own never are."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.guard.tiny import Setup, events_of, guard_of, make
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def notes_of(
    run: Path, s: Setup, after: Callable[[Setup], object] | None = None, **settings: Any
) -> list[str]:
    """Return what is said of steps of its own where a loop calls `after` after each step."""
    said: list[str] = []
    guard = guard_of(s, run, steps=40, say=said.append, **settings)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        if after is not None:
            after(s)
    told = [line for line in said if "the loop calls" in line]
    noted = [e for e in events_of(run, "note") if "the loop calls" in str(e.data["text"])]
    assert len(noted) == len(told)
    return told


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_an_optimizers_step_of_the_loops_own_is_said_once(tmp_path: Path, mode: str) -> None:
    (line,) = notes_of(tmp_path / "run", make(), lambda s: s.optimizer.step(), mode=mode)
    assert "optimizer.step() itself beside guard.step()" in line
    assert "take optimizer.step() and optimizer.zero_grad() out of the loop" in line


def test_a_step_of_the_given_scheduler_is_said_once(tmp_path: Path) -> None:
    (line,) = notes_of(
        tmp_path / "run", make(schedule="cosine"), lambda s: s.scheduler.step(), mode="observe"
    )
    assert "scheduler.step() itself on the scheduler that guard.step() steps" in line
    assert "leave scheduler= out of Guard(...)" in line


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("schedule", ["none", "sequential", "chained", "onecycle"])
def test_the_guards_own_steps_are_not(tmp_path: Path, precision: Any, schedule: str) -> None:
    s = make(precision=precision, schedule=schedule)
    assert notes_of(tmp_path / "run", s, mode="observe") == []


def test_neither_are_rollbacks_nor_steps_of_another_optimizer(tmp_path: Path) -> None:
    s = make(schedule="cosine", num_samples=1200)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    policy = Policy(checkpoint_in_background=False, snapshot_every_steps=5)
    guard = guard_of(s, tmp_path / "run", mode="act", steps=60, policy=policy)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        other.step()
        if guard.step_number == 30 and not guard.actions:
            guard.roll_back(20, why="test")
    texts = [str(e.data["text"]) for e in events_of(tmp_path / "run", "note")]
    assert not [t for t in texts if "the loop calls" in t]


def test_the_loops_steps_before_and_after_it_are_its_own_business(tmp_path: Path) -> None:
    s = make(schedule="cosine")
    s.loss(next(iter(s.loader))).backward()  # type: ignore[no-untyped-call]
    s.optimizer.step()
    guard = guard_of(s, tmp_path / "run", mode="observe", steps=20)
    s.optimizer.step()
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    s.optimizer.step()
    guard.close()
    assert not [e for e in events_of(tmp_path / "run", "note") if "loop calls" in e.data["text"]]


def test_listening_costs_next_to_nothing(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", mode="observe", steps=20)
    outside = guard._parts.optimizer_step.outside_steps
    outside.watch()
    begun = time.perf_counter()
    for _ in range(1000):
        with outside:
            outside._hear()
        outside.note_scheduled()
        outside.take()
    assert (time.perf_counter() - begun) / 1000 < 2e-4  # a few microseconds; slow machines
    guard.close()
