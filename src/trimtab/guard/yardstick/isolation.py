"""Puts everything back that an evaluation of the model changes: not one bit of training differs.

Saved before and put back after: train or eval mode of every module, every buffer (running
statistics, amax histories, counters, caches), whatever modules keep in attributes, containers and
generators of their own, the generators that the user's loop holds, the gradients and the random
states. What cannot be put back is refused before anything runs; what came back otherwise than it
was is named.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from trimtab.guard.state.training_state import capture_rng, restore_rng
from trimtab.guard.yardstick.kept_values import KeptValues, held_by, is_random, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from trimtab.guard.state.training_state import StateDict

__all__ = ["FIXED_SEED", "Isolation", "fix_rng", "held_by_callers"]

FIXED_SEED = 20260101
"""Of what is drawn while fixed batches are made and read: the same each time."""

_DEEPEST = 2
"""Steps from a variable of the loop to a generator: an attribute or item, and one of that."""
_MOST_LOOKED_AT = 20_000
"""Values of the loop and its callers that are looked through, from the loop outward; about 10 ms.
"""


class Isolation:
    """A model in eval mode, until it is put back."""

    def __init__(self, model: torch.nn.Module, *, keep_parameters: bool = False) -> None:
        """Save what an evaluation may change, and switch every module to eval mode.

        The mode is set without `train()`: some modules (merged low-rank adapters) change their
        weights in it, and not back bit for bit.

        Args:
            model: Is evaluated.
            keep_parameters: Keep a copy of the parameters, too, to put back those that a forward
                pass writes in place, as `nn.Embedding(max_norm=...)` does; without it such a change
                is only noticed, by the tensor's count of changes.

        Cost: one copy of the buffers and of the tensors that modules keep otherwise, on their
        device. A walk over what modules hold: about 1 ms for 100 modules. Of the parameters one
        copy in host memory, held until `put_back`, where `keep_parameters` is set; none otherwise.
        """
        self._rng: StateDict = capture_rng()
        self._modules = list(model.modules())
        self._buffers = [
            (f"{type(m).__name__}.{name}", b, b.detach().clone())
            for m in self._modules
            for name, b in m._buffers.items()
            if b is not None
        ]
        parameters = list(model.parameters())
        self._parameters = list(model.named_parameters())
        self._kept: list[torch.Tensor] = []
        self._versions: list[int] = []
        self.written: tuple[str, ...] = ()
        """Parameters that the evaluation wrote in place; whether they came back, `put_back` says.
        """
        self._values = KeptValues([*parameters, *(b for _, b, _ in self._buffers)])
        self._values.save(model, type(model).__name__)
        for name, generator in held_by_callers(is_random):
            self._values.save(generator, f"the loop's {name}")
        self._gradients = [(p, p.grad) for p in parameters]
        scripted = [
            f"{type(m).__name__} {getattr(m, 'original_name', '')}".strip()
            for m in self._modules
            if isinstance(m, torch.jit.ScriptModule)
        ]
        self.refused = (*scripted, *self._values.refused)
        """What cannot be put back; empty where an evaluation may go on."""
        if keep_parameters and not self.refused:
            self._kept = [_on_host(p) for p in parameters]
        self.weights_are_set()
        for module in self._modules:
            module.training = False

    @property
    def in_eval(self) -> bool:
        """Whether every module is in eval mode still: a loop may call `model.train()` itself."""
        return not any(m.training for m in self._modules)

    def weights_are_set(self) -> None:
        """Take note that the weights are set by us: what changes them from here on is the model."""
        self._versions = [_version(p) for _, p in self._parameters]

    def look_for_writes(self) -> None:
        """Take note of parameters that were written since `weights_are_set`."""
        now = [_version(p) for _, p in self._parameters]
        found = [
            name
            for (name, _), a, b in zip(self._parameters, self._versions, now, strict=True)
            if a != b
        ]
        self.written = tuple(dict.fromkeys((*self.written, *found)))

    def rewind(self) -> None:
        """Put back what a pass changes in values, generators and buffers; the modes stay."""
        self._shard_again()
        modes = [m.training for m in self._modules]
        self._put_back_values()
        for module, mode in zip(self._modules, modes, strict=True):
            module.training = mode

    def _shard_again(self) -> None:
        for module in self._modules:
            # FSDP2 keeps a root gathered after a forward pass without a backward one, and knows it:
            # its parameters must be shards again before the module's own are put back.
            if any(c.__name__ == "FSDPModule" for c in type(module).__mro__):
                cast("Any", module).reshard()

    def _put_back_values(self) -> list[str]:
        wrong = list(self._values.put_back())
        with torch.no_grad():
            for name, tensor, copy in self._buffers:
                if not same(tensor, copy):
                    tensor.copy_(copy)
                    if not same(tensor, copy):
                        wrong.append(name)
        return wrong

    def put_back(self) -> tuple[str, ...]:
        """Put everything back; return what is still not as it was.

        Returns:
            Names of parameters, buffers and attributes; empty where all is bit for bit as it was.
        """
        self._shard_again()
        wrong = self._put_back_parameters() + self._put_back_values()
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        restore_rng(self._rng)
        return tuple(wrong)

    def _put_back_parameters(self) -> list[str]:
        if not self._kept:
            return list(self.written)
        wrong: list[str] = []
        for (name, parameter), kept in zip(self._parameters, self._kept, strict=True):
            # A write through `.data` counts as no change: the values themselves are compared.
            if same(_on_host(parameter, copy=False), kept):
                continue
            self.written = tuple(dict.fromkeys((*self.written, name)))
            with torch.no_grad():
                parameter.copy_(kept)
            if not same(_on_host(parameter, copy=False), kept):
                wrong.append(name)
        self._kept = []
        return wrong


def _on_host(tensor: torch.Tensor, *, copy: bool = True) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=copy)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def held_by_callers(wanted: Callable[[object], bool]) -> list[tuple[str, object]]:
    """Return what the code outside of this package holds of a kind: name and value.

    Those in local and global variables of the frames that called, in what these hold (items,
    attributes, closures, what methods are bound to), and in what that holds: a loop may draw noise
    or masks from a generator of its own, and steps schedules that nobody else knows.
    """
    found: dict[int, tuple[str, object]] = {}
    scopes: list[dict[str, object]] = []
    frames: list[FrameType] = [sys._getframe(1)]  # the loop hands its generators to nobody
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    for frame in frames:
        if not str(frame.f_globals.get("__name__", "")).startswith("trimtab."):
            scopes.append(dict(frame.f_locals))
            if all(s is not frame.f_globals for s in scopes):
                scopes.append(frame.f_globals)
    seen: dict[int, object] = {}
    for scope in scopes:
        level = [(value, name) for name, value in list(scope.items())]
        for _ in range(_DEEPEST + 1):
            inner: list[tuple[object, str]] = []
            for value, name in level:
                if id(value) in seen or len(seen) >= _MOST_LOOKED_AT:
                    continue
                seen[id(value)] = value
                if wanted(value):
                    found[id(value)] = (name, value)
                else:
                    inner += [(v, f"{name}{place}") for v, place in held_by(value)]
            level = inner
    return list(found.values())


def fix_rng(seed: int) -> None:
    """Seed all random states that exist: each evaluation draws the same noise.

    CUDA is left alone where it was not started.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
