"""Runs that are killed: one process each, forked from a server that has torch loaded.

A job writes the loss of every step to a file, bit for bit, and is killed where it is told to.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from tests.guard.tiny import DEVICE, guard_of, make, state_of
from trimtab.checkpoints import manifest
from trimtab.guard.state import checkpoint_io
from trimtab.plan.policy import Policy

KILL_POINTS = (
    "before-tensors",
    "after-tensors",
    "in-manifest",
    "before-rename",
    "after-rename",
)
"""Places inside a checkpoint's save."""


def context() -> ForkServerContext | SpawnContext:
    if DEVICE != "cpu":  # a server that has done a step has started CUDA, and cannot fork
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.guard.jobs", "tests.guard.nursery"])
    return server


def start(folder: Path, **job: Any) -> ForkServerProcess | SpawnProcess:
    """Start a job; `folder/run` is its run directory."""
    process = context().Process(target=train, args=(folder,), kwargs=job)
    process.start()
    return process


def run(folder: Path, **job: Any) -> int | None:
    """Run a job to its end; return its exit code, negative for a signal."""
    process = start(folder, **job)
    process.join(120)
    return process.exitcode


def train(
    folder: Path,
    *,
    settings: dict[str, Any],
    steps: int,
    log: str,
    kill_step: int | None = None,
    kill_save: tuple[int, str] | None = None,
    save_every: int = 10,
    mode: str = "act",
    background: bool = False,
    before: Callable[[Any], None] | None = None,
) -> None:
    """Train; killed after `kill_step`, or within the save of a step at one of `KILL_POINTS`."""
    torch.set_num_threads(1)
    if kill_save is not None:
        _set_trap(*kill_save)
    s = make(**settings)
    policy = Policy(
        checkpoint_every_steps=save_every,
        snapshot_every_steps=5,
        checkpoint_in_background=background,
    )
    guard = guard_of(s, folder / "run", steps=steps, mode=mode, policy=policy)
    if before is not None:
        before(guard)
    torch.randn(3)  # a script draws what it likes before its loop
    with (folder / log).open("w", encoding="utf-8") as file:
        for batch in guard:
            loss = s.loss(batch)
            guard.backward(loss)
            guard.step()
            file.write(f"{guard.step_number} {float(loss.detach()).hex()}\n")
            file.flush()
            if kill_step == guard.step_number:
                _die()
    torch.save(state_of(s), folder / f"{log}.pt")


def losses_of(folder: Path, log: str) -> dict[int, str]:
    """The losses of a job by step, as hexadecimal floats."""
    lines = (folder / log).read_text(encoding="utf-8").splitlines()
    return {int(step): loss for step, _, loss in (line.partition(" ") for line in lines)}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _set_trap(step: int, point: str) -> None:
    """Be killed inside the save of a step's checkpoint."""
    name = f"step-{step:08d}.partial"
    place: Any = checkpoint_io  # a module whose functions are replaced
    write_all, hashed, commit = checkpoint_io.write_tensors, manifest.sha256_of, place.commit

    def write(shared: Any, own: Any, partial: Path, ranks: Any) -> None:
        if partial.name == name and point == "before-tensors":
            _die()
        write_all(shared, own, partial, ranks)
        if partial.name == name and point == "after-tensors":
            _die()

    def sha256(path: Path) -> str:
        if name in path.parts and point == "in-manifest":
            _die()
        return hashed(path)

    def rename(self: Path, target: Path) -> Path:
        if self.name == name and point == "before-rename":
            _die()
        return renamed(self, target)

    def committed(partial: Path, final: Path, **more: Any) -> None:
        commit(partial, final, **more)
        if partial.name == name and point == "after-rename":
            _die()

    renamed = Path.rename
    place.write_tensors = write
    manifest.sha256_of = sha256
    Path.rename = rename  # type: ignore[method-assign,assignment]
    place.commit = committed
