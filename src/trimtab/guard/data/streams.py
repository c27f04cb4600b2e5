"""Data that is only read forwards: streams, and loaders that keep their own place.

A map-style dataset is fetched by index, see `data`. A stream has no indices; what makes it go back
is its own `state_dict` (torchdata's `StatefulDataLoader` with its workers, HF's `IterableDataset`),
or, where it has none, reading the epoch again up to the place. Sample ids count what came out of
the stream, from 0 and on through epochs: they are the same after a rollback, a restart, and what is
skipped is read and thrown away.

Limits: without a `state_dict`, going back costs reading the epoch again, and the stream must come
again in the same order under the same random state; where it does not, that is an error. HF's
shuffle buffer comes back empty in another process, as it does without a guard. Items cannot be
withheld by index: a stream has none.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from trimtab.errors import ActError, ConfigError
from trimtab.guard.data.fed_before import FedBefore
from trimtab.guard.data.order import DataOrder, generators_of
from trimtab.guard.state.decisions import sample_range
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trimtab.guard.state.training_state import StateDict

__all__ = ["Order", "StreamOrder", "is_stream", "open_order"]

_MOST_ELEMENTS = 1 << 14
"""Elements of a batch that its checksum covers."""


def is_stream(data: object) -> bool:
    """Whether data keeps its own place, or can only be read forwards."""
    dataset = getattr(data, "dataset", None)
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    if indexed:
        return any(c.__name__ == "StatefulDataLoader" for c in type(data).__mro__)
    return hasattr(data, "__iter__") and not isinstance(data, list | tuple | dict)


def open_order(data: Any) -> Order:
    """Return the cursor over the data that fits it.

    Raises:
        ConfigError: It cannot be rewound.
    """
    if isinstance(data, StreamOrder):
        return data
    return StreamOrder(data) if is_stream(data) else DataOrder(data)


class StreamOrder:
    """A cursor over a stream's batches that can be moved and saved."""

    reordered = ""
    """How the order differs from the saved one; always empty: a stream's own state decides."""
    withheld: tuple[tuple[int, int], ...] = ()

    def __init__(
        self, loader: Any, *, replicas: int | None = None, epoch_batches: int | None = None
    ) -> None:
        """Take over a stream of batches.

        Args:
            loader: Gives batches each time it is iterated; one whose `iter()` is itself can be read
                only once, and is refused.
            replicas: Over how many ranks the samples are dealt out; default: what an HF dataset
                split by node says, else 1, so that ids count each rank's own samples.
            epoch_batches: What `epoch_share` counts against where the loader has no length.

        Raises:
            ConfigError: The stream cannot be read twice.
        """
        if hasattr(loader, "__next__"):
            raise ConfigError(
                f"data is {type(loader).__name__}, an iterator that can be read only once: the"
                " guard must be able to go back; pass what it is made from, such as a DataLoader"
            )
        self._loader = loader
        self._owner = loader if _keeps_place(loader) else getattr(loader, "dataset", None)
        if not _keeps_place(self._owner) or (
            self._owner is not loader and getattr(loader, "num_workers", 0) > 0
        ):
            self._owner = None  # a worker's copy of the dataset holds the place: read again instead
        self.replicas = replicas or _replicas(loader)
        self._epoch_batches = epoch_batches
        self._generators = generators_of(loader)
        self._batches: Iterator[object] | None = None
        self._skips: list[tuple[int, int]] = []
        self._epoch, self._cursor, self._position = -1, 0, 0
        self._epoch_rng: StateDict | None = None
        self._last = 0
        self._at_end = False
        self._before = FedBefore()

    def steps_per_epoch(self, accumulate: int) -> int | None:
        """Return the steps of one epoch where the loader has a length.

        It is None elsewhere: only the stream's end shows how many there are.
        """
        try:
            return -(-len(self._loader) // accumulate)
        except (TypeError, NotImplementedError):
            return None

    @property
    def shape(self) -> dict[str, int | None]:
        """What sample ids rest on, where the loader says it."""
        size = getattr(self._loader, "batch_size", None)
        return {"batch_size": size if isinstance(size, int) else None, "samples": None}

    def differs(self, saved: dict[str, int | None] | None) -> str:
        """Return in words how the batch size is not the saved one; empty where it is."""
        if not saved or saved == self.shape:
            return ""
        was, now = saved.get("batch_size"), self.shape["batch_size"]
        return (
            f"the data came in batches of {was}, now of {now}: a stream's place may not mean the"
            " same as before"
        )

    @property
    def fingerprint(self) -> str:
        """Checksum of the newest batch; a stream has no order that is known beforehand."""
        return f"{self._last:08x}"

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""
        return tuple(self._skips)

    def skip(self, first: int, last: int) -> None:
        """Never feed the batches that hold sample ids first..last again.

        Raises:
            ConfigError: The range is empty or negative.
        """
        self._skips.append(sample_range(first, last))

    def unskip(self, first: int, last: int) -> None:
        """Undo one `skip`; a range that was not skipped is left alone."""
        if (first, last) in self._skips:
            self._skips.remove((first, last))

    def withhold(self, ranges: Iterable[tuple[int, int]], *, of: int) -> int:
        """Refuse: a stream has no indices."""
        del ranges, of
        raise ConfigError(
            "a skip list names items by index, and this data is a stream without any; leave the"
            " samples out by guard.skip_samples(first, last), or pass a DataLoader over a dataset"
            " with __getitem__"
        )

    def switch(self, loader: Any) -> int:
        """Refuse: the place in one stream says nothing of another."""
        raise ConfigError(
            "another shard can be taken up in mid-run only for data with __getitem__, not for"
            f" {type(loader).__name__}; start a new run directory with it"
        )

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0; -1 before the first batch."""
        return self._epoch

    @property
    def epoch_share(self) -> float:
        """Share of the epoch that was handed out; 0 where its length is not known nor given."""
        total = self.steps_per_epoch(1) or self._epoch_batches
        return min(self._cursor / total, 1.0) if total else 0.0

    @property
    def at_end(self) -> bool:
        """Whether the epoch has no batch left, as far as is known."""
        total = self.steps_per_epoch(1)
        return self._at_end or (total is not None and self._cursor >= total)

    @property
    def position(self) -> int:
        """Sample id that comes next."""
        return self._position

    def fetch(self) -> tuple[object, int, int] | None:
        """Return the next batch with its first and last sample id; None at the end of an epoch."""
        if self._epoch < 0:
            self.next_epoch()
        while True:
            found = self._read()
            if found is None:
                return None
            batch, first, last = found
            if not any(a <= last and first <= b for a, b in self._skips):
                return batch, first, last

    def _read(self) -> tuple[object, int, int] | None:
        if self._batches is None:
            self._batches = iter(self._loader)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._at_end = True
            return None
        first = self._position
        self._cursor += 1
        self._position += _num_samples(batch) * self.replicas
        self._last = _checksum(batch)
        self._before.see(self._last)
        return batch, first, self._position - 1

    def next_epoch(self) -> None:
        """Go on to the next epoch."""
        self._epoch += 1
        self._cursor, self._at_end, self._batches = 0, False, None
        self._before.begin_epoch()
        self._tell_epoch()
        self._epoch_rng = capture_rng()

    def advance(self, batches: int) -> None:
        """Go on by so many batches without handing them out, through epochs."""
        if self._epoch < 0:
            self.next_epoch()
        while batches > 0:
            if self._read() is None:
                self.next_epoch()
            else:
                batches -= 1

    def state_dict(self) -> StateDict:
        """Return the position: epoch, batches read of it, and the stream's own state if it has one.

        Cost: as much as the stream's own `state_dict`.
        """
        return {
            "stream": self._own_state(),
            "epoch": self._epoch,
            "cursor": self._cursor,
            "position": self._position,
            "replicas": self.replicas,
            "epoch_rng": clone(self._epoch_rng),
            "last": self._last,
            "fed": self._before.state(),
            "fingerprint": self.fingerprint,
            "at_end": self._at_end,
            "generators": [g.get_state() for g in self._generators] if self._epoch < 0 else [],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Go to a saved position; the random states of the process are left as they are.

        Raises:
            ActError: The position was saved for another kind of data or number of ranks, or the
                stream does not come again as it was.
        """
        if "stream" not in state:
            raise ActError(
                "the saved position is of data with indices, this run's is a stream; hand over the"
                " same"
            )
        if state["replicas"] != self.replicas:
            raise ActError(
                f"the stream was dealt out to {state['replicas']} ranks, now to {self.replicas}:"
                " its place cannot be found again; start with as many ranks"
            )
        kept = capture_rng()
        try:
            self._go_to(state)
        finally:
            restore_rng(kept)
        self._before.go_on_from(state.get("fed", ()))  # earlier versions kept none

    def take_note(self) -> str:
        """Return, once, that batches of before a resume are fed again; else empty."""
        return self._before.take_told()

    def _go_to(self, state: StateDict) -> None:
        self._batches = None
        self._epoch, self._cursor = int(state["epoch"]), int(state["cursor"])
        self._position, self._last = int(state["position"]), int(state["last"])
        self._epoch_rng, self._at_end = clone(state["epoch_rng"]), bool(state["at_end"])
        if self._epoch < 0:
            self._load_own({} if self._owner is self._loader else state["stream"])
            for generator, saved in zip(self._generators, state["generators"], strict=True):
                generator.set_state(saved)
        elif self._owner is None or state["stream"] is None:
            self._tell_epoch()
            self._read_again()
        else:
            self._tell_epoch()
            self._load_own(state["stream"])
            if self._cursor:  # a loader draws a seed as it begins: not from the run's states again
                self._batches = iter(self._loader)

    def _own_state(self) -> Any:
        """Return the stream's own state.

        It is None before the first batch of a loader that keeps its place: reading its state would
        start its iteration.
        """
        if self._owner is None or (self._epoch < 0 and self._owner is self._loader):
            return None
        return clone(self._owner.state_dict())

    def _load_own(self, state: Any) -> None:
        if self._owner is not None and state is not None:
            self._owner.load_state_dict(clone(state))

    def _tell_epoch(self) -> None:
        """Tell a dataset that shuffles by the epoch which one it is."""
        tell = getattr(getattr(self._loader, "dataset", None), "set_epoch", None)
        if tell is not None:
            tell(max(self._epoch, 0))

    def _read_again(self) -> None:
        """Read the epoch from its beginning up to the place, under its first random state."""
        number, position, last = self._cursor, self._position, self._last
        if self._epoch_rng is not None:
            restore_rng(self._epoch_rng)
        self._cursor = 0
        for _ in range(number):
            if self._read() is None:
                raise ActError(
                    f"the stream ends after {self._cursor} batches, {number} were read of it before"
                )
        if number and self._last != last:
            raise ActError(
                f"batch {number} of epoch {self._epoch + 1} is not the one that came before: the"
                " stream does not repeat under the same seed; give it a state_dict, or a fixed"
                " order"
            )
        self._position = position

    def close(self) -> None:
        """Let go of the iteration under way, and of the worker processes that it has."""
        self._batches = None

    def forget_order(self) -> None:
        """Do nothing: every `load_state_dict` reads the stream anew, as a new process does."""


Order = DataOrder | StreamOrder
"""What a guard goes through its data with."""


def _keeps_place(thing: object) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def _replicas(loader: Any) -> int:
    """Return over how many ranks an HF dataset was split by node; else 1."""
    split = getattr(getattr(loader, "dataset", None), "_distributed", None)
    number = getattr(split, "world_size", None)
    return number if isinstance(number, int) and number > 0 else 1


def _num_samples(batch: Any) -> int:
    """Return the samples of a batch: the length of its first tensor or list."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return next((_num_samples(batch[key]) for key in batch), 1)
    if isinstance(batch, tuple) and batch and isinstance(batch[0], torch.Tensor | list | tuple):
        return _num_samples(batch[0])
    if isinstance(batch, list) and batch and isinstance(batch[0], torch.Tensor) and batch[0].dim():
        return _num_samples(batch[0])
    return len(batch) if isinstance(batch, list | tuple) else 1


def _checksum(batch: object) -> int:
    """Return a checksum of the beginning of a batch's first tensor; 0 without one."""
    tensor = _first_tensor(batch)
    if tensor is None:
        return 0
    data = tensor.detach().to("cpu").contiguous().flatten()[:_MOST_ELEMENTS]
    return zlib.crc32(data.view(torch.uint8).numpy().tobytes())


def _first_tensor(batch: object) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    parts = batch.values() if hasattr(batch, "values") else batch
    if not isinstance(parts, str | bytes) and hasattr(parts, "__iter__"):
        return next((t for t in map(_first_tensor, parts) if t is not None), None)
    return None
