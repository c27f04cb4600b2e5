"""The detectors with all their thresholds moved by a factor: for measuring, not for users.

A threshold that sits on an edge shows when it is moved a little and the figures fall;
`trimtab bench detect --cross-validate` does that.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.detectors.contract import Detector
from trimtab.detectors.judge import DETECTORS, Judge

__all__ = ["Sensitivity"]

_THRESHOLDS = ("threshold_sigma", "thresholds")


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Factors on thresholds; 1 is as built, above 1 is less sensitive."""

    spike: float = 1.0
    """On `SpikeDetector.threshold_sigma`."""
    level: float = 1.0
    """On every entry of `LevelDetector.thresholds`."""
    hindsight: float = 1.0
    """On every bar of `hindsight_findings`: sigmas, and logarithms of ratios."""

    def judge(self, detectors: Sequence[Detector[Any]] = DETECTORS) -> Judge:
        """Return a judge whose spike and level detectors have their thresholds moved."""
        factors = {"spike": self.spike, "level": self.level}
        return Judge(tuple(_scaled(d, factors.get(d.name, 1.0)) for d in detectors))


def _scaled(detector: Any, factor: float) -> Any:
    if factor == 1.0:
        return detector
    moved: dict[str, Any] = {}
    for name in _THRESHOLDS:
        value = getattr(detector, name, None)
        if value is not None:
            moved[name] = (
                tuple(v * factor for v in value) if isinstance(value, tuple) else value * factor
            )
    return dataclasses.replace(detector, **moved)
