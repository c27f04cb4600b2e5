"""Find, explain and remedy instabilities in training runs.

    import trimtab

    found = trimtab.analyze("train.log")  # a log of any trainer, a frame, a record
    found.verdict, found.incidents

    for update in trimtab.watch("runs/demo"): ...
    trimtab.preflight("config.yaml").findings
    trimtab.compare("a.log", "b.log").to_dict()
    guard = trimtab.Guard(...)  # in a training loop; needs the torch extra

The names in `__all__` are the promised ones. Each is loaded when it is first used: the base
install reads logs and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from trimtab.version import __version__

if TYPE_CHECKING:
    from trimtab import integrations
    from trimtab.api.analysis import Analysis, analyze
    from trimtab.api.checking import preflight
    from trimtab.api.comparison import compare
    from trimtab.api.watching import watch
    from trimtab.detectors.contract import Detector
    from trimtab.guard import Guard
    from trimtab.plan.policy import Policy
    from trimtab.readers import read

__all__ = [
    "Analysis",
    "Detector",
    "Guard",
    "Policy",
    "__version__",
    "analyze",
    "compare",
    "integrations",
    "preflight",
    "read",
    "watch",
]

_HOMES = {
    "Analysis": "trimtab.api.analysis",
    "Detector": "trimtab.detectors.contract",
    "Guard": "trimtab.guard",
    "Policy": "trimtab.plan.policy",
    "analyze": "trimtab.api.analysis",
    "compare": "trimtab.api.comparison",
    "preflight": "trimtab.api.checking",
    "read": "trimtab.readers",
    "watch": "trimtab.api.watching",
}
"""Where each name is defined. No module may have the name of a function here: importing
`trimtab.watch`, say, would put the module in the place of the function."""


def __getattr__(name: str) -> object:
    """Load a promised name when it is first used, and keep it."""
    if name == "integrations":
        return import_module("trimtab.integrations")
    if name not in _HOMES:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the promised names beside those that are loaded."""
    return sorted({*globals(), *__all__})
