"""Stand-ins for a trainer's optimizer and scheduler, through which its step is the guard's step.

A trainer calls `optimizer.step()`, `scheduler.step()` and `optimizer.zero_grad()` at moments of its
own. `Guard.step` does all three, in its order, so the trainer is given stand-ins: the optimizer's
`step` calls the guard, the other two do nothing, and everything else is the wrapped object's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SteppedOptimizer", "SteppedScheduler", "Steps"]


class Steps(Protocol):
    """What does the step: a guard, or its port."""

    def step(self) -> None:
        """Do one step of the run."""


class SteppedOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is the guard's.

    It shares groups, state and defaults with the wrapped one, so that what a trainer reads or logs
    is true. Clipping is the guard's too: switch the trainer's own off.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, guard: Steps) -> None:
        """Wrap an optimizer; nothing of it is copied."""
        # torch's own __init__ is left out: it would build groups and state beside the wrapped ones.
        self.optimizer = optimizer
        self._guard = guard

    def __getattr__(self, name: str) -> object:
        """Return what the wrapped optimizer has."""
        # By `__dict__`: where `optimizer` is not set yet, as in unpickling, `self.optimizer` would
        # call this method again without end.
        found: object = getattr(self.__dict__["optimizer"], name)
        return found

    def __repr__(self) -> str:
        """Name both."""
        return f"SteppedOptimizer({self.optimizer!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        """Copy and pickle the wrapped optimizer: a guard belongs to one process."""
        return self.optimizer.__reduce__()

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Run the closure, if there is one, then `Guard.step`; return what the closure gave."""
        result = None if closure is None else closure()
        self._guard.step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
        """Do nothing: `Guard.step` does it, after the update."""

    def state_dict(self) -> dict[str, object]:
        """Return the wrapped optimizer's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Load into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)


class SteppedScheduler:
    """A learning-rate scheduler that only the guard advances."""

    scheduler: object

    def __init__(self, scheduler: object) -> None:
        """Wrap a scheduler."""
        # Past `__setattr__`, which hands every name on to the scheduler that is not there yet.
        self.__dict__["scheduler"] = scheduler

    def __getattr__(self, name: str) -> object:
        """Return what the wrapped scheduler has."""
        found: object = getattr(self.__dict__["scheduler"], name)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Set it on the wrapped scheduler: what a callback changes there is in force."""
        setattr(self.__dict__["scheduler"], name, value)

    def step(self, *_args: object, **_more: object) -> None:
        """Do nothing: `Guard.step` does it, after the update."""
