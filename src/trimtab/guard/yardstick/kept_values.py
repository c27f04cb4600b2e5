"""Saves what objects keep in containers, generators and attributes, and puts it back in place.

The walk begins at given objects and follows lists, tuples, dicts, sets, deques and the attributes
of objects, what methods are bound to, what functions hold in closures and defaults, and the
arguments of partial functions. Variables of modules and attributes of classes are not followed:
what else uses them is not known. Nothing is replaced by a copy: an object that is bound in two
places stays one object, and what was added by an evaluation is taken out again. What cannot be put
back, such as an iterator that has moved on, is refused: it is named before anything runs.
"""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import io
import random
import types
import weakref
from collections.abc import Iterator
from pathlib import PurePath
from re import Pattern
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["KeptValues", "generators_in", "held_by", "is_random", "same"]

_LEAVES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    range,
    slice,
    enum.Enum,
    Pattern,
    PurePath,
    datetime.date,
    datetime.timedelta,
    io.IOBase,
    np.generic,
    weakref.ref,
    torch.dtype,
    torch.device,
    torch.Size,
    types.ModuleType,
    types.BuiltinFunctionType,
)
"""What no evaluation changes, and what it may not be held back from: files, types, modules."""
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
"""Functions that hold values: in closures, in what they are bound to, in arguments."""
_PLAIN = (
    dict,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
    list,
    collections.deque,
    bytearray,
    set,
    tuple,
    frozenset,
)
"""Containers that hold nothing beside their items."""
_MOST_VALUES = 200_000
"""Values that are walked over; more are refused."""
_MOST_BYTES = 1 << 26
"""Of a tensor or array that is no buffer and no parameter, above which it is not copied."""
_FEW = 100
_FOREIGN = (
    "torch",
    "trimtab",
    "threading",
    "_thread",
    "logging",
    "concurrent",
    "queue",
    "multiprocessing",
    "asyncio",
    "socket",
)
"""Packages whose objects are left alone: they are no part of a model's own state."""
_RANDOM = (
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
)


class KeptValues:
    """Values as they were when they were saved."""

    def __init__(self, passed: Sequence[torch.Tensor]) -> None:
        """Begin with nothing.

        Args:
            passed: Tensors that are not looked at: parameters, and buffers, which are saved apart.
        """
        self.refused: list[str] = []
        """What cannot be put back; where it is, in words."""
        self._seen: dict[int, object] = {id(t): t for t in passed}
        self._undo: list[Callable[[], bool]] = []
        self._names: list[str] = []
        self._full = False

    def save(self, value: object, name: str) -> None:
        """Save a value and all that it holds."""
        todo = [(value, name)]
        while todo:
            value, name = todo.pop()
            if isinstance(value, _LEAVES) or id(value) in self._seen:
                continue
            if len(self._seen) >= _MOST_VALUES:
                if not self._full:
                    self.refused.append(f"{name} and more than {_MOST_VALUES} other values")
                self._full = True
                return
            self._seen[id(value)] = value  # held, so that no other object gets its id
            if isinstance(value, torch.nn.Module):
                name = type(value).__name__
            todo += [(v, f"{name}{place}") for v, place in self._take(value, name)]

    def put_back(self) -> tuple[str, ...]:
        """Put all back; return the names of what is still not as it was."""
        done = zip(self._undo, self._names, strict=True)
        return tuple(name for undo, name in done if not undo())

    def _add(self, undo: Callable[[], bool], name: str) -> None:
        self._undo.append(undo)
        self._names.append(name)

    def _take(self, value: object, name: str) -> list[tuple[object, str]]:
        """Save one value; return what it holds."""
        if is_random(value):
            self._add(_generator(value), name)
        elif isinstance(value, torch.Tensor):
            if value.numel() * value.element_size() <= _MOST_BYTES:
                self._add(_tensor(value), name)
            else:
                self._add(_unchanged(value), name)
        elif isinstance(value, np.ndarray):
            if value.nbytes > _MOST_BYTES or value.dtype.hasobject:
                self.refused.append(name)
            else:
                self._add(_array(value), name)
        elif isinstance(value, _CALLABLES):
            return self._take_callable(value, name)
        elif type(value) is array.array:
            self._add(_numbers(value), name)
        elif isinstance(value, dict):
            self._add(_mapping(value), name)
            return [(v, f"[{k!r}]"[:40]) for k, v in value.items()] + self._beside(value, name)
        elif isinstance(value, list | collections.deque | bytearray):
            self._add(_sequence(value), name)
            items = [] if isinstance(value, bytearray) else _numbered(value)
            return items + self._beside(value, name)
        elif isinstance(value, set):
            self._add(_set(value), name)
            return _numbered(value) + self._beside(value, name)
        elif isinstance(value, tuple | frozenset):
            return _numbered(value) + self._beside(value, name)
        elif isinstance(value, Iterator):
            self.refused.append(f"{name} ({type(value).__name__})")
        else:
            return self._take_object(value, name)
        return []

    def _beside(self, value: object, name: str) -> list[tuple[object, str]]:
        """Save the attributes of a container; return what they hold."""
        return [] if type(value) in _PLAIN else self._take_object(value, name)

    def _take_callable(self, value: object, name: str) -> list[tuple[object, str]]:
        """Save what a function can rebind; return what it holds."""
        if _is_foreign(value):
            return []
        found = _held_by_callable(value)
        if isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                if id(cell) not in self._seen:
                    self._seen[id(cell)] = cell
                    self._add(_cell(cell), name)
        own = getattr(value, "__dict__", None)
        # That of a method is that of its function.
        if own and not isinstance(value, types.MethodType):
            self._add(_mapping(own), name)
            found += [(v, f".{k}") for k, v in own.items()]
        return found

    def _take_object(self, value: object, name: str) -> list[tuple[object, str]]:
        if _is_foreign(value) and not isinstance(value, torch.nn.Module):
            return []
        found: list[tuple[object, str]] = []
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            self._add(_mapping(own), name)
            found += [(v, f".{k}") for k, v in own.items()]
        slots = _slots_of(value)
        if slots:
            self._add(_slots(value, slots), name)
            found += [(getattr(value, s), f".{s}") for s in slots]
        return found


