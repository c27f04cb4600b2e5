"""Stopped or killed inside a recovery, a run has a healthy checkpoint of its own to go on from."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.inner import inner
from tests.guard.jobs import context
from tests.guard.kills import bad
from tests.guard.tiny import events_of, guard_of, make
from trimtab.checkpoints import manifest
from trimtab.checkpoints.manifest import newest_healthy
from trimtab.guard import Guard
from trimtab.guard.state import checkpoint_store
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 135
SAVED = (103, 104)
"""Inside the trouble, which begins at step 101: before it is told, they are healthy."""
PLACES = ("event", "first move", "second move", "probe", "trial", "kept")


def train(folder: Path, log: str, place: str = "", number: int = signal.SIGKILL) -> None:
    """Train to the end, or to where a signal comes; nothing is saved before the trouble."""
    torch.set_num_threads(1)
    s = make(num_samples=4000, lr=1e-2)
    policy = Policy(
        checkpoint_every_steps=10**6,
        checkpoint_every_steps_unsettled=10**6,
        snapshot_every_steps=5,
        checkpoint_in_background=False,
        yardstick_share=0.0,  # a reading of fixed batches is a probe, too
    )
    guard = guard_of(s, folder / "run", steps=STEPS, mode="act", policy=policy)
    (folder / log).write_text(str(guard.step_number))
    if place:
        _arm(guard, place, number)
    for batch in guard:
        if guard.phase == place:
            _send(number)
        guard.backward(s.loss(bad(guard, batch)))
        guard.step()
        if guard.step_number in SAVED and guard.phase == "calm" and not log.startswith("again"):
            guard.checkpoint()
    guard.close()
    torch.save(s.model.state_dict(), folder / f"{log}.pt")


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


def _arm(guard: Guard, place: str, number: int) -> None:
    """Send a signal from within the work that moves checkpoints aside, or saves what is kept."""
    move_aside, moves = manifest.move_aside, [0]

    def moved(path: Path, aside: Path) -> Path:
        moves[0] += 1
        if place == "event" and moves[0] == 1:
            _send(number)
        found = move_aside(path, aside)
        if (place, moves[0]) in (("first move", 1), ("second move", 2)):
            _send(number)
        return found

    def kept(event: str, **more: Any) -> None:
        decide(event, **more)
        if event == "action" and place == "kept":
            _send(number)

    decide = inner(guard).recorder.decide
    inner(guard).recorder.decide = kept  # type: ignore[method-assign]
    where: Any = checkpoint_store  # a module whose function is replaced
    where.move_aside = moved


def test_what_is_gone_back_to_is_on_disk_before_anything_is_moved_aside(tmp_path: Path) -> None:
    s, saved = make(num_samples=4000, lr=1e-2), list[int]()
    policy = Policy(
        checkpoint_every_steps=10**6,
        snapshot_every_steps=5,
        checkpoint_in_background=False,
        yardstick_share=0.0,  # a reading of fixed batches is a probe, too
    )
    guard = guard_of(s, tmp_path / "run", steps=STEPS, mode="act", policy=policy)
    for batch in guard:
        if guard.phase == "probe":
            break
        guard.backward(s.loss(bad(guard, batch)))
        guard.step()
        if guard.step_number in SAVED:
            guard.checkpoint()
            saved.append(guard.step_number)
    guard.close()
    assert saved == list(SAVED)
    newest = newest_healthy(tmp_path / "run/checkpoints")
    assert newest is not None
    assert 90 <= newest.step <= 100, "the newest snapshot before the first sign"
    aside = {p.name for p in (tmp_path / "run/aside").iterdir()}
    assert aside >= {f"step-{step:08d}" for step in SAVED}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("place", PLACES)
def test_stopped_inside_a_recovery_it_goes_on_from_a_healthy_checkpoint(
    tmp_path: Path, place: str, number: int
) -> None:
    assert _run(tmp_path, "first", place, number) in (-number, 128 + number)
    again = 0
    while _run(tmp_path, f"again-{again}") != 0:
        again += 1
        assert again < 3
    # before anything is moved, what was saved in the trouble may still be called healthy; what is
    # kept is saved at once
    most = {"event": 104, "kept": STEPS}.get(place, 100)
    assert 0 < int((tmp_path / "again-0").read_text()) <= most
    run = tmp_path / "run"
    assert events_of(run, "fault") == []
    numbers = {str(e.data["number"]).partition(".")[0] for e in events_of(run, "attempt")}
    assert numbers == {"1"}, "step 0 was never begun again"
    assert events_of(run, "end")[-1].step == STEPS


def _run(folder: Path, log: str, place: str = "", number: int = signal.SIGKILL) -> int | None:
    process = context().Process(target=train, args=(folder, log, place, number))
    process.start()
    process.join(120)
    return process.exitcode
