"""Steps of the optimizer or the scheduler that the loop itself does beside those of the guard."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trimtab.guard.state.optimizers import SchedulerSet, optimizers_in

if TYPE_CHECKING:
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from trimtab.guard.state.training_state import Training

__all__ = ["OutsideSteps"]


class OutsideSteps:
    """Hears each step of the optimizer while a loop runs; those within `with` are the guard's own.

    A scheduler has no hooks: where it stands is compared with where the guard left it. Blind to an
    optimizer without torch's hooks, and to a scheduler without `last_epoch`.
    """

    def __init__(self, training: Training) -> None:
        """Hear nothing yet."""
        self._training = training
        self._handles: list[RemovableHandle] = []
        self._own = False
        self._updated = False
        self._places: list[object] | None = None
        self._on = True

    def watch(self) -> None:
        """Begin to hear: a loop begins."""
        self.release()
        if not self._on:
            return
        for one in optimizers_in(self._training.optimizer):
            # a wrapper may have left out torch's own `__init__`, and then has no place for hooks
            with contextlib.suppress(AttributeError, TypeError):
                self._handles.append(one.register_step_post_hook(self._hear))

    def release(self) -> None:
        """Hear nothing more: the loop was left."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._updated, self._places = [], False, None

    def leave_loop(self) -> None:
        """Hear nothing at all: a trainer steps in its own way, through the guard."""
        self._on = False
        self.release()

    def _hear(self, *_: object) -> None:
        self._updated = self._updated or not self._own

    def __enter__(self) -> None:
        """Steps from here on are the guard's own."""
        self._own = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Steps from here on are not."""
        self._own = False

    def note_scheduled(self) -> None:
        """Take note that the guard has stepped the scheduler."""
        if self._handles:
            self._places = self._now()

    def went_back(self, _step: int) -> None:
        """Forget where the scheduler stood: a state was put back."""
        self._places = None

    def take(self) -> tuple[str, ...]:
        """Return what is to be said of steps that were heard since the last call, mostly nothing.

        Cost: one comparison of a number for each scheduler.
        """
        said: tuple[str, ...] = ()
        if self._updated:
            self._updated = False
            said = (
                "the loop calls optimizer.step() itself beside guard.step(): each batch updates the"
                " weights twice, and the guard neither clips nor leaves out that update; take"
                " optimizer.step() and optimizer.zero_grad() out of the loop",
            )
        if self._places is not None and self._places != self._now():
            self._places = None
            said += (
                "the loop calls scheduler.step() itself on the scheduler that guard.step() steps:"
                " the schedule runs ahead; take the call out of the loop, or leave scheduler= out"
                " of Guard(...)",
            )
        return said

    def _now(self) -> list[object]:
        given = self._training.scheduler
        members = given.members if isinstance(given, SchedulerSet) else (given,)
        return [getattr(one, "last_epoch", None) for one in members]
