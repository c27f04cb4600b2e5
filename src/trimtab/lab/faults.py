"""Faults other than corrupted data: a wrong learning rate, a damaged tensor.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from trimtab.errors import ConfigError

__all__ = ["LrFault", "Place", "StateFault"]

Place = Literal["weight", "gradient", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True, kw_only=True)
class LrFault:
    """A learning rate that is wrong from some step on and stays so, on the same schedule."""

    first_step: int
    """First step with the wrong rate; steps count from 1."""
    multiplier: float
    """Wrong rate over the sound one at the first step."""
    growth_per_step: float = 0.0
    """How much the multiplier grows with each step, share of its first value; 0: it stays."""

    def __post_init__(self) -> None:
        if self.first_step < 1:
            raise ConfigError(f"LrFault.first_step is {self.first_step}; steps count from 1")
        if not self.multiplier > 0.0:
            raise ConfigError(f"LrFault.multiplier is {self.multiplier}; must be above 0")
        if not 0.0 <= self.growth_per_step < math.inf:
            raise ConfigError(
                f"LrFault.growth_per_step is {self.growth_per_step}; must be at least 0"
            )

    def factor(self, step: int) -> float:
        """Return wrong over sound rate at a step.

        Example:
            >>> fault = LrFault(first_step=10, multiplier=2.0, growth_per_step=0.5)
            >>> fault.factor(9), fault.factor(10), fault.factor(12)
            (1.0, 2.0, 4.0)
        """
        if step < self.first_step:
            return 1.0
        return self.multiplier * (1.0 + self.growth_per_step * (step - self.first_step))


@dataclass(frozen=True, kw_only=True)
class StateFault:
    """Damage done once to a tensor of the run, as by a cosmic ray: going back undoes it for good.

    A gradient is damaged between backward pass and update, all else after the update.
    """

    step: int
    """Step at which it happens, counted from 1."""
    tensor: str
    """Name of the parameter; "*" is all of them."""
    place: Place
    """The parameter, its gradient, or one of Adam's moments of it."""
    element: int | None = None
    """Element of the flattened tensor; None damages all."""
    bit: int | None = None
    """Bit of the fp32 number that is flipped: 31 is the sign, 30 the highest of the exponent."""
    factor: float = 1.0
    """What it is multiplied by; NaN makes it NaN."""
    rank: int | None = None
    """The one rank to which it happens; None: all."""
    num_steps: int = 1
    """Steps in a row at which it happens; more than one for a gradient alone."""

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ConfigError(f"StateFault.step is {self.step}; steps count from 1")
        if self.place not in get_args(Place):
            places = ", ".join(get_args(Place))
            raise ConfigError(f"StateFault.place is {self.place!r}; choose one of {places}")
        if self.bit is not None and not 0 <= self.bit <= 31:
            raise ConfigError(f"StateFault.bit is {self.bit}; an fp32 number has bits 0 to 31")
        if (self.bit is None) == (self.factor == 1.0):
            raise ConfigError("StateFault does nothing or two things; give either bit or factor")
        if self.num_steps < 1 or (self.num_steps > 1 and self.place != "gradient"):
            raise ConfigError(
                f"StateFault.num_steps is {self.num_steps}; must be 1, or more for a gradient"
            )
