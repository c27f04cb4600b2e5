"""What a check of the config says about causes: which rule of preflight speaks for which cause.

The rules are those of `trimtab.config_rules`; what they find is handed in as plain data, since a
diagnosis reads no config.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CONFIG_EVIDENCE", "ConfigSign", "config_weight"]


@dataclass(frozen=True, kw_only=True)
class ConfigSign:
    """One finding of a check of the config."""

    rule: str
    """Id of the rule."""
    severity: str
    """error, warning or info."""
    message: str
    ratio: float | None = None
    """How many times the usual value the setting is; None: the rule compares with none."""
    rate: float | None = None
    """Learning rate that the config states; None: none, or the rule is about something else."""


_TOO_HIGH = "learning-rate-too-high"
CONFIG_EVIDENCE: Mapping[str, Mapping[str, float]] = {
    "L06": {_TOO_HIGH: 1.6},
    "L01": {_TOO_HIGH: 0.8},
    "L02": {_TOO_HIGH: 0.4},
    "L03": {_TOO_HIGH: 0.4},
    "L07": {_TOO_HIGH: 0.8},
    "L13": {_TOO_HIGH: 0.4},
    "L21": {_TOO_HIGH: 0.4},
    "L22": {_TOO_HIGH: 0.4},
    "L24": {"fp16-range": 0.5},
    "L25": {"fp16-range": 0.8},
    "L28": {"fp16-range": 0.4},
    "L29": {"fp16-range": 0.3},
    "L09": {"poisoned-optimizer-state": 0.5},
    "L10": {"updates-too-small": 0.8},
    "L11": {"updates-too-small": 0.8},
    "L37": {"repeated-data": 0.6},
    "L38": {"bad-data-window": 0.4},
    "L39": {"repeated-data": 0.6},
}
"""Rule -> cause -> log-odds of a warning, nats; an error counts half as much again. Set by hand."""

_RATED = "L06"


def config_weight(sign: ConfigSign, cause: str) -> float:
    """Return by how much a finding moves the log-odds of a cause; 0 where it says nothing of it.

    A rate counts by how far it is above the usual one: 3 times as written, 30 times with 1.2 more.
    One below the usual speaks for nothing here.

    Example:
        >>> sign = ConfigSign(rule="L06", severity="error", message="", ratio=30.0)
        >>> round(config_weight(sign, "learning-rate-too-high"), 2)
        3.55
    """
    weight = CONFIG_EVIDENCE.get(sign.rule, {}).get(cause, 0.0)
    if not weight or sign.severity == "info":
        return 0.0
    if sign.rule == _RATED:
        if sign.ratio is None or sign.ratio <= 1:
            return 0.0
        weight += min(2.0, max(0.0, 0.5 * math.log(sign.ratio / 3)))
    return weight + (0.5 * CONFIG_EVIDENCE[sign.rule][cause] if sign.severity == "error" else 0.0)
