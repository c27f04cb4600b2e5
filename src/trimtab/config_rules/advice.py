"""Advice without a config: settings for a width, depth or size, and the table of remedies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.config_rules.lint import Phase, phase_of
from trimtab.config_rules.references import BATCH_TOKENS, GPT3_LR, TABLES, WORKED_LR, ReferenceTable
from trimtab.config_rules.rules import rule_table
from trimtab.config_rules.rules.rule import compact, tokens
from trimtab.config_rules.rules.shape import depth_risk, depth_words
from trimtab.configs.facts import Facts, small_init, wide_init
from trimtab.configs.settings import Settings
from trimtab.errors import ConfigError
from trimtab.plan.remedies import Remedy, When
from trimtab.plan.remedy_table import REMEDIES, REMEDY_BY_ID

__all__ = ["Advice", "advise", "consider", "menu", "points", "reach"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to set, or to do."""

    setting: str
    value: str
    formula: str = ""
    source: str
    cost: str
    when: When


def advise(
    hidden: float | None = None, layers: float | None = None, params: float | None = None
) -> tuple[Advice, ...]:
    """Return settings for a model of this shape or size, each from a rule.

    Args:
        hidden: Width of the residual stream.
        layers: Transformer blocks.
        params: Parameters; from the shape, 12 L h^2, where absent.

    Raises:
        ConfigError: A number is not positive.
    """
    for name, value in (("hidden", hidden), ("layers", layers), ("params", params)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; give a positive number")
    if params is None and hidden and layers:
        # 4 h² for attention and 8 h² for the feed-forward block, per layer; embeddings left out.
        params = 12 * layers * hidden * hidden
    found = [_from_rule("L24", "number format", "bf16", "gradients summed in fp32")]
    if hidden:
        found += [
            _from_rule(
                "L01",
                "init std, small",
                f"{small_init(hidden):.5f}",
                f"√(2/(5·{hidden:.0f})) = √(.4/{hidden:.0f})",
            ),
            _from_rule(
                "L01",
                "init std, MT-NLG 530B",
                f"{wide_init(hidden):.5f}",
                f"√(1/(3·{hidden:.0f})) = √(.333/{hidden:.0f})",
            ),
        ]
    if hidden and layers:
        std = small_init(hidden)
        found += [
            _from_rule(
                "L02",
                "init std of output layers",
                f"{std / math.sqrt(2 * layers):.5f}",
                f"{std:.5f}/√(2·{layers:.0f})",
            ),
            _from_rule(
                "L18-aspect",
                "depth risk",
                str(depth_risk(hidden, layers)),
                f"{depth_words(hidden, layers)}; hidden/layers {hidden / layers:.0f}; one step for"
                " each doubling of the depth",
            ),
        ]
    if params:
        found += [
            _from_rule(
                "L06", "peak learning rate", compact(GPT3_LR.at(params)), _between(GPT3_LR, params)
            ),
            _from_rule(
                "L17", "batch", tokens(BATCH_TOKENS.at(params)), _between(BATCH_TOKENS, params)
            ),
        ]
    found += [
        _from_rule(
            "L07", "warm-up", "375 M tokens or 2000 steps", "GPT-3 and BLOOM; Llama and OLMo"
        ),
        _from_rule("L09", "β2", "0.95"),
        _from_rule("L10", "ε", "1e-8"),
        _from_rule("L11", "weight decay", "0.1"),
        _from_rule("L13", "gradient clip", "1.0"),
    ]
    return tuple(found)


def _from_rule(rule: str, setting: str, value: str, formula: str = "") -> Advice:
    known = rule_table()[rule]
    return Advice(
        setting=setting,
        value=value,
        formula=formula,
        source=known.source,
        cost=known.cost,
        when=known.when or "unsure",
    )


def _between(table: ReferenceTable, params: float) -> str:
    near = ", ".join(f"{p.run} {compact(p.value)}" for p in table.around(params))
    return f"{table.name} at {compact(params)}: {near}"


def menu(phase: Phase | None = None) -> tuple[Remedy, ...]:
    """Return the table of remedies; of one phase, those that belong to it. The two share none."""
    return tuple(r for r in REMEDIES if phase is None or phase_of(r.when) == phase)


def consider(what: str, settings: Settings | None = None) -> tuple[Remedy, str]:
    """Return a remedy with its cost and effect in public runs, and its price for this config.

    The price is text; empty where this config does not determine one.

    Raises:
        ConfigError: It is not in the table.
    """
    if what not in REMEDY_BY_ID:
        raise ConfigError(f"no remedy {what!r}; there are {', '.join(sorted(REMEDY_BY_ID))}")
    batch = Facts(settings).batch_tokens if settings is not None else None
    price = ""
    if what == "double-batch" and batch is not None:
        price = (
            f"{tokens(batch)} more for each update ({tokens(batch)} to {tokens(2 * batch)}): the"
            " same tokens give half the updates"
        )
    return REMEDY_BY_ID[what], price


def points(params: float | None = None) -> tuple[tuple[ReferenceTable, float | None], ...]:
    """Return every table, with its value at a size."""
    return tuple((t, t.at(params) if params is not None else None) for t in TABLES)


def reach(settings: Settings, params: float | None = None) -> Mapping[str, float]:
    """Return the model's size over the largest size at which each practice was verified.

    Above 1 a rule is extrapolated. Empty where the size is not known.
    """
    size = Facts(settings, params=params).params
    if size is None:
        return {}
    known = {
        "√(2/5h) init": 105e9,
        "√(1/3h) init": 530e9,
        "GPT-3 rate table": GPT3_LR.points[-1].params,
        "highest rates": WORKED_LR.points[-1].params,
        "bf16": 405e9,
        "QK-norm": 235e9,
    }
    return {name: size / at for name, at in known.items()}
