"""Findings of the model checks, with reason and source from the table of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.config_rules.lint import ConfigFinding
from trimtab.config_rules.rules import rule_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trimtab.config_rules.rules import Severity

__all__ = ["found", "listed", "ordered"]

_RANK = {"error": 0, "warning": 1, "info": 2}
_SHOWN = 4


def found(
    rule: str,
    severity: Severity,
    message: str,
    *,
    values: Mapping[str, object] | None = None,
    instead: str = "",
) -> ConfigFinding:
    """Return a finding under a rule of the table."""
    entry = rule_table()[rule]
    return ConfigFinding(
        rule=rule,
        title=entry.title,
        topic=entry.topic,
        severity=severity,
        message=message,
        values=dict(values or {}),
        why=entry.why,
        source=entry.source,
        instead=instead,
        cost=entry.cost,
        when=entry.when or "unsure",
    )


def listed(names: Iterable[str]) -> str:
    """Return names for a message; of many the first ones and how many more.

    Example:
        >>> listed("abcdef")
        'a, b, c, d and 2 more'
    """
    every = list(names)
    rest = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def ordered(findings: Iterable[ConfigFinding]) -> tuple[ConfigFinding, ...]:
    """Return findings with the most severe first, otherwise in the order they came."""
    return tuple(sorted(findings, key=lambda f: _RANK[f.severity]))
