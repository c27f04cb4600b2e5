"""What of Lightning's Trainer can be guarded, and how long it will run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.integrations.strategies import check_strategy

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["check_trainer", "steps_of"]

_ENDLESS = 2**53


def check_trainer(trainer: Trainer, module: LightningModule) -> None:
    """Refuse what cannot be guarded.

    Raises:
        ConfigError: The message says what, and what to do instead.
    """
    if not module.automatic_optimization:
        raise ConfigError(
            f"{type(module).__name__}.automatic_optimization is False: with manual optimization the"
            " module steps its optimizers itself, and GuardCallback cannot intervene; use automatic"
            " optimization, WatchCallback, or trimtab.Guard or FabricGuard in a loop of your own"
        )
    check_strategy(trainer.strategy, "GuardCallback")
    # Lightning's connectors set these on the Trainer: its class does not declare them.
    reload_every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
    overfit = getattr(trainer, "overfit_batches", 0)
    callbacks = getattr(trainer, "callbacks", [])
    if reload_every:
        raise ConfigError(
            f"reload_dataloaders_every_n_epochs={reload_every}: the"
            " guard must be able to go back to an earlier epoch's data; set it to 0"
        )
    if overfit:
        raise ConfigError(
            f"overfit_batches={overfit} changes the order of the data; use "
            "limit_train_batches, or leave the callback out while debugging"
        )
    kinds = {kind.__name__ for callback in callbacks for kind in type(callback).__mro__}
    if "GradientAccumulationScheduler" in kinds:
        raise ConfigError(
            "GradientAccumulationScheduler changes the batches of a step along the way; set "
            "Trainer(accumulate_grad_batches=...) instead"
        )


def steps_of(trainer: Trainer, batches_per_epoch: int) -> int:
    """Return after how many optimizer steps Lightning will stop, if nothing stops it earlier."""
    per_epoch = math.ceil(batches_per_epoch / trainer.accumulate_grad_batches)
    epochs = trainer.fit_loop.max_epochs
    limits = [_ENDLESS]
    if epochs is not None and epochs >= 0:
        limits.append(per_epoch * epochs)
    if trainer.max_steps >= 0:
        limits.append(trainer.max_steps)
    return max(min(limits), 1)
