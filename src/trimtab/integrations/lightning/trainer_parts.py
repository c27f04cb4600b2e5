"""What stands between Lightning's loop and the guard: its data, counters, schedulers and scaler.

Lightning has no public place for a loader that goes back, so a few of its private names are used;
`lightning.py` says in which versions they were tried. Each class here is small enough to be put
right when one of them moves.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from trimtab.errors import ConfigError
from trimtab.guard.data.streams import is_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimtab.guard import Guard

__all__ = [
    "Counters",
    "GuardedLoader",
    "Scaler",
    "Schedulers",
    "Source",
    "check_strategy",
    "clip_in_lightnings_order",
    "length_of",
    "take_loader",
]

_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")
_STEPS = "epoch_loop.automatic_optimization.optim_progress"
_BATCHES = "epoch_loop.batch_progress"


class _FirstBatches:
    """The first batches of each epoch, as `limit_train_batches` asks for."""

    def __init__(self, batches: Any, limit: int) -> None:
        self._batches = batches
        self._limit = limit

    def __len__(self) -> int:
        return self._limit

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._batches), self._limit)

    def __getattr__(self, name: str) -> Any:  # sampler, batch_size, set_epoch
        return getattr(self._batches, name)


class _LimitedLoader:
    """A DataLoader as the guard reads it, cut to the first batches of each epoch."""

    def __init__(self, loader: DataLoader[Any], limit: int) -> None:
        self._loader = loader
        self.batch_sampler = _FirstBatches(loader.batch_sampler, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def check_strategy(strategy: Any, adapter: str) -> None:
    """Refuse a strategy under which the adapter was not tried.

    Raises:
        ConfigError: The message says what to take instead.
    """
    name = type(strategy).__name__
    if name not in _STRATEGIES:
        raise ConfigError(
            f"strategy is {name}: {adapter} was tried with {', '.join(_STRATEGIES)} only; for"
            " sharded weights take ModelParallelStrategy (FSDP2)"
        )
    split = getattr(strategy, "_tensor_parallel_size", 1)
    if split != 1:
        raise ConfigError(
            f"ModelParallelStrategy has tensor_parallel_size={split}: {adapter} was tried with 1"
            " (FSDP2) only; for tensor parallel use trimtab.guard.Guard in a loop of your own"
        )


def take_loader(loader: object, trainer: Any) -> Any:
    """Return the one loader that trains: over a dataset with a length, or over a stream.

    Raises:
        ConfigError: There are several, it can be read only once, or nothing says where an epoch
            ends.
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
            f"limit_train_batches={limit}: a stream is read on through Lightning's epochs, not cut"
            " and begun anew; leave it at 1.0 and set max_steps"
        )
    epochs = trainer.fit_loop.max_epochs
    if length_of(loader) is None and (trainer.max_steps < 0 or (epochs or 0) > 0):
        raise ConfigError(
            f"the training DataLoader has no length, max_steps is {trainer.max_steps} and"
            f" max_epochs {epochs}: nobody knows how many steps an epoch has; set max_steps, and"
            " leave max_epochs out"
        )
    return loader


def length_of(loader: Any) -> int | None:
    """Return the batches of an epoch; None where only its end will tell."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def clip_in_lightnings_order(guard: Guard) -> None:
    """Sum the norm in the order of the optimizer's groups, as Lightning does.

    Its last bits depend on it.
    """
    guard._engine.parameters = guard._training.parameters


class GuardedLoader:
    """What Lightning iterates instead of the user's loader: the guard's order, epoch after epoch.

    As long as there is no guard it gives the user's own batches.
    """

    def __init__(self, loader: Any, length: int) -> None:
        """Stand in for `loader`, with `length` batches an epoch."""
        self._loader = loader
        self._length = length
        self.batches: Iterator[Any] | None = None
        """The guard's own iterator; one for all epochs."""

    def __len__(self) -> int:
        return self._length

    def for_guard(self) -> Any:
        """Return the loader as the guard should read it."""
        cut = not is_stream(self._loader) and self._length < len(self._loader)
        return _LimitedLoader(self._loader, self._length) if cut else self._loader

    def __iter__(self) -> Iterator[Any]:
        if self.batches is None:
            yield from self._loader
            return
        for batch in self.batches:  # noqa: UP028 - Lightning drops this iterator after each epoch
            yield batch


