"""Checkpoints after the one that is loaded, moved out of the way of trainers that pick the newest."""

from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.supervise.resume import Restore
from trimtab.surgery import apply_rollback, plan_rollback, undo_rollback

__all__ = ["put_back", "set_aside"]


def set_aside(folder: Path, restore: Restore, why: str) -> str:
    """Move what lies after a checkpoint to `aside/`, and let the trainer's pointers name it.

    Returns:
        Why that was not done; empty: it was.
    """
    try:
        apply_rollback(plan_rollback(folder, restore.step, why=f"supervise: {why}"), watch_s=0.0)
    except TrimtabError as error:
        return f"{error}; the checkpoints after step {restore.step} stay where they are"
    return ""


def put_back(folder: Path) -> str:
    """Undo the last `set_aside`; return why that was not done, empty: it was."""
    try:
        undo_rollback(folder)
    except TrimtabError as error:
        return str(error)
    return ""
