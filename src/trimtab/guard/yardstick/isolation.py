"""Puts everything back that an evaluation of the model changes: not one bit of training differs.

Saved before and put back after: train or eval mode of every module, every buffer (running
statistics, amax histories, counters, caches), plain values and tensors that modules keep as
attributes, the gradients, the random states, and the autocast mode. What came back otherwise than
it was is named.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from trimtab.guard.state.training_state import StateDict

__all__ = ["Isolation", "fix_rng"]

_PLAIN = (bool, int, float, str, type(None))
_MOST_ELEMENTS = 1 << 24
"""Elements of a tensor that is no buffer and no parameter, above which it is not copied."""


class Isolation:
    """A model in eval mode, until it is put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Save what an evaluation may change, and switch every module to eval mode.

        The mode is set without `train()`: some modules (merged low-rank adapters) change their
        weights in it, and not back bit for bit.

        Cost: one copy of the buffers on their device; no copy of the weights.
        """
        self._rng: StateDict = capture_rng()
        self._modules = list(model.modules())
        self._plain = [_plain_of(m) for m in self._modules]
        self._buffers = [
            (m, name, b, b.detach().clone())
            for m in self._modules
            for name, b in m._buffers.items()
            if b is not None
        ]
        self._attributes = [
            (m, name, t, t.detach().clone())
            for m in self._modules
            for name, t in vars(m).items()
            if isinstance(t, torch.Tensor) and t.numel() <= _MOST_ELEMENTS
        ]
        self._gradients = [(p, p.grad) for p in model.parameters()]
        self._grad_mode = torch.is_grad_enabled()
        for module in self._modules:
            module.training = False

    @property
    def in_eval(self) -> bool:
        """Whether every module is in eval mode still: a loop may call `model.train()` itself."""
        return not any(m.training for m in self._modules)

    def put_back(self) -> tuple[str, ...]:
        """Put everything back; return what is still not as it was.

        Returns:
            Names of buffers and attributes; empty where all is bit for bit as it was.
        """
        wrong: list[str] = []
        with torch.no_grad():
            for table, saved in (("_buffers", self._buffers), ("", self._attributes)):
                for module, name, tensor, copy in saved:
                    owner = vars(module)[table] if table else vars(module)
                    owner[name] = tensor
                    if not _same(tensor, copy):
                        tensor.copy_(copy)
                        if not _same(tensor, copy):
                            wrong.append(f"{type(module).__name__}.{name}")
        for module, plain in zip(self._modules, self._plain, strict=True):
            values = vars(module)
            for name in [n for n, v in values.items() if n not in plain and isinstance(v, _PLAIN)]:
                # Made by the evaluation: a cached length, a counter.
                if name not in self._given(module):
                    del values[name]
            for name, value in plain.items():
                values[name] = value
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        restore_rng(self._rng)
        return tuple(wrong)

    def _given(self, module: torch.nn.Module) -> frozenset[str]:
        """Return attributes that are tensors now as they were before."""
        return frozenset(name for m, name, _, _ in self._attributes if m is module)


def fix_rng(seed: int) -> None:
    """Seed all random states that exist: each evaluation draws the same noise.

    CUDA is left alone where it was not started.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def _plain_of(module: torch.nn.Module) -> dict[str, object]:
    return {name: v for name, v in vars(module).items() if isinstance(v, _PLAIN)}


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
