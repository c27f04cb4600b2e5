"""Before the run: read a training config, hold it against what went wrong elsewhere, and say what to type instead.

What measures a model (`audit`, `parity`, …) lives behind the `torch` extra in `probes` and is loaded
when first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.preflight.probes.audit import audit
    from trimtab.preflight.probes.coordinates import coordinate_check
    from trimtab.preflight.probes.parity import parity
    from trimtab.preflight.probes.reload import check_reload

__all__ = ["audit", "check_reload", "coordinate_check", "parity"]

_HOMES = {
    "audit": "audit",
    "check_reload": "reload",
    "coordinate_check": "coordinates",
    "parity": "parity",
}


def __getattr__(name: str) -> Any:
    """Load the torch side only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab.preflight' has no attribute {name!r}")
    from importlib import import_module
    from importlib.util import find_spec

    from trimtab.errors import MissingExtraError

    if find_spec("torch") is None:
        raise MissingExtraError(f"`trimtab.preflight.{name}`", "torch")
    return getattr(import_module(f"trimtab.preflight.probes.{_HOMES[name]}"), name)
