"""The rules of preflight: what went wrong in a public run, how a config shows it, what to type.

What a rule says of itself is in `rules.toml`; the modules here hold the checks, by the id of their
rule.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from trimtab.config_rules.rules.init import INIT_CHECKS
from trimtab.config_rules.rules.layout import LAYOUT_CHECKS
from trimtab.config_rules.rules.learning_rate import LEARNING_RATE_CHECKS
from trimtab.config_rules.rules.operations import OPERATIONS_CHECKS
from trimtab.config_rules.rules.optimizer import OPTIMIZER_CHECKS
from trimtab.config_rules.rules.precision import PRECISION_CHECKS
from trimtab.config_rules.rules.rule import Checks, ConfigRule, RuleVerdict, Severity
from trimtab.config_rules.rules.schedule import SCHEDULE_CHECKS
from trimtab.config_rules.rules.shape import SHAPE_CHECKS

__all__ = ["ConfigRule", "RuleVerdict", "Severity", "rule_table"]

_CHECKS: Checks = {
    **SCHEDULE_CHECKS,
    **PRECISION_CHECKS,
    **INIT_CHECKS,
    **SHAPE_CHECKS,
    **LEARNING_RATE_CHECKS,
    **OPTIMIZER_CHECKS,
    **LAYOUT_CHECKS,
    **OPERATIONS_CHECKS,
}


@cache
def rule_table() -> Mapping[str, ConfigRule]:
    """Return every rule by its id, in the order in which they are listed."""
    rows = tomllib.loads((files("trimtab.config_rules.rules") / "rules.toml").read_text("utf-8"))
    return {name: _rule(name, row) for name, row in rows.items()}


def _rule(name: str, row: dict[str, Any]) -> ConfigRule:
    check, decided = _CHECKS.get(name, (None, None))
    needs = tuple(row.pop("needs", ()))
    return ConfigRule(id=name, check=check, decided=decided, needs=needs, **row)
