"""How sure an incident is, in three levels, each with the share of such alarms that was right.

The level is what a person reads, and what was measured: on labelled public logs, cross-validated
over repositories (`LEVELS`, printed anew by `python -m benchmarks calibration --corpus`). The
number beside it is that share, drawn towards the share of all alarms as if `PRIOR_ALARMS` more had
been seen: few alarms are no ground to state less than what alarms come to on the whole.

A rule is `sure` only where it stands far out (`STRONG_SCORE`), is not one on blocks or near the
noise of few rows, and was itself among the measured ones: what was never measured is at most
`likely`.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BASE_RATE",
    "LEVELS",
    "MEASURED_DETECTORS",
    "PRIOR_ALARMS",
    "STRONG_SCORE",
    "ConfidenceLevel",
    "LevelName",
    "calibrated",
    "level_name",
    "level_of",
    "rule_group",
    "shrunk",
]

LevelName = Literal["low", "likely", "sure"]

BASE_RATE = 0.955
"""Share of all alarms on the labelled logs that a label accounts for."""
PRIOR_ALARMS = 20
"""Alarms of the base rate that a level is drawn towards it by. Ours."""


@dataclass(frozen=True, kw_only=True)
class ConfidenceLevel:
    """One level of confidence, as measured."""

    name: LevelName
    floor: float
    """Confidences from here up to the floor of the next level are of this one."""
    hit_rate: float
    """Share of such alarms that a label accounts for, in repositories left out of the choice."""
    low: float
    """5th percentile of that share over draws of repositories."""
    high: float
    """95th percentile."""
    num_alarms: int
    num_repositories: int
    """Repositories with such an alarm."""
    measured: str
    """Day of the measurement, ISO."""
    on: str
    """What it was measured on."""

    @property
    def stated(self) -> float:
        """The number that an alarm of this level is given."""
        return shrunk(self.hit_rate * self.num_alarms, self.num_alarms, BASE_RATE)

    @property
    def text(self) -> str:
        """The level for people, with its figure."""
        return (
            f"{self.name} ({self.hit_rate:.0%} of {self.num_alarms} such alarms were right,"
            f" {self.low:.0%} to {self.high:.0%})"
        )


_ON = "196 labelled public logs, each repository judged by a choice made on the others"
LEVELS: tuple[ConfidenceLevel, ...] = (
    ConfidenceLevel(
        name="low",
        floor=0.0,
        hit_rate=0.82,
        low=0.56,
        high=0.96,
        num_alarms=11,
        num_repositories=6,
        measured="2026-11-23",
        on=_ON,
    ),
    ConfidenceLevel(
        name="likely",
        floor=0.92,
        hit_rate=0.93,
        low=0.86,
        high=0.97,
        num_alarms=56,
        num_repositories=21,
        measured="2026-11-23",
        on=_ON,
    ),
    ConfidenceLevel(
        name="sure",
        floor=0.95,
        hit_rate=0.97,
        low=0.94,
        high=0.99,
        num_alarms=200,
        num_repositories=27,
        measured="2026-11-23",
        on=_ON,
    ),
)
"""From the lowest up."""

STRONG_SCORE = 8.0
"""Score from which a measured rule is sure; the smallest of 8, 12, 16, 24 and 32 whose lower bound
is at least 0.9 on the labelled logs."""

MEASURED_DETECTORS = frozenset(
    {
        "excerpt",
        "frozen",
        "hindsight",
        "memorised",
        "non-finite",
        "plateau",
        "repeats",
        "repeats-end",
        "resume",
        "scale-collapse",
        "spike",
        "start",
    }
)
"""Detectors that led two or more of the alarms measured."""


def shrunk(right: float, number: int, base: float) -> float:
    """Return a share that is drawn towards that of all alarms.

    Example:
        >>> round(shrunk(9, 11, 0.955), 3)
        0.906
    """
    return (right + PRIOR_ALARMS * base) / (number + PRIOR_ALARMS)


def rule_group(detector: str) -> str:
    """Return the group of rules that a detector belongs to, by its name as findings give it."""
    if detector == "non-finite":
        return "certain"
    return "block" if detector.startswith(("level-", "creep-", "excerpt-near")) else "other"


def level_name(detector: str, score: float, *, strong: float = STRONG_SCORE) -> LevelName:
    """Return the level of an alarm led by this detector with this score; NaN counts as 0.

    Example:
        >>> level_name("spike", 40.0), level_name("spike", 7.0), level_name("creep-16", 40.0)
        ('sure', 'likely', 'low')
    """
    group = rule_group(detector)
    if group == "block":
        return "low"
    if group == "certain" or (detector in MEASURED_DETECTORS and score >= strong):
        return "sure"
    return "likely"


def level_of(confidence: float) -> ConfidenceLevel:
    """Return the level of a stated confidence; NaN counts as the lowest."""
    return next((x for x in reversed(LEVELS) if confidence >= x.floor), LEVELS[0])


def calibrated(detector: str, score: float) -> float:
    """Return a number for how sure an alarm is: that of its level. A NaN score counts as 0."""
    name = level_name(detector, score)
    return next(level.stated for level in LEVELS if level.name == name)
