"""The guard in Lightning's Trainer: one callback."""

from trimtab.integrations.lightning.callback import GuardCallback

__all__ = ["GuardCallback"]
