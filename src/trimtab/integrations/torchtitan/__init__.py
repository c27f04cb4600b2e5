"""The guard in torchtitan's Trainer, as a subclass with its own Config."""

from trimtab.integrations.torchtitan.trainer import GuardConfig, GuardedTrainer, GuardMixin, guarded

__all__ = ["GuardConfig", "GuardMixin", "GuardedTrainer", "guarded"]
