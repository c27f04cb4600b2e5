"""Where a run is, and what was decided: the first is rolled back with it, the second never."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trimtab.guard.snapshots import Training

__all__ = [
    "Counters",
    "Decisions",
    "lr_factor",
    "lr_limit",
    "rewarm_factor",
    "safe_exp",
    "trained_parameters",
]


@dataclass
class Counters:
    """Where the run is; rolled back with it."""

    step: int = 0
    """Last finished step."""
    samples: int = 0
    tokens: int = 0
    clipped: int = 0
    measured: int = 0


@dataclass
class Decisions:
    """What the guard decided and has spent; a rollback does not undo it."""

    lr_cuts: list[tuple[int, float]] = field(default_factory=list)
    """(first step, factor): from that step on the scheduled rate is multiplied; each at most 1."""
    lr_limits: list[tuple[int, float]] = field(default_factory=list)
    """(first step, rate): from that step on the first group's scheduled rate is held at most there, the
    others in proportion, before any factor."""
    clip_factor: float = 1.0
    optimizer_settings: dict[str, float] = field(default_factory=dict)
    """Settings put in force after every load, by name in `actuators.OPTIMIZER_SETTINGS`."""
    rewarm: tuple[int, int] | None = None
    """(first step, steps): the rate rises again from nothing over so many steps."""
    precision: str = ""
    """fp32 or bf16 in place of the run's own forward pass; empty: the run's own."""
    rollbacks: int = 0
    failures: int = 0
    """Recoveries in a row that did not hold."""
    executed_steps: int = 0
    """Optimizer steps done in all, trials and what was rolled back included."""
    probed_batches: int = 0
    """Forward passes without an update."""
    last_onsets: list[int] = field(default_factory=list)
    row: int = 0
    """Rows written, over all attempts."""
    minor: int = 0
    major: int = 1
    override_since: int | None = None
    """Step at which the user's own schedule took over from the scheduler; None: it has not."""
    weight_decay_since: int | None = None
    """Step from which the weight decay follows the user's own schedule; None: it does not."""


def lr_factor(cuts: Sequence[tuple[int, float]], step: float) -> float:
    """Return the product of the cuts that hold at `step`.

    Example:
        >>> lr_factor([(0, 0.5), (300, 0.1)], 299), lr_factor([(0, 0.5), (300, 0.1)], 300)
        (0.5, 0.05)
    """
    return math.prod(factor for since, factor in cuts if step >= since)


def lr_limit(limits: Sequence[tuple[int, float]], step: float) -> float:
    """Return the lowest of the limits that hold at `step`; Inf where none does.

    Example:
        >>> lr_limit([(0, 0.5), (300, 0.1)], 299), lr_limit([(0, 0.5), (300, 0.1)], 300), lr_limit([], 1)
        (0.5, 0.1, inf)
    """
    return min((limit for since, limit in limits if step >= since), default=math.inf)


def rewarm_factor(rewarm: Sequence[int] | None, step: int) -> float:
    """Return the share of the rate that holds at `step` while it rises again.

    Example:
        >>> rewarm_factor((10, 4), 9), rewarm_factor((10, 4), 10), rewarm_factor((10, 4), 13)
        (1.0, 0.25, 1.0)
    """
    if rewarm is None or step < rewarm[0]:
        return 1.0
    return min((step - rewarm[0] + 1) / rewarm[1], 1.0)


def trained_parameters(training: Training) -> list[torch.Tensor]:
    """Return the optimizer's parameters in the model's order.

    The norm's last bits depend on the order of the sum; `clip_grad_norm_(model.parameters(), ...)`,
    which most loops use, sums in this one.
    """
    groups = training.optimizer.param_groups
    owned = {id(p): p for g in groups for p in g["params"]}
    ordered = [owned.pop(id(p)) for p in training.model.parameters() if id(p) in owned]
    return ordered + list(owned.values())


def safe_exp(x: float) -> float:
    """Return exp(x), Inf where it overflows."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
