"""Plan B: how long a failing run can continue if published settings must still finish in time."""

import math
from dataclasses import dataclass
from typing import Literal

from trimtab.errors import ConfigError

__all__ = ["PlanB", "plan_b"]


@dataclass(frozen=True, kw_only=True)
class PlanB:
    """The advice, and the days that it is based on."""

    advice: Literal["go on", "switch", "too late"]
    """too late: even plan B, from scratch and at once, would not finish."""
    days_needed: float
    """Until the present lineage is done, at its goodput; Inf where it makes no progress."""
    days_needed_b: float
    """The same for plan B from scratch."""
    switch_within_days: float
    """Latest day, from now, on which plan B can begin; below 0: too late."""
    text: str


def plan_b(
    *,
    days_left: float,
    tokens_left: float,
    tokens_per_day: float,
    goodput: float,
    plan_b_tokens: float,
    plan_b_goodput: float = 0.9,
    reserve: float = 0.1,
) -> PlanB:
    """Return whether to give up a failing run for published settings.

    days needed = tokens / (tokens_per_day * goodput); switch within = (1 - reserve) * days_left -
    days needed of plan B. Switch where the present run will not finish in time and plan B will.

    Args:
        days_left: Until the machines are gone.
        tokens_left: Of the present lineage.
        tokens_per_day: While nothing fails.
        goodput: Share of those that end up in the lineage, restarts and rollbacks off; 0 to 1.
        plan_b_tokens: Of plan B, from scratch.
        plan_b_goodput: What published settings are trusted with. Ours.
        reserve: Share of the days that is not planned for. Ours.

    Raises:
        ConfigError: A value is impossible.

    Example:
        >>> plan_b(days_left=60, tokens_left=250e9, tokens_per_day=8e9, goodput=0.4,
        ...        plan_b_tokens=300e9).advice
        'switch'
    """
    for name, value, low in (
        ("days_left", days_left, 0.0),
        ("tokens_left", tokens_left, 0.0),
        ("plan_b_tokens", plan_b_tokens, 0.0),
        ("tokens_per_day", tokens_per_day, 1e-300),
    ):
        if not (math.isfinite(value) and value >= low):
            raise ConfigError(f"{name} is {value!r}, expected a number above 0")
    for name, value in (
        ("goodput", goodput),
        ("plan_b_goodput", plan_b_goodput),
        ("reserve", reserve),
    ):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value!r}, expected 0 to 1")
    needed = tokens_left / (tokens_per_day * goodput) if goodput > 0 else math.inf
    needed_b = plan_b_tokens / (tokens_per_day * plan_b_goodput) if plan_b_goodput > 0 else math.inf
    usable = (1 - reserve) * days_left
    within = usable - needed_b
    advice: Literal["go on", "switch", "too late"] = "go on"
    if needed > usable:
        advice = "switch" if within >= 0 else "too late"
    said = {
        "go on": f"the present lineage needs {needed:.0f} of {usable:.0f} usable days",
        "switch": (
            f"the present lineage needs {needed:.0f} days and has {usable:.0f}; published settings "
            f"from scratch need {needed_b:.0f}: adopt them within {within:.0f} days"
        ),
        "too late": (
            f"neither the present lineage ({needed:.0f} days) nor published settings "
            f"({needed_b:.0f}) will be done in {usable:.0f} days: fewer tokens, or a smaller model"
        ),
    }[advice]
    return PlanB(
        advice=advice,
        days_needed=needed,
        days_needed_b=needed_b,
        switch_within_days=within,
        text=said,
    )
