"""The fixed batches: which they are, and how they are made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trimtab.errors import ConfigError
from trimtab.guard.data.order import DataOrder
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trimtab.guard.data.streams import Order

__all__ = ["FixedBatches", "Metrics", "as_validation"]


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

        The random states are left as they are: reading an item may draw from them.
        """
        if self._batches:
            return True
        kept = capture_rng()
        try:
            self._batches = self._read()
        finally:
            restore_rng(kept)
        return bool(self._batches)

    def _read(self) -> list[object]:
        if self._loader is not None:
            found: list[object] = []
            for batch in self._loader:
                found.append(clone(batch))
                if len(found) == self._count:
                    break
            return found
        if isinstance(self._order, DataOrder):
            self._indices = self._order.last_batches(self._count)
            return [clone(self._order.load_items(i)) for i in self._indices]
        return self._seen if len(self._seen) == self._count else []

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
        " that returns {name: (value, 'up' or 'down')}"
    )
