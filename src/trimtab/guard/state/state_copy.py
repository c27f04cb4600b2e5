"""Copies of the training state in host memory: what does not train is held once for all of them.

A snapshot copies what the optimizer trains and the optimizer's own state. Everything else in the
model (frozen weights, buffers that no step changes, quantised blocks) is copied the first time; a
later snapshot refers to that copy as long as the live tensor is the same bit for bit, so that going
back still puts it right where something has damaged it. Tensors that share their memory in the
model, such as tied embeddings, share one copy.

Cost of what is held once: on the CPU one comparison, on an accelerator one pass over it there and
no transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.guard.distributed.sharding import local
from trimtab.guard.state.pinned import PinnedCopies
from trimtab.guard.state.serialization import clone, tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.state.training_state import StateDict, Training

__all__ = ["LEAST_SHARED_BYTES", "StateCopier", "fingerprint", "state_bytes"]

LEAST_SHARED_BYTES = 1 << 16
"""Smaller tensors are copied each time: looking costs as much."""

_CHUNK = 1 << 20
"""Words of eight bytes that are weighed at a time."""

_MIX = -0x61C8864680B583EB
"""2^64 over the golden ratio, as a signed number: odd, and its multiples spread evenly."""

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class _Held:
    copy: torch.Tensor
    print: int | None
    """Fingerprint of a tensor on an accelerator."""


class StateCopier:
    """Copies states of one run, and holds once what does not change between them."""

    def __init__(self, training: Training) -> None:
        """Hold nothing yet."""
        self._training = training
        self._held: dict[str, _Held] = {}
        self.seconds = 0.0
        """What copying from a device took the last time, without the finding of memory; 0 where
        nothing lies on one."""

    @property
    def held(self) -> list[torch.Tensor]:
        """The copies that snapshots share."""
        return [h.copy for h in self._held.values()]

    def copy(self, payload: StateDict) -> StateDict:
        """Return a deep copy on the CPU of what `RunState.payload` gives."""
        self.seconds = 0.0
        return {
            name: self._training_copy(part) if name == "training" else clone(part)
            for name, part in payload.items()
        }

    def _training_copy(self, state: StateDict) -> StateDict:
        model = state.get("model")
        named = model if isinstance(model, dict) else {}
        own = self._own(named)
        others = tensors_in([part for role, part in state.items() if part is not named])
        copies = PinnedCopies([*(named[k] for k, first in own.items() if k == first), *others])
        self.seconds = copies.seconds
        return {
            role: self._model_copy(part, own, copies) if part is named else clone(part, copies)
            for role, part in state.items()
        }

    def _own(self, model: Mapping[str, object]) -> dict[str, str]:
        """Return the tensors that each snapshot holds itself, with the first that lies there."""
        trained = {local(p).data_ptr() for p in self._training.parameters if p.requires_grad}
        first: dict[tuple[object, ...], str] = {}
        found = {}
        for key, value in model.items():
            if not isinstance(value, torch.Tensor):
                continue
            mine = local(value)
            if mine.data_ptr() not in trained and mine.nbytes >= LEAST_SHARED_BYTES:
                continue
            where = (mine.data_ptr(), mine.shape, mine.stride(), mine.dtype)
            found[key] = first.setdefault(where, key) if mine.numel() else key
        return found

    def _model_copy(
        self, model: Mapping[str, object], own: Mapping[str, str], copies: PinnedCopies
    ) -> StateDict:
        copied: StateDict = {}
        shared: dict[tuple[object, ...], torch.Tensor] = {}
        for key, value in model.items():
            first = own.get(key, key)
            if first != key:
                copied[key] = copied[first]
            elif key in own or not isinstance(value, torch.Tensor):
                copied[key] = clone(value, copies)
            else:
                mine = local(value)
                where = (mine.data_ptr(), mine.shape, mine.stride(), mine.dtype)
                if where not in shared:
                    shared[where] = self._shared(key, value)
                copied[key] = shared[where]
        return copied

    def _shared(self, key: str, value: torch.Tensor) -> torch.Tensor:
        mine, held = local(value).detach(), self._held.get(key)
        mark = None if mine.device.type == "cpu" else fingerprint(mine)
        if held is not None:
            then = local(held.copy)
            if then.shape == mine.shape and then.dtype == mine.dtype:
                same = _same_bits(then, mine) if mark is None else mark == held.print
                if same:
                    return held.copy
        copy: torch.Tensor = clone(value)
        self._held[key] = _Held(copy, mark)
        return copy


def state_bytes(state: object, *, without: list[torch.Tensor] | None = None) -> int:
    """Return the memory of a nested state's tensors and arrays, each storage once, bytes.

    Args:
        state: Nested dicts, lists and tuples.
        without: Tensors whose storage does not count.
    """
    seen = {local(t).untyped_storage().data_ptr() for t in without or []}
    total = 0
    for leaf in tensors_in(state):
        if isinstance(leaf, np.ndarray):
            total += leaf.nbytes
            continue
        storage = local(leaf).untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type are alike, NaN and the sign of zero included."""
    kind = _SAME_SIZE.get(a.element_size())
    if kind is None:
        return False
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def fingerprint(tensor: torch.Tensor) -> int:
    """Return a number of 64 bits of a tensor's content, computed where it lies.

    One changed element always changes it; several do but for a chance of about 2^-64. Cost: one
    pass over it, and one read of the device.

    Example:
        >>> a, b = torch.zeros(5), torch.zeros(5)
        >>> b[3] = -0.0
        >>> fingerprint(a) == fingerprint(a.clone()), fingerprint(a) == fingerprint(b)
        (True, False)
    """
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    spare = -flat.numel() % 8
    if spare:
        flat = torch.cat([flat, flat.new_zeros(spare)])
    words = flat.view(torch.int64)
    # odd weights: a product with one of them loses no bit of a word
    weights = (torch.arange(1, min(_CHUNK, len(words)) + 1, device=flat.device) * _MIX) | 1
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in torch.split(words, _CHUNK):
        total = total * _MIX + (part * weights[: len(part)]).sum()
    return int(total)
