"""A Hugging Face Trainer's own checkpoints: graded, kept while in doubt, moved aside, resumed from.

Each gets a manifest and a grade beside it, and within it the companion that the guard needs to
resume from it bit for bit.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.checkpoints.find import find_checkpoints
from trimtab.checkpoints.manifest import move_aside, newest_healthy
from trimtab.checkpoints.sidecar import (
    SUFFIX,
    read_stamp,
    regrade,
    sidecar_of,
    stamp,
    verify_stamped,
)
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ReadError
from trimtab.guard.port import check_companion
from trimtab.integrations.companion_file import has_companion, load_companion, save_companion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.checkpoints.manifest import Grade
    from trimtab.guard.port import TrainerPort

__all__ = [
    "TrainerFiles",
    "choose_checkpoint",
    "complete",
    "newest_before",
    "read_companion",
    "set_aside_after",
]


class TrainerFiles:
    """The checkpoint folders that a Trainer writes while it is guarded."""

    def __init__(self, output_dir: str | Path, port: TrainerPort) -> None:
        """Watch a folder for a guard; only the first rank writes there."""
        self._root = Path(output_dir)
        self._port = port
        self._num_actions = 0

    def saved(self, step: int) -> None:
        """Complete the checkpoint of a step, once all ranks have written it; all must call."""
        port = self._port
        # The Trainer may save a step that the guard has gone back from: it gets no companion.
        companion = port.companion() if step == port.step_number else None
        port.on_chief(
            lambda: complete(
                self._root,
                step,
                attempt=port.attempt,
                alarmed=port.alarmed,
                companion=companion,
            )
        )

    def follow_rollback(self) -> None:
        """Move aside what was saved after the step that the guard went back to for good."""
        port = self._port
        if port.num_actions == self._num_actions:
            return
        self._num_actions = port.num_actions
        step, first_sign = port.last_rollback, port.first_sign
        if step is not None and first_sign is not None and port.is_chief:
            why = f"rolled back to step {step}; first sign of trouble at step {first_sign:g}"
            set_aside_after(self._root, step, first_sign=first_sign, why=why)


def complete(
    root: Path,
    step: int,
    *,
    attempt: str,
    alarmed: bool,
    companion: Mapping[str, object] | None = None,
) -> None:
    """Add to the checkpoint of a step what the guard needs, then manifest and grade beside it.

    Raises:
        ActError: The disk refuses.
    """
    folder = root / f"checkpoint-{step}"
    if not folder.is_dir():
        return
    if companion is not None:
        save_companion(folder, companion)
    stamp(
        folder,
        step=step,
        attempt=attempt,
        grade="suspect" if alarmed else "healthy",
        why="saved while an alarm was open" if alarmed else "saved while calm",
    )
    for beside in root.glob(f"checkpoint-*{SUFFIX}"):
        if not beside.with_name(beside.name.removesuffix(SUFFIX)).exists():  # rotated away
            beside.unlink(missing_ok=True)


def set_aside_after(root: Path, step: int, *, first_sign: float, why: str) -> None:
    """Grade the checkpoints after `step` and move them to `aside/`.

    They must not be what the Trainer resumes from, and they are not deleted.
    """
    for found, path in _folders(root):
        if found > step:
            grade: Grade = "poisoned" if found >= first_sign else "suspect"
            if read_stamp(path) is not None:
                regrade(path, grade, why)
            moved = move_aside(path, root / "aside")
            if sidecar_of(path).exists():
                shutil.move(sidecar_of(path), sidecar_of(moved))


def choose_checkpoint(output_dir: str | Path, run: Path) -> Path | None:
    """Return the Trainer's newest checkpoint that is whole and healthy; None to use the guard's.

    One that was saved without a guard has no grade: it is taken as it is.
    """
    own = newest_healthy(RunDirectory(run).checkpoints)
    for step, path in sorted(_folders(output_dir), reverse=True):
        # The guard's own state is at least as new, and resumes bit for bit.
        if own is not None and own.step >= step:
            return None
        known = read_stamp(path)
        if known is None and not has_companion(path):
            return path
        if known is not None and known.grade == "healthy" and not verify_stamped(path):
            return path
    return None


def newest_before(root: Path, step: float) -> int | None:
    """Return the step of the newest checkpoint saved before `step`; None without one."""
    return max((found for found, _ in _folders(root) if found < step), default=None)


def read_companion(folder: str | Path, *, say: Callable[[str], None]) -> dict[str, object] | None:
    """Return what the guard added to a checkpoint; None if it was saved without one.

    A damaged one counts as none, and one line says so: the Trainer's own part is whole.
    """
    try:
        found = load_companion(Path(folder))
        if found is not None:
            check_companion(found)
    except Exception as error:  # noqa: BLE001 - which error depends on the damaged bytes
        reason = str(error).partition("\n")[0].partition(". ")[0]
        say(
            f"{folder}: its trimtab.pt is damaged ({type(error).__name__}: {reason}); the run"
            " resumes from the Trainer's own part"
        )
        return None
    return found


def _folders(output_dir: str | Path) -> list[tuple[int, Path]]:
    try:
        found = find_checkpoints(Path(output_dir))
    except ReadError:
        return []
    if found.layout != "hf-trainer":
        return []
    return [(int(c.step), Path(c.path)) for c in found.checkpoints if c.path]
