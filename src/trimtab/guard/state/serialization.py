"""A training state as tensors plus JSON, and back: what goes to disk holds no pickle of ours.

`split` walks nested dicts, lists and tuples; tensors and arrays go into one flat dict by path, the
rest becomes JSON with tags for what JSON cannot say (tuples, keys that are not strings, NaN).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AsJson", "clone", "join", "split"]

_TAG = "__trimtab__"


class AsJson(dict[str, Any]):
    """A part of a state that is JSON already: a judge has tens of thousands of numbers."""


def clone(state: Any) -> Any:
    """Return a deep copy whose tensors live on the CPU, detached."""
    if isinstance(state, torch.Tensor):
        return _on_host(state.detach())
    if isinstance(state, Counter):  # MultiStepLR keeps its milestones in one
        return Counter(state)
    if isinstance(state, dict):
        return {k: clone(v) for k, v in state.items()}
    if isinstance(state, list):
        return [clone(v) for v in state]
    if isinstance(state, tuple):
        return tuple(clone(v) for v in state)
    if isinstance(state, np.ndarray):
        return state.copy()
    return state


_WASTE = 1.25
"""Most that pinned memory may be larger than what lies in it: torch takes powers of two. Ours."""


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in host memory; that of a CUDA tensor in pinned memory where little is wasted.

    A device copies into it at the full speed of its bus; fresh pages take ten times as long, and
    torch keeps pinned ones for the next copy.
    """
    size = tensor.nbytes
    plain = type(tensor) is torch.Tensor and tensor.is_cuda and tensor.layout == torch.strided
    if plain and size >= _LEAST_PINNED and 1 << (size - 1).bit_length() <= _WASTE * size:
        with contextlib.suppress(RuntimeError):  # no more memory can be pinned
            return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
    return tensor.to("cpu", copy=True)


_LEAST_PINNED = 1 << 16
"""Bytes below which it does not matter."""


def split(state: Any, path: str = "state") -> tuple[dict[str, torch.Tensor], Any]:
    """Return (tensors by path, JSON tree) of a nested state.

    Raises:
        ActError: A value is of a type that cannot be saved; the message names its path.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _split(state, path, tensors)


_PLAIN = frozenset((bool, int, str, type(None)))
"""Types of values that JSON holds as they are; a subclass of one takes the long way."""


def _are_plain(values: Iterable[Any]) -> bool:
    """Whether JSON holds all values as they are: in bulk, for a judge has tens of thousands."""
    kinds = set(map(type, values))
    return kinds <= _PLAIN or (
        kinds <= _PLAIN | {float} and all(math.isfinite(v) for v in values if type(v) is float)
    )


def _split(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if type(value) in _PLAIN:
        return value
    while path in tensors:  # {"a.b": x, "a": {"b": y}}
        path += "'"
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return {_TAG: "tensor", "at": path}
    if isinstance(value, np.ndarray):
        # NumPy's generator holds uint32, which torch supports only in part; `dtype` restores it.
        tensors[path] = torch.from_numpy(
            value.astype(np.int64) if value.dtype.kind in "iub" else value.astype(np.float64)
        )
        return {_TAG: "array", "at": path, "dtype": str(value.dtype)}
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if isinstance(value, np.generic):
        return _split(value.item(), path, tensors)
    if isinstance(value, list):
        if _are_plain(value):
            return list(value)
        return [_split(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return {
            _TAG: "tuple",
            "items": [_split(v, f"{path}.{i}", tensors) for i, v in enumerate(value)],
        }
    if isinstance(value, Counter):
        return {_TAG: "counter", "items": [_split(x, path, tensors) for x in value.elements()]}
    if isinstance(value, AsJson):
        return value
    if isinstance(value, dict):
        if all(isinstance(k, str) and k != _TAG for k in value):
            return {
                k: v if type(v) in _PLAIN else _split(v, f"{path}.{k}", tensors)
                for k, v in value.items()
            }
        pairs = [
            [_split(k, f"{path}.{k}!key", tensors), _split(v, f"{path}.{k}", tensors)]
            for k, v in value.items()
        ]
        return {_TAG: "dict", "items": pairs}
    raise ActError(
        f"{path} is a {type(value).__name__}, which cannot be saved without pickle; give its object"
        " a state_dict of tensors and plain values"
    )


def join(tensors: dict[str, torch.Tensor], tree: Any) -> Any:
    """Return the nested state that `split` took apart."""
    if isinstance(tree, list):
        return [join(tensors, v) for v in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_TAG)
    if kind is None:
        return {k: join(tensors, v) for k, v in tree.items()}
    if kind == "tensor":
        return tensors[tree["at"]]
    if kind == "array":
        return tensors[tree["at"]].numpy().astype(np.dtype(tree["dtype"]))
    if kind == "float":
        return float(tree["value"])
    if kind == "counter":
        return Counter(join(tensors, v) for v in tree["items"])
    if kind == "tuple":
        return tuple(join(tensors, v) for v in tree["items"])
    return {join(tensors, k): join(tensors, v) for k, v in tree["items"]}
