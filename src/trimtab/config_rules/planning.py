"""Arithmetic before the run: time, memory, checkpoints, spare nodes, and epoch boundaries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.errors import ConfigError

__all__ = [
    "Eta",
    "Goodput",
    "Keeping",
    "Ledger",
    "Memory",
    "MemoryPart",
    "Sharding",
    "Trend",
    "epoch_ledger",
    "gain_trend",
    "goodput",
    "memory",
    "time_needed",
]

# 54 x 24 x 16,384 / 419.
DEVICE_HOURS_PER_FAILURE = 50_676.0
"""Llama 3 405B: 419 interruptions in 54 days on 16 384 GPUs (arXiv:2407.21783)."""
_GIB = 2.0**30


def _require(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; give a positive number")


@dataclass(frozen=True)
class Eta:
    """How long a run takes, and whether that fits."""

    days: float
    left_days: float | None
    """Days until the deadline, less those already spent."""

    @property
    def is_late(self) -> bool:
        """Whether it ends after the deadline."""
        return self.left_days is not None and self.days > self.left_days


def time_needed(
    tokens: float,
    tokens_per_second: float,
    *,
    deadline_days: float | None = None,
    spent_days: float = 0.0,
    goodput_share: float = 1.0,
) -> Eta:
    """Return the days that tokens take: tokens / rate / 86 400 / goodput.

    Args:
        tokens: Tokens still to train.
        tokens_per_second: Of the whole job.
        deadline_days: Days the whole effort has.
        spent_days: Days of them already spent.
        goodput_share: Share of the time that is spent training, above 0 and at most 1.

    Raises:
        ConfigError: A number is not positive, or the share is above 1.

    Example:
        >>> eta = time_needed(300e9, 1.05e5, deadline_days=90.0, spent_days=60.0)
        >>> round(eta.days, 1), eta.left_days, eta.is_late
        (33.1, 30.0, True)
    """
    _require(tokens=tokens, tokens_per_second=tokens_per_second, goodput_share=goodput_share)
    if goodput_share > 1:
        raise ConfigError(f"goodput_share is {goodput_share}; give at most 1")
    days = tokens / tokens_per_second / 86_400 / goodput_share
    return Eta(days, None if deadline_days is None else deadline_days - spent_days)


@dataclass(frozen=True)
class MemoryPart:
    """One thing that is kept for every parameter."""

    name: str
    bytes_per_param: float
    gib: float
    """One copy of it."""
    ways: float
    """Devices that share one copy; NaN where that is not known."""
    give_up: str
    """What to do to save it, and what that costs."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a job shards a model: over tensor × pipeline ranks, and by ZeRO over data ranks."""

    tensor: float = 1
    pipeline: float = 1
    data: float = 1
    zero_stage: int = 0
    """0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (FSDP)."""

    def ways(self, from_stage: int) -> float:
        """Return the devices that share one copy of what is divided from a stage of ZeRO on."""
        shared = self.data if self.zero_stage >= from_stage else 1
        return max(1.0, self.tensor * self.pipeline * shared)


@dataclass(frozen=True)
class Memory:
    """What parameters, gradients and optimizer need, without activations."""

    parts: tuple[MemoryPart, ...]
    """In the order in which to give up precision: the first first."""
    gib: float
    per_device_gib: float | None
    fits: bool | None
    bytes_per_param: float
    assumed: str
    """Who keeps it so."""


Keeping = Literal["everything", "megatron", "zero", "autocast"]
"""What mixed precision keeps for each parameter, by framework."""
_ASSUMED: Mapping[Keeping, str] = {
    "everything": "everything kept, as no framework is known",
    "megatron": "as Megatron-LM keeps it",
    "zero": "as DeepSpeed keeps it",
    "autocast": "fp32 weights under autocast or FSDP",
}
_SHARD = "shard over data-parallel ranks (ZeRO-3, FSDP)"
_ACCUMULATE = "accumulate in 16 bits over few micro-batches only, and still reduce in fp32"


