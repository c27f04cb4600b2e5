"""Hugging Face: `GuardedTrainer` recovers within the process, `WatchCallback` watches and stops.

from trimtab.integrations.huggingface import GuardedTrainer

trainer = GuardedTrainer(model, args, train_dataset=data, guard="act")
trainer.train()
"""

from trimtab.errors import MissingExtraError

try:
    import accelerate  # noqa: F401
    import transformers  # noqa: F401
except ImportError:
    raise MissingExtraError("The adapter for Hugging Face's Trainer", "hf") from None

from trimtab.integrations.huggingface.callback import WatchCallback
from trimtab.integrations.huggingface.trainer import GuardedTrainer, GuardMixin, GuardSettings

GuardCallback = WatchCallback
"""The older name of `WatchCallback`."""

__all__ = ["GuardCallback", "GuardMixin", "GuardSettings", "GuardedTrainer", "WatchCallback"]
