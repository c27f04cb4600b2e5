"""Calibrated confidence of an incident: of those with a confidence of 0.8, about 80 % are right.

One table per group of rules: P(right) against the score of the leading finding, straight lines in
between on the logarithm of the score. Fitted on simulated runs, seeds 0-5
(`benchmarks.logs.calibration.fit_steps`, two bins), where the score beyond the threshold made no
difference within a group; checked on seeds from 100 on (`trimtab bench calibration`). Rules on rows
were fitted at 0.97 and are set to 0.94 here, because they were right less often on published
logs (`trimtab bench detect`).
"""

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["CONFIDENCE", "calibrated", "rule_group"]

CONFIDENCE: Mapping[str, tuple[tuple[float, float], ...]] = {
    "row": ((20.0, 0.94), (52.7, 0.94)),
    "block": ((8.2, 0.90), (23.3, 0.90)),
    "hindsight": ((16.4, 0.81), (41.7, 0.81)),
}
"""(score, P(right)) by group of rules, rising in both."""

_CERTAIN = 0.99
"""NaN is NaN."""
_UNFITTED = 0.85
"""Rules that no simulated run exercises, such as plateaus and resumes. Set by hand, not fitted: on
the first 73 labeled logs, on which rules were chosen, 93 % of the alarms that state 0.8 to 0.9
are right; it was not checked on logs that were kept apart."""


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


def calibrated(detector: str, score: float) -> float:
    """Return P(right) of an alarm led by this detector with this score; a NaN score counts as 0."""
    group = rule_group(detector)
    if group == "certain":
        return _CERTAIN
    steps = CONFIDENCE.get(group)
    if steps is None:
        return _UNFITTED
    # `score > 0` is False for NaN, which `max` would let through.
    x = math.log(max(score, 1e-3)) if score > 0 else math.log(1e-3)
    return float(np.interp(x, [math.log(s) for s, _ in steps], [p for _, p in steps]))
