"""Label the effect of a change on stability: better, worse or unclear, by four metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trimtab.signals.robust import mad_sigma

__all__ = ["METRICS", "ChangeLabel", "StepWindow", "label_change"]

Label = Literal["better", "worse", "unclear"]

METRICS = ("loss", "loss spread", "grad norm", "alarms")

_LOSS_SIGMA = 0.5
"""Least change of the mean loss that counts, in sigma of single steps. Ours."""
_RATIO = 1.5
"""Least change of spread and norm that counts, ratio. Ours: medians of calm stretches of the lab of
64 steps differ less."""


@dataclass
class StepWindow:
    """Some steps of a run, in order."""

    losses: list[float] = field(default_factory=list)
    """nats per token"""
    norms: list[float] = field(default_factory=list)
    """Gradient norms before clipping."""
    alarms: int = 0
    """Alarms that opened on the loss or the gradient."""

    def add(self, loss: float, norm: float, *, alarms: int) -> None:
        """Add a step."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.alarms += alarms


@dataclass(frozen=True, kw_only=True)
class ChangeLabel:
    """What a change did."""

    overall: Label
    metrics: Mapping[str, Label]
    """By `METRICS`."""
    figures: Mapping[str, tuple[float, float]]
    """(before, after) by metric."""

    def text(self) -> str:
        """Return it as a clause."""
        said = (
            f"{m} {self.figures[m][0]:.3g} to {self.figures[m][1]:.3g} ({self.metrics[m]})"
            for m in METRICS
        )
        return f"{self.overall}: {', '.join(said)}"


def label_change(before: StepWindow, after: StepWindow) -> ChangeLabel:
    """Return the label of a change from the steps before and after it.

    The loss counts by size (half a sigma of single steps) and significance (3 standard errors of
    the difference of the means), its spread (1.4826 MAD of first differences) and the median norm
    by a ratio of 1.5, alarms by their number. Overall: worse where the loss is or two metrics are;
    better where the loss is and only one metric is worse, or where two are and none is worse.
    Non-finite losses after the change make it worse. Under 8 steps on either side: unclear.

    Example:
        >>> calm = StepWindow(losses=[2.0, 2.01] * 8, norms=[0.2] * 16)
        >>> wild = StepWindow(losses=[3.0, 2.5] * 8, norms=[0.9] * 16, alarms=2)
        >>> label_change(wild, calm).overall, label_change(calm, wild).overall
        ('better', 'worse')
    """
    a, b = _finite(before.losses), _finite(after.losses)
    figures = {
        "loss": (_mean(a), _mean(b)),
        "loss spread": (_spread(a), _spread(b)),
        "grad norm": (_median(before.norms), _median(after.norms)),
        "alarms": (float(before.alarms), float(after.alarms)),
    }
    # Fewer say nothing about a spread.
    if min(len(before.losses), len(after.losses)) < 8:
        none: dict[str, Label] = dict.fromkeys(METRICS, "unclear")
        return ChangeLabel(overall="unclear", metrics=none, figures=figures)
    # Finite losses alone would make a run that ended in NaN look calm.
    broke = len(after.losses) - len(b), len(before.losses) - len(a)
    metrics: dict[str, Label] = {
        "loss": _of_loss(a, b) if broke[0] == broke[1] else _sign(broke[0] - broke[1]),
        "loss spread": _of_ratio(*figures["loss spread"]),
        "grad norm": _of_ratio(*figures["grad norm"]),
        "alarms": _sign(after.alarms - before.alarms),
    }
    said = list(metrics.values())
    worse, better = said.count("worse"), said.count("better")
    overall: Label = "unclear"
    # Worse goes first: a change that helps in one thing and harms the loss is not kept.
    if metrics["loss"] == "worse" or worse >= 2:
        overall = "worse"
    elif metrics["loss"] == "better" or (not worse and better >= 2):
        overall = "better"
    return ChangeLabel(overall=overall, metrics=metrics, figures=figures)


def _of_loss(a: Sequence[float], b: Sequence[float]) -> Label:
    if len(a) < 2 or len(b) < 2:
        return "unclear"
    error = math.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
    difference = _mean(b) - _mean(a)
    # Both: with many steps a difference of no use is significant.
    if abs(difference) <= max(3 * error, _LOSS_SIGMA * _step_sigma(a)):
        return "unclear"
    return _sign(difference)


def _of_ratio(a: float, b: float) -> Label:
    if not (a > 0 and b > 0):
        return "unclear"
    return "worse" if b > _RATIO * a else "better" if a > _RATIO * b else "unclear"


def _sign(difference: float) -> Label:
    return "worse" if difference > 0 else "better" if difference < 0 else "unclear"


def _finite(values: Sequence[float]) -> list[float]:
    return [x for x in values if math.isfinite(x)]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _median(values: Sequence[float]) -> float:
    finite = _finite(values)
    return float(np.median(finite)) if finite else math.nan


def _step_sigma(values: Sequence[float]) -> float:
    """Return the spread of single steps about their trend, from first differences."""
    spread = _spread(values)
    return 0.0 if math.isnan(spread) else spread / math.sqrt(2)


def _spread(values: Sequence[float]) -> float:
    if len(values) < 3:
        return math.nan
    # not divided by sqrt(2): only ratios of two such spreads are looked at
    return mad_sigma(np.diff(values))
