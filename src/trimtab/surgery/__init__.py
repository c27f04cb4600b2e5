"""Rollback of a run on disk, for any trainer: later checkpoints aside, pointers back, logs cut.

    layouts   where checkpoints lie, what points to them, which are whole
    plan      what a rollback would do, as data
    apply     do it, or take it back; a kill at any point leaves something that a rerun finishes

Nothing is deleted: what leaves the run goes to `RUN/aside/`, and `undo_rollback` brings it back.
"""

from trimtab.surgery.layouts import LAYOUTS, CheckpointLayout, Layout, SavedStep, find_layout

__all__ = ["LAYOUTS", "CheckpointLayout", "Layout", "SavedStep", "find_layout"]
