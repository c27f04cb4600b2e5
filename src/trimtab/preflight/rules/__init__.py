"""Every rule, as data: what went wrong in a public run, how a config shows it, what to type instead."""

from collections.abc import Mapping

from trimtab.preflight.rules.init import INIT_RULES
from trimtab.preflight.rules.layout import LAYOUT_RULES
from trimtab.preflight.rules.learning_rate import LEARNING_RATE_RULES
from trimtab.preflight.rules.model import MODEL_RULES
from trimtab.preflight.rules.operations import OPERATIONS_RULES
from trimtab.preflight.rules.optimizer import OPTIMIZER_RULES
from trimtab.preflight.rules.precision import PRECISION_RULES
from trimtab.preflight.rules.rule import Rule, Severity, Verdict
from trimtab.preflight.rules.schedule import SCHEDULE_RULES
from trimtab.preflight.rules.shape import SHAPE_RULES

__all__ = ["RULES", "RULE_BY_ID", "Rule", "Severity", "Verdict"]

RULES: tuple[Rule, ...] = (
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
RULE_BY_ID: Mapping[str, Rule] = {r.id: r for r in RULES}
