"""What joins torchtitan's Trainer to the guard: its data, optimizer, rates and checkpoints.

Nothing of torchtitan is imported here but its loader class, when a loader is wrapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.integrations.stepping import SteppedOptimizer, SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
    from torchtitan.trainer import Trainer

    from trimtab.guard.port import Stateful, TrainerPort

__all__ = ["ContainedOptimizer", "RatesInForce", "Stream", "TitanFiles", "check_trainer"]


def check_trainer(trainer: Trainer) -> None:
    """Refuse what cannot be guarded.

    Raises:
        ConfigError: The message says what, and what to do instead.
    """
    if trainer.parallel_dims.pp_enabled or len(trainer.model_parts) != 1:
        raise ConfigError(
            f"pipeline_parallel_degree={trainer.parallel_dims.pp}: the guard runs on FSDP2, tensor,"
            " context and expert parallel, not on pipeline stages; watch the log with `trimtab"
            " watch` instead"
        )
    if not trainer.config.training.disable_cuda_graphs and trainer.device.type == "cuda":
        raise ConfigError(
            "training.disable_cuda_graphs=False: within a captured graph nothing can be measured,"
            " and gradients cannot be dropped; set --training.disable_cuda_graphs"
        )
    inner = getattr(trainer.optimizers, "optimizers", ())
    if len(inner) != 1:
        raise ConfigError(
            f"the optimizer container holds {len(inner)} optimizers"
            f" ({', '.join(sorted({type(o).__name__ for o in inner}))}); the guard needs exactly"
            " one: give all param_groups the same optimizer_name"
        )


class Stream:
    """torchtitan's loader as the guard reads it: one mapping a batch, its state as plain data."""

    def __init__(self, loader: BaseDataLoader) -> None:
        """Wrap a `BaseDataLoader`."""
        self._loader = loader
        self.batch_size = getattr(loader, "batch_size", None)
        self.sampler = self.batch_sampler = None
        self._place = _place_of(loader)

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Yield `{"input": the model's inputs, "labels": the labels}`."""
        for given, labels in self._loader:
            yield {"input": given, "labels": labels}

    def state_dict(self) -> dict[str, object]:
        """Return this rank's position."""
        return self._place[0]()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go to a position."""
        self._place[1](state)


def _place_of(
    loader: BaseDataLoader,
) -> tuple[Callable[[], dict[str, object]], Callable[[dict[str, object]], object]]:
    """Return how to get and set a loader's position.

    torchtitan's own wraps torchdata's state into a pickle; torchdata's is used, so that nothing
    that the guard saved is ever unpickled.
    """
    from torchtitan.components.dataloader import ParallelAwareDataloader

    if isinstance(loader, ParallelAwareDataloader):
        inner: Stateful = super(ParallelAwareDataloader, loader)  # type: ignore[assignment]
        return inner.state_dict, inner.load_state_dict
    return loader.state_dict, loader.load_state_dict


class ContainedOptimizer(SteppedOptimizer):
    """The one optimizer of a container, stepped through it, so that hooks on it are called."""

    def __init__(self, container: OptimizersContainer) -> None:
        """Wrap an `OptimizersContainer` that holds one optimizer."""
        (self.optimizer,) = container.optimizers
        self._container = container

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Do the container's step."""
        done: float | None = self._container.step(closure)
        return done

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
        """Drop the gradients."""
        self._container.zero_grad(set_to_none=set_to_none)


class RatesInForce(SteppedScheduler):
    """A container of schedulers that only the guard advances; it reports rates in force."""

    _schedulers: LRSchedulersContainer
    _port: TrainerPort

    def __init__(self, schedulers: LRSchedulersContainer, port: TrainerPort) -> None:
        """Wrap an `LRSchedulersContainer`."""
        super().__init__(schedulers)
        # Not by plain assignment, which SteppedScheduler passes on to what it wraps.
        self.__dict__.update(_schedulers=schedulers, _port=port)

    def get_metrics(self) -> dict[str, float]:
        """Return the rate of each group in the next step, with the guard's factor."""
        planned: dict[str, float] = self._schedulers.get_metrics()
        return dict(zip(planned, self._port.rates(list(planned.values())), strict=True))


class TitanFiles:
    """torchtitan's own checkpoints: those that a rollback discards are moved aside."""

    def __init__(self, checkpointer: CheckpointManager, aside: Path, port: TrainerPort) -> None:
        """Watch the checkpoints that are saved from here on.

        Args:
            checkpointer: The Trainer's.
            aside: Folder for those of discarded steps.
            port: Of the guard, whose first rank moves them.
        """
        self._checkpointer, self._aside, self._port = checkpointer, aside, port
        self._steps: list[int] = []
        self._back_to: int | None = None
        port.on_restore(self._went_back)

    def _went_back(self, step: int) -> None:
        self._back_to = step  # of several trials the last decides: it was kept, or all were undone

    def saved(self, step: int, done: bool) -> bool:  # noqa: FBT001 - what the checkpointer returned
        """Take note of a checkpoint, where one was saved; return whether it was."""
        if done:
            self._steps.append(step)
        return done

    def follow(self) -> None:
        """Move aside what was saved after the step that the run went back to, after all trials.

        Raises:
            OSError: It cannot be moved.
        """
        back_to, self._back_to = self._back_to, None
        discarded = [s for s in self._steps if back_to is not None and s > back_to]
        if not discarded:
            return
        self._steps = [s for s in self._steps if s not in discarded]
        # On every rank, before the first moves anything: a save may still be writing there.
        self._checkpointer.maybe_wait_for_saving()
        if not self._port.is_chief:
            return
        for number in discarded:
            path = Path(self._checkpointer.folder) / f"step-{number}"
            if path.is_dir():  # not a remote one
                self._aside.mkdir(parents=True, exist_ok=True)
                path.rename(_free(self._aside / path.name))


def _free(path: Path) -> Path:
    """Return the path, with a number where something is there already."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
