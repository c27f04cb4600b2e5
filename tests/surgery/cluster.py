"""A fake cluster folder in the layout of Megatron-DeepSpeed, with TensorBoard's own event files.

RUN/checkpoints/global_step6210/...   latest, latest_checkpointed_iteration.txt
RUN/tensorboard/events.out.tfevents...
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RANKS = 2
SAMPLES_PER_STEP = 30
"""So that a tag that counts samples has numbers far from the steps."""


def put(path: Path, data: bytes | str = b"weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def save(run: Path, step: int, *, text: str = "") -> None:
    """Save a checkpoint as Megatron-DeepSpeed does: shards, then the pointers."""
    folder = run / "checkpoints" / f"global_step{step}"
    for rank in range(RANKS):
        put(folder / f"mp_rank_{rank:02d}_model_states.pt", f"weights {step} {rank} {text}")
    put(run / "checkpoints" / "latest", f"global_step{step}")
    put(run / "checkpoints" / "latest_checkpointed_iteration.txt", str(step))


def log_events(
    folder: Path,
    rows: Iterable[tuple[int, Mapping[str, float]]],
    *,
    suffix: str,
    purge_step: int | None = None,
) -> Path:
    """Write one event file as TensorBoard's writer does; a `vs samples` tag counts samples."""
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    before = set(folder.glob("events*")) if folder.exists() else set()
    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    if purge_step is not None:
        mark = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=1e9, step=purge_step, session_log=mark))
    for step, values in rows:
        for tag, value in values.items():
            at = step * SAMPLES_PER_STEP if tag.endswith("vs samples") else step
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1e9 + step, step=at, summary=summary))
    writer.close()
    (made,) = set(folder.glob("events*")) - before
    return made


def megatron_rows(
    first: int, last: int, *, blow_up: int, shift: float = 0.0
) -> list[tuple[int, dict[str, float]]]:
    """Rows of a run every 10 steps, whose loss jumps from 6.4 to 14 at a step, then is NaN."""
    rows = []
    for step in range(first, last + 1, 10):
        wobble = 0.02 * ((step // 10 * 7919) % 13 - 6) / 6
        loss = 6.3 + 4.0 * math.exp(-step / 1500) + wobble + shift
        if step >= blow_up:
            loss = 14.0 - 7.0 * min((step - blow_up) / 200, 1.0)
            loss = math.nan if step > blow_up + 260 else loss
        rows.append(
            (
                step,
                {
                    "lm-loss-training/lm loss": loss,
                    "lm-loss-training/lm loss vs samples": loss,
                    "grad-norm/grad-norm": 1.5 + wobble if step < blow_up else 40.0,
                },
            )
        )
    return rows


def steps_of(folder: Path, tag: str = "lm-loss-training/lm loss") -> list[int]:
    """Return the steps that TensorBoard itself shows of a tag, in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"]:
        return []
    return [e.step for e in accumulator.Scalars(tag)]


Tree = dict[str, tuple[str, str]]


def tree(root: Path, *, without: tuple[str, ...] = ()) -> Tree:
    """Return every file, folder and link below a folder, with its content."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.partition("/")[0] in without:
            continue
        if path.is_symlink():
            found[name] = ("link", os.fspath(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", "")
        else:
            found[name] = ("file", hashlib.sha256(path.read_bytes()).hexdigest())
    return found


OURS = ("aside", "journal.jsonl", "journal.head", ".lock")
"""What a rollback adds to a run."""


def age(root: Path) -> None:
    """Make all files of a run old, as those of a job that was stopped yesterday."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1.7e9, 1.7e9))
