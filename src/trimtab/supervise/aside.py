"""Checkpoints after the one that is loaded, out of the way of trainers that pick the newest."""

from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.supervise.resume import Restore
from trimtab.surgery import apply_rollback, plan_rollback, undo_rollback

__all__ = ["Moved", "put_back", "set_aside"]


@dataclass(frozen=True)
class Moved:
    """What `set_aside` did."""

    folder: Path
    number: int | None = None
    """Of its rollback; None: there was nothing to move, so there is nothing to bring back."""


def set_aside(folder: Path, restore: Restore, why: str) -> Moved | str:
    """Move what lies after a checkpoint to `aside/`, and let the trainer's pointers name it.

    Returns:
        What was moved, for `put_back`; or a text: why that was not done.
    """
    try:
        plan = plan_rollback(folder, restore.step, why=f"supervise: {why}")
        if not plan.operations:
            return Moved(folder)
        return Moved(folder, apply_rollback(plan, watch_s=0.0).number)
    except TrimtabError as error:
        return f"{error}; the checkpoints after step {restore.step} stay where they are"


def put_back(moved: Moved) -> str:
    """Undo a `set_aside`, and no other rollback; return why not, empty: it is done."""
    if moved.number is None:
        return ""
    try:
        undo_rollback(moved.folder, number=moved.number)
    except TrimtabError as error:
        return str(error)
    return ""