def generators_in(value: object, *, most: int = 1000) -> list[object]:
    """Return the random generators that an object holds, directly or in what it refers to.

    Long containers are not looked through: a dataset may hold its samples in one.
    """
    found: list[object] = []
    seen: dict[int, object] = {}
    todo = [value]
    while todo and len(seen) < most:
        value = todo.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if is_random(value):
            found.append(value)
        elif isinstance(value, _CALLABLES):
            todo += [v for v, _ in _held_by_callable(value)]
        elif isinstance(value, list | tuple | dict):
            if len(value) <= _FEW:
                todo += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, torch.Tensor | np.ndarray | torch.nn.Module):
            own = getattr(value, "__dict__", None)
            todo += own.values() if isinstance(own, dict) else ()
    return found


def held_by(value: object) -> list[tuple[object, str]]:
    """Return what a container, function or object holds directly, each with where it is.

    Long containers are not looked through, nor objects of torch and of this package.
    """
    if isinstance(value, _CALLABLES):
        return [] if _is_foreign(value) else _held_by_callable(value)
    if isinstance(value, dict):
        return [(v, f"[{k!r}]"[:40]) for k, v in value.items()] if len(value) <= _FEW else []
    if isinstance(value, list | tuple):
        return _numbered(value) if len(value) <= _FEW else []
    if isinstance(value, _LEAVES) or _is_foreign(value):
        return []
    own = getattr(value, "__dict__", None)
    return [(v, f".{k}") for k, v in own.items()] if type(own) is dict else []


def _is_foreign(value: object) -> bool:
    """Whether an object, or a function, is of a package whose objects are left alone."""
    while isinstance(value, functools.partial | types.MethodType):
        value = value.func if isinstance(value, functools.partial) else value.__self__
    of = value if isinstance(value, types.FunctionType) else type(value)
    is_module = isinstance(value, torch.nn.Module)
    return not is_module and str(of.__module__).partition(".")[0] in _FOREIGN


def _held_by_callable(value: object) -> list[tuple[object, str]]:
    if isinstance(value, types.MethodType):
        return [(value.__self__, ".__self__"), (value.__func__, ".__func__")]
    if isinstance(value, functools.partial):
        named = [(v, f"({k}=)") for k, v in value.keywords.items()]
        return [(value.func, ".func"), *((v, f"({i})") for i, v in enumerate(value.args)), *named]
    assert isinstance(value, types.FunctionType)
    names = value.__code__.co_freevars
    cells = [
        (cell.cell_contents, f" ({name} in its closure)")
        for name, cell in zip(names, value.__closure__ or (), strict=True)
        if _is_filled(cell)
    ]
    given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return cells + [(v, " (a default)") for v in given]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def is_random(value: object) -> bool:
    """Whether a value is a generator of random numbers with a state of its own."""
    return isinstance(value, _RANDOM)


