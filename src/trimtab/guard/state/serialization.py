"""A training state as tensors plus JSON, and back: what goes to disk holds no pickle of ours.

`split` walks nested dicts, lists and tuples; tensors and arrays go into one flat dict by path, the
rest becomes JSON with tags for what JSON cannot say (tuples, keys that are not strings, NaN).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from trimtab.errors import ActError
from trimtab.guard.state.pinned import PinnedCopies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["AsJson", "Copies", "clone", "join", "split", "tensors_in"]

_TAG = "__trimtab__"


class AsJson(dict[str, Any]):
    """A part of a state that is JSON already: a judge has tens of thousands of numbers."""


class Copies(Protocol):
    """Copies of tensors."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the copy of one; None where there is none."""
        ...


def clone(state: Any, copies: Copies | None = None) -> Any:
    """Return a deep copy whose tensors live on the CPU, detached.

    Args:
        state: Nested dicts, lists and tuples.
        copies: Copies of some of its tensors that are there already; None: those on a device are
            copied together.
    """
    if copies is None:
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        copies = PinnedCopies(tensors_in(state) if on_device else ())
    if isinstance(state, torch.Tensor):
        copy = copies.of(state)
        return state.detach().to("cpu", copy=True) if copy is None else copy
    if isinstance(state, Counter):  # MultiStepLR keeps its milestones in one
        return Counter(state)
    if isinstance(state, dict):
        return {k: clone(v, copies) for k, v in state.items()}
    if isinstance(state, list):
        return [clone(v, copies) for v in state]
    if isinstance(state, tuple):
        return tuple(clone(v, copies) for v in state)
    if isinstance(state, np.ndarray):
        return state.copy()
    return state


def tensors_in(state: object) -> Iterator[torch.Tensor | np.ndarray[Any, Any]]:
    """Yield the tensors and arrays of a nested state."""
    if isinstance(state, torch.Tensor | np.ndarray):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)


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
