"""Search for a value with side runs: ×4 and ÷4 first, then bisect on a logarithmic scale."""

import math
from dataclasses import dataclass, field

from trimtab.errors import ConfigError

__all__ = ["Directions", "Probe"]


@dataclass(frozen=True)
class Probe:
    """One side run."""

    value: float
    factor: float
    """Relative to the current value of the search."""


@dataclass
class Directions:
    """A search over one setting on a logarithmic scale, such as warm-up steps or a learning rate.

    It uses side runs only: it may find that a higher learning rate is better, but trimtab never
    raises one in a run.

    Example:
        >>> search = Directions("lr", 1e-4)
        >>> [round(p.value, 7) for p in search.next_probes]
        [0.0004, 2.5e-05]
        >>> search.report({0.0004: 3.9, 2.5e-05: 2.4}, here=2.6)
        >>> search.value, [round(p.value, 7) for p in search.next_probes]
        (2.5e-05, [5e-05, 1.25e-05])
    """

    name: str
    value: float
    factor: float = 4.0
    loss: float = math.nan
    """Loss at the current value of the search."""
    finest: float = 1.2
    """Factor below which it is fine enough. Ours."""
    tried: dict[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what has no direction."""
        if not (math.isfinite(self.value) and self.value > 0):
            raise ConfigError(f"{self.name} is {self.value!r}, expected a number above 0")

    @property
    def next_probes(self) -> tuple[Probe, ...]:
        """The two arms to run next; empty once the interval is fine enough."""
        if self.factor < self.finest:
            return ()
        both = (self.factor, 1 / self.factor)
        return tuple(Probe(self.value * f, f) for f in both)

    def report(self, losses: dict[float, float], *, here: float) -> None:
        """Record the losses of the arms by value, and of the current value; halve the interval.

        A non-finite loss is worse than any other. The search continues at the best of the three;
        the interval is halved on the logarithmic scale.
        """
        self.tried |= {**losses, self.value: here}
        # `min` over NaN depends on the order of its arguments.
        known = {v: x if math.isfinite(x) else math.inf for v, x in self.tried.items()}
        candidates = [self.value, *(p.value for p in self.next_probes)]
        best = min(
            candidates,
            # The value of a probe is worked out anew by the caller and may differ in its last bit.
            key=lambda v: min(
                (x for w, x in known.items() if math.isclose(w, v)), default=math.inf
            ),
        )
        self.value, self.loss = best, known.get(best, math.nan)
        # Half the interval on a logarithmic scale: 4, 2, 1.41, 1.19.
        self.factor = math.sqrt(self.factor)
