"""Checkpoints that other trainers wrote: where they lie, which step each is of, which are whole.

One table, `LAYOUTS`. Nothing in a checkpoint is opened but small text files that name the newest
one; no pickle is ever read. What a framework's own pointer file does not reach yet is still being
written, and is left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimtab.checkpoints.manifest import inspect_folder, named_folders
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ReadError
from trimtab.plan.rollback import CheckpointInfo

__all__ = ["LAYOUTS", "CheckpointFolder", "Layout", "find_checkpoints", "own_checkpoints"]

_POINTER_SIZE_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one framework names its checkpoints."""

    name: str
    pattern: str
    """Of the whole name of an entry; its last group is the step."""
    folder: bool
    """Whether a checkpoint is a folder, not a file."""
    pointer: str = ""
    """File that names the newest whole checkpoint, by a number in it."""
    needs: str = ""
    """File that a whole checkpoint holds."""


LAYOUTS: tuple[Layout, ...] = (
    Layout(
        name="megatron",
        pattern=r"iter_(\d+)",
        folder=True,
        pointer="latest_checkpointed_iteration.txt",
    ),
    Layout(name="deepspeed", pattern=r"global_step(\d+)", folder=True, pointer="latest"),
    Layout(name="hf-trainer", pattern=r"checkpoint-(\d+)", folder=True, needs="trainer_state.json"),
    Layout(name="torchtitan", pattern=r"step-(\d+)", folder=True, needs=".metadata"),
    Layout(name="olmo", pattern=r"step(\d+)(?:-unsharded)?", folder=True),
    Layout(name="lightning", pattern=r".*\bstep=(\d+).*\.ckpt", folder=False),
    Layout(name="fairseq", pattern=r"checkpoint_\d+_(\d+)(?:-shard\d+)?\.pt", folder=False),
    Layout(name="metaseq", pattern=r"checkpoint_(\d+)(?:-\w+)?\.pt", folder=False),
    Layout(
        name="files",
        pattern=(
            r".*?(?:step|iter|iteration|ckpt|checkpoint|model|state)[-_=.]?(\d+)(?:[-_.]\w+)*"
            r"\.(?:pt|pth|ckpt|bin|safetensors|npz|tar|pkl|msgpack)"
        ),
        folder=False,
    ),
    Layout(name="folders", pattern=r".*?(?:step|iter|ckpt|checkpoint)[-_=.]?(\d+)", folder=True),
)
"""The first that fits any entry of a folder is the folder's."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """What lies in a folder of checkpoints."""

    path: Path
    layout: str
    """Name in `LAYOUTS`, or `trimtab`."""
    checkpoints: tuple[CheckpointInfo, ...]
    """Oldest first."""
    left_out: tuple[str, ...] = ()
    """Names of entries that are not whole, with the reason."""


def find_checkpoints(folder: Path) -> CheckpointFolder:
    """Return the checkpoints in a folder, or in its `checkpoints/` or `checkpoint/`.

    A run directory of trimtab is looked at with its own grades.

    Raises:
        ReadError: It is no folder, or nothing in it is named as a checkpoint is.
    """
    if not folder.is_dir():
        raise ReadError(f"{folder}: not a folder; give the folder that holds the checkpoints")
    places = [folder, folder / "checkpoints", folder / "checkpoint", folder / "ckpt"]
    for place in places:
        found = _own(place) or _foreign(place)
        if found is not None:
            return found
    shown = ", ".join(f"{x.name} ({x.pattern})" for x in LAYOUTS[:5])
    raise ReadError(
        f"{folder}: holds no checkpoint that can be named by its step; looked for {shown} and"
        " others"
    )


def _own(place: Path) -> CheckpointFolder | None:
    if not (place.is_dir() and any(place.glob("step-*/manifest.json"))):
        return None
    seen = [inspect_folder(path, hashes=False) for path in named_folders(place) or ()]
    whole = [f.checkpoint for f in seen if f.checkpoint is not None]
    return CheckpointFolder(
        path=place,
        layout="trimtab",
        checkpoints=tuple(
            CheckpointInfo(step=c.step, grade=c.grade, path=str(c.path))
            for c in sorted(whole, key=lambda c: c.step)
        ),
        left_out=tuple(sorted(f"{f.path.name}: {f.why}" for f in seen if f.checkpoint is None)),
    )


def own_checkpoints(root: Path) -> CheckpointFolder | None:
    """Return the checkpoints of a run directory; None for anything else."""
    return _own(RunDirectory(root).checkpoints)


def _foreign(place: Path) -> CheckpointFolder | None:
    try:
        entries = sorted(place.iterdir()) if place.is_dir() else []
    except OSError as error:
        raise ReadError(
            f"{place}: cannot be listed ({error.strerror}); check its rights"
        ) from error
    for layout in LAYOUTS:
        steps = {e: s for e in entries if (s := _step(layout, e)) is not None}
        if steps:
            return _folder(place, layout, steps)
    return None


def _step(layout: Layout, entry: Path) -> int | None:
    found = re.fullmatch(layout.pattern, entry.name)
    if found is None or entry.is_dir() != layout.folder or len(found[1]) > 15:
        return None
    return int(found[1])


def _folder(place: Path, layout: Layout, steps: dict[Path, int]) -> CheckpointFolder:
    newest = _pointed_at(place / layout.pointer) if layout.pointer else None
    whole: dict[int, CheckpointInfo] = {}
    left_out: list[str] = []
    for entry, step in steps.items():
        problem = "; ".join(_problems(layout, entry, step, newest))
        if problem:
            left_out.append(f"{entry.name}: {problem}")
        elif step not in whole:  # the first of several shards stands for all
            whole[step] = CheckpointInfo(step=step, path=str(entry))
    return CheckpointFolder(
        path=place,
        layout=layout.name,
        checkpoints=tuple(whole[s] for s in sorted(whole)),
        left_out=tuple(left_out),
    )


def _problems(layout: Layout, entry: Path, step: int, newest: int | None) -> Iterator[str]:
    if newest is not None and step > newest:
        yield f"newer than {newest}, which {layout.pointer} names: still being written, or given up"
    if layout.folder and not any(entry.iterdir()):
        yield "empty"
    elif layout.needs and not (entry / layout.needs).exists():
        yield f"has no {layout.needs}"
    if not layout.folder and not entry.stat().st_size:
        yield "empty"


def _pointed_at(pointer: Path) -> int | None:
    """Return the step that a pointer file names; None where there is none (`release`, say)."""
    try:
        with pointer.open("rb") as file:
            text = file.read(_POINTER_SIZE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    numbers = re.findall(r"\d+", text)
    return int(numbers[-1][:15]) if numbers else None
