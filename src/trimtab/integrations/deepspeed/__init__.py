"""DeepSpeed: `DeepSpeedGuard` around an engine, ZeRO stages 0 to 3."""

from trimtab.integrations.deepspeed.adapter import DeepSpeedGuard
from trimtab.integrations.deepspeed.checkpoints import healthy_tag

__all__ = ["DeepSpeedGuard", "healthy_tag"]
