"""A Hugging Face Trainer's own checkpoints: given a manifest and a grade, kept and moved aside like ours."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.checkpoints.layouts import find_checkpoints
from trimtab.checkpoints.manifest import move_aside, seal, set_grade
from trimtab.errors import ReadError

if TYPE_CHECKING:
    from trimtab.checkpoints.manifest import Grade

__all__ = ["folder_of", "newest_whole", "seal_folder", "set_aside_after"]


def folder_of(output_dir: str | Path, step: int) -> Path:
    """Return where the Trainer keeps the checkpoint of a step."""
    return Path(output_dir) / f"checkpoint-{step}"


def seal_folder(folder: Path, *, step: int, attempt: str, grade: Grade, why: str) -> None:
    """Give a checkpoint that is complete a manifest and a grade.

    Raises:
        ActError: The disk refuses.
    """
    if folder.is_dir():
        seal(folder, step=step, attempt=attempt, grade=grade, why=why)


def set_aside_after(
    output_dir: str | Path, step: int, *, first_sign: float, why: str
) -> list[Path]:
    """Move the checkpoints after `step` to `aside/`, graded; return where they lie now.

    What a rollback gave up must not be what the Trainer resumes from, and is not deleted.
    """
    moved = []
    for found, path in _folders(output_dir):
        if found <= step:
            continue
        grade: Grade = "poisoned" if found >= first_sign else "suspect"
        with contextlib.suppress(ReadError):  # without a manifest it has no grade
            set_grade(path, grade, why)
        moved.append(move_aside(path, Path(output_dir) / "aside"))
    return moved


def newest_whole(output_dir: str | Path) -> tuple[int, Path] | None:
    """Return step and folder of the Trainer's newest whole checkpoint; None without one."""
    return max(_folders(output_dir), default=None)


def _folders(output_dir: str | Path) -> list[tuple[int, Path]]:
    try:
        found = find_checkpoints(Path(output_dir))
    except ReadError:
        return []
    if found.layout != "hf-trainer":
        return []
    return [(int(c.step), Path(c.path)) for c in found.checkpoints if c.path]
