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
        made_up=MeasuredShare(hit_rate=1.00, low=0.79, high=1.0, number=10),
        stated=MeasuredShare(hit_rate=0.75, low=0.58, high=0.86, number=24),
        measured="2026-11-23",
    ),
    CauseLevel(
        name="likely",
        floor=0.4,
        made_up=MeasuredShare(hit_rate=1.00, low=0.95, high=1.0, number=49),
        stated=MeasuredShare(hit_rate=0.95, low=0.81, high=0.99, number=21),
        measured="2026-11-23",
    ),
    CauseLevel(
        name="sure",
        floor=0.65,
        made_up=MeasuredShare(hit_rate=0.99, low=0.98, high=1.0, number=181),
        stated=MeasuredShare(hit_rate=1.00, low=0.91, high=1.0, number=29),
        measured="2026-11-23",
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
