"""Where a run is, and what was decided: the first is rolled back with it, the second never."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from operator import index
from typing import TYPE_CHECKING, Any

from trimtab.errors import ActError, ConfigError
from trimtab.text import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from trimtab.guard.state.training_state import Training

__all__ = [
    "Counters",
    "Decisions",
    "LrHold",
    "is_back",
    "lr_factor",
    "lr_holds_at",
    "lr_limit",
    "read_decisions",
    "rewarm_factor",
    "safe_exp",
    "sample_range",
    "trained_parameters",
]


_BACK = 1.02
"""Ratio to the rate before its rise up to which the script's own rate counts as back. Ours: a
schedule that goes on meanwhile moves it by less."""


@dataclass
class Counters:
    """Where the run is; rolled back with it."""

    step: int = 0
    """Last finished step."""
    samples: int = 0
    tokens: int = 0
    clipped: int = 0
    measured: int = 0


LrHold = tuple[int, int, float, float, float]
"""A rate that is put back to what it was before it was raised: (step of the rise, first step after
the hold; 0: it stands, rate of the first group that is not passed, factor on the schedule below
that rate, rate at or below which the script has put it back itself)."""


@dataclass
class Decisions:
    """What the guard decided and has spent; a rollback does not undo it."""

    lr_cuts: list[tuple[int, float]] = field(default_factory=list)
    """(first step, factor): from that step on the scheduled rate is multiplied; each at most 1."""
    lr_limits: list[tuple[int, float]] = field(default_factory=list)
    """(first step, rate): from that step on the first group's scheduled rate is held at most there,
    the others in proportion, before any factor."""
    lr_holds: list[LrHold] = field(default_factory=list)
    """Rates put back to a value; each ends where the script's own rate is back."""
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
    held_settings: dict[str, list[float]] = field(default_factory=dict)
    """Settings that changed without being announced and are held at what they were before."""

    def begin_major(self, major: int) -> None:
        """Number the attempts of a run that starts at step 0 again."""
        self.major, self.minor = major, 0

    def begin_minor(self, minor: int) -> None:
        """Number the next attempt of this lineage."""
        self.minor = minor

    def count_rollback(self) -> None:
        """Count a rollback."""
        self.rollbacks += 1

    def cut_lr(self, since: int, factor: float) -> None:
        """Multiply the scheduled rate from a step on."""
        self.lr_cuts.append((since, factor))

    def uncut_lr(self, cut: tuple[int, float]) -> None:
        """Take a cut back, and what was given back of it: the factors above 1 behind it."""
        at = self.lr_cuts.index(cut)
        end = at + 1
        while end < len(self.lr_cuts) and self.lr_cuts[end][1] > 1:
            end += 1
        del self.lr_cuts[at:end]

    def ease_lr(self, since: int, factor: float) -> None:
        """Give a part of the newest cut back from a step on: a factor above 1; nothing without a cut."""
        if any(cut < 1 for _, cut in self.lr_cuts):
            self.lr_cuts.append((since, factor))

    def limit_lr(self, since: int, limit: float) -> None:
        """Hold the first group's scheduled rate at a limit from a step on."""
        self.lr_limits.append((since, limit))

    def scale_clip(self, factor: float) -> None:
        """Multiply the clipping threshold by a factor of at most 1."""
        self.clip_factor *= factor

    def unscale_clip(self, factor: float) -> None:
        """Take a factor off the clipping threshold; it is never above the run's own."""
        self.clip_factor = min(self.clip_factor / factor, 1.0)

    def rewarm_from(self, step: int, steps: int) -> None:
        """Let the rate rise again over so many steps; 0: it is there at once."""
        self.rewarm = (step, steps) if steps else None


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "lr_cuts": lambda v: _are_pairs(v, lambda factor: 0 < factor < math.inf) and _are_eased(v),
    "lr_limits": lambda v: _are_pairs(v, lambda rate: 0 < rate < math.inf),
    "lr_holds": lambda v: _are_holds(v),
    "clip_factor": lambda v: is_number(v) and 0 < v <= 1,
    "optimizer_settings": lambda v: isinstance(v, dict) and all(map(is_number, v.values())),
    "rewarm": lambda v: v is None or (_are_whole(v) and len(v) == 2 and v[1] > 0),
    "precision": lambda v: v in ("", "fp32", "bf16"),
    "last_onsets": lambda v: _are_whole(v),
    "override_since": lambda v: v is None or _are_whole([v]),
    "weight_decay_since": lambda v: v is None or _are_whole([v]),
    "held_settings": lambda v: (
        isinstance(v, dict)
        and all(isinstance(x, list) and all(map(is_number, x)) for x in v.values())
    ),
}
"""What a saved field may hold; the others are whole numbers of at least 0."""


