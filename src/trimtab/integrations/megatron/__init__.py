"""Megatron: `MegatronGuard` in a megatron-core loop, `MegatronWatch` beside Megatron-LM's trainer.

The watch needs no megatron-core, so what does is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.integrations.megatron.watch import MegatronWatch, restart_arguments

if TYPE_CHECKING:
    from trimtab.integrations.megatron.adapter import CoreOptimizer, CoreScheduler, MegatronGuard

__all__ = [
    "CoreOptimizer",
    "CoreScheduler",
    "MegatronGuard",
    "MegatronWatch",
    "restart_arguments",
]


def __getattr__(name: str) -> object:
    """Import what needs megatron-core."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trimtab.integrations.megatron import adapter

    found: object = getattr(adapter, name)
    return found
