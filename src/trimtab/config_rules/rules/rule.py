"""What a rule is: when it applies, what it checks, why, its source, and the price to follow it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trimtab.configs.facts import Facts
from trimtab.errors import ConfigError
from trimtab.plan.remedies import When
from trimtab.plan.remedy_table import REMEDY_BY_ID

__all__ = [
    "Check",
    "Checks",
    "ConfigRule",
    "Elsewhere",
    "RuleVerdict",
    "Severity",
    "Topic",
    "compact",
    "times",
    "tokens",
]

Severity = Literal["error", "warning", "info"]
Topic = Literal["data", "precision", "init", "shape", "optimizer", "schedule", "operations"]
Elsewhere = Literal["guard", "audit", "smoke", "scan", "inspect", "budget"]
"""Part of trimtab that checks a rule which no config can answer."""


@dataclass(frozen=True)
class RuleVerdict:
    """What a check found in one config."""

    severity: Severity
    message: str
    """Sentence with this run's numbers in it."""
    values: Mapping[str, object] = field(default_factory=dict)
    change: Mapping[str, object] = field(default_factory=dict)
    """Canonical setting to proposed value; spelled for the framework by `spelling`."""
    words: str = ""
    """What to do where it is not a setting, or in addition."""


Check = Callable[[Facts], RuleVerdict | Sequence[RuleVerdict] | None]
"""Gives None, or nothing, where a rule is satisfied or the settings that it needs are absent."""
Checks = Mapping[str, tuple[Check, Callable[[Facts], bool] | None]]
"""Rule id → (its check, whether a config states enough to call the rule satisfied where the check
finds nothing; None: it always does)."""


@dataclass(frozen=True, kw_only=True)
class ConfigRule:
    """One thing that went wrong elsewhere, and how to see it in a config."""

    id: str
    title: str
    topic: Topic
    why: str
    source: str
    """Public name of where it comes from."""
    check: Check | None = None
    """Gives None, or nothing, where the rule is satisfied or the settings it needs are absent."""
    needs: tuple[str, ...] = ()
    """Settings, or what follows from them, without which it does not apply."""
    from_scratch: bool = False
    """Whether it speaks of training from scratch only."""
    transformers: bool = False
    """Whether it holds for transformers only."""
    decided: Callable[[Facts], bool] | None = None
    """Whether a config that has what it needs also says enough to call the rule satisfied; None
    where it always does."""
    elsewhere: Elsewhere | None = None
    remedy: str = ""
    """Id in the table of remedies, whose cost and time then hold."""
    cost: str = ""
    when: When | None = None

    def __post_init__(self) -> None:
        """Take cost and time from the table, and refuse a rule that cannot be explained."""
        if self.remedy:
            entry = REMEDY_BY_ID[self.remedy]
            # Frozen dataclasses are set this way in `__post_init__`.
            object.__setattr__(self, "cost", self.cost or entry.cost)
            object.__setattr__(self, "when", self.when or entry.when)
        # A finding without reason, source or cost gives no ground to act on.
        for name in ("id", "title", "why", "source", "cost", "when"):
            if not getattr(self, name):
                raise ConfigError(f"rule {self.id!r} has no {name}; every rule states one")
        if (self.check is None) == (self.elsewhere is None):
            raise ConfigError(f"rule {self.id!r}: give a check, or where it is checked, not both")

    def applies(self, run: Facts) -> bool:
        """Whether a config can answer the rule and states what the rule needs."""
        if self.transformers and run.other_architecture:
            return False
        return self.check is not None and all(run.has(name) for name in self.needs)

    def answered(self, run: Facts) -> bool:
        """Whether a check without a finding means that the rule is satisfied.

        It does not where the config states too little to decide.
        """
        if not self.needs or not self.applies(run):
            return False
        if self.from_scratch and (run.is_tuning or run.is_continued or run.is_description):
            return False
        return self.decided is None or self.decided(run)


def compact(value: float) -> str:
    """Return a number in short form.

    Example:
        >>> compact(1.75e11), compact(46400), compact(0.00587), compact(3e-4)
        ('175 B', '46 400', '0.00587', '3e-4')
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    if 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.3g}"


def times(ratio: float) -> str:
    """Return a ratio in two digits, in full from 100 on.

    Example:
        >>> times(2.714), times(100.0), times(1234.0), times(0.018)
        ('2.7', '100', '1 234', '0.018')
    """
    return compact(ratio) if ratio >= 99.5 else f"{ratio:.2g}"


def tokens(value: float) -> str:
    """Return a number of tokens in short form.

    Example:
        >>> tokens(4194304)
        '4.19 M tokens'
    """
    return f"{compact(value)} tokens"
