"""torchtitan: `guarded(config)` returns the config of a guarded Trainer."""

from trimtab.integrations.torchtitan.trainer import (
    GuardConfig,
    TitanGuardedTrainer,
    TitanGuardMixin,
    guarded,
)

GuardMixin = TitanGuardMixin
GuardedTrainer = TitanGuardedTrainer

__all__ = ["GuardConfig", "GuardMixin", "GuardedTrainer", "guarded"]
