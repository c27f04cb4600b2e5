"""Which probes run, and at which steps: what is dear is read now and then, early signs more often.

What leads the loss is worth most while a run is young, when a wrong setting shows within tens of
steps, and while something is wrong. So attention and log Z are read every other step there and
thinner later; what is never a first sign keeps one distance. The steps follow from the step number
and from whether the guard is at work on something, both the same on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.plan.probe_names import PROBES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PROBES", "Cadence"]


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """See the module.

    Example:
        >>> cadence = Cadence()
        >>> [s for s in range(1, 13) if cadence.reads_signs(s)]
        [1, 4, 8, 10, 12]
        >>> [s for s in range(1001, 1021) if cadence.reads_signs(s)]
        [1010, 1020]
        >>> [s for s in range(1001, 1006) if cadence.reads_signs(s, closely=True)]
        [1002, 1004]
    """

    probes: tuple[str, ...] = PROBES
    """Those that run."""
    every_steps: int = 10
    """Distance of full readings, optimizer steps; their cost stays below 1 % so."""
    signs_every_steps: int = 10
    """Distance of readings of attention and log Z later in the run, optimizer steps."""
    early_steps: int = 300
    """Steps at the start that count as early, optimizer steps. Ours: a rate that is far too high
    saturated attention within 16 to 160 steps in the lab."""
    early_every_steps: int = 4
    """Distance of these readings early in the run, optimizer steps. Ours: a reading takes 3 % of
    the lab's smallest step, and less of every larger one."""
    close_every_steps: int = 2
    """Their distance while something is wrong, optimizer steps."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in self.probes:
            if name not in PROBES:
                raise ConfigError(f"there is no probe {name!r}; probes are {', '.join(PROBES)}")
        for key in ("every_steps", "signs_every_steps", "early_every_steps", "close_every_steps"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)!r}, expected at least 1 step")

    def reads_all(self, step: int) -> bool:
        """Whether everything is read at a step, counted from 1; the first tells what was there."""
        return step % self.every_steps == 0 or step == 1

    def reads_signs(self, step: int, *, closely: bool = False) -> bool:
        """Whether attention and log Z are read; `closely`: something is wrong."""
        if self.reads_all(step) or step % self.signs_every_steps == 0:
            return True
        if closely and step % self.close_every_steps == 0:
            return True
        return step <= self.early_steps and step % self.early_every_steps == 0

    @classmethod
    def of(cls, off: Sequence[str], *, every_steps: int, signs_every_steps: int) -> Cadence:
        """Return the cadence of a policy; `off`: probes that are left out.

        Raises:
            ConfigError: A name is no probe, or a distance is below 1.
        """
        for name in off:
            if name not in PROBES:
                raise ConfigError(
                    f"probes_off: there is no probe {name!r}; probes are {', '.join(PROBES)}"
                )
        return cls(
            probes=tuple(name for name in PROBES if name not in off),
            every_steps=every_steps,
            signs_every_steps=signs_every_steps,
            early_every_steps=min(cls.early_every_steps, signs_every_steps),
            close_every_steps=min(cls.close_every_steps, signs_every_steps),
        )
