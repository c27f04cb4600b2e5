"""Settings of the optimizer that follow a function of the step, besides the learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.state.run_state import RunState

__all__ = ["apply_weight_decay", "weight_decay_at"]


def weight_decay_at(schedule: Callable[[int], float], step: int) -> float:
    """Return what a schedule of the weight decay gives for a step, counted from 1.

    Raises:
        ConfigError: It is no weight decay.
    """
    value: object = schedule(step)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"schedule_weight_decay: the schedule gives {value!r} for step {step}, expected a "
            "finite number of at least 0"
        )
    return float(value)


def apply_weight_decay(state: RunState) -> dict[str, float]:
    """Set the weight decay of the step under way.

    Return it for the record, nothing without a schedule.

    Groups that were launched without weight decay keep none: norms and biases are not decayed.
    """
    if state.weight_decay is None:
        return {}
    value = weight_decay_at(state.weight_decay, state.counters.step + 1)
    groups = state.training.optimizer.param_groups
    for launched, group in zip(state.training.settings, groups, strict=True):
        if launched.get("weight_decay"):
            group["weight_decay"] = value
    return {"weight_decay": value}
