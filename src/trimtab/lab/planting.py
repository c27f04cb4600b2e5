"""Damages a tensor of a running model as a `StateFault` says: once, not in every replay.

A step that is done again after a rollback is not damaged again, as it would not be by a cosmic ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.lab.faults import StateFault

__all__ = ["Planter", "flip_bit"]


class Planter:
    """Does one fault's damage to a model and its optimizer."""

    def __init__(
        self,
        fault: StateFault | None,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        rank: int = 0,
    ) -> None:
        """Aim at a model's tensors.

        Raises:
            ConfigError: The model has no such parameter.
        """
        here = fault is not None and fault.rank in (None, rank)
        self._fault = fault if here else None
        self._optimizer = optimizer
        self._left = fault.num_steps if fault is not None else 0
        self._targets: list[Tensor] = []
        if fault is not None:
            named = dict(model.named_parameters())
            names = list(named) if fault.tensor == "*" else [fault.tensor]
            for name in names:
                if name not in named:
                    raise ConfigError(
                        f"StateFault.tensor is {name!r}; the model has {', '.join(named)}"
                    )
            self._targets = [named[name] for name in names]

    def on_gradients(self, step: int) -> None:
        """Damage the gradients where it is time for it; called between backward pass and update."""
        if self._fault is not None and self._fault.place == "gradient":
            self._strike(self._fault, step)

    def after_update(self, step: int) -> None:
        """Damage weights or moments where it is time for it; called with the step just finished."""
        if self._fault is not None and self._fault.place != "gradient":
            self._strike(self._fault, step)

    @torch.no_grad()
    def _strike(self, fault: StateFault, step: int) -> None:
        # Counted: after a rollback the step comes again, and the fault must not.
        if not self._left or step < fault.step:
            return
        self._left -= 1
        for weight in self._targets:
            tensor = self._tensor(fault, weight)
            if tensor is None:
                continue
            part = tensor.view(-1)
            if fault.element is not None:
                part = part[fault.element : fault.element + 1]
            if fault.bit is not None:
                flip_bit(part, fault.bit)
            else:
                part.mul_(fault.factor)

    def _tensor(self, fault: StateFault, weight: Tensor) -> Tensor | None:
        if fault.place == "weight":
            return weight
        if fault.place == "gradient":
            return weight.grad
        found: Tensor | None = self._optimizer.state[weight].get(fault.place)
        return found


def flip_bit(numbers: Tensor, bit: int) -> None:
    """Flip a bit of each fp32 number, in place; bit 31 is the sign.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> flip_bit(x, 31)
        >>> x.tolist()
        [-1.0, -2.0]
    """
    # An int32 has no +2^31; the sign bit alone is its lowest number.
    mask = 1 << bit if bit < 31 else -(1 << 31)
    numbers.view(torch.int32).bitwise_xor_(torch.tensor(mask, dtype=torch.int32))