class Source:
    """Lightning's source of training data, with the loader wrapped when it is asked for."""

    def __init__(self, source: Any, wrap: Any) -> None:
        """Wrap what `source` gives with `wrap(loader)`."""
        self._source = source
        self._wrap = wrap

    def dataloader(self) -> Any:
        """Return the wrapped loader."""
        return self._wrap(self._source.dataloader())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class Counters:
    """Lightning's own counters of epochs, batches and steps, as JSON: saved with every state."""

    def __init__(self, trainer: Any) -> None:
        """Read and set the counters of a trainer's fit loop."""
        self._loop = trainer.fit_loop
        self.running = False
        """Whether the loop runs; before, what is loaded is kept for its start."""
        self.loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return them as they stand within a step, before Lightning counts it as done.

        Asked between two steps, it gives what they were within the last one.
        """
        state = dict(self._loop.state_dict())
        state.pop("state_dict", None)  # the state of a resumable loader: the guard's order has it
        step, batch = state[_STEPS]["optimizer"]["step"], state[_BATCHES]
        for level in ("total", "current"):
            step[level]["completed"] = step[level]["ready"] - 1
            batch[level]["processed"] = batch[level]["completed"] = batch[level]["ready"] - 1
        state["epoch_loop.state_dict"] = {"_batches_that_stepped": step["total"]["ready"] - 1}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them back, at the same place of the loop as they were read."""
        if not self.running:
            self.loaded = state
            return
        for path, value in state.items():
            *way, last = path.split(".")
            owner = self._loop
            for name in way:
                owner = getattr(owner, name)
            if last == "state_dict":
                owner.on_load_checkpoint(dict(value))
            else:
                getattr(owner, last).load_state_dict(_copy(value))
        progress, fetcher = self._loop.epoch_loop.batch_progress, self._loop._data_fetcher
        if fetcher is not None:
            fetcher.fetched, fetcher.done = progress.current.ready, progress.is_last_batch

    def begin(self) -> bool:
        """Have the loop, not yet begun, go on after the step whose counters were loaded, if any
        were.

        They are brought to where Lightning's own checkpoint at the end of a batch has them.
        """
        if self.loaded is None:
            return False
        state = _copy(self.loaded)
        step, batch = state[_STEPS]["optimizer"]["step"], state[_BATCHES]
        for level in ("total", "current"):
            step[level]["completed"] = step[level]["ready"]
            batch[level]["processed"] = batch[level]["ready"]
        self._loop.load_state_dict(state)
        self.loaded = None
        return True


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return value


class Schedulers:
    """All of Lightning's schedulers as the one that the guard steps, in Lightning's own way."""

    def __init__(self, trainer: Any) -> None:
        """Take over the schedulers of a trainer, but for those that wait for a metric."""
        self._configs = trainer.lr_scheduler_configs
        self._epoch_loop = trainer.fit_loop.epoch_loop
        self._step = self._epoch_loop.update_lr_schedulers

    def step(self) -> None:
        """Do what Lightning does after a batch that updates."""
        self._step("step", update_plateau_schedulers=False)
        if self._epoch_loop._num_ready_batches_reached():
            self._step("epoch", update_plateau_schedulers=False)

    def lightning_steps(self, interval: str, update_plateau_schedulers: bool) -> None:  # noqa: FBT001 (its signature)
        """Stand in for Lightning's own stepping: what waits for a metric stays its business."""
        if update_plateau_schedulers:
            self._step(interval, update_plateau_schedulers=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each."""
        return {"schedulers": [config.scheduler.state_dict() for config in self._configs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the state of each back."""
        for config, saved in zip(self._configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)


class Scaler:
    """A GradScaler whose gradients may have been unscaled already, for hooks that look at them."""

    def __init__(self, scaler: Any) -> None:
        """Forward all but `unscale_` and `update`."""
        self._scaler = scaler
        self._unscaled = False

    def unscale_(self, optimizer: Any) -> None:
        """Unscale the gradients once a step."""
        if not self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled = True

    def update(self) -> None:
        """Set the scale of the next step."""
        self._unscaled = False
        self._scaler.update()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
