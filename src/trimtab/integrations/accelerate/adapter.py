"""The guard in a loop written with Accelerate: one call after `prepare`, no other change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.port import TrainerPort
from trimtab.integrations.accelerate.joined import (
    AcceleratedSchedule,
    Hooks,
    PreparedOptimizer,
    inner_optimizer,
)
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedScheduler

try:
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device
except ImportError:
    raise MissingExtraError("The adapter for Accelerate", "hf") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any, Unpack

    import torch
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from torch.optim.lr_scheduler import LRScheduler

    from trimtab.guard.port import Stateful
    from trimtab.plan.policy import Mode, Policy

__all__ = ["Guarded", "GuardedLoader", "guard_loop"]


class LoopSettings(TypedDict, total=False):
    """Settings of `Guard` that `guard_loop` passes on; `Guard` explains each."""

    mode: Mode | None
    policy: Policy | None
    clip: float | None
    resume: bool
    check_resume: int
    output_layer: torch.nn.Module | None
    count_tokens: Callable[[Any], int] | None
    loaded_step: int | None
    companion: Mapping[str, object] | None
    say: Callable[[str], None] | None


class Guarded(NamedTuple):
    """What takes the place of a loop's own objects."""

    optimizer: PreparedOptimizer
    loader: GuardedLoader
    """Has the guard as `loader.guard`."""
    scheduler: LRScheduler | SteppedScheduler | None
    """None if none was given."""


def guard_loop(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: AcceleratedOptimizer,
    loader: DataLoaderShard,
    scheduler: AcceleratedScheduler | LRScheduler | None = None,
    *,
    run: str | Path,
    epochs: int | None = None,
    steps: int | None = None,
    accumulate: int | None = None,
    extra: Mapping[str, Stateful] | None = None,
    **settings: Unpack[LoopSettings],
) -> Guarded:
    """Guard a loop over objects that `accelerator.prepare` returned; call it right after that.

    The loop keeps its calls of `accelerator.backward`, `accelerator.clip_grad_norm_`,
    `optimizer.step()` and the rest; a run found in the run directory is resumed. One pass over the
    loader is one epoch of the data: after a resume the passes that are done are empty, and the last
    one lasts until all steps are done. Do not leave a pass early.

    Args:
        accelerator: The Accelerator.
        model: The prepared model.
        optimizer: Its prepared optimizer.
        loader: The prepared training loader, over a map-style dataset.
        scheduler: The prepared scheduler; one that steps by a metric stays the loop's own.
        run: Run directory.
        epochs: Epochs of the loop.
        steps: Optimizer steps of the whole run, if the loop does not count epochs.
        accumulate: Batches of a step; None: the accelerator's own.
        extra: See `Guard`.
        **settings: More for `Guard`: mode, policy, say, ...

    Raises:
        ConfigError: Neither epochs nor steps are given, the objects are not prepared or are guarded
            already, the loader has no length although epochs are given, or as for `Guard`.
    """
    warn_of_version("accelerate")
    if (epochs is None) == (steps is None):
        raise ConfigError(f"guard_loop(epochs={epochs!r}, steps={steps!r}): give one of the two")
    _check_prepared(optimizer, loader)
    batches = accumulate or int(accelerator.gradient_accumulation_steps)
    # Rounded up: Accelerate steps at the end of an epoch, however few batches are left.
    per_epoch = -(-_num_batches(loader) // batches)
    total = steps if steps is not None else (epochs or 0) * per_epoch
    by_metric = isinstance(getattr(scheduler, "scheduler", scheduler), ReduceLROnPlateau)
    schedule = AcceleratedSchedule(None if by_metric else scheduler, optimizer, accelerator.scaler)
    more = dict(extra or {})
    if by_metric and scheduler is not None:  # the loop steps it; the guard only rolls it back
        more["plateau"] = scheduler
    guard = Guard(
        model,
        inner_optimizer(optimizer),
        data=loader,
        run=run,
        scheduler=schedule,
        scaler=accelerator.scaler,
        steps=total,
        accumulate=batches,
        extra=more,
        **settings,
    )
    port = TrainerPort(guard)
    hooks = Hooks(accelerator, port, note_losses=True)
    stepped = scheduler if scheduler is None or by_metric else SteppedScheduler(scheduler)
    fed = GuardedLoader(loader, guard, accelerator, hooks, num_epochs=-(-total // per_epoch))
    return Guarded(PreparedOptimizer(optimizer, port, schedule), fed, stepped)


def _check_prepared(optimizer: object, loader: object) -> None:
    if isinstance(optimizer, PreparedOptimizer) or isinstance(loader, GuardedLoader):
        raise ConfigError("guard_loop() was called for these objects already; call it once")
    for name, given in (("an optimizer", optimizer), ("a loader", loader)):
        if not hasattr(given, "gradient_state"):
            raise ConfigError(
                f"guard_loop() got {name} that Accelerate has not prepared"
                f" ({type(given).__name__}); call it after accelerator.prepare(...), with what that"
                " returned"
            )


def _num_batches(loader: DataLoaderShard) -> int:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"the loader's dataset is {type(loader.dataset).__name__}, which has no length, and"
            " guard_loop() counts epochs by it; give the dataset a __len__, or write the loop with"
            " Guard(steps=...)"
        ) from None


class GuardedLoader:
    """A prepared loader whose batches come in the guard's order, on the accelerator's device."""

    def __init__(
        self,
        loader: DataLoaderShard,
        guard: Guard,
        accelerator: Accelerator,
        hooks: Hooks,
        *,
        num_epochs: int,
    ) -> None:
        """Stand in for a loader; see `guard_loop`."""
        self.guard = guard
        self.dataset = loader.dataset
        self.end_of_dataloader = False
        """Read by Accelerate: whether the last batch of an epoch is out, so that a step is due."""
        self.remainder = _remainder(loader)
        """Read by Accelerate: samples of the epoch that do not fill a batch of all ranks."""
        self._loader = loader
        self._device = accelerator.device
        self._port = TrainerPort(guard)
        self._hooks = hooks
        self._num_epochs = num_epochs
        self._num_passes = 0

    def __len__(self) -> int:
        """Return the batches of one epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield an epoch: after a rollback the rest of it again, nothing if it is done."""
        number = self._num_passes
        self._num_passes += 1
        last = self._num_passes >= self._num_epochs
        state = GradientState()
        state._add_dataloader(self)
        try:
            # A rollback may lead back over the end of an epoch, and skipped data shorten one: the
            # pass that is the last for the loop lasts until all steps are done.
            while last or int(self._port.data_epoch) <= number:
                turned = int(self._port.data_epoch)
                fed = 0
                for batch in self._port.epoch():
                    fed += 1
                    self.end_of_dataloader = self._port.epoch_is_over
                    yield send_to_device(batch, self._device)
                if not fed and int(self._port.data_epoch) == turned:
                    self._hooks.remove()
                    return  # all steps are done
        finally:
            self.end_of_dataloader = False
            state._remove_dataloader(self)


def _remainder(loader: DataLoaderShard) -> int:
    try:
        return int(loader.total_dataset_length % loader.total_batch_size)
    except (AttributeError, TypeError, ZeroDivisionError):  # no length, as of a stream
        return -1
