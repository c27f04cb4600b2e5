"""Changes to the optimizer and the loss scaler by hand or by a remedy.

Settings that a load must not undo are in `state.optimizer_settings`; they are named here too, so
that who changes a run finds all changes in one place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError
from trimtab.guard.state.optimizer_settings import (
    OPTIMIZER_SETTINGS,
    enforce,
    launched_setting,
    read_setting,
    set_optimizer,
    withdraw,
)

if TYPE_CHECKING:
    from trimtab.guard.state.optimizer_settings import Adjustable

__all__ = [
    "OPTIMIZER_SETTINGS",
    "enforce",
    "launched_setting",
    "read_setting",
    "reset_moments",
    "set_optimizer",
    "set_scaler",
    "withdraw",
]


def reset_moments(state: Adjustable) -> int:
    """Zero the optimizer's moments and step counts; return how many tensors were reset."""
    count = 0
    for held in state.training.optimizer.state.values():
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                value.zero_()
                count += 1
            elif isinstance(value, int | float) and name == "step":
                held[name] = 0
    return count


def set_scaler(state: Adjustable, scale: float) -> float:
    """Set the loss scale, its growth started anew; return the one before.

    Raises:
        ConfigError: There is no scaler, or the scale is impossible.
    """
    scaler = state.training.scaler
    if scaler is None or not scaler.is_enabled():
        raise ConfigError("set_loss_scale: this run has no loss scaler in use")
    number: object = scale
    if not (isinstance(number, int | float) and math.isfinite(scale) and scale > 0):
        raise ConfigError(f"set_loss_scale({scale!r}): expected a positive number")
    held = scaler.state_dict()
    before = float(held["scale"])
    scaler.load_state_dict({**held, "scale": float(scale), "_growth_tracker": 0})
    tensor = getattr(scaler, "_scale", None)
    if isinstance(
        tensor, torch.Tensor
    ):  # made at the first use; load_state_dict fills it only then
        tensor.fill_(float(scale))
    return before
