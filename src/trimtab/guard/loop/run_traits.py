"""What a run's model and optimizer have that some remedies change, for advice that applies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trimtab.guard.state.optimizers import has_moments, has_second_moment

if TYPE_CHECKING:
    import torch

__all__ = ["traits"]

_ATTENTION = re.compile(r"attention|attn|qkv|(?<![a-z])(?:[qkv]_proj|w[qkv]|to_[qkv])(?![a-z])")
"""What modules of attention are called, or are within."""


def traits(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return {"traits": ...}: what model and optimizer have that some remedies change.

    Attention is known by the names of modules and of their classes.
    """
    names = (f"{name} {type(module).__name__}" for name, module in model.named_modules())
    found = {
        "attention": any(_ATTENTION.search(name.lower()) for name in names),
        "moments": has_moments(optimizer),
        "second-moment": has_second_moment(optimizer),
    }
    return {"traits": ", ".join(name for name, there in found.items() if there) or "none"}
