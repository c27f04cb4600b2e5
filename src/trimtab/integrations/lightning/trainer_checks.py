"""What of Lightning's Trainer can be guarded, and how long it will run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError
from trimtab.integrations.lightning.trainer_parts import check_strategy

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

__all__ = ["check_trainer", "steps_of"]

_ENDLESS = 2**53


def check_trainer(trainer: Any, module: LightningModule) -> None:
    """Refuse what cannot be guarded.

    Raises:
        ConfigError: The message says what, and what to do instead.
    """
    if not module.automatic_optimization:
        raise ConfigError(
            f"{type(module).__name__}.automatic_optimization is False: with manual optimization the"
            " module steps its optimizers itself, and GuardCallback has no place to stand; use"
            " automatic optimization, or trimtab.guard.Guard or FabricGuard in a loop of your own"
        )
    check_strategy(trainer.strategy, "GuardCallback")
    if trainer.reload_dataloaders_every_n_epochs:
        raise ConfigError(
            f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}: the"
            " guard must be able to go back to an earlier epoch's data; set it to 0"
        )
    if trainer.overfit_batches:
        raise ConfigError(
            f"overfit_batches={trainer.overfit_batches} changes the order of the data; use "
            "limit_train_batches, or leave the callback out while debugging"
        )
    kinds = {kind.__name__ for callback in trainer.callbacks for kind in type(callback).__mro__}
    if "GradientAccumulationScheduler" in kinds:
        raise ConfigError(
            "GradientAccumulationScheduler changes the batches of a step along the way; set "
            "Trainer(accumulate_grad_batches=...) instead"
        )


def steps_of(trainer: Any, batches_per_epoch: int) -> int:
    """Return after how many optimizer steps Lightning will stop, unless something stops it
    earlier."""
    per_epoch = math.ceil(batches_per_epoch / trainer.accumulate_grad_batches)
    epochs = trainer.fit_loop.max_epochs
    limits = [_ENDLESS]
    if epochs is not None and epochs >= 0:
        limits.append(per_epoch * epochs)
    if trainer.max_steps >= 0:
        limits.append(trainer.max_steps)
    return max(min(limits), 1)
