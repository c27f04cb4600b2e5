"""Settings of the optimizer that are changed in mid-run: each change with what undoes it.

What is set here holds on top of what a checkpoint brings back. After every load it is put in force
again, because loading an optimizer's state silently restores the settings it was saved with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trimtab.errors import ConfigError
from trimtab.guard.state.optimizers import optimizers_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.guard.state.decisions import Decisions
    from trimtab.guard.state.training_state import Training

__all__ = [
    "OPTIMIZER_SETTINGS",
    "Adjustable",
    "enforce",
    "launched_setting",
    "read_setting",
    "set_optimizer",
    "withdraw",
]


class Adjustable(Protocol):
    """A run whose optimizer can be adjusted."""

    @property
    def training(self) -> Training:
        """The trained objects."""

    @property
    def decisions(self) -> Decisions:
        """What was decided; the settings in force are among it."""


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
    not_beside: str = ""
    """Key of groups where the name means something else: Muon's eps guards its own iteration."""

    def is_in(self, group: Mapping[str, object]) -> bool:
        """Whether a group has this setting; of several optimizers some have it and some do not."""
        if self.not_beside and self.not_beside in group:
            return False
        value = group.get(self.key)
        if self.index is not None and isinstance(value, tuple | list):
            value = value[self.index] if self.index < len(value) else None
        return isinstance(value, int | float)


OPTIMIZER_SETTINGS: dict[str, _Setting] = {
    "beta1": _Setting("betas", 0, 0.0, 1.0),
    "beta2": _Setting("betas", 1, 0.0, 1.0),
    "eps": _Setting("eps", None, 0.0, math.inf, not_beside="ns_steps"),
    "weight_decay": _Setting("weight_decay", None, 0.0, math.inf, only_where_set=True),
}
"""What `Guard.set_optimizer` takes."""


def set_optimizer(state: Adjustable, values: dict[str, float]) -> dict[str, float]:
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
            kind = " + ".join(type(o).__name__ for o in optimizers_in(state.training.optimizer))
            raise ConfigError(f"set_optimizer({name}={value!r}): {kind} has no {setting.key}")
        before[name] = found
    state.decisions.optimizer_settings |= values
    enforce(state)
    return before


def enforce(state: Adjustable) -> None:
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
            if not setting.is_in(group):
                continue
            if setting.index is None:
                group[setting.key] = value
            else:
                held = list(group[setting.key])
                held[setting.index] = value
                group[setting.key] = tuple(held)


def withdraw(state: Adjustable, names: Sequence[str], kept: Mapping[str, float]) -> None:
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
            if value is None or not setting.is_in(group):
                continue
            if setting.index is None:
                group[setting.key] = value
            else:
                held = list(group[setting.key])
                held[setting.index] = value[setting.index]
                group[setting.key] = tuple(held)
    enforce(state)


def launched_setting(state: Adjustable, name: str) -> float:
    """Return a setting as launched; the largest of the groups, as `set_optimizer` reports it."""
    setting = OPTIMIZER_SETTINGS[name]
    values = [g[setting.key] for g in state.training.settings if setting.is_in(g)]
    return max(float(v if setting.index is None else v[setting.index]) for v in values)


def read_setting(state: Adjustable, name: str) -> float | None:
    """Return a setting in force by its name; None where the optimizer has no such."""
    return _read(state, OPTIMIZER_SETTINGS[name])


def _read(state: Adjustable, setting: _Setting) -> float | None:
    found: list[float] = []
    for group in state.training.optimizer.param_groups:
        if setting.is_in(group):
            value = group[setting.key]
            found.append(float(value if setting.index is None else value[setting.index]))
    return max(found, default=None)
