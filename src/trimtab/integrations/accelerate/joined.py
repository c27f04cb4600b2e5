"""What Accelerate wraps around a loop's objects, joined to the guard: backward, clipping, the step.

Accelerate's wrapper of the optimizer takes no part in the step: the guard unscales, clips and
updates the torch optimizer inside it, and sets on the wrapper whether the update was skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from trimtab.errors import ConfigError
from trimtab.integrations.stepping import SteppedOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    from trimtab.guard.port import TrainerPort

__all__ = [
    "AcceleratedSchedule",
    "Hooks",
    "LossScaler",
    "PreparedOptimizer",
    "Schedule",
    "inner_optimizer",
]


class LossScaler(Protocol):
    """The part of torch's `GradScaler` that shows skipped updates."""

    def get_scale(self) -> float:
        """Return the scale of the next step."""


class Schedule(Protocol):
    """A learning-rate scheduler that advances without a metric."""

    def step(self) -> None:
        """Advance by one step."""

    def state_dict(self) -> dict[str, object]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, object], /) -> None:
        """Restore a state."""


def inner_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return the torch optimizer within Accelerate's wrapper.

    Raises:
        ConfigError: There is none, as under DeepSpeed.
    """
    # Accelerate's wrapper is a torch Optimizer by class, so it is told by its attribute.
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "gradient_state"):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise ConfigError(
                f"optimizer is {type(optimizer).__name__}, which holds no torch optimizer; under "
                "DeepSpeed its engine does the step: use trimtab.integrations.deepspeed"
            )
        optimizer = inner
    return optimizer


class AcceleratedSchedule:
    """A scheduler for the guard to step: not after an update that the loss scaler skipped."""

    def __init__(
        self,
        scheduler: Schedule | None,
        optimizer: AcceleratedOptimizer,
        scaler: LossScaler | None,
    ) -> None:
        """Wrap a scheduler.

        Args:
            scheduler: torch's, or Accelerate's wrapper of it; None: only skipped updates are noted.
            optimizer: Accelerate's wrapper, which its users ask about skipped updates.
            scaler: Loss scaler, if there is one.
        """
        self._scheduler = scheduler
        self._optimizer = optimizer
        self._scaler = scaler
        self._scale = 0.0

    def step_begins(self) -> None:
        """Note the loss scale; it falls when the scaler skips an update."""
        self._scale = self._scaler.get_scale() if self._scaler is not None else 0.0

    def step(self) -> None:
        """Advance the schedule, unless the update was skipped."""
        # A GradScaler does not say that it skipped; its scale falls only then.
        skipped = self._scaler is not None and self._scaler.get_scale() < self._scale
        # Accelerate's users read `optimizer.step_was_skipped`, which returns this attribute.
        self._optimizer._is_overflow = skipped
        if not skipped and self._scheduler is not None:
            self._optimizer._opt_called = True  # torch looks for an update through the wrapper
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """Return the scheduler's state."""
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Restore the scheduler's state."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state_dict)


class PreparedOptimizer(SteppedOptimizer):
    """Stands in for Accelerate's wrapper of an optimizer; its step is the guard's."""

    def __init__(
        self, optimizer: AcceleratedOptimizer, port: TrainerPort, schedule: AcceleratedSchedule
    ) -> None:
        """Wrap Accelerate's wrapper."""
        super().__init__(optimizer, port)
        self._gradient_state = optimizer.gradient_state
        self._port = port
        self._schedule = schedule
        self.last_lr: float | None = None
        """Learning rate of the first group in the last step, as it was in force."""

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Do the guard's step at the last of accumulated batches, as Accelerate would."""
        if not self._gradient_state.sync_gradients:
            return None
        if not self._port.probing:
            self._schedule.step_begins()
            self.last_lr = self._port.next_lr
        return super().step(closure)

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # noqa: FBT001 - torch's
        """Do nothing: `Guard.step` does it, after the update."""


class Hooks:
    """Replaces what an Accelerator does in a step by what the guard does, until `remove`."""

    def __init__(self, accelerator: Accelerator, port: TrainerPort, *, note_losses: bool) -> None:
        """Put the hooks in place, on this accelerator only.

        Args:
            accelerator: The loop's.
            port: Of the guard that does the step.
            note_losses: Whether `accelerator.backward` is where the guard learns of a loss.
        """
        self._accelerator = accelerator
        self._port = port
        self._note_losses = note_losses
        self._backward = accelerator.backward
        self._clip = accelerator.clip_grad_norm_
        accelerator.backward = self.backward
        accelerator.clip_grad_norm_ = self.clip_grad_norm

    def remove(self) -> None:
        """Give the accelerator its own methods back."""
        for name in ("backward", "clip_grad_norm_"):
            # The hooks are attributes of the instance: without them its class's methods are used.
            vars(self._accelerator).pop(name, None)

    def backward(self, loss: torch.Tensor, **kwargs: object) -> None:
        """Run Accelerate's backward pass; in a probe only the loss is wanted."""
        if self._note_losses:
            self._port.note_loss(loss)
        if not self._port.probing:
            self._backward(loss, **kwargs)

    def clip_grad_norm(
        self,
        parameters: Iterable[torch.Tensor] | torch.Tensor,
        max_norm: float,
        norm_type: float = 2,
    ) -> torch.Tensor:
        """Clip as the guard does; return the norm, a scalar.

        Clipping part of the parameters, or by another norm, is left to Accelerate.
        """
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        # A probe makes no gradients, so there is nothing to clip.
        if self._port.probing:
            return torch.zeros((), dtype=torch.float64)
        if norm_type != 2 or not self._port.covers(given):
            own: torch.Tensor = self._clip(given, max_norm, norm_type)
            return own
        limit = None if max_norm == float("inf") else max_norm
        return torch.tensor(self._port.clip_gradients(limit), dtype=torch.float64)
