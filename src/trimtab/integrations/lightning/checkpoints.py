"""Lightning's own checkpoints: each gets a manifest and a grade, which a rollback revises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.pytorch.callbacks import Checkpoint

    from trimtab.guard.port import TrainerPort
    from trimtab.integrations.graded_checkpoints import GradedCheckpoints

__all__ = ["LightningCheckpoints"]


class LightningCheckpoints:
    """The checkpoint files that a Trainer writes while it is guarded."""

    def __init__(
        self, port: TrainerPort, graded: GradedCheckpoints, callbacks: Sequence[Checkpoint]
    ) -> None:
        """Watch what is saved for a guard.

        Args:
            port: Of the guard.
            graded: The grades beside the files.
            callbacks: The Trainer's ModelCheckpoints.
        """
        self._port = port
        self._graded = graded
        self._callbacks = callbacks

    def saved(
        self,
        save: Callable[..., None],
        filepath: str | Path,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Save as Lightning does, then write manifest and grade."""
        save(filepath, *args, **kwargs)
        self._graded.settle()
        self._port.contain("checkpoint", lambda: self._graded.add(Path(filepath)))

    def removed(self, remove: Callable[[str | Path], None], filepath: str | Path) -> None:
        """Remove as Lightning does, with the grade beside the file."""
        remove(filepath)
        self._graded.remove(Path(filepath))

    def rolled_back(self, step: int) -> None:
        """Grade what was saved after `step`, and let those steps be saved again."""
        for callback in self._callbacks:
            # ModelCheckpoint saves no step twice, and would leave out the steps that are redone.
            if getattr(callback, "_last_global_step_saved", 0) > step:
                setattr(callback, "_last_global_step_saved", step)  # noqa: B010 - not of all
        self._graded.after_rollback(step)