def _kept(keeping: Keeping, dtype: str) -> tuple[tuple[str, float, int, str], ...]:
    """Return name, bytes, the stage of ZeRO that divides it, and how to give it up, first first."""
    narrow = "fp16" if dtype == "fp16" else "bf16"
    full = dtype == "fp32"
    duplicate = (
        "duplicate fp32 parameters",
        4.0,
        3,
        "shard them, or reduce from the master copy; costs nothing in precision",
    )
    gradients = ("fp32 gradients", 4.0, 2, _ACCUMULATE)
    narrow_gradients = (f"{narrow} gradients", 2.0, 2, "shard over data-parallel ranks (ZeRO-2)")
    master = (
        "fp32 master copy of the weights",
        4.0,
        1,
        "small updates are rounded away without it; keep it where it is affordable",
    )
    weights = (f"{narrow} weights", 2.0, 3, _SHARD)
    wide = ("fp32 weights", 4.0, 3, _SHARD)
    moments = (
        "fp32 Adam moments",
        8.0,
        1,
        "last: shard or offload before 8-bit moments, and bf16 not at all",
    )
    if keeping == "autocast" and not full:
        return gradients, ("fp32 weights, the master copy", *wide[1:]), moments
    if full:
        return gradients, wide, moments
    if keeping == "megatron":
        return gradients, master, weights, moments
    if keeping == "zero":
        return narrow_gradients, master, weights, moments
    return duplicate, gradients, master, weights, moments


def memory(
    params: float,
    *,
    devices: float | None = None,
    device_gib: float | None = None,
    sharding: Sharding | None = None,
    dtype: str = "bf16",
    keeping: Keeping = "everything",
) -> Memory:
    """Estimate the memory of Adam's training.

    16 to 22 bytes a parameter, by what the framework keeps.

    Megatron-LM 18: 16-bit weights 2, fp32 gradients 4, fp32 master copy 4, Adam's two fp32 moments
    8. DeepSpeed 16: its gradients are kept in 16 bits. Autocast and FSDP 16: fp32 weights 4,
      gradients 4, moments 8, and no other copy (nor in
    fp32). Where nothing is known 22: Megatron's with a duplicate fp32 copy of the weights. Where
    memory allows, keep all; else give up from the top of the list. Activations, buffers and
    fragmentation come on top.

    Args:
        params: Parameters.
        devices: Devices over which all of it is shared evenly, where no sharding is given.
        device_gib: Memory of one, in GiB.
        sharding: How it is divided; then `devices` is not needed.
        dtype: Format of the weights in the forward pass: bf16, fp16, fp32, fp8 (kept as bf16).
        keeping: What is kept.

    Raises:
        ConfigError: A number is not positive.

    Example:
        >>> [(p.name, round(p.gib)) for p in memory(175e9).parts][2]
        ('fp32 master copy of the weights', 652)
        >>> memory(175e9, keeping="megatron").bytes_per_param
        18.0

    References:
        The order is OPT's in hindsight: duplicate fp32 parameters first, Adam's states last. What
        each stage of ZeRO divides, and DeepSpeed's 16 bytes: Rajbhandari et al. (arXiv:1910.02054).
        Megatron-LM's 18: its documentation of the distributed optimizer.
    """
    _require(params=params, devices=devices or 1.0, device_gib=device_gib or 1.0)
    evenly = devices or math.nan
    parts = tuple(
        MemoryPart(
            name, size, params * size / _GIB, sharding.ways(stage) if sharding else evenly, how
        )
        for name, size, stage, how in _kept(keeping, dtype)
    )
    # NaN where the ways are not known: it passes through the sum, and no figure is given.
    each = sum(p.gib / p.ways for p in parts)
    per_device = each if math.isfinite(each) else None
    fits = per_device <= device_gib if per_device is not None and device_gib else None
    total = sum(p.gib for p in parts)
    kept = sum(p.bytes_per_param for p in parts)
    assumed = "all in fp32" if dtype == "fp32" else _ASSUMED[keeping]
    return Memory(parts, total, per_device, fits, kept, assumed)


@dataclass(frozen=True)
class Goodput:
    """Checkpoints and spares that lose least."""

    failure_hours: float
    """Hours between failures of the job."""
    interval_s: float
    """Time between checkpoints that loses least."""
    lost_share: float
    """Share of the time lost to saves, repeated work and restarts."""
    spare_nodes: int


