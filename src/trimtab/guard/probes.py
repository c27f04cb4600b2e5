"""What is measured at a step, from the objects that train: never from a config.

Everything of one step is gathered into one small vector and read by the host once. Cheap signals
are read every step; Adam's moments and the update norm every `every_steps`, which the record shows
as missing values in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ActivationProbe",
    "UpdateProbe",
    "adam_second_moment",
    "find_output_layer",
    "global_grad_norm",
]


def global_grad_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the global L2 norm of the gradients, a scalar tensor; 0 where there are none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    grads = [g.coalesce().values() if g.is_sparse else g for g in grads]
    norms = torch._foreach_norm(grads)
    together = torch.stack([n.to(norms[0].device, torch.float32) for n in norms])
    total: torch.Tensor = torch.linalg.vector_norm(together)
    return total


def adam_second_moment(
    optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> tuple[float, float, str] | None:
    """Return (L1 norm, largest element, name of its tensor) of Adam's second moments.

    Args:
        optimizer: Any optimizer; None is returned when it keeps no `exp_avg_sq`.
        names: Parameter names by `id(parameter)`.
    """
    found = [
        (names.get(id(p), "?"), state["exp_avg_sq"])
        for p, state in optimizer.state.items()
        if isinstance(state, dict) and "exp_avg_sq" in state
    ]
    if not found:
        return None
    moments = [v for _, v in found]
    totals = torch.stack(torch._foreach_norm(moments, 1))
    tops = torch.stack(torch._foreach_norm(moments, float("inf")))
    packed = torch.stack([totals.sum(), tops.max(), tops.argmax().to(tops.dtype)]).tolist()
    where = int(packed[2]) if packed[2] == packed[2] else 0
    return float(packed[0]), float(packed[1]), found[where][0]


def find_output_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer whose input is the last hidden state: `get_output_embeddings()` where the
    model has it, else the last Linear; None where there is neither."""  # noqa: D205, D209
    getter = getattr(model, "get_output_embeddings", None)
    if callable(getter):
        layer = getter()
        if isinstance(layer, nn.Module):
            return layer
    last: nn.Module | None = None
    for module in model.modules():
        if isinstance(module, nn.Linear):
            last = module
    return last


class ActivationProbe:
    """Root mean square of the last hidden state, measured by a hook on the output layer's input."""

    def __init__(self, model: nn.Module, layer: nn.Module | None = None) -> None:
        """Hook `layer`, or the output layer that `find_output_layer` finds; does nothing without one."""
        self.value: torch.Tensor | None = None
        self.enabled = True
        self.error: Exception | None = None
        self._root = 1.0
        target = layer or find_output_layer(model)
        self._handle = None if target is None else target.register_forward_pre_hook(self._hook)

    def _hook(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self.enabled or not torch.is_grad_enabled():  # not in an evaluation
            return
        try:
            self._measure(inputs)
        except Exception as error:  # noqa: BLE001 - inside the user's forward pass; told by `take`
            self.enabled, self.error = False, error

    def _measure(self, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point():
            hidden = inputs[0].detach()
            wide = hidden.dtype in (torch.float32, torch.float64)
            self.value = torch.linalg.vector_norm(hidden, dtype=None if wide else torch.float32)
            self._root = max(hidden.numel(), 1) ** 0.5

    def take(self) -> float | None:
        """Return the value of the last forward pass with gradients, and forget it.

        Raises:
            ActError: Measuring it failed; it is not tried again.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise ActError(f"the last hidden state cannot be measured ({error})") from error
        value, self.value = self.value, None
        return None if value is None else float(value) / self._root

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()


class UpdateProbe:
    """L2 norm of what an optimizer step really changed."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        """Watch these parameters."""
        self._parameters = [p for p in parameters if p.requires_grad]
        self._before: list[torch.Tensor] | None = None

    def before(self) -> None:
        """Remember the parameters as they are."""
        self._before = [p.detach().clone() for p in self._parameters]

    def after(self) -> float | None:
        """Return the norm of the change since `before`; None when that was not called."""
        if self._before is None:
            return None
        change = torch._foreach_sub([p.detach() for p in self._parameters], self._before)
        self._before = None
        norms = torch._foreach_norm(change)
        return float(torch.linalg.vector_norm(torch.stack([n.float() for n in norms])))
