"""Checks that are measured on the model itself, before the first device hour.

`audit` looks at init, gradients, optimizer groups and number formats of a model; `check_reload`
compares it with its checkpoint; `coordinate_check` measures whether activations keep their size as
the width grows; `parity` trains a few steps under each distributed layout and compares them;
`smoke` trains a small twin of a config; `noise_scale` tells at which batch size noise and gradient
are alike; `export_step` writes one training step that can be computed
again elsewhere.

Everything here needs the torch extra. Findings have the form of the config rules, with title,
reason and source from the same table.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.model_checks.coordinates import coordinate_check
    from trimtab.model_checks.gradient_noise import noise_scale
    from trimtab.model_checks.layout_parity import parity
    from trimtab.model_checks.layouts import LayoutCase
    from trimtab.model_checks.model_audit import audit
    from trimtab.model_checks.reload import check_reload
    from trimtab.model_checks.smoke_run import smoke
    from trimtab.model_checks.step_bundle import export_step

__all__ = [
    "LayoutCase",
    "audit",
    "check_reload",
    "coordinate_check",
    "export_step",
    "noise_scale",
    "parity",
    "smoke",
]

_HOMES = {
    "LayoutCase": "layouts",
    "audit": "model_audit",
    "check_reload": "reload",
    "coordinate_check": "coordinates",
    "export_step": "step_bundle",
    "noise_scale": "gradient_noise",
    "parity": "layout_parity",
    "smoke": "smoke_run",
}
"""Module of each public name. Modules and functions have different names: the import of a module
would otherwise replace the function in this package."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used; torch is imported with it."""
    if name == "Case":  # the name of LayoutCase in earlier versions
        name = "LayoutCase"
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
