"""What stands between Lightning's loop and the guard: its data, counters, schedulers and scaler.

Lightning has no public place for a loader that goes back, so a few of its private names are used;
`lightning.py` says in which versions they were tried. Each class here is small enough to be put right
when one of them moves.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimtab.guard import Guard

__all__ = [
    "Counters",
    "GuardedLoader",
    "Scaler",
    "Schedulers",
    "Source",
    "clip_in_lightnings_order",
    "take_loader",
]

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


def take_loader(loader: object) -> DataLoader[Any]:
    """Return the one DataLoader that trains.

    Raises:
        ConfigError: There are several, or it has no length.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"the training data is a {type(loader).__name__}: GuardCallback needs one DataLoader over "
            "a dataset with __getitem__ and __len__, so that it can go back"
        )
    try:
        len(loader)
    except TypeError as error:
        raise ConfigError(
            "the training DataLoader has no length: GuardCallback needs a dataset (or batch sampler) "
            "with __len__; iterable datasets cannot be rewound"
        ) from error
    return loader


def clip_in_lightnings_order(guard: Guard) -> None:
    """Sum the norm in the order of the optimizer's groups, as Lightning does: its last bits depend on it."""
    guard._engine.parameters = guard._training.parameters


class GuardedLoader:
    """What Lightning iterates instead of the user's loader: the guard's order, epoch after epoch.

    As long as there is no guard it gives the user's own batches.
    """

    def __init__(self, loader: DataLoader[Any], limit: int | None) -> None:
        """Stand in for `loader`, cut to `limit` batches an epoch."""
        self._loader = loader
        whole = len(loader)
        self._length = whole if limit is None else min(limit, whole)
        self.batches: Iterator[Any] | None = None
        """The guard's own iterator; one for all epochs."""

    def __len__(self) -> int:
        return self._length

    def for_guard(self) -> Any:
        """Return the loader as the guard should read it."""
        cut = self._length < len(self._loader)
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
        """Have the loop, not yet begun, go on after the step whose counters were loaded, if any were.

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
