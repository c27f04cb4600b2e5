"""Where a forward pass first leaves the range of its numbers: the module, by name.

Every leaf module has a hook for one forward pass only, so it costs nothing the rest of the time.
The guard runs it by itself in the step after a loss that was not finite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.kept_error import KeptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.utils.hooks import RemovableHandle

__all__ = ["ModuleRange", "OverflowProbe", "find_overflow"]

TINY_SHARE = 0.5
"""Share of non-zero values below the smallest normal number from which a module underflows."""


@dataclass(frozen=True)
class ModuleRange:
    """The output of one module in one forward pass."""

    name: str
    dtype: str
    nonfinite: int
    """Elements that are NaN or Inf."""
    largest: float
    """Largest finite absolute value."""
    tiny_share: float
    """Share of the non-zero elements below the smallest normal number of `dtype`."""
    inputs_finite: bool = True
    """Whether its tensors that came in were finite; looked at where what goes out is not."""

    @property
    def overflows(self) -> bool:
        """Whether an element is NaN or Inf."""
        return self.nonfinite > 0

    @property
    def underflows(self) -> bool:
        """Whether most of what is not zero has lost precision."""
        return self.tiny_share >= TINY_SHARE


class OverflowProbe:
    """Notes the range of every leaf module's output in the order of the calls."""

    def __init__(self, model: nn.Module) -> None:
        """Nothing is hooked before `arm`."""
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._ranges: list[ModuleRange] = []
        self.kept = KeptError()

    def arm(self) -> None:
        """Hook all leaf modules for the next forward pass."""
        self.take()
        for name, module in self._model.named_modules():
            if next(module.children(), None) is None:
                self._handles.append(module.register_forward_hook(self._hook(name)))

    def _hook(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def seen(_module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            if not isinstance(first, torch.Tensor) or not first.is_floating_point():
                return
            try:
                self._note(name, inputs, first)
            except Exception as error:  # noqa: BLE001 - in the user's forward pass; see `take`
                self.kept.error = error

        return seen

    def _note(self, name: str, inputs: object, output: torch.Tensor) -> None:
        if output.numel():
            seen_range = _range_of(name, local(output.detach()))
            if seen_range.overflows:
                seen_range = replace(seen_range, inputs_finite=_all_finite(inputs))
            self._ranges.append(seen_range)

    def take(self) -> list[ModuleRange]:
        """Remove the hooks and return what they saw, in the order of the calls."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        ranges, self._ranges = self._ranges, []
        return ranges


def _all_finite(inputs: object) -> bool:
    """Whether the floating-point tensors among positional inputs are finite."""
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    tensors = [local(t.detach()) for t in given if isinstance(t, torch.Tensor)]
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point() and t.numel())


def _range_of(name: str, tensor: torch.Tensor) -> ModuleRange:
    finite = tensor.isfinite()
    size = torch.where(finite, tensor, 0).abs()
    set_ = size > 0
    tiny = set_ & (size < torch.finfo(tensor.dtype).tiny)
    counts = torch.stack([(~finite).sum(), set_.sum(), tiny.sum()]).tolist()
    return ModuleRange(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        nonfinite=counts[0],
        largest=float(size.max()),
        tiny_share=counts[2] / max(counts[1], 1),
    )


def find_overflow(model: nn.Module, forward: Callable[[], object]) -> tuple[ModuleRange, ...]:
    """Run a forward pass and return the modules that leave their range, in the order of the calls.

    The first one is where the trouble begins; those behind it may only pass it on.

    Args:
        model: Whose leaf modules are watched.
        forward: Runs it once, in the precision and on the batch in question.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).half()
        >>> _ = torch.nn.init.constant_(model[0].weight, 60000.0)
        >>> [m.name for m in find_overflow(model, lambda: model(torch.ones(1, 2).half()))]
        ['0', '1']
    """
    probe = OverflowProbe(model)
    probe.arm()
    try:
        with torch.no_grad():
            forward()
    finally:
        ranges = probe.take()
    return tuple(r for r in ranges if r.overflows or r.underflows)
