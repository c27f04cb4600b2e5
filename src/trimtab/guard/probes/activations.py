"""Activations: the last hidden state at every step, the output of each block now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from trimtab.errors import ActError
from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.kept_error import KeptError
from trimtab.guard.probes.packs import largest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BlockProbe", "HiddenProbe", "find_blocks", "find_output_layer"]


def find_output_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer whose input is the last hidden state.

    `get_output_embeddings()` where the model has it, else the last Linear; None without either.
    """
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


def find_blocks(model: nn.Module, *, is_part: bool = False) -> dict[str, nn.Module]:
    """Return the model's repeated blocks by name, in order: the largest list or dict of modules.

    Args:
        model: Whose blocks they are.
        is_part: It may be a part of a pipeline: one block is enough, modules that are named by
            numbers are a list, as tracing leaves them, and a list is one of such parts.
    """
    if is_part and isinstance(model, nn.ModuleList):
        parts = {key: find_blocks(part, is_part=True) for key, part in model.named_children()}
        if all(parts.values()):
            return {f"{key}.{name}": m for key, found in parts.items() for name, m in found.items()}
    best: dict[str, nn.Module] = {}
    most = 0
    for name, module in model.named_modules():
        names = [key for key, _ in module.named_children()]
        listed = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        if not (listed or (is_part and all(key.isdigit() for key in names))):
            continue
        count = len(module) if listed else len(names)
        if count < (1 if is_part else 2):
            continue
        size = sum(p.numel() for p in module.parameters())
        if size > most:
            most = size
            best = {f"{name}.{key}" if name else key: m for key, m in module.named_children()}
    return best


class HiddenProbe:
    """Root mean square of the last hidden state, measured by a hook on the output layer's input."""

    def __init__(self, model: nn.Module, layer: nn.Module | None = None) -> None:
        """Hook `layer`, or what `find_output_layer` finds; without either, do nothing."""
        self.value: torch.Tensor | None = None
        self.enabled = True
        self.error: Exception | None = None
        self._root = 1.0
        target = layer or find_output_layer(model)
        self._handle = None if target is None else target.register_forward_pre_hook(self._hook)

    def _hook(self, _module: nn.Module, inputs: tuple[object, ...]) -> None:
        if not self.enabled or not torch.is_grad_enabled():  # not in an evaluation
            return
        try:
            self._measure(inputs)
        except Exception as error:  # noqa: BLE001 - in the user's forward pass; `take` raises it
            self.enabled, self.error = False, error

    def _measure(self, inputs: tuple[object, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point():
            hidden = local(inputs[0].detach())
            wide = hidden.dtype in (torch.float32, torch.float64)
            # No sync: the value stays on the device until it is read. In fp16 the sum of squares
            # would overflow, hence float32.
            self.value = torch.linalg.vector_norm(hidden, dtype=None if wide else torch.float32)
            self._root = max(hidden.numel(), 1) ** 0.5

    def rms(self) -> float | None:
        """Return the value of the last forward pass with gradients; None without one."""
        return None if self.value is None else float(self.value) / self._root

    def take(self) -> float | None:
        """Return the value of the last forward pass with gradients, and forget it.

        Raises:
            ActError: Measuring it failed; it is not tried again.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise ActError(f"the last hidden state cannot be measured ({error})") from error
        found, self.value = self.rms(), None
        return found

    def hold(self) -> tuple[torch.Tensor, float] | None:
        """Return a norm where it lies and what to divide it by to have the value; forget it."""
        value, self.value = self.value, None
        return None if value is None else (value, self._root)

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()


class BlockProbe:
    """RMS and largest absolute value of each block's output, while `armed`."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        """Hook these blocks."""
        self.armed = False
        self.kept = KeptError()
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._handles = [
            block.register_forward_hook(lambda _module, _inputs, output, i=i: self._hook(i, output))
            for i, block in enumerate(blocks)
        ]

    def _hook(self, index: int, output: object) -> None:
        if not self.armed or not torch.is_grad_enabled():
            return
        try:
            self._measure(index, output)
        except Exception as error:  # noqa: BLE001 - in the user's forward pass; `take` raises it
            self.armed, self.kept.error = False, error

    def _measure(self, index: int, output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, torch.Tensor) and first.is_floating_point() and first.numel():
            hidden = local(first.detach())
            wide = hidden.dtype in (torch.float32, torch.float64)
            norm = torch.linalg.vector_norm(hidden, dtype=None if wide else torch.float32)
            self._seen[index] = (norm.float(), largest([hidden])[0].float(), hidden.numel())

    def take(self, num_blocks: int) -> tuple[list[float], list[float]]:
        """Return RMS and largest value by block, NaN where a block was not run; forget them."""
        self.kept.raise_once()
        seen, self._seen = self._seen, {}
        rms, top = [float("nan")] * num_blocks, [float("nan")] * num_blocks
        if seen:
            # One transfer for all blocks: each `.item()` would be a sync of its own.
            read = torch.stack([t for norm, largest, _ in seen.values() for t in (norm, largest)])
            numbers = read.tolist()
            for i, (index, (*_, count)) in enumerate(seen.items()):
                rms[index] = numbers[2 * i] / count**0.5
                top[index] = numbers[2 * i + 1]
        return rms, top

    def forget(self) -> None:
        """Forget what was seen."""
        self._seen.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
