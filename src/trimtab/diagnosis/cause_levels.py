"""How sure the first cause is, in three levels, each with its measured hit rate.

A level is a band of the first named cause's share. Its figures are of two sorts, and neither is a
log that nobody had seen: made-up faults with a known cause (`made_up`), and events whose cause a
public source states, with signatures re-typed from it (`stated`). Both are printed by
`python -m benchmarks causes`. An experiment (a probe, a branch) is not among them.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["CAUSE_LEVELS", "CauseLevel", "cause_level"]


@dataclass(frozen=True, kw_only=True)
class MeasuredShare:
    """Share of first causes that were right, with its 90 % interval."""

    hit_rate: float
    low: float
    high: float
    number: int


@dataclass(frozen=True, kw_only=True)
class CauseLevel:
    """One level."""

    name: Literal["low", "likely", "sure"]
    floor: float
    """Shares from here up to the floor of the next level are of this one."""
    made_up: MeasuredShare
    stated: MeasuredShare
    measured: str
    """Day of the measurement, ISO."""


CAUSE_LEVELS: tuple[CauseLevel, ...] = (
    CauseLevel(
        name="low",
        floor=0.0,
        made_up=MeasuredShare(hit_rate=1.00, low=0.6, high=1.0, number=4),
        stated=MeasuredShare(hit_rate=0.70, low=0.52, high=0.84, number=20),
        measured="2026-11-22",
    ),
    CauseLevel(
        name="likely",
        floor=0.4,
        made_up=MeasuredShare(hit_rate=1.00, low=0.96, high=1.0, number=70),
        stated=MeasuredShare(hit_rate=0.96, low=0.83, high=0.99, number=23),
        measured="2026-11-22",
    ),
    CauseLevel(
        name="sure",
        floor=0.65,
        made_up=MeasuredShare(hit_rate=0.99, low=0.97, high=1.0, number=201),
        stated=MeasuredShare(hit_rate=1.00, low=0.92, high=1.0, number=31),
        measured="2026-11-22",
    ),
)
"""From the lowest up."""


def cause_level(share: float) -> CauseLevel:
    """Return the level of a share; NaN counts as the lowest.

    Example:
        >>> cause_level(0.7).name, cause_level(0.5).name, cause_level(0.2).name
        ('sure', 'likely', 'low')
    """
    return next((x for x in reversed(CAUSE_LEVELS) if share >= x.floor), CAUSE_LEVELS[0])
