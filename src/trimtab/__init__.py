"""trimtab: sees when a training run goes wrong, explains why, decides, acts, and writes it down.

The base install reads logs and needs no torch. `Guard` lives behind the `torch` extra and is
loaded when first asked for.
"""

from typing import TYPE_CHECKING, Any

from trimtab.version import __version__

if TYPE_CHECKING:
    from trimtab.guard import Guard
    from trimtab.plan.policy import Policy

__all__ = ["Guard", "Policy", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the torch side only when it is asked for."""
    if name == "Guard":
        from trimtab.guard import Guard

        return Guard
    if name == "Policy":
        from trimtab.plan.policy import Policy

        return Policy
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
