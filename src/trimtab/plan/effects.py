"""Effect of a branch: its loss minus the control's, step by step, with a confidence interval."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Effect", "effect_of"]

EffectLabel = Literal["better", "worse", "inconclusive"]

# Short branches give few blocks anyway, and longer blocks are nearer to independent.
_BLOCKS = 8
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)
"""Student's t, two-sided 95 %, for 1 to 7 degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Loss of a branch less that of the control, nats per token; below 0 is better."""

    size: float
    low: float
    high: float
    """Ends of the 95 % interval; NaN where there is too little to compare."""
    steps: int
    """Steps that both have."""

    @property
    def label(self) -> EffectLabel:
        """better, worse, or inconclusive where the interval spans 0."""
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "inconclusive"

    def __str__(self) -> str:
        """Return it as one clause."""
        if math.isnan(self.size):
            return f"inconclusive: {self.steps} steps to compare"
        if math.isinf(self.size):
            return f"{self.label}: only one of them is finite"
        return f"{self.label}: {self.size:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def effect_of(branch: Mapping[int, float], control: Mapping[int, float]) -> Effect:
    """Return the mean difference of two loss curves over the steps that both have.

    d[t] = branch[t] - control[t]; the interval is mean(d) ± t s / sqrt(n) over the means of up to 8
    blocks of neighboring steps, since neighbors are not independent. Blind to a change that comes
    and goes within a block, and to all before the first common step.

    Args:
        branch: Loss by step, nats per token.
        control: The same of what changed nothing.

    Returns:
        The effect. Non-finite: a step at which only one of the two is finite decides for it, with
        size ±Inf; steps at which neither is are left out. Under 4 common steps: NaN, inconclusive.

    Example:
        >>> branch = {t: 2.0 + 0.01 * (t % 2) for t in range(16)}
        >>> effect_of(branch, {t: 3.0 for t in range(16)}).label
        'better'
        >>> str(effect_of({1: 2.0}, {1: 2.5}))
        'inconclusive: 1 steps to compare'

    References:
        Law & Kelton, Simulation Modeling and Analysis: the method of batch means.
    """
    steps = sorted(branch.keys() & control.keys())
    a, b = (np.array([curve[t] for t in steps], dtype=np.float64) for curve in (branch, control))
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    lost, won = int((finite_b & ~finite_a).sum()), int((finite_a & ~finite_b).sum())
    # Equal numbers say nothing about either; the finite steps then decide.
    if lost != won:
        size = math.inf if lost > won else -math.inf
        return Effect(size=size, low=size, high=size, steps=len(steps))
    d = (a - b)[finite_a & finite_b]
    if len(d) < 4:
        return Effect(size=math.nan, low=math.nan, high=math.nan, steps=len(d))
    # Two steps to a block at least, else neighbors are counted as independent after all.
    blocks = np.array([part.mean() for part in np.array_split(d, min(_BLOCKS, len(d) // 2))])
    mean = float(d.mean())
    half = _T_95[len(blocks) - 2] * float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    return Effect(size=mean, low=mean - half, high=mean + half, steps=len(steps))
