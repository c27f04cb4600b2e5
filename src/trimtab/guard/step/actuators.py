"""The hands of the guard on the optimizer and the loss scaler: each change with what undoes it.

What is set here holds on top of what a checkpoint brings back: after every load it is put in force
again, because loading an optimizer's state silently restores the settings it was saved with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.guard.state.run_state import RunState

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


@dataclass(frozen=True)
class _Setting:
    """A setting of the optimizer that may be changed in mid-run."""

    key: str
    """In the optimizer's groups."""
    index: int | None
    """Place in a tuple such as `betas`; None: the value itself."""
    low: float
    high: float
    """low <= value < high."""
    only_where_set: bool = False
    """Whether groups that have 0 keep it: norms and biases are not decayed."""


OPTIMIZER_SETTINGS: dict[str, _Setting] = {
    "beta1": _Setting("betas", 0, 0.0, 1.0),
    "beta2": _Setting("betas", 1, 0.0, 1.0),
    "eps": _Setting("eps", None, 0.0, math.inf),
    "weight_decay": _Setting("weight_decay", None, 0.0, math.inf, only_where_set=True),
}
"""What `Guard.set_optimizer` takes."""


def set_optimizer(state: RunState, values: dict[str, float]) -> dict[str, float]:
    """Put settings in force, from the next step on and after every load; return what was before.

    Raises:
        ConfigError: A name is unknown, a value impossible, or the optimizer has no such setting.
    """
    before = {}
    for name, value in values.items():
        setting = OPTIMIZER_SETTINGS.get(name)
        if setting is None:
            known = ", ".join(OPTIMIZER_SETTINGS)
            raise ConfigError(f"set_optimizer({name}=...): expected one of {known}")
        number: object = value  # the annotations do not bind a caller
        if not isinstance(number, int | float) or not setting.low <= value < setting.high:
            raise ConfigError(
                f"set_optimizer({name}={value!r}): expected {setting.low:g} <= {name} <"
                f" {setting.high:g}"
            )
        found = _read(state, setting)
        if found is None:
            kind = type(state.training.optimizer).__name__
            raise ConfigError(f"set_optimizer({name}={value!r}): {kind} has no {setting.key}")
        before[name] = found
    state.decisions.optimizer_settings |= values
    enforce(state)
    return before


def enforce(state: RunState) -> None:
    """Put the settings that were decided on in force again; called after every load."""
    for name, value in state.decisions.optimizer_settings.items():
        setting = OPTIMIZER_SETTINGS[name]
        if not setting.low <= value < setting.high:  # it comes from disk
            raise ConfigError(f"optimizer_settings: {name} is {value!r}")
        for launched, group in zip(
            state.training.settings, state.training.optimizer.param_groups, strict=True
        ):
            if setting.only_where_set and not launched.get(setting.key):
                continue
            if setting.index is None:
                group[setting.key] = value
            else:
                held = list(group[setting.key])
                held[setting.index] = value
                group[setting.key] = tuple(held)


def withdraw(state: RunState, names: Sequence[str], kept: Mapping[str, float]) -> None:
    """Take settings out of force.

    Those in `kept` hold instead, the others go back to the launch's.
    """
    launched = state.training.settings
    decided = dict(kept)
    state.decisions.optimizer_settings = decided
    for name in names:
        setting = OPTIMIZER_SETTINGS[name]
        for own, group in zip(launched, state.training.optimizer.param_groups, strict=True):
            value = own.get(setting.key)
            if value is None:
                continue
            if setting.index is None:
                group[setting.key] = value
            else:
                held = list(group[setting.key])
                held[setting.index] = value[setting.index]
                group[setting.key] = tuple(held)
    enforce(state)


def launched_setting(state: RunState, name: str) -> float:
    """Return a setting as launched; the largest of the groups, as `set_optimizer` tells it."""
    setting = OPTIMIZER_SETTINGS[name]
    values: list[Any] = [g[setting.key] for g in state.training.settings if setting.key in g]
    return max(float(v if setting.index is None else v[setting.index]) for v in values)


def read_setting(state: RunState, name: str) -> float | None:
    """Return a setting in force by its name; None where the optimizer has no such."""
    return _read(state, OPTIMIZER_SETTINGS[name])


def _read(state: RunState, setting: _Setting) -> float | None:
    found: list[float] = []
    for group in state.training.optimizer.param_groups:
        value: Any = group.get(setting.key)
        if setting.index is not None and isinstance(value, tuple | list):
            value = value[setting.index]
        if isinstance(value, int | float):
            found.append(float(value))
    return max(found, default=None)


def reset_moments(state: RunState) -> int:
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


def set_scaler(state: RunState, scale: float) -> float:
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
