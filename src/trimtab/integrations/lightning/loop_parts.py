"""What joins Lightning's loop to the guard: its data, counters, schedulers and loss scaler.

Lightning has no public hook for a loader that goes back, so a few of its private names are used;
`packages.py` says with which versions they were tested. Each class here is small, so that it can
be corrected when one of them moves.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypedDict, cast

from torch.utils.data import DataLoader

from trimtab.errors import ConfigError
from trimtab.guard.port import is_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    import torch
    from lightning.pytorch import Trainer

__all__ = [
    "EpochCounters",
    "LightningLoader",
    "LightningScaler",
    "LightningSchedulers",
    "LoaderSource",
    "length_of",
    "take_loader",
]

_STEPS = "epoch_loop.automatic_optimization.optim_progress"
_BATCHES = "epoch_loop.batch_progress"


class _FirstBatches:
    """The first batches of each epoch, for `limit_train_batches`."""

    def __init__(self, batches: Iterable[object], limit: int) -> None:
        self._batches = batches
        self._limit = limit

    def __len__(self) -> int:
        return self._limit

    def __iter__(self) -> Iterator[object]:
        return islice(iter(self._batches), self._limit)

    def __getattr__(self, name: str) -> object:  # sampler, batch_size, set_epoch
        found: object = getattr(self._batches, name)
        return found


class _LimitedLoader:
    """A DataLoader as the guard reads it, cut to the first batches of each epoch."""

    def __init__(self, loader: DataLoader[object], limit: int) -> None:
        self._loader = loader
        sampler = loader.batch_sampler
        assert sampler is not None
        self.batch_sampler = _FirstBatches(sampler, limit)

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._loader, name)
        return found


def take_loader(loader: object, trainer: Trainer) -> DataLoader[object]:
    """Return the one loader that trains: over a dataset with a length, or over a stream.

    Raises:
        ConfigError: There are several, it can be read only once, or the length of an epoch is not
            known.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"the training data is a {type(loader).__name__}: GuardCallback needs one DataLoader"
            " (or StatefulDataLoader), so that it can go back"
        )
    if not is_stream(loader):
        return loader
    limit = trainer.limit_train_batches
    if limit != 1.0:
        raise ConfigError(
            f"limit_train_batches={limit}: a stream is read on through Lightning's epochs, it is"
            " not cut and restarted; leave it at 1.0 and set max_steps"
        )
    epochs = trainer.fit_loop.max_epochs
    if length_of(loader) is None and (trainer.max_steps < 0 or (epochs or 0) > 0):
        raise ConfigError(
            f"the training DataLoader has no length, max_steps is {trainer.max_steps} and"
            f" max_epochs {epochs}: the number of steps of an epoch is unknown; set max_steps, and"
            " leave max_epochs out"
        )
    return loader


def length_of(loader: DataLoader[object]) -> int | None:
    """Return the batches of an epoch; None if only reading to its end would show it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class LightningLoader:
    """What Lightning iterates instead of the user's loader: the guard's order, epoch after epoch.

    While there is no guard it yields the user's own batches.
    """

    def __init__(self, loader: DataLoader[object], length: int) -> None:
        """Stand in for `loader`, with `length` batches an epoch."""
        self._loader = loader
        self._length = length
        self.batches: Generator[object] | None = None
        """The guard's own iterator; one for all epochs."""

    def __len__(self) -> int:
        return self._length

    def for_guard(self) -> DataLoader[object]:
        """Return the loader as the guard should read it."""
        if is_stream(self._loader) or self._length >= len(self._loader):
            return self._loader
        return cast("DataLoader[object]", _LimitedLoader(self._loader, self._length))

    def __iter__(self) -> Iterator[object]:
        if self.batches is None:
            yield from self._loader
            return
        for batch in self.batches:  # noqa: UP028 - Lightning drops this iterator after each epoch
            yield batch


class LoaderSource:
    """Lightning's source of training data, with the loader wrapped when it is taken."""

    def __init__(self, source: object, wrap: Callable[[object], LightningLoader]) -> None:
        """Wrap what `source` returns with `wrap(loader)`."""
        self._source = source
        self._wrap = wrap

    def dataloader(self) -> LightningLoader:
        """Return the wrapped loader."""
        read = getattr(self._source, "dataloader")  # noqa: B009 - a private class of Lightning's
        return self._wrap(read())

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._source, name)
        return found


class _Progress(TypedDict):
    """Lightning's counts of one level, `total` or `current`."""

    ready: int
    started: int
    processed: int
    completed: int


