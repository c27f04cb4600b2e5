"""Batches fetched by worker processes, as the user's DataLoader would have them fetched.

The workers are torch's own: as many, with the prefetching, pinned memory, start method, time-out
and `worker_init_fn` that the loader was given, seeded as it would seed them. Batch n of an epoch
goes to worker n modulo their number, also after going back, and with each batch comes the worker's
random state where the batch has changed it. So a dataset that draws random numbers draws the same
ones again: after a rollback, a restart of the script, and beside a loop without the guard.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import re
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trimtab.guard.state.training_state import StateDict

__all__ = ["WorkerStates", "Workers", "fetch"]

WorkerStates = list[Any]
"""Random state of each worker; None: as it was seeded."""

_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)(.*)", re.DOTALL)

_AS_SEEDED = "as seeded"

_HEARD_WITHIN_S = 0.2
"""Time in which the signal of a child's end arrives."""

Task = tuple[Any, "list[int] | None"]
"""Random state to begin with, or None; indices of one batch, or None for one that is left out."""


class _Fetcher(Dataset[Any]):
    """Fetches whole batches in a worker, with the random state that each leaves behind."""

    def __init__(self, loader: DataLoader[object]) -> None:
        self.dataset = loader.dataset
        self._collate = loader.collate_fn
        self._seeded: StateDict | None = None
        self._last: bytes = b""

    def __getitem__(self, task: Task) -> tuple[Any, bytes | None]:
        begin, indices = task
        if self._seeded is None:  # the first task: as the loader and `worker_init_fn` left it
            self._seeded = _random_state()
            self._last = _short(self._seeded)
        if begin is not None:
            _set_random_state(self._seeded if begin == _AS_SEEDED else begin)
            self._last = _short(_random_state())
        if indices is None:
            return None, None
        batch = fetch(self.dataset, self._collate, indices)
        state = _random_state()
        now = _short(state)
        if now == self._last:
            return batch, None
        self._last = now
        return batch, pickle.dumps(state)  # as bytes: the loader would pin each of its numbers


class _Tasks(Sampler[Task]):
    """Hands each epoch's tasks to the loader, as far ahead as it asks for them."""

    def __init__(self) -> None:
        self.tasks: Iterable[Task] = ()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


class _Start:
    """What a worker does first: the user's `worker_init_fn`, with the user's dataset in reach."""

    def __init__(self, theirs: Callable[[int], None] | None) -> None:
        self._theirs = theirs

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, _Fetcher):
            # a WorkerInfo refuses to be changed in any other way
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._theirs is not None:
            self._theirs(worker)


