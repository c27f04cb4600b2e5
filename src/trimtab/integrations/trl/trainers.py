"""TRL's trainers with the guard's mixin before them."""

from __future__ import annotations

from trimtab.errors import MissingExtraError

try:
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.sft_trainer import SFTTrainer
except ImportError as error:
    raise MissingExtraError("The adapter for TRL", "trl") from error

from trimtab.integrations.huggingface.trainer import GuardMixin

__all__ = ["GuardedDPOTrainer", "GuardedGRPOTrainer", "GuardedSFTTrainer"]


class GuardedSFTTrainer(GuardMixin, SFTTrainer):
    """Supervised fine-tuning, guarded."""


class GuardedDPOTrainer(GuardMixin, DPOTrainer):
    """Direct preference optimization, guarded."""


class GuardedGRPOTrainer(GuardMixin, GRPOTrainer):
    """Group relative policy optimization, guarded: its buffered completions are rolled back too."""
