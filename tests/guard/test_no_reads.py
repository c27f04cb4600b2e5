"""What a step opens for reading: nothing, but for a restore and the check of a save just made."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.guard.tiny import Setup, events_of, guard_of, make
from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy

_opened: list[str] | None = None
_hooked = False


def _note_open(event: str, args: tuple[object, ...]) -> None:
    """Take note of files that are opened for reading; a folder is no file."""
    if event != "open" or _opened is None:
        return
    path, mode, flags = args
    if isinstance(mode, str):
        reads = not set(mode) & set("wxa")
    else:
        reads = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
    if not reads or isinstance(path, int):
        return
    name = os.fsdecode(path)  # type: ignore[arg-type]
    if "/" in name and not Path(name).is_dir():  # without one: relative to an open folder
        _opened.append(name)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Give the files that this process opens for reading inside the block."""
    global _hooked, _opened
    if not _hooked:  # a hook cannot be taken off
        sys.addaudithook(_note_open)
        _hooked = True
    found: list[str] = []
    _opened = found
    try:
        yield found
    finally:
        _opened = None


def troubled(s: Setup, guard: Guard, batch: Tensor, *, diverges: bool) -> Tensor:
    """A loss that spikes every 60 steps, and is NaN in a phase that diverges."""
    loss = s.loss(batch)
    if guard.step_number in range(120, 310, 60):
        return loss + 2.5
    return loss * torch.nan if diverges and guard.phase == "calm" else loss


@pytest.mark.parametrize("mode", ["observe", pytest.param("advise", marks=pytest.mark.slow), "act"])
def test_step_opens_no_file_for_reading(tmp_path: Path, mode: Mode) -> None:
    run = tmp_path / "run"
    policy = Policy(
        checkpoint_in_background=False,
        checkpoint_every_steps=40,
        snapshot_every_steps=20,
        patience_steps=4,
        verify_steps=30,
        trial_steps=12,
    )
    s = make(num_samples=400)
    guard = guard_of(s, run, mode=mode, steps=330, policy=policy)
    restored: list[int] = []
    guard.on_restore(restored.append)
    guard.checkpoint()  # torch imports what it saves with
    wrong: list[str] = []
    for count, batch in enumerate(guard):
        diverges = 200 <= guard.step_number < 230 and not restored
        guard.backward(troubled(s, guard, batch, diverges=diverges))
        journal = (run / "journal.jsonl").stat().st_size
        num_restored = len(restored)
        with opened_files() as opened:
            guard.step()
        with (run / "journal.jsonl").open("rb") as file:
            file.seek(journal)
            saved = any(json.loads(line)["event"] == "checkpoint" for line in file)
        if count < 3:
            continue  # torch imports what it steps with
        for path in opened:
            of_checkpoint = "/checkpoints/" in path and (saved or len(restored) > num_restored)
            if not of_checkpoint:
                wrong.append(f"step {guard.step_number}: {path}")
    assert not wrong
    assert events_of(run, "incident")
    assert bool(restored) == (mode == "act")
    assert not events_of(run, "fault")


def test_undo_reads_what_was_done_from_memory(tmp_path: Path) -> None:
    s = make(num_samples=400)
    guard = guard_of(s, tmp_path / "run", mode="act", steps=12)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        if guard.step_number == 5:
            guard.scale_lr(0.5, why="a test")
        if guard.step_number == 8:
            with opened_files() as opened:
                done = guard.undo("lower-lr", why="a test", confirm=True)
            assert "0.5" in done
            assert not opened