def read_decisions(saved: Mapping[str, Any]) -> tuple[Decisions, tuple[str, ...]]:
    """Return decisions as they were saved, and the fields that are not known here.

    Raises:
        ActError: A field holds what no guard writes, such as a factor above 1; the message names
            it.
    """
    known = {f.name for f in fields(Decisions)}
    for name in known & set(saved):
        value = saved[name]
        if not _CHECKS.get(name, _is_count)(value):
            raise ActError(f"{name} is {value!r:.80}, which no guard writes")
    decisions = Decisions(**{k: v for k, v in saved.items() if k in known})
    return decisions, tuple(sorted(set(saved) - known))


def _is_count(value: Any) -> bool:
    return _are_whole([value]) and value >= 0


def _are_whole(values: object) -> bool:
    return isinstance(values, list | tuple) and all(
        isinstance(v, int) and not isinstance(v, bool) for v in values
    )


def _are_eased(cuts: Sequence[tuple[int, float]]) -> bool:
    """Whether each factor above 1, if there is any, comes after a cut of which it gives back."""
    factors = [factor for _, factor in cuts]
    return all(any(f < 1 for f in factors[:i]) for i, f in enumerate(factors) if f > 1)


def _are_pairs(values: object, allowed: Callable[[float], bool]) -> bool:
    """Whether these are (step, number) with numbers that are allowed."""
    return isinstance(values, list | tuple) and all(
        isinstance(v, list | tuple)
        and len(v) == 2
        and all(map(is_number, v))
        and allowed(float(v[1]))
        for v in values
    )


def _are_holds(values: object) -> bool:
    """Whether these are what `LrHold` says."""
    return isinstance(values, list | tuple) and all(
        isinstance(v, list | tuple)
        and len(v) == 5
        and _are_whole(v[:2])
        and all(map(is_number, v[2:]))
        and 0 < v[2] < math.inf
        and 0 < v[3] <= 1
        and 0 < v[4] < math.inf
        for v in values
    )


def sample_range(first: object, last: object) -> tuple[int, int]:
    """Return a range of sample ids as whole numbers.

    Raises:
        ConfigError: It is not two whole numbers, or the range is empty or negative.
    """
    try:
        low, high = index(first), index(last)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"skip {first!r}..{last!r}: expected whole numbers, sample ids") from None
    if low < 0 or high < low:
        raise ConfigError(f"skip {first}..{last}: expected 0 <= first <= last, sample ids")
    return low, high


def lr_factor(cuts: Sequence[tuple[int, float]], step: float) -> float:
    """Return the product of the cuts that hold at `step`, and of what was given back of them.

    It is at most 1: what gives a part of a cut back gives nothing where that cut was taken back.

    Example:
        >>> lr_factor([(0, 0.5), (300, 0.1)], 299), lr_factor([(0, 0.5), (300, 0.1)], 300)
        (0.5, 0.05)
        >>> lr_factor([(0, 0.1), (300, 4.0)], 300), lr_factor([(300, 4.0)], 300)
        (0.4, 1.0)
    """
    together = 1.0
    for since, factor in cuts:
        if step >= since:
            together = min(together * factor, 1.0)
    return together


def lr_limit(limits: Sequence[tuple[int, float]], step: float) -> float:
    """Return the lowest of the limits that hold at `step`; Inf where none does.

    Example:
        >>> limits = [(0, 0.5), (300, 0.1)]
        >>> lr_limit(limits, 299), lr_limit(limits, 300), lr_limit([], 1)
        (0.5, 0.1, inf)
    """
    return min((limit for since, limit in limits if step >= since), default=math.inf)


def is_back(lr: float, sound: float) -> bool:
    """Whether a rate is back at what it was before it was raised, or below; NaN: it is not."""
    return lr <= _BACK * sound


def lr_holds_at(holds: Sequence[LrHold], step: float) -> list[LrHold]:
    """Return the rates put back to a value that are in force at `step`.

    Where no schedule gives the rate (a factor of 1), it is held before the step of its rise as
    well: a script that counts its own steps raises it earlier after a rollback.

    Example:
        >>> lr_holds_at([(250, 300, 0.05, 1.0, 0.05), (9, 0, 1.0, 0.5, 1.0)], 300)
        [(9, 0, 1.0, 0.5, 1.0)]
    """
    return [
        (since, until, value, share, sound)
        for since, until, value, share, sound in holds
        if (step >= since or share == 1.0) and (not until or step < until)
    ]


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
