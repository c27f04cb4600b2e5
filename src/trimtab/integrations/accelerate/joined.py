"""What Accelerate puts around a loop's objects, joined to the guard: backward, clipping, the step.

Accelerate's own wrapper of the optimizer is left out of the step: the guard unscales, clips and
updates the optimizer inside it, and tells the wrapper whether the update was skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trimtab.errors import ConfigError
from trimtab.integrations.stepping import SteppedOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trimtab.guard.guard import Guard

__all__ = ["AcceleratedSchedule", "Hooks", "PreparedOptimizer", "inner_optimizer"]


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer within Accelerate's wrapper.

    Raises:
        ConfigError: There is none, as under DeepSpeed.
    """
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "gradient_state"):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise ConfigError(
                f"optimizer is {type(optimizer).__name__}, which holds no torch optimizer; under "
                "DeepSpeed its engine does the step: use the DeepSpeed adapter"
            )
        optimizer = inner
    return optimizer


class AcceleratedSchedule:
    """A scheduler for the guard to step: not after an update that the loss scaler skipped."""

    def __init__(self, scheduler: Any, optimizer: Any, scaler: Any | None) -> None:
        """Wrap a scheduler.

        Args:
            scheduler: torch's, or Accelerate's wrapper of it.
            optimizer: Accelerate's wrapper, which is told of skipped updates.
            scaler: Loss scaler, where there is one.
        """
        self._scheduler = scheduler
        self._optimizer = optimizer
        self._scaler = scaler
        self._scale = 0.0

    def step_begins(self) -> None:
        """Note the loss scale; it falls where the scaler skips an update."""
        self._scale = self._scaler.get_scale() if self._scaler is not None else 0.0

    def step(self) -> None:
        """Advance the schedule, unless the update was skipped."""
        skipped = self._scaler is not None and self._scaler.get_scale() < self._scale
        self._optimizer._is_overflow = skipped
        if not skipped and self._scheduler is not None:
            self._optimizer._opt_called = True  # torch looks for an update through the wrapper
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        state: dict[str, Any] = {} if self._scheduler is None else self._scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the scheduler's state back."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state_dict)


class PreparedOptimizer(SteppedOptimizer):
    """Stands in for Accelerate's wrapper of an optimizer; its step is the guard's."""

    def __init__(self, optimizer: Any, guard: Guard, schedule: AcceleratedSchedule) -> None:
        """Wrap Accelerate's wrapper."""
        super().__init__(optimizer, guard)
        self._schedule = schedule
        self.last_lr: float | None = None
        """Rate of the first group in the last step, as it was in force."""

    def step(self, closure: Any = None) -> Any:
        """Do the guard's step where Accelerate would do one: at the last of accumulated batches."""
        if not self.optimizer.gradient_state.sync_gradients:  # type: ignore[attr-defined]
            return None
        if not self._guard.probing:
            self._schedule.step_begins()
            self.last_lr = self._guard.next_lr
        return super().step(closure)

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # noqa: FBT001 - torch's
        """Do nothing: `Guard.step` does it, after the update."""


class Hooks:
    """Replaces what an Accelerator does in a step by what the guard does, until `remove`."""

    def __init__(self, accelerator: Any, guard: Guard, *, note_losses: bool) -> None:
        """Put the hooks in place, on this accelerator only.

        Args:
            accelerator: It.
            guard: What does the step.
            note_losses: Whether `accelerator.backward` is where the guard learns of a loss.
        """
        self._accelerator = accelerator
        self._guard = guard
        self._note_losses = note_losses
        self._backward = accelerator.backward
        self._clip = accelerator.clip_grad_norm_
        accelerator.backward = self.backward
        accelerator.clip_grad_norm_ = self.clip_grad_norm

    def remove(self) -> None:
        """Give the accelerator its own methods back."""
        for name in ("backward", "clip_grad_norm_"):
            self._accelerator.__dict__.pop(name, None)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Go backward as Accelerate does; in a probe only the loss is wanted."""
        if self._note_losses:
            self._guard.note_loss(loss)
        if not self._guard.probing:
            self._backward(loss, **kwargs)

    def clip_grad_norm(
        self,
        parameters: Iterable[torch.Tensor] | torch.Tensor,
        max_norm: float,
        norm_type: float = 2,
    ) -> Any:
        """Clip as the guard does; return the norm, a scalar.

        Clipping part of the parameters, or by another norm, is left to Accelerate.
        """
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self._guard.probing:
            return torch.zeros((), dtype=torch.float64)
        if norm_type != 2 or not self._guard.covers(given):
            return self._clip(given, max_norm, norm_type)
        limit = None if max_norm == float("inf") else max_norm
        return torch.tensor(self._guard.clip_gradients(limit), dtype=torch.float64)
