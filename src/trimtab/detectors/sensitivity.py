"""The detectors with all their thresholds moved by a factor: for measuring, not for users.

A threshold that sits on an edge shows when it is moved a little and the figures fall;
`trimtab bench detect --cross-validate` does that.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.detectors.contract import AnyDetector
from trimtab.detectors.judge import DETECTORS, Judge

__all__ = ["Sensitivity"]

_THRESHOLDS = ("threshold", "threshold_sigma", "thresholds")
"""What detectors call the settings that are moved."""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Factors on thresholds; 1 is as built, above 1 is less sensitive."""

    spike: float = 1.0
    """On that of the spike detector."""
    lasting: float = 1.0
    """On those of every other detector that has one: levels, trends, pace."""
    hindsight: float = 1.0
    """On every bar of `hindsight_findings`: sigmas, and logarithms of ratios."""
    off: frozenset[str] = frozenset()
    """Rules left out: names of detectors, and of the functions of `offline.HINDSIGHT`."""

    def judge(self, detectors: Sequence[AnyDetector] = DETECTORS) -> Judge:
        """Return a judge whose detectors have their thresholds moved."""
        return Judge(
            tuple(
                _scaled(d, self.spike if d.name == "spike" else self.lasting)
                for d in detectors
                if d.name not in self.off
            )
        )


def _scaled(detector: Any, factor: float) -> Any:
    moved: dict[str, Any] = {}
    for name in _THRESHOLDS:
        value = getattr(detector, name, None)
        if isinstance(value, tuple):
            moved[name] = tuple(v * factor for v in value)
        elif value is not None:
            moved[name] = value * factor
    return dataclasses.replace(detector, **moved) if moved and factor != 1.0 else detector
