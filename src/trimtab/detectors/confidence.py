"""How sure an incident is, in three levels, each with the share of such alarms that was right.

The level is what a person reads, and what was measured: on labelled public logs, cross-validated
over repositories (`LEVELS`, printed anew by `python -m benchmarks calibration --corpus`). The
number beside it orders alarms within a level: the share that was right on simulated runs (`FITTED`,
seeds 0-5, two bins), kept inside the band of its level, so that neither contradicts the other.

A rule is `sure` only where it stands far out (`STRONG_SCORE`), is not one on blocks, and was itself
among the measured ones: what was never measured is at most `likely`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = [
    "CONFIDENCE",
    "LEVELS",
    "MEASURED_DETECTORS",
    "STRONG_SCORE",
    "ConfidenceLevel",
    "LevelName",
    "calibrated",
    "level_name",
    "level_of",
    "rule_group",
]

LevelName = Literal["low", "likely", "sure"]


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
        floor=0.75,
        hit_rate=0.93,
        low=0.87,
        high=0.97,
        num_alarms=57,
        num_repositories=21,
        measured="2026-11-23",
        on=_ON,
    ),
    ConfidenceLevel(
        name="sure",
        floor=0.91,
        hit_rate=0.97,
        low=0.94,
        high=0.99,
        num_alarms=199,
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

CONFIDENCE: Mapping[str, tuple[tuple[float, float], ...]] = {
    "row": ((20.0, 0.94), (52.7, 0.94)),
    "block": ((8.2, 0.90), (23.3, 0.90)),
    "hindsight": ((16.4, 0.81), (41.7, 0.81)),
}
"""(score, P(right)) on simulated runs by group of rules, rising in both."""

_CERTAIN = 0.99
"""NaN is NaN."""
_UNFITTED = 0.85
"""Rules that no simulated run exercises, such as plateaus and resumes. Set by hand."""
_UNDER_NEXT = 0.005
"""How far below the floor of the next level the highest confidence of a level lies."""


def rule_group(detector: str) -> str:
    """Return the group of rules that a detector belongs to, by its name as findings give it."""
    # Its score is infinite, so it has no place on a table over scores.
    if detector == "non-finite":
        return "certain"
    if detector in ("spike", "excerpt"):
        return "row"
    if detector.startswith(("level-", "creep-")):
        return "block"
    return "hindsight" if detector == "hindsight" else "other"


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
    """Return a number for how sure an alarm is, inside the band of its level.

    A NaN score counts as 0.
    """
    names = [x.name for x in LEVELS]
    place = names.index(level_name(detector, score))
    level = LEVELS[place]
    top = LEVELS[place + 1].floor - _UNDER_NEXT if place + 1 < len(LEVELS) else _CERTAIN
    # Where simulated runs and published logs disagree, the published ones decide.
    fitted = _fitted(detector, score)
    return fitted if level.floor <= fitted <= top else min(max(level.hit_rate, level.floor), top)


def _fitted(detector: str, score: float) -> float:
    group = rule_group(detector)
    if group == "certain":
        return _CERTAIN
    steps = CONFIDENCE.get(group)
    if steps is None:
        return _UNFITTED
    # `score > 0` is False for NaN, which `max` would let through.
    x = math.log(max(score, 1e-3)) if score > 0 else math.log(1e-3)
    return float(np.interp(x, [math.log(s) for s, _ in steps], [p for _, p in steps]))
