"""Apply every rule to one config and sort the findings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.config_rules.rules import ConfigRule, RuleVerdict, Severity, rule_table
from trimtab.config_rules.spelling import spell
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Settings
from trimtab.errors import ConfigError
from trimtab.plan.remedies import When

__all__ = ["ConfigFinding", "Phase", "in_phase", "lint", "phase_of", "satisfied"]

Phase = Literal["start", "mid"]
_RANK: Mapping[str, int] = {"error": 0, "warning": 1, "info": 2}
_HINDSIGHT = ("data", "precision", "init")
"""What OPT named first in hindsight: more data, bf16, init."""


@dataclass(frozen=True, kw_only=True)
class ConfigFinding:
    """What one rule found in one config."""

    rule: str
    title: str
    topic: str
    severity: Severity
    message: str
    values: Mapping[str, Any]
    why: str
    source: str
    instead: str
    cost: str
    when: When


def lint(
    settings: Settings,
    *,
    params: float | None = None,
    corpus_tokens: float | None = None,
    train_tokens: float | None = None,
) -> tuple[ConfigFinding, ...]:
    """Return what the rules find, by severity, then data, precision and init first, then by rule.

    Args:
        settings: One config.
        params: Parameters, where the config does not determine them.
        corpus_tokens: Tokens of the corpus before any repeats.
        train_tokens: Tokens to train.

    Raises:
        ConfigError: One of them is not a positive number.
    """
    # NaN fails the comparison below as well, which `value <= 0` would let through.
    given = {"params": params, "corpus_tokens": corpus_tokens, "train_tokens": train_tokens}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; give a positive number")
    run = Facts(settings, **given)
    found = [finding for rule in rule_table().values() for finding in _apply(rule, run)]
    return tuple(sorted(found, key=_order))


def _apply(rule: ConfigRule, run: Facts) -> Iterator[ConfigFinding]:
    said = rule.check(run) if rule.check is not None and rule.applies(run) else None
    for verdict in (said,) if isinstance(said, RuleVerdict) else said or ():
        yield _finding(rule, verdict, run)


def _finding(rule: ConfigRule, verdict: RuleVerdict, run: Facts) -> ConfigFinding:
    return ConfigFinding(
        rule=rule.id,
        title=rule.title,
        topic=rule.topic,
        severity=verdict.severity,
        message=verdict.message,
        values=dict(verdict.values),
        why=rule.why,
        source=rule.source,
        # Spelled here, not in the rule: a rule knows no framework.
        instead=spell(run.settings, verdict.change, verdict.words),
        cost=rule.cost,
        when=rule.when or "unsure",
    )


def _order(finding: ConfigFinding) -> tuple[int, int, str]:
    topic = _HINDSIGHT.index(finding.topic) if finding.topic in _HINDSIGHT else len(_HINDSIGHT)
    return _RANK[finding.severity], topic, finding.rule


def phase_of(when: When) -> Phase:
    """Return when advice is of use.

    What may change in mid-run is for a run in trouble, the rest for before the start.
    """
    return "mid" if when == "mid-run" else "start"


def in_phase(findings: Iterable[ConfigFinding], phase: Phase) -> tuple[ConfigFinding, ...]:
    """Return the findings of one phase; the two phases share none."""
    return tuple(f for f in findings if phase_of(f.when) == phase)


def satisfied(
    settings: Settings,
    findings: Iterable[ConfigFinding],
    *,
    params: float | None = None,
    corpus_tokens: float | None = None,
    train_tokens: float | None = None,
) -> tuple[ConfigRule, ...]:
    """Return the rules that this config could answer, that concern it, and that found nothing.

    Args:
        settings: One config.
        findings: All that `lint` found, of both phases, with the same size and tokens.
        params: As for `lint`.
        corpus_tokens: As for `lint`.
        train_tokens: As for `lint`.
    """
    spoke = {f.rule for f in findings}
    run = Facts(settings, params=params, corpus_tokens=corpus_tokens, train_tokens=train_tokens)
    return tuple(r for r in rule_table().values() if r.id not in spoke and r.answered(run))
