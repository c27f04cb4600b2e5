"""The fixed batches: which they are, and how they are made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from trimtab.errors import ConfigError
from trimtab.guard.data.order import DataOrder
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import capture_rng, restore_rng
from trimtab.guard.yardstick.isolation import FIXED_SEED, fix_rng
from trimtab.guard.yardstick.kept_values import KeptValues, generators_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from trimtab.guard.data.streams import Order

__all__ = ["FixedBatches", "Metrics", "as_validation"]


_MOST_SUMMED = 1_000_000
"""Values of the batches that go into their digest; more count as other batches after a restart."""


@runtime_checkable
class Metrics(Protocol):
    """Evaluates the model itself: the metrics by name, each with its good direction."""

    def __call__(self) -> Mapping[str, tuple[float, str]]:
        """Return name -> (value, "up" or "down"): the direction in which it gets better."""


class FixedBatches:
    """A few batches that stay the same, kept as copies on the host."""

    def __init__(self, order: Order, loader: Iterable[object] | None, *, count: int) -> None:
        """Choose from the end of the data order, or take the first batches of a loader.

        Args:
            order: Of the training data; read only where there is no loader.
            loader: Of held-out data; None: there is none.
            count: How many batches.
        """
        self._order = order
        self._loader = loader
        self._count = count
        self._batches: list[object] = []
        self._indices: list[list[int]] = []
        self._seen: list[object] = []
        self._again: list[list[int]] = []
        self._digest = ""

    @property
    def identity(self) -> dict[str, object]:
        """What shows after a restart whether the batches are the same: a digest, and sample ids.

        The ids are those of a dataset, one list for each batch; without them where there are none.
        """
        told: dict[str, object] = {"batches": self._digest}
        return told | ({"samples": self._indices} if self._indices else {})

    def take_again(self, samples: object) -> None:
        """Take these samples of the dataset in `fill`, as the process before did.

        What is no list of lists of ids, or does not fit the dataset, is passed over: the digest
        then shows that the batches are others.
        """
        if isinstance(samples, list) and all(isinstance(x, list) for x in samples):
            self._again = samples

    @property
    def batches(self) -> tuple[object, ...]:
        """The batches; empty before `fill`."""
        return tuple(self._batches)

    @property
    def source(self) -> str:
        """Where they come from, for the journal."""
        if self._loader is not None:
            return "validate"
        return "end of the data order" if self._indices else "first batches of the stream"

    def see(self, batch: object) -> None:
        """Copy a batch that is handed out, where the data is a stream: its end is not known."""
        streamed = self._loader is None and not isinstance(self._order, DataOrder)
        if streamed and len(self._seen) < self._count:
            self._seen.append(clone(batch))

    def fill(self) -> bool:
        """Read the batches, once; return whether there are enough.

        The random states are left as they are, and those of generators that the dataset holds:
        reading an item may draw from them.
        """
        if self._batches:
            return True
        self._batches = self._undisturbed(self._read)
        self._digest = _digest(self._batches) if self._batches else ""
        return bool(self._batches)

    def fed_last(self) -> list[object]:
        """Return as many batches as these, that were fed last in this epoch; empty: there are not.

        Those of a stream cannot be read again. The random states stay as they are, as in `fill`.
        """
        order, count = self._order, len(self._batches)
        if self._loader is not None or not isinstance(order, DataOrder) or not count:
            return []
        newest = order.newest_batches(count)
        if len(newest) < count:
            return []
        return self._undisturbed(lambda: [clone(order.load_items(i)) for i in newest])

    def _undisturbed(self, read: Callable[[], list[object]]) -> list[object]:
        """Return what is read, with the same draws each time; put the random states back."""
        kept, own = capture_rng(), KeptValues(())
        # The same draws after a restart: augmented samples, the order of a shuffled loader.
        fix_rng(FIXED_SEED)
        for generator in generators_in(self._source_object()):
            own.save(generator, "a generator of the data")
        try:
            return read()
        finally:
            own.put_back()
            restore_rng(kept)

    def leave_out(self, numbers: Collection[int]) -> None:
        """Read these batches no more, by their number; after a restart neither."""
        kept = [i for i in range(len(self._batches)) if i not in numbers]
        self._batches = [self._batches[i] for i in kept]
        self._indices = [self._indices[i] for i in kept] if self._indices else []
        self._digest = _digest(self._batches)

    def _source_object(self) -> object:
        if self._loader is not None:
            return self._loader
        return self._order.dataset if isinstance(self._order, DataOrder) else None

    def _read(self) -> list[object]:
        if self._loader is not None:
            found: list[object] = []
            for batch in self._loader:
                found.append(clone(batch))
                if len(found) == self._count:
                    break
            return found
        if isinstance(self._order, DataOrder):
            if 0 < len(self._again) <= self._count and (again := self._load_again()):
                return again
            self._indices = [list(map(int, i)) for i in self._order.last_batches(self._count)]
            return [clone(self._order.load_items(i)) for i in self._indices]
        return self._seen if len(self._seen) == self._count else []

    def _load_again(self) -> list[object]:
        assert isinstance(self._order, DataOrder)
        try:
            found = [clone(self._order.load_items(i)) for i in self._again]
        except (IndexError, KeyError, TypeError, ValueError):
            return []  # another dataset
        self._indices = self._again
        return found

    def trained_on(self, *, steps: int | None, accumulate: int) -> bool | None:
        """Whether the run trains on them, too; None: that is not known.

        Args:
            steps: Of the whole run; None: not known.
            accumulate: Batches that make one step.
        """
        if self._loader is not None:
            return False
        if not self._indices or steps is None or not isinstance(self._order, DataOrder):
            return None if self._indices else True
        return steps * accumulate > self._order.num_batches - len(self._indices)


def _digest(value: object) -> str:
    """Return a digest of all tensors and arrays, and of the text of what else there is."""
    summed, todo, seen = hashlib.blake2b(digest_size=12), [value], 0
    while todo:
        value, seen = todo.pop(), seen + 1
        if seen > _MOST_SUMMED:  # an object that holds itself, or one of another kind than a batch
            return os.urandom(12).hex()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            summed.update(f"{value.dtype}{tuple(value.shape)}".encode())
            flat = value.detach().cpu().contiguous().flatten()
            summed.update(flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            todo += [x for pair in value.items() for x in pair]
        elif isinstance(value, list | tuple):
            summed.update(f"{len(value)}".encode())
            todo += value
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            summed.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        elif isinstance(value, str | bytes | int | float | bool | None):
            summed.update(repr(value).encode())
        elif not isinstance(value, torch.Tensor) and getattr(value, "__dict__", None):
            summed.update(type(value).__qualname__.encode())
            todo.append(vars(value))
        else:
            # What cannot be compared is not provably the same: never equal after a restart.
            summed.update(os.urandom(12))
    return summed.hexdigest()


def as_validation(value: object) -> tuple[Iterable[object] | None, Metrics | None]:
    """Return the loader or the function that `Guard(validate=...)` was given.

    Raises:
        ConfigError: It is neither.
    """
    if value is None:
        return None, None
    if hasattr(value, "__iter__") and not hasattr(value, "__next__"):
        return value, None
    if isinstance(value, Metrics) and not isinstance(value, type):
        return None, value
    raise ConfigError(
        f"validate is {type(value).__name__}, expected a loader of held-out batches, or a function"
        " that returns a loss or {name: (value, 'up' or 'down')}"
    )
