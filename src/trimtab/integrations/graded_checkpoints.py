"""Grades beside the checkpoints that a trainer writes itself: healthy, suspect or poisoned.

A trainer decides when it saves. The grade says whether the state in a checkpoint may be resumed
from, and a rollback revises it: what was saved after the first sign of trouble is poisoned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.checkpoints.sidecar import read_stamp, regrade, sidecar_of, stamp

if TYPE_CHECKING:
    from pathlib import Path

    from trimtab.checkpoints.manifest import Grade
    from trimtab.guard.port import TrainerPort

__all__ = ["GradedCheckpoints"]


class GradedCheckpoints:
    """The grades of the checkpoints that were saved while a guard was at work."""

    def __init__(self, port: TrainerPort) -> None:
        """Grade by what a guard knows; only its first rank writes."""
        self._port = port
        self._saved_steps: dict[Path, int] = {}
        self._on_trial: list[Path] = []

    def add(self, path: Path) -> None:
        """Write manifest and grade beside a checkpoint that is whole."""
        port = self._port
        if not port.is_chief or not path.exists():  # remote, or still being written
            return
        # Suspect, not poisoned: only a rollback shows whether the trouble had reached it.
        calm = not port.busy and not port.alarmed
        why = "saved while calm"
        if not calm:
            why = "saved on a trial branch" if port.busy else "saved while an alarm was open"
        stamp(
            path,
            step=port.step_number,
            attempt=port.attempt,
            grade="healthy" if calm else "suspect",
            why=why,
        )
        self._saved_steps[path] = port.step_number
        if port.busy:
            self._on_trial.append(path)

    def remove(self, path: Path) -> None:
        """Remove the grade of a checkpoint that the trainer has removed."""
        if self._port.is_chief:
            sidecar_of(path).unlink(missing_ok=True)
        self._saved_steps.pop(path, None)

    def settle(self) -> None:
        """Grade as healthy what was saved on a trial branch that was kept."""
        if self._port.busy:
            return
        kept, self._on_trial = self._on_trial, []
        for path in kept:
            found = read_stamp(path)
            # A trial that was given up leaves its attempt: only the kept one is still under way.
            if found is not None and found.attempt == self._port.attempt:
                self._regrade(path, "healthy", "saved on a trial branch, which was kept")

    def after_rollback(self, step: int) -> None:
        """Grade what was saved after `step` by where the trouble began."""
        first_sign = self._port.first_sign
        if first_sign is None:  # a rollback by hand: there is no incident
            # All after the chosen step is given up: nothing of it may be resumed from.
            first_sign = step + 1
        why = f"rolled back to step {step}; first sign of trouble at step {first_sign:g}"
        for path, saved_step in list(self._saved_steps.items()):
            found = read_stamp(path)
            if saved_step <= step or found is None or found.grade == "poisoned":
                continue
            self._regrade(path, "poisoned" if saved_step >= first_sign else "suspect", why)

    def _regrade(self, path: Path, grade: Grade, why: str) -> None:
        self._port.contain("checkpoint", lambda: regrade(path, grade, why))
