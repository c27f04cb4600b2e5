"""Every rule, as data: what went wrong in a public run, how a config shows it, what to type
instead."""

from collections.abc import Mapping

from trimtab.config_rules.rules.init import INIT_RULES
from trimtab.config_rules.rules.layout import LAYOUT_RULES
from trimtab.config_rules.rules.learning_rate import LEARNING_RATE_RULES
from trimtab.config_rules.rules.model import MODEL_RULES
from trimtab.config_rules.rules.operations import OPERATIONS_RULES
from trimtab.config_rules.rules.optimizer import OPTIMIZER_RULES
from trimtab.config_rules.rules.precision import PRECISION_RULES
from trimtab.config_rules.rules.rule import ConfigRule, RuleVerdict, Severity
from trimtab.config_rules.rules.schedule import SCHEDULE_RULES
from trimtab.config_rules.rules.shape import SHAPE_RULES

__all__ = ["RULES", "RULE_BY_ID", "ConfigRule", "RuleVerdict", "Severity"]

RULES: tuple[ConfigRule, ...] = (
    *SCHEDULE_RULES,
    *PRECISION_RULES,
    *INIT_RULES,
    *SHAPE_RULES,
    *LEARNING_RATE_RULES,
    *OPTIMIZER_RULES,
    *LAYOUT_RULES,
    *OPERATIONS_RULES,
    *MODEL_RULES,
)
RULE_BY_ID: Mapping[str, ConfigRule] = {r.id: r for r in RULES}