def goodput(
    devices: float,
    save_s: float,
    *,
    restart_s: float = 600.0,
    repair_hours: float = 24.0,
    devices_per_node: int = 8,
    device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE,
) -> Goodput:
    """Return the checkpoint interval sqrt(2 t_save MTBF), the time lost with it, and spare nodes.

    Spares: the smallest count that Poisson failures within the time of a repair exceed in less
    than 1 % of cases. Failures are taken as independent, one node each; a faulty switch is not.

    Args:
        devices: Accelerators of the job.
        save_s: Seconds for which a save blocks training.
        restart_s: Seconds from a failure to the first new step.
        repair_hours: Until a node is back.
        devices_per_node: Accelerators of one node.
        device_hours_per_failure: Of one accelerator.

    Raises:
        ConfigError: A number is not positive.

    Example:
        >>> plan = goodput(1024, 60)
        >>> round(plan.failure_hours, 1), round(plan.interval_s / 60), plan.spare_nodes
        (49.5, 77, 3)

    References:
        Young (1974), A first order approximation to the optimum checkpoint interval; Daly (2006).
    """
    _require(
        devices=devices,
        save_s=save_s,
        restart_s=restart_s,
        repair_hours=repair_hours,
        devices_per_node=devices_per_node,
        device_hours_per_failure=device_hours_per_failure,
    )
    hours = device_hours_per_failure / devices
    mtbf = hours * 3600
    interval = math.sqrt(2 * save_s * mtbf)
    # Saves, and for each failure half an interval of repeated work and the restart.
    lost = save_s / interval + (interval / 2 + restart_s) / mtbf
    return Goodput(hours, interval, min(1.0, lost), _spares(repair_hours / hours))


def _spares(expected: float) -> int:
    """Return the smallest n with P(Poisson(expected) > n) below 1 %."""
    if expected > 500:  # exp underflows; the normal approximation is within one node here
        return math.ceil(expected + 2.326 * math.sqrt(expected))
    count, term = 0, math.exp(-expected)
    covered = term
    while covered < 0.99:
        count += 1
        term *= expected / count
        covered += term
    return count


@dataclass(frozen=True)
class Ledger:
    """When each pass over the corpus begins."""

    epochs: float
    steps: tuple[int, ...]
    """First step of pass 2, 3, …; empty where nothing repeats."""

    def epoch_at(self, step: float) -> int:
        """Return the number of the pass at a step, from 1."""
        return 1 + sum(step >= s for s in self.steps)


def epoch_ledger(corpus_tokens: float, batch_tokens: float, train_tokens: float) -> Ledger:
    """Return the steps at which the data comes again: n * corpus / batch, rounded up.

    Raises:
        ConfigError: A number is not positive.

    Example:
        >>> epoch_ledger(180e9, 2**21, 300e9).steps
        (85831,)
    """
    _require(corpus_tokens=corpus_tokens, batch_tokens=batch_tokens, train_tokens=train_tokens)
    epochs = train_tokens / corpus_tokens
    # A corpus of a few tokens would make a list of millions of boundaries.
    passes = min(math.ceil(epochs), 1000)
    return Ledger(
        epochs, tuple(math.ceil(n * corpus_tokens / batch_tokens) for n in range(1, passes))
    )


@dataclass(frozen=True)
class Trend:
    """Whether the gain of a change persists as models grow."""

    per_decade: float
    """Change of the gain for ten times the parameters."""
    at_target: float
    verdict: Literal["persists", "shrinks", "vanishes"]

    @property
    def adopt(self) -> bool:
        """Whether the change is worth adopting."""
        return self.verdict == "persists"


def gain_trend(points: Sequence[tuple[float, float]], target: float | None = None) -> Trend:
    """Fit gain against log10(parameters) and say whether it persists at a target size.

    Least squares over all points. "vanishes": nothing is left at the target, or at the largest
    size measured; "shrinks": less than half the smallest model's gain is left at the target.

    Args:
        points: (parameters, gain), gain positive where the change is better; at least 3 sizes.
        target: Parameters of the model it is meant for; default ten times the largest.

    Raises:
        ConfigError: Fewer than three sizes, or a value that is not finite.

    Example:
        >>> gain_trend([(125e6, 0.06), (1.3e9, 0.03), (6.7e9, 0.01)]).verdict
        'vanishes'
    """
    if len({size for size, _ in points}) < 3:
        raise ConfigError(
            f"{len(points)} sizes are given; a trend needs the gain at three at least"
        )
    for size, gain in points:
        _require(size=size)
        if not math.isfinite(gain):
            raise ConfigError(f"the gain at {size:g} is {gain}; give a finite number")
    ordered = sorted(points)
    goal = target if target is not None else 10 * ordered[-1][0]
    _require(target=goal)
    logs = [math.log10(size) for size, _ in ordered]
    gains = [gain for _, gain in ordered]
    middle, level = sum(logs) / len(logs), sum(gains) / len(gains)
    slope = sum((x - middle) * (g - level) for x, g in zip(logs, gains, strict=True)) / sum(
        (x - middle) ** 2 for x in logs
    )
    left = level + slope * (math.log10(goal) - middle)
    if left <= 0 or gains[-1] <= 0:
        return Trend(slope, left, "vanishes")
    return Trend(slope, left, "persists" if left >= gains[0] / 2 else "shrinks")
