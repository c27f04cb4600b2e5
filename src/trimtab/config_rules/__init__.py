"""The rules of `trimtab preflight`, published presets, and the advice that follows from them.

`preflight_config` reads configs and returns what the rules find; `lint` applies the rules to one
`Settings` record.
"""

from trimtab.config_rules.budget import Machine
from trimtab.config_rules.lint import ConfigFinding, lint
from trimtab.config_rules.preflight import ConfigReport, PreflightResult, preflight_config

__all__ = [
    "ConfigFinding",
    "ConfigReport",
    "Machine",
    "PreflightResult",
    "lint",
    "preflight_config",
]