class EpochCounters:
    """Lightning's own counters of epochs, batches and steps, as JSON: saved with every state."""

    def __init__(self, trainer: Trainer) -> None:
        """Read and set the counters of a Trainer's fit loop."""
        self._loop = trainer.fit_loop
        self.running = False
        """Whether the loop runs; before, what is loaded is kept for its start."""
        self.loaded: dict[str, object] | None = None

    def state_dict(self) -> dict[str, object]:
        """Return them as they are within a step, before Lightning counts it as done.

        Between two steps, it returns what they were within the last one.
        """
        state: dict[str, object] = dict(self._loop.state_dict())
        state.pop("state_dict", None)  # of a resumable loader: the guard's order holds it
        step, batch = _steps(state), _batches(state)
        for level in ("total", "current"):
            step[level]["completed"] = step[level]["ready"] - 1
            # The guard reads this within the optimizer's step, which Lightning counts afterwards.
            batch[level]["processed"] = batch[level]["completed"] = batch[level]["ready"] - 1
        state["epoch_loop.state_dict"] = {"_batches_that_stepped": step["total"]["ready"] - 1}
        return state

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Set them back, at the same point of the loop as they were read."""
        if not self.running:
            self.loaded = state
            return
        for path, value in state.items():
            *way, last = path.split(".")
            owner = self._loop
            for name in way:
                owner = getattr(owner, name)
            if last == "state_dict":
                owner.on_load_checkpoint(_copy(value))
            else:
                getattr(owner, last).load_state_dict(_copy(value))
        progress, fetcher = self._loop.epoch_loop.batch_progress, self._loop._data_fetcher
        if fetcher is not None:
            # The fetcher keeps a count of its own, and would end the epoch at the old place.
            fetcher.fetched, fetcher.done = progress.current.ready, progress.is_last_batch

    def begin(self) -> bool:
        """Have the loop, not yet begun, resume after the step whose counters were loaded.

        They are brought to where Lightning's own checkpoint at the end of a batch has them.

        Returns:
            Whether any were loaded.
        """
        if self.loaded is None:
            return False
        state = {name: _copy(value) for name, value in self.loaded.items()}
        step, batch = _steps(state), _batches(state)
        for level in ("total", "current"):
            step[level]["completed"] = step[level]["ready"]
            batch[level]["processed"] = batch[level]["ready"]
        self._loop.load_state_dict(state)
        self.loaded = None
        return True


def _steps(state: Mapping[str, object]) -> dict[str, _Progress]:
    """Return the counts of optimizer steps, by level."""
    optimizer = cast("dict[str, dict[str, dict[str, _Progress]]]", state[_STEPS])
    return optimizer["optimizer"]["step"]


def _batches(state: Mapping[str, object]) -> dict[str, _Progress]:
    """Return the counts of batches, by level."""
    return cast("dict[str, _Progress]", state[_BATCHES])


def _copy(value: object) -> dict[str, object]:
    """Return a copy of a tree of counters."""
    assert isinstance(value, dict)
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in value.items()}


class LightningSchedulers:
    """All of Lightning's schedulers as the one that the guard steps, in Lightning's own way."""

    def __init__(self, trainer: Trainer) -> None:
        """Take over the schedulers of a Trainer, but for those that wait for a metric."""
        self._configs = trainer.lr_scheduler_configs
        self._epoch_loop = trainer.fit_loop.epoch_loop
        self._step = self._epoch_loop.update_lr_schedulers

    def step(self) -> None:
        """Do what Lightning does after a batch that updates."""
        self._step("step", update_plateau_schedulers=False)
        if self._epoch_loop._num_ready_batches_reached():
            self._step("epoch", update_plateau_schedulers=False)

    def lightning_steps(
        self,
        interval: str,
        update_plateau_schedulers: bool,  # noqa: FBT001 - Lightning's signature
    ) -> None:
        """Stand in for Lightning's own stepping: it still steps what waits for a metric."""
        if update_plateau_schedulers:
            self._step(interval, update_plateau_schedulers=True)

    def state_dict(self) -> dict[str, object]:
        """Return the state of each."""
        return {"schedulers": [config.scheduler.state_dict() for config in self._configs]}

    def load_state_dict(self, state: dict[str, list[dict[str, object]]]) -> None:
        """Restore the state of each."""
        for config, saved in zip(self._configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)


class LightningScaler:
    """A GradScaler whose gradients may have been unscaled already, for hooks that look at them."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        """Forward all but `unscale_` and `update`."""
        self._scaler = scaler
        self._unscaled = False

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients once a step."""
        # torch raises where gradients are unscaled twice before an update.
        if not self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled = True

    def update(self) -> None:
        """Set the scale of the next step."""
        self._unscaled = False
        self._scaler.update()

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._scaler, name)
        return found
