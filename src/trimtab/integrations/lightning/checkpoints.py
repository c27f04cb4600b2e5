"""Lightning's own checkpoints: each gets a manifest and a grade, which a rollback revises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.checkpoints.sidecar import read_stamp, regrade, sidecar_of, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trimtab.checkpoints.manifest import Grade
    from trimtab.guard import Guard

__all__ = ["LightningFiles"]


class LightningFiles:
    """The checkpoint files that a trainer writes while it is guarded."""

    def __init__(self, guard: Guard, callbacks: Sequence[Any]) -> None:
        """Watch for a guard; only the first rank writes beside Lightning's files.

        Args:
            guard: Knows whether a state is healthy.
            callbacks: The trainer's ModelCheckpoints.
        """
        self._guard = guard
        self._callbacks = callbacks
        self._seen: dict[Path, int] = {}
        self._on_trial: list[Path] = []

    def saved(self, save: Callable[..., None], filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as Lightning does, then write manifest and grade."""
        save(filepath, *args, **kwargs)
        self.settle()
        self._guard._edge.run("checkpoint", lambda: self._stamp(Path(filepath)))

    def removed(self, remove: Callable[[Any], None], filepath: Any) -> None:
        """Remove as Lightning does, with what stands beside it."""
        remove(filepath)
        path = Path(filepath)
        if self._guard._ranks.chief:
            sidecar_of(path).unlink(missing_ok=True)
        self._seen.pop(path, None)

    def settle(self) -> None:
        """Call healthy what was saved on a trial branch, where that branch was kept."""
        if self._guard._recovery.busy:
            return
        kept, self._on_trial = self._on_trial, []
        for path in kept:
            found = read_stamp(path)
            if found is not None and found.attempt == self._guard._recorder.attempt:
                self._regrade(path, "healthy", "saved on a trial branch, which was kept")

    def rolled_back(self, step: int) -> None:
        """Grade what was saved after `step` by where the trouble began.

        Let those steps be saved again.
        """
        for callback in self._callbacks:
            if getattr(callback, "_last_global_step_saved", 0) > step:
                callback._last_global_step_saved = step
        incidents = self._guard._recovery.incidents
        first_sign = incidents[-1].first_step if incidents else step + 1
        for path, saved_step in list(self._seen.items()):
            found = read_stamp(path)
            if saved_step <= step or found is None or found.grade == "poisoned":
                continue
            why = f"rolled back to step {step}; first sign of trouble at step {first_sign:g}"
            self._regrade(path, "poisoned" if saved_step >= first_sign else "suspect", why)

    def _regrade(self, path: Path, grade: Grade, why: str) -> None:
        self._guard._edge.run("checkpoint", lambda: regrade(path, grade, why))

    def _stamp(self, path: Path) -> None:
        guard = self._guard
        if not guard._ranks.chief or not path.exists():  # remote, or still being written
            return
        trying, alarmed = guard._recovery.busy, guard._recovery.alarmed
        calm = not trying and not alarmed
        why = "saved while calm"
        if not calm:
            why = "saved on a trial branch" if trying else "saved while an alarm was open"
        step = guard.step_number
        stamp(
            path,
            step=step,
            attempt=guard._recorder.attempt,
            grade="healthy" if calm else "suspect",
            why=why,
        )
        self._seen[path] = step
        if trying:
            self._on_trial.append(path)
