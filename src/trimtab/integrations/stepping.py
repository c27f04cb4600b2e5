"""Stand-ins for a trainer's optimizer and scheduler, through which its step becomes the guard's
step.

A trainer calls `optimizer.step()`, `scheduler.step()` and `optimizer.zero_grad()` at moments of its
own. `Guard.step` does all three, in its order, so the trainer is given stand-ins: the optimizer's
`step` calls the guard, the other two do nothing, and everything else is the wrapped object's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.guard import Guard

__all__ = ["SteppedOptimizer", "SteppedScheduler"]


class SteppedOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is the guard's.

    It shares groups, state and defaults with the wrapped one, so that what a trainer reads or logs
    is true. Clipping is the guard's too: switch the trainer's own off.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
        """Wrap an optimizer; nothing of it is copied."""
        self.optimizer = optimizer
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        """Return what the wrapped optimizer has."""
        return getattr(self.__dict__["optimizer"], name)

    def __repr__(self) -> str:
        """Name both."""
        return f"SteppedOptimizer({self.optimizer!r})"

    def __reduce__(self) -> Any:
        """Copies and pickles are of the wrapped optimizer: a guard belongs to one process."""
        return self.optimizer.__reduce__()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure, where there is one, then `Guard.step`; return what the closure gave."""
        result = None if closure is None else closure()
        self._guard.step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Do nothing: `Guard.step` does it, after the update."""

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)


class SteppedScheduler:
    """A learning-rate scheduler that only the guard advances."""

    def __init__(self, scheduler: Any) -> None:
        """Wrap a scheduler."""
        self.__dict__["scheduler"] = scheduler

    def __getattr__(self, name: str) -> Any:
        """Return what the wrapped scheduler has."""
        return getattr(self.__dict__["scheduler"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it on the wrapped scheduler: what a callback changes there is in force."""
        setattr(self.__dict__["scheduler"], name, value)

    def step(self, *_args: Any, **_more: Any) -> None:
        """Do nothing: `Guard.step` does it, after the update."""
