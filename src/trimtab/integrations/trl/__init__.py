"""TRL: its SFT, DPO and GRPO trainers, guarded as Hugging Face's Trainer is.

    from trimtab.integrations.trl import GuardedGRPOTrainer

    trainer = GuardedGRPOTrainer(model, reward_funcs=reward, args=args, guard="act")
    trainer.train()

For a trainer class of your own put the mixin before it: `class Mine(GuardMixin, MyTrainer)`. The
completions that GRPO has buffered go back and resume with the rest of the state.
"""

from trimtab.integrations.huggingface.trainer import GuardMixin, GuardSettings
from trimtab.integrations.trl.trainers import (
    GuardedDPOTrainer,
    GuardedGRPOTrainer,
    GuardedSFTTrainer,
)

__all__ = [
    "GuardMixin",
    "GuardSettings",
    "GuardedDPOTrainer",
    "GuardedGRPOTrainer",
    "GuardedSFTTrainer",
]
