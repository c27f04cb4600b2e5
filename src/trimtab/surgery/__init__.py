"""Rollback of a run on disk, for any trainer: later checkpoints aside, pointers back, logs cut.

    layouts      where checkpoints lie, what points to them, which are whole
    suggest      which one to go back to, by the run's logs
    plan         what a rollback would do, as data
    operations   its steps: each can be done twice, and taken back
    records      what was planned and how far it got, on disk before anything else
    apply        do it, or undo it; what a kill leaves is finished by a rerun

Nothing is deleted: what leaves the run goes to `RUN/aside/`, and `undo_rollback` brings it back.
"""

from trimtab.checkpoints.layouts import (
    LAYOUTS,
    CheckpointLayout,
    LayoutRule,
    SavedStep,
    find_layout,
)
from trimtab.surgery.apply import apply_rollback, undo_rollback
from trimtab.surgery.plan import RollbackPlan, plan_rollback, plan_undo
from trimtab.surgery.records import RollbackRecord, records_of

__all__ = [
    "LAYOUTS",
    "CheckpointLayout",
    "LayoutRule",
    "RollbackPlan",
    "RollbackRecord",
    "SavedStep",
    "apply_rollback",
    "find_layout",
    "plan_rollback",
    "plan_undo",
    "records_of",
    "undo_rollback",
]
