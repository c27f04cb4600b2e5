"""Lightning's Trainer: `GuardCallback` recovers within the process, `WatchCallback` watches."""

from trimtab.integrations.lightning.callback import GuardCallback
from trimtab.integrations.lightning.watch import LightningWatch

WatchCallback = LightningWatch
"""The name that every trainer's watching callback has."""

__all__ = ["GuardCallback", "WatchCallback"]
