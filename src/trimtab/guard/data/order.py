"""The order of the data, owned by the guard so that it can go back and leave data out.

A sample id is the absolute position of a sample in that order: the first sample of the first epoch
is 0, and ids go on through later epochs. The order is exactly the one that iterating the user's
DataLoader would give, drawn from the same random state, so in `observe` nothing changes. Batches
that hold a skipped id are left out whole, and stay out after every restart.

Apart from the order, items of the dataset can be withheld by their index, as a skip list names
them: a clean item of the same batch stands in, so that the shape of a batch and all ids stay what
they were. So are, in later epochs, the items of skipped ids: there they come under other ids. Each
rank withholds those of its own share.

Fetching is done with the loader's own dataset and collate function: by worker processes where the
loader has some (`workers`), in this process where it has none.
"""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_right
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from trimtab.errors import ConfigError
from trimtab.guard.data.workers import Workers, fetch
from trimtab.guard.state.decisions import sample_range
from trimtab.plan.skiplist import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trimtab.guard.state.training_state import StateDict

__all__ = ["DataOrder", "Fed", "generators_of"]


@dataclass(frozen=True)
class Fed:
    """What was handed out for one step."""

    first: int
    last: int
    """First and last sample id, over all ranks that share them."""
    tokens: int
    num_left_out: int = 0
    """Sample ids between the two that were not handed out."""
    epoch: int = 0
    """Pass over the data that the first of them is of, from 0."""

    @property
    def samples(self) -> int:
        """Samples handed out."""
        return self.last - self.first + 1 - self.num_left_out

    @staticmethod
    def joined(parts: Sequence[Fed]) -> Fed:
        """Return the batches of one step as one; at least one, in the order of the data."""
        first, last = parts[0].first, parts[-1].last
        samples = sum(part.samples for part in parts)
        tokens, left_out = sum(p.tokens for p in parts), last - first + 1 - samples
        return Fed(first, last, tokens, left_out, parts[0].epoch)