class Workers:
    """The worker processes of one loader, and where each is."""

    def __init__(self, loader: DataLoader[object]) -> None:
        """Start nothing yet; `loader` has at least one worker."""
        self._loader = loader
        self.count = loader.num_workers
        self._tasks = _Tasks()
        self._pool: DataLoader[Any] | None = None
        self._batches: Iterator[tuple[Any, bytes | None]] | None = None
        self._seed: torch.Tensor | None = None
        self._next = 0
        self.states: WorkerStates = [None] * self.count
        """After the batches that were taken."""

    @property
    def seed(self) -> torch.Tensor | None:
        """State of the generator that the workers in use draw their seed from; None before."""
        return self._seed

    def begin_epoch(self, seed: torch.Tensor) -> None:
        """Have the next batch begin an epoch.

        Args:
            seed: State of the loader's generator just before it draws the workers' seed. Persistent
                workers keep the one of their first epoch, and go on where they are.
        """
        self._batches = None
        if self._loader.persistent_workers and self._seed is not None:
            return
        self._use(seed)

    def _use(self, seed: torch.Tensor) -> None:
        self._pool, self._seed, self.states = None, seed, [None] * self.count

    def go_to(self, seed: torch.Tensor, states: WorkerStates) -> None:
        """Go on as from the given states; those of as many workers."""
        self._batches = None
        if self._seed is None or not torch.equal(seed, self._seed):
            self._use(seed)
        self.states = list(states)

    def close(self) -> None:
        """End the processes; a batch that is taken later starts them again."""
        self._batches = self._pool = None

    def _end(self) -> None:
        """Let go of the processes; that one of them died is taken as heard."""
        until = time.monotonic() + _HEARD_WITHIN_S
        while self._pool is not None or time.monotonic() < until:
            # torch raises from the handler of SIGCHLD, which may come only now
            with contextlib.suppress(RuntimeError):
                self._batches = self._pool = None
                time.sleep(0.01)

    def restart(self) -> None:
        """Forget what was fetched ahead: the next batch is fetched anew."""
        self._batches = None

    def take(self, number: int, indices_of: Callable[[int], list[int] | None], end: int) -> object:
        """Return batch `number` of the epoch.

        Args:
            number: Counted from 0; one that is not the next one restarts the workers there.
            indices_of: Gives the indices of a batch, or None where it is left out.
            end: Batches of the epoch.

        Raises:
            ActError: A worker died.
        """
        if self._batches is None or number < self._next:
            self._begin(number, indices_of, end)
        assert self._batches is not None
        while True:
            try:
                batch, state = next(self._batches)
            except Exception as error:
                self._batches = None
                how = _death(error)
                if not how:
                    raise  # the dataset's own
                # what refers to the iteration keeps its processes watched, and their end is told
                # once more, wherever the process happens to be
                error.__traceback__ = error.__context__ = error.__cause__ = None
                self._end()
                raise ActError(
                    f"data: {how} while batch {number} of the epoch was fetched. A kill is most"
                    " often memory: lower num_workers or prefetch_factor, or give the container"
                    " more shared memory (/dev/shm). Start the same script again: the run goes on"
                    " from its newest checkpoint"
                ) from error
            taken, self._next = self._next, self._next + 1
            if state is not None:
                self.states[taken % self.count] = pickle.loads(state)
            if taken == number:
                return batch

    def _begin(self, number: int, indices_of: Callable[[int], list[int] | None], end: int) -> None:
        fresh = self._pool is None
        if self._pool is None:
            self._pool = self._make()
        # so many empty tasks that batch n goes to worker n modulo their number
        empty = number % self.count
        states: list[Any] = list(self.states)
        begin = [s if s is not None else (None if fresh else _AS_SEEDED) for s in states]

        def tasks() -> Iterator[Task]:
            told: set[int] = set()
            for n in range(number - empty, end):
                worker = n % self.count
                first = None if worker in told else begin[worker]
                told.add(worker)
                yield first, None if n < number else indices_of(n)

        self._tasks.tasks = tasks()
        self._next = number - empty
        self._batches = iter(self._pool)

    def _make(self) -> DataLoader[Any]:
        theirs = self._loader
        generator = torch.Generator()
        if self._seed is not None:
            generator.set_state(self._seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of their number, it has said already
            return DataLoader(
                _Fetcher(theirs),
                batch_size=None,
                sampler=self._tasks,
                collate_fn=_as_it_is,
                num_workers=theirs.num_workers,
                pin_memory=theirs.pin_memory,
                timeout=theirs.timeout,
                worker_init_fn=_Start(theirs.worker_init_fn),
                multiprocessing_context=theirs.multiprocessing_context,
                generator=generator,
                prefetch_factor=theirs.prefetch_factor,
                persistent_workers=True,  # going back within an epoch starts no process
            )


def fetch(dataset: Any, collate: Callable[[Any], Any], indices: list[int]) -> Any:
    """Return the batch of these indices, as torch's own fetcher makes it."""
    if hasattr(dataset, "__getitems__"):
        return collate(dataset.__getitems__(indices))
    return collate([dataset[i] for i in indices])


def _as_it_is(fetched: Any) -> Any:
    return fetched


def _random_state() -> StateDict:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state().numpy(),
    }


def _set_random_state(state: StateDict) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(state["torch"].copy()))


def _short(state: StateDict) -> bytes:
    """Return what differs once a number was drawn."""
    kind, keys, position, has_gauss, _gauss = state["numpy"]
    return b"".join(
        (
            state["torch"].tobytes(),
            repr((state["python"][1][-1], state["python"][1][0], state["python"][2])).encode(),
            keys[:2].tobytes(),
            repr((kind, position, has_gauss)).encode(),
        )
    )


def _death(error: BaseException) -> str:
    """Return which worker died and how, in words; empty where none did."""
    seen: BaseException | None = error
    while seen is not None:
        found = _DIED.search(str(seen)) if isinstance(seen, RuntimeError) else None
        if found is not None:
            how = found[2].strip(" :.\n").partition("\n")[0] or "exited unexpectedly"
            return f"worker process {found[1]} {how}"
        seen = seen.__cause__ or seen.__context__
    # it went while its batch was on the way through shared memory
    gone = isinstance(error, ConnectionError | EOFError)
    return "a worker process went away" if gone else ""
