"""Adapters for the trainers that people use, one package a framework.

A framework is imported with its own adapter only: `import trimtab.integrations` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "accelerate",
    "deepspeed",
    "fabric",
    "huggingface",
    "lightning",
    "loggers",
    "megatron",
    "torchtitan",
    "trl",
]


def __getattr__(name: str) -> ModuleType:
    """Import an adapter when it is first used, as `trimtab.integrations.huggingface`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """List the adapters, imported or not."""
    return sorted({*globals(), *__all__})