class DataOrder:
    """A cursor over a DataLoader's batches that can be moved and saved."""

    def __init__(self, loader: DataLoader[object]) -> None:
        """Take over a loader with a map-style dataset.

        Raises:
            ConfigError: The loader cannot be rewound (iterable dataset, no batches).
        """
        dataset = getattr(loader, "dataset", None)
        if (
            dataset is None
            or isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__getitem__")
            or loader.batch_sampler is None
        ):
            of = "" if dataset is None else f" over {type(dataset).__name__}"
            raise ConfigError(
                f"data is {type(loader).__name__}{of}: the guard must be able to go back; pass a "
                "DataLoader over a dataset with __getitem__ and __len__, with batch_size set"
            )
        if _length(loader.batch_sampler) == 0:
            raise ConfigError(_NO_BATCH)
        self._loader = loader
        self._skips: list[tuple[int, int]] = []
        self._withheld: tuple[tuple[int, int], ...] = ()
        self._left_out: dict[tuple[int, int], tuple[int, ...]] = {}
        """Items of the batches that a range of `skips` left out, of epochs that are over."""
        self._again: frozenset[int] = frozenset()
        """Those of the ranges in force: they come again under other ids."""
        self._note = ""
        self._epoch = -1
        self._batches: list[list[int]] = []
        self._starts: list[int] = []
        self._cursor = 0
        self._base = 0
        self._epoch_rng: torch.Tensor | None = None
        self._seed: torch.Tensor | None = None
        """State of the generator before this epoch's workers draw their seed from it."""
        self._first_epoch = 0
        """Epoch in which the loader in use was first read."""
        self.replicas = _replicas(loader)
        """How many ranks share the data out among them: each sample id belongs to one of them."""
        self._generators = generators_of(loader)
        self._workers = _workers_of(loader)
        self._generator_states: list[torch.Tensor] = []
        self._loaders: dict[int, DataLoader[object]] = {0: loader}
        self._source = 0
        self._switches: list[tuple[int, int]] = []
        self._fingerprint = ""
        self.reordered = ""
        """In words, where a saved position was found in another order than it was saved in."""

    def take_note(self) -> str:
        """Return, once, that items of a skipped range are left out of the epoch that begins."""
        note, self._note = self._note, ""
        return note

    def steps_per_epoch(self, accumulate: int) -> int | None:
        """Return the steps of one epoch; the last may have fewer batches.

        None where the loader does not know its number of batches in advance.
        """
        length = _length(self._loader.batch_sampler)
        return None if length is None else -(-length // accumulate)

    @property
    def shape(self) -> dict[str, int | None]:
        """What sample ids rest on: batch size and length of the dataset.

        A number that the loader does not know is None.
        """
        sampler, dataset = self._loader.batch_sampler, self._loader.dataset
        size = self._loader.batch_size or getattr(sampler, "batch_size", None)
        return {
            "batch_size": size if isinstance(size, int) else None,
            "samples": _length(dataset),
        }

    def differs(self, saved: dict[str, int | None] | None) -> str:
        """Return in words how `shape` is not the saved one; empty where it is, or is not known."""
        if not saved or saved == self.shape:
            return ""
        was, now = (
            f"{s.get('samples')} samples in batches of {s.get('batch_size')}"
            for s in (saved, self.shape)
        )
        return f"the data was {was}, now it is {now}: sample ids do not mean the same as before"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the order of this rank's epoch, 16 hexadecimal digits; empty before the first.

        Two runs with the same one feed the same items of the dataset in the same batches. It says
        nothing of what is in the items. Cost: once an epoch, as much as listing its batches.
        """
        if not self._fingerprint and self._batches:
            digest = hashlib.sha256()
            for batch in self._batches:
                digest.update(repr(batch).encode())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def switch(self, loader: DataLoader[object]) -> int:
        """Feed from another loader from the next batch on, in a new epoch.

        Returns its first sample id: ids go on. After a rollback to before that id the old one is
        fed again up to it.

        Raises:
            ConfigError: The loader cannot be rewound, or what was decided about the old one does
                not fit it.
        """
        other = DataOrder(loader)
        if other.replicas != self.replicas:
            raise ConfigError(
                f"the new data is shared out to {other.replicas} ranks, the old to {self.replicas};"
                " give each rank a like sampler"
            )
        if self._withheld and _length(loader.dataset) != _length(self._loader.dataset):
            raise ConfigError(
                "a skip list is in force and counts the items of the old dataset; scan the new one"
                " and start with its list"
            )
        number = max(self._loaders) + 1
        self._loaders[number] = loader
        self._switches.append((self.position, number))
        return self.position

    def _follow_switches(self) -> None:
        for at, number in self._switches:
            if number > self._source and self.position >= at:
                self._base += sum(len(b) for b in self._batches[: self._cursor])
                self._use(number)
                self._start_epoch()

    def _use(self, number: int) -> None:
        self._source, self._loader = number, self._loaders[number]
        self._first_epoch = self._epoch + 1
        self._left_out, self._again = {}, frozenset()  # those were indices of other data
        self._generators = generators_of(self._loader)
        self._workers = _workers_of(self._loader)

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""
        return tuple(self._skips)

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0; -1 before the first batch."""
        return self._epoch

    @property
    def epoch_share(self) -> float:
        """Share of the epoch under way whose batches were handed out or left out, 0 to 1."""
        return self._cursor / len(self._batches) if self._batches else 0.0

    @property
    def at_end(self) -> bool:
        """Whether the epoch under way has no batch left that may be fed."""
        return self._epoch >= 0 and all(
            self._is_skipped(n) for n in range(self._cursor, len(self._batches))
        )

    @property
    def position(self) -> int:
        """Sample id that comes next."""
        return self._id(self._cursor)

    def _id(self, batch: int) -> int:
        """Return the first sample id of a batch of this epoch, over all ranks that share it."""
        if batch < len(self._starts):
            return (self._base + self._starts[batch]) * self.replicas
        return (self._base + sum(len(b) for b in self._batches)) * self.replicas

    def skip(self, first: int, last: int) -> None:
        """Never feed the batches that hold sample ids first..last again.

        Raises:
            ConfigError: The range is empty or negative.
        """
        self._skips.append(sample_range(first, last))
        self._fetch_anew()

    def unskip(self, first: int, last: int) -> None:
        """Undo one `skip`; a range that was not skipped is left alone."""
        if (first, last) in self._skips:
            self._skips.remove((first, last))
            self._fetch_anew()

    def _fetch_anew(self) -> None:
        """Have what workers have fetched ahead fetched again: what is left out has changed."""
        self._again = self._items_in_force()
        if self._workers is not None:
            self._workers.restart()

    @property
    def withheld(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of indices of the dataset that are never fed."""
        return self._withheld

    def withhold(self, ranges: Iterable[tuple[int, int]], *, of: int) -> int:
        """Never feed these items of the dataset; return how many are withheld that were not before.

        Where a batch holds one, an item of the same batch that is not withheld is fed in its place;
        where it holds nothing else, one of the next batch of the epoch.

        Args:
            ranges: [first, last] of indices, as they are given to the dataset's `__getitem__`.
            of: Items that the list counts; the dataset must have as many, or indices mean something
                else.

        Raises:
            ConfigError: The dataset has another length, or nothing would be left.
        """
        length = _length(self._loader.dataset)
        if length != of:
            raise ConfigError(
                f"the skip list counts {of} items, the dataset has {length}: its numbers do not"
                " name the same; scan the files that the dataset reads, in its order, and with its"
                " sample length as --context"
            )
        merged = merge_ranges([*self._withheld, *ranges])
        before, now = (sum(b - a + 1 for a, b in r) for r in (self._withheld, merged))
        if now >= of:
            raise ConfigError(
                f"the skip list leaves out all {of} items of the dataset; nothing is left to"
                " train on"
            )
        self._withheld = merged
        self._fetch_anew()
        return now - before

    def _keep_left_out(self) -> None:
        """Leave the items of this epoch's skipped batches out of later ones, where they are few."""
        before, known = self._again, self._left_out
        end = self._id(len(self._batches)) - 1
        for first, last in self._skips:
            if not _overlap((self._id(0), end), first, last):
                continue
            items = {i for i in map(_index, self._items_of(first, last)) if i is not None}
            items |= set(known.get((first, last), ()))
            self._left_out = self._left_out | {(first, last): tuple(sorted(items))}
        self._again = self._items_in_force()
        new, most = len(self._again - before), int(_MOST_LEFT_OUT * sum(map(len, self._batches)))
        if len(self._again) > most:
            self._left_out, self._again = known, before
            self._note = (
                f"{new} samples that were skipped in pass {self._epoch + 1} over the data come"
                f" again in later passes: no more than {most} are left out of them; name those"
                " that are bad in a skip list"
            )
        elif new:
            self._note = (
                f"{new} samples that were skipped in pass {self._epoch + 1} over the data are left"
                " out of later passes, too; others of their batches stand in"
            )

    def _items_of(self, first: int, last: int) -> list[int]:
        """Return what the batches of this epoch hold that a range of ids overlaps."""
        # The ids of a batch begin where those of the one before end.
        begin, end = (i // self.replicas - self._base for i in (first, last))
        numbers = range(
            max(bisect_right(self._starts, begin) - 1, 0), bisect_right(self._starts, end)
        )
        overlap = [n for n in numbers if _overlap(self._ids(n), first, last)]
        return [i for n in overlap for i in self._batches[n]]

    def _items_in_force(self) -> frozenset[int]:
        kept = [items for skipped, items in self._left_out.items() if skipped in self._skips]
        return frozenset(i for items in kept for i in items)

    def _is_withheld(self, index: int) -> bool:
        if self._again and _index(index) in self._again:
            return True
        place = bisect_right(self._withheld, (index, math.inf)) - 1
        return place >= 0 and index <= self._withheld[place][1]

    def _cleaned(self, number: int) -> list[int]:
        """Return a batch with stand-ins for what is withheld, the same on every call."""
        indices = self._batches[number]
        clean = [i for i in indices if not self._is_withheld(i)]
        if len(clean) == len(indices):
            return indices
        if not clean:
            clean = list(islice(self._clean_behind(number), len(indices)))
        if not clean:
            raise ConfigError(
                "the skip list leaves out every item of this rank's epoch; nothing is left to"
                " train on"
            )
        stand_ins = cycle(clean)
        return [next(stand_ins) if self._is_withheld(i) else i for i in indices]

    def _clean_behind(self, number: int) -> Iterator[int]:
        """Yield what may be fed of the batches behind one, from the epoch's first one on again."""
        count = len(self._batches)
        for n in (n % count for n in range(number + 1, number + 1 + count)):
            if not self._is_skipped(n):
                yield from (i for i in self._batches[n] if not self._is_withheld(i))

    def fetch(self) -> tuple[object, int, int] | None:
        """Return the next batch with its first and last sample id; None at the end of an epoch."""
        if self._epoch < 0:
            self._start_epoch()
        self._follow_switches()
        while self._cursor < len(self._batches):
            number = self._cursor
            self._cursor += 1
            if not self._is_skipped(number):
                first, last = self._ids(number)
                return self._load(number), first, last
        return None

    def _load(self, number: int) -> object:
        """Fetch a batch of this epoch.

        Raises:
            ActError: A worker process died.
        """
        if self._workers is not None:
            return self._workers.take(number, self._wanted, len(self._batches))
        return self.load_items(self._cleaned(number))

    def _wanted(self, number: int) -> list[int] | None:
        return None if self._is_skipped(number) else self._cleaned(number)

    def _ids(self, batch: int) -> tuple[int, int]:
        """Return the first and last sample id of a batch of this epoch."""
        first = self._id(batch)
        return first, first + len(self._batches[batch]) * self.replicas - 1

    def _is_skipped(self, batch: int) -> bool:
        ids = self._ids(batch)
        return any(_overlap(ids, first, last) for first, last in self._skips)

    def next_epoch(self) -> None:
        """Go on to the next epoch."""
        if self._epoch >= 0:
            self._keep_left_out()
            self._base += sum(len(b) for b in self._batches)
        self._start_epoch()

    def advance(self, batches: int) -> None:
        """Go on by so many batches of this rank without fetching them, through epochs."""
        if self._epoch < 0:
            self._start_epoch()
        self._cursor += batches
        self._fetch_anew()
        while self._cursor > len(self._batches):
            ahead = self._cursor - len(self._batches)
            self.next_epoch()
            self._cursor = ahead

    @property
    def num_batches(self) -> int:
        """Batches of the epoch under way; 0 before the first."""
        return len(self._batches)

    def last_batches(self, count: int) -> list[list[int]]:
        """Return the indices of the last batches of the epoch's order; none before the first.

        A short last batch is left out where there are others.
        """
        whole = [b for b in self._batches if len(b) == max(map(len, self._batches))]
        return [list(b) for b in whole[-count:]]

    def newest_batches(self, count: int) -> list[list[int]]:
        """Return the indices of the batches of this epoch handed out last; none before the first."""
        fed = [n for n in range(self._cursor) if not self._is_skipped(n)]
        return [self._cleaned(n) for n in fed[-count:]]

    @property
    def dataset(self) -> object:
        """The dataset that batches are read from."""
        return self._loader.dataset

    def load_items(self, indices: list[int]) -> object:
        """Return the batch of these indices of the dataset; the cursor stays where it is."""
        batch = fetch(self._loader.dataset, self._loader.collate_fn, indices)
        return _pinned(batch) if self._loader.pin_memory else batch

    def _start_epoch(self) -> None:
        self._epoch += 1
        self._epoch_rng = torch.get_rng_state()
        self._generator_states = [g.get_state() for g in self._generators]
        self._draw_order()
        self._cursor = 0
        if self._workers is not None and self._seed is not None:
            self._workers.begin_epoch(self._seed)

    def _draw_order(self) -> None:
        """Draw this epoch's order as the loader would: its base seed first, then its sampler."""
        own = self._loader.generator
        self._seed = own.get_state() if own is not None else torch.get_rng_state()
        # persistent workers are seeded once, in the first epoch
        if not (self._loader.persistent_workers and self._epoch > self._first_epoch):
            torch.empty((), dtype=torch.int64).random_(generator=own)
        sampler = self._loader.batch_sampler
        assert sampler is not None
        for owner in _samplers(self._loader):
            tell = getattr(owner, "set_epoch", None)
            if tell is not None:  # DistributedSampler and its like
                tell(max(self._epoch, 0))
        self._batches = [list(batch) for batch in _as_iterator(sampler)]
        self._fingerprint = ""
        if not self._batches:
            raise ConfigError(_NO_BATCH)
        self._starts, start = [], 0
        for batch in self._batches:
            self._starts.append(start)
            start += len(batch)

    def state_dict(self) -> StateDict:
        """Return the position: epoch, cursor, and the random states its order was drawn from."""
        if self._epoch < 0:
            self._generator_states = [g.get_state() for g in self._generators]
        return {
            "epoch": self._epoch,
            "cursor": self._cursor,
            "base": self._base,
            "consumed": sum(len(b) for b in self._batches[: self._cursor]) * self.replicas,
            "replicas": self.replicas,
            "epoch_rng": self._epoch_rng,
            "generators": list(self._generator_states),
            "source": self._source,
            "first_epoch": self._first_epoch,
            "fingerprint": self.fingerprint,
            "left_out": [[*key, list(items)] for key, items in self._left_out.items()],
            **self._state_of_workers(),
        }

    def _state_of_workers(self) -> StateDict:
        """Return where the workers' random numbers are; nothing where no item draws any.

        Persistent workers may have been seeded in an earlier epoch, so that their seed is kept.
        """
        workers = self._workers
        if workers is None or workers.seed is None:
            return {}
        drawn = any(state is not None for state in workers.states)
        own = self._seed is not None and torch.equal(workers.seed, self._seed)
        if not drawn and own:
            return {}
        return {"workers": {"seed": workers.seed, "states": list(workers.states)}}

    def load_state_dict(self, state: StateDict) -> None:
        """Go to a saved position; the random state of the process is left as it is.

        Raises:
            ConfigError: It is a position in data that this process was not given.
        """
        self._go_to_source(int(state.get("source", 0)))
        self._first_epoch = int(state.get("first_epoch", 0))
        self._left_out = {(a, b): tuple(items) for a, b, items in state.get("left_out", ())}
        self._again = self._items_in_force()
        if state["epoch"] < 0:
            for generator, saved in zip(self._generators, state["generators"], strict=True):
                generator.set_state(saved)
            self._epoch, self._cursor, self._base = -1, 0, 0
            self._batches, self._starts, self._epoch_rng = [], [], None
            return
        drawn = self._epoch_rng if state["epoch"] == self._epoch else None  # None: another source
        if drawn is None or not torch.equal(state["epoch_rng"], drawn):
            # A random sampler draws from torch's global generator: the saved state is in place only
            # while the order is drawn.
            kept = torch.get_rng_state()
            torch.set_rng_state(state["epoch_rng"])
            for generator, saved in zip(self._generators, state["generators"], strict=True):
                generator.set_state(saved)
            self._epoch = state["epoch"]
            self._draw_order()
            torch.set_rng_state(kept)
        self._epoch, self._cursor, self._base = state["epoch"], state["cursor"], state["base"]
        self._epoch_rng, self._generator_states = state["epoch_rng"], list(state["generators"])
        self._go_on_with_workers(state.get("workers"))
        if state["replicas"] != self.replicas:  # dealt out to more or fewer ranks now
            self._base = self._base * state["replicas"] // self.replicas
            done = state["consumed"] // self.replicas
            self._cursor = sum(1 for start in self._starts if start < done)
        elif state.get("fingerprint", self.fingerprint) != self.fingerprint:
            self.reordered = (
                f"the data order changed: epoch {self._epoch} was {state['fingerprint']}, now it is"
                f" {self.fingerprint}; another seed, sampler or dataset, and sample ids do not mean"
                " the same"
            )

    def _go_on_with_workers(self, saved: StateDict | None) -> None:
        workers = self._workers
        if workers is None:
            if saved is not None:
                self.reordered = _OTHER_WORKERS.format(was=len(saved["states"]), now=0)
            return
        states = [None] * workers.count if saved is None else list(saved["states"])
        if len(states) != workers.count:
            self.reordered = _OTHER_WORKERS.format(was=len(states), now=workers.count)
            saved, states = None, [None] * workers.count
        seed = self._seed if saved is None else saved["seed"]
        assert seed is not None  # the order of the epoch was drawn
        workers.go_to(seed, states)

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def forget_order(self) -> None:
        """Have the order drawn anew at the next `load_state_dict`, as in a new process."""
        self._epoch_rng = None

    def _go_to_source(self, number: int) -> None:
        if number == self._source:
            return
        if number not in self._loaders and self._epoch < 0 and len(self._loaders) == 1:
            self._loaders = {number: self._loader}  # resumed: what was handed over is the newest
        if number not in self._loaders:
            raise ConfigError(
                f"the saved position is in data number {number} of this run, which was not handed"
                " over; start with the loader that was in use then"
            )
        self._use(number)
        self.forget_order()


_MOST_LEFT_OUT = 0.1
"""Share of an epoch's items that skipped ranges may take out of later ones: what is over comes
again. Ours."""

_OTHER_WORKERS = (
    "the data was fetched by {was} worker processes, now by {now}: random numbers that its items"
    " draw are not those of the run"
)

_NO_BATCH = "data has no batch; check the dataset's length, batch_size and drop_last"


def _index(item: object) -> int | None:
    """Return the number by which a sampler names an item, as most do; None: it is named otherwise."""
    try:
        return operator.index(item)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return None


def _overlap(ids: tuple[int, int], first: int, last: int) -> bool:
    return first <= ids[1] and ids[0] <= last


def _replicas(loader: DataLoader[object]) -> int:
    """Return over how many ranks a sampler like DistributedSampler deals the samples out, or 1."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    for owner in (loader.sampler, loader.batch_sampler, inner):
        for name in ("num_replicas", "num_processes"):
            number = getattr(owner, name, None)
            if isinstance(number, int) and number > 0:
                return number
    return 1


def _samplers(loader: DataLoader[object]) -> list[object]:
    """Return the samplers that a loader's order comes from, outermost first, each once."""
    shard = getattr(loader.batch_sampler, "batch_sampler", None)  # accelerate deals batches out so
    found = [loader.sampler, loader.batch_sampler, shard]
    found += [getattr(owner, "sampler", None) for owner in (loader.batch_sampler, shard)]
    return list({id(s): s for s in found if s is not None}.values())


def generators_of(loader: DataLoader[object]) -> list[torch.Generator]:
    """Return the random generators that the order is drawn from, besides torch's global one."""
    owners = (loader, *_samplers(loader))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _workers_of(loader: DataLoader[object]) -> Workers | None:
    """Return the worker processes that a loader asks for; None where it asks for none."""
    given: object = loader  # a trainer may pass something that only looks like one
    return Workers(loader) if isinstance(given, DataLoader) and loader.num_workers > 0 else None


def _pinned(batch: object) -> object:
    """Return a batch in pinned memory; as it is where there is no accelerator."""
    if not torch.accelerator.is_available():
        return batch
    pinned: object = pin_memory(batch)  # type: ignore[no-untyped-call]
    return pinned


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _as_iterator(sampler: Any) -> Iterator[Any]:
    return iter(sampler)