def _numbered(values: object) -> list[tuple[object, str]]:
    assert isinstance(values, list | collections.deque | set | tuple | frozenset)
    return [(v, f"[{i}]") for i, v in enumerate(values) if not isinstance(v, _LEAVES)]


# -- one kind each: what puts it back, and says whether it is as it was --------------------------


def _generator(value: object) -> Callable[[], bool]:
    if isinstance(value, torch.Generator):
        state = value.get_state()

        def back() -> bool:
            value.set_state(state)
            return torch.equal(value.get_state(), state)

        return back
    if isinstance(value, random.Random):
        kept = value.getstate()

        def back_python() -> bool:
            value.setstate(kept)
            return True

        return back_python
    bits = value if isinstance(value, np.random.BitGenerator) else _bits(value)
    numbers = bits.state

    def back_numpy() -> bool:
        bits.state = numbers
        return True

    return back_numpy


def _bits(value: object) -> np.random.BitGenerator:
    if isinstance(value, np.random.Generator):
        return value.bit_generator
    assert isinstance(value, np.random.RandomState)
    bits: np.random.BitGenerator = value._bit_generator
    return bits


def _tensor(value: torch.Tensor) -> Callable[[], bool]:
    copy = value.detach().clone()

    def back() -> bool:
        if value.shape != copy.shape:
            with torch.no_grad():
                value.resize_(copy.shape)
        if not same(value, copy):
            with torch.no_grad():
                value.copy_(copy)
        return same(value, copy)

    return back


def _unchanged(value: torch.Tensor) -> Callable[[], bool]:
    """Too large to copy: only its count of changes is kept."""
    if value.is_inference():
        return lambda: True
    version = value._version
    return lambda: value._version == version


def _array(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Callable[[], bool]:
    copy = value.copy()

    def back() -> bool:
        if value.tobytes() != copy.tobytes():
            if not value.flags.writeable:
                return False
            value[...] = copy
        return True

    return back


def _cell(cell: types.CellType) -> Callable[[], bool]:
    filled = _is_filled(cell)
    copy = cell.cell_contents if filled else None

    def back() -> bool:
        if not filled:
            if _is_filled(cell):
                del cell.cell_contents
        elif not _is_filled(cell) or cell.cell_contents is not copy:
            cell.cell_contents = copy
        return True

    return back


def _numbers(value: array.array[int] | array.array[float]) -> Callable[[], bool]:
    copy = value[:]

    def back() -> bool:
        if value.tobytes() != copy.tobytes():
            value[:] = copy  # type: ignore[assignment]
        return True

    return back


def _mapping(value: dict[object, object]) -> Callable[[], bool]:
    copy = list(value.items())

    def back() -> bool:
        now = list(value.items())
        if [k for k, _ in now] == [k for k, _ in copy]:
            # Only what differs is written: a compiled model watches what it was compiled for.
            for (k, v), (_, old) in zip(now, copy, strict=True):
                if v is not old:
                    value[k] = old
        else:
            value.clear()
            value.update(copy)
        return True

    return back


def _sequence(
    value: list[object] | collections.deque[object] | bytearray,
) -> Callable[[], bool]:
    copy = list(value)

    def back() -> bool:
        same_ones = len(value) == len(copy) and all(
            a is b for a, b in zip(value, copy, strict=True)
        )
        if not same_ones:
            value.clear()
            value.extend(copy)  # type: ignore[arg-type]
        return True

    return back


def _set(value: set[object]) -> Callable[[], bool]:
    copy = set(value)

    def back() -> bool:
        if value != copy:
            value.clear()
            value.update(copy)
        return True

    return back


def _slots_of(value: object) -> list[str]:
    found: list[str] = []
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return [s for s in found if not s.startswith("__") and hasattr(value, s)]


def _slots(value: object, names: Sequence[str]) -> Callable[[], bool]:
    copy = [(n, getattr(value, n)) for n in names]

    def back() -> bool:
        for name, old in copy:
            if getattr(value, name, None) is not old:
                try:
                    object.__setattr__(value, name, old)
                except (AttributeError, TypeError):
                    return False
        return True

    return back


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
