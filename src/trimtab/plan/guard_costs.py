"""What a guard will hold, send and cost on a run of a given size: a model, no measurement.

All of it follows from what the guard does: a snapshot is a copy of what trains and of the
optimizer's state, frozen weights are held once, one small vector per rank is gathered each step.
`python -m benchmarks guard-plan` measures the same on real runs and compares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FIXED_BYTES",
    "GIB",
    "OPTIMIZERS",
    "GuardCost",
    "GuardLoad",
    "bytes_text",
    "guard_cost",
    "optimizer_state_per_element",
]

GIB = 2**30

OPTIMIZERS: Mapping[str, float] = {
    "adadelta": 2.0,
    "adafactor": 0.0,
    "adagrad": 1.0,
    "adam": 2.0,
    "adamax": 2.0,
    "adamw": 2.0,
    "lion": 1.0,
    "muon": 1.0,
    "nadam": 2.0,
    "radam": 2.0,
    "rmsprop": 1.0,
    "rprop": 2.0,
    "sgd": 0.0,
    "sgd-momentum": 1.0,
    "shampoo": 4.0,
    "soap": 6.0,
}
"""State per weight, in copies of it, by the class name in lower case. Adafactor keeps a row and a
column per matrix, which is next to nothing; of Shampoo and SOAP a square matrix is taken: two
factors and their roots, and beside them Adam's two moments. What is not here counts as two."""

_UNKNOWN = 2.0

_ROW_VALUES = 11
"""Numbers of eight bytes that each rank sends each step."""

_PROBE_VALUES, _PROBE_VALUES_PER_LAYER = 16, 5
"""The same of a full reading of the model, and per layer of it."""

_SNAPSHOT_VALUES = 4
"""The same of each snapshot: whether it was made, and how many fit."""

FIXED_BYTES = 13_000
"""Of a snapshot beside the tensors: the random states of the process and of the data's order."""


def optimizer_state_per_element(
    kind: str, group: Mapping[str, object], shape: tuple[int, ...]
) -> float:
    """Return the state that an optimizer will make of a tensor, in copies of it.

    Args:
        kind: Its class name.
        group: Settings of the tensor's group: `momentum`, `amsgrad` and the like count.
        shape: Of the tensor.
    """
    name = kind.lower()
    elements = max(math.prod(shape), 1)
    if name == "sgd":
        return 1.0 if group.get("momentum") else 0.0
    if name == "adafactor" and len(shape) >= 2:
        return (elements / shape[-1] + elements / shape[-2]) / elements
    if name == "adafactor":
        return 1.0
    known = next((n for n in sorted(OPTIMIZERS, key=len, reverse=True) if n in name), None)
    copies = _UNKNOWN if known is None else OPTIMIZERS[known]
    return copies + (1.0 if group.get("amsgrad") else 0.0)


@dataclass(frozen=True, kw_only=True)
class GuardLoad:
    """A run as far as the guard's cost depends on it."""

    params: float
    optimizer: str = "adamw"
    world: int = 1
    ranks_per_host: int = 8
    sharded: bool = True
    """Whether weights and optimizer state are shared out over all ranks (FSDP, ZeRO-3); False: each
    holds all of them (DDP)."""
    trainable: float = 1.0
    """Share of the weights that trains; the others are frozen (LoRA)."""
    weight_bytes: float = 4.0
    """Of a weight that trains."""
    frozen_bytes: float = 2.0
    """Of a weight that does not: 0.5 for four bits."""
    state_bytes: float | None = None
    """Of a number in the optimizer's state; None: as the weight."""
    layers: int = 0
    """0: of a GPT of that size."""
    snapshots: int = 16
    snapshot_every: int = 20
    checkpoint_every: int = 200
    checkpoints: int = 5
    probe_every: int = 10
    host_free_gib: float | None = None
    """Free memory of a host when training starts; None: without a budget."""
    snapshot_share: float = 0.5
    snapshot_time_share: float = 0.02
    """Most of the time that snapshots take: above it they are made less often."""
    spill: bool = False
    step_seconds: float | None = None
    copy_gb_s: float = 5.0
    """Speed of a copy into host memory, one rank, 10^9 bytes a second."""
    disk_gb_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("params", "world", "ranks_per_host", "weight_bytes", "copy_gb_s", "disk_gb_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}, expected a positive number")
        for name in ("snapshots", "snapshot_every", "checkpoint_every", "checkpoints"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected at least 1")
        if not 0 < self.trainable <= 1:
            raise ConfigError(f"trainable is {self.trainable!r}, expected a share above 0, up to 1")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"optimizer is {self.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}"
            )


@dataclass(frozen=True, kw_only=True)
class GuardCost:
    """What the guard of a run holds, sends and takes; bytes and seconds, per rank unless said."""

    snapshot: float
    """Of one snapshot."""
    held_once: float
    """Of frozen weights, beside all snapshots."""
    kept: int
    """Snapshots in memory; 0: none fits."""
    budget: float
    memory: float
    """Of all snapshots in memory, and one more while it is taken where the budget allows it."""
    memory_host: float
    """The same of all ranks of a host."""
    going_back: float
    """For a moment, while a state is put back."""
    sent_per_step: float
    """Received from the other ranks, mean per step."""
    checkpoint: float
    """On disk, all ranks together."""
    checkpoints: float
    """All that are kept."""
    snapshot_seconds: float
    snapshot_every: int
    """Their distance, steps: wider than the policy's where they would take too much of the time,
    as far as a step's time is known."""
    checkpoint_seconds: float
    """In the background, but for the copy."""
    share_of_step: float | None
    """Of the time of training: snapshots and the copies of checkpoints; None without a step's
    time."""


def guard_cost(load: GuardLoad) -> GuardCost:
    """Return what the guard of a run will cost.

    Example:
        >>> cost = guard_cost(GuardLoad(params=7e9, world=64, host_free_gib=800))
        >>> round(cost.snapshot / 1e9, 2), cost.kept
        (1.31, 16)
    """
    parts = load.world if load.sharded else 1
    trained = load.params * load.trainable
    state = OPTIMIZERS[load.optimizer] * (load.state_bytes or load.weight_bytes)
    snapshot = trained * (load.weight_bytes + state) / parts + FIXED_BYTES
    held_once = load.params * (1 - load.trainable) * load.frozen_bytes / parts
    here = min(load.ranks_per_host, load.world)
    budget = math.inf
    if load.host_free_gib is not None:
        budget = load.snapshot_share * load.host_free_gib * GIB / here
    fits = max(math.floor(min((budget - held_once) / snapshot, load.snapshots + 1)), 0)
    kept = min(fits, load.snapshots)
    in_memory = min(fits, 2) if load.spill else fits
    memory = in_memory * snapshot + held_once
    layers = load.layers or round(_layers_of(load.params))
    probes = (_PROBE_VALUES + _PROBE_VALUES_PER_LAYER * layers) / load.probe_every
    agreed = _SNAPSHOT_VALUES / load.snapshot_every
    sent = 8 * (_ROW_VALUES + probes + agreed) * (load.world - 1)
    on_disk = trained * (load.weight_bytes + state) + held_once * parts
    copying = snapshot / (load.copy_gb_s * 1e9)
    share, every = None, load.snapshot_every
    if load.step_seconds:
        widest = 64 * load.snapshot_every
        while copying > load.snapshot_time_share * every * load.step_seconds and every < widest:
            every *= 2
        per_step = copying / every + copying / load.checkpoint_every
        share = per_step / load.step_seconds
    return GuardCost(
        snapshot=snapshot,
        held_once=held_once,
        kept=load.snapshots if load.spill and fits else kept,
        budget=budget,
        memory=memory,
        memory_host=memory * here,
        going_back=max(load.weight_bytes, state) * trained / parts,
        sent_per_step=sent,
        checkpoint=on_disk,
        checkpoints=on_disk * load.checkpoints,
        snapshot_seconds=copying,
        snapshot_every=every,
        checkpoint_seconds=on_disk / load.world / (load.disk_gb_s * 1e9),
        share_of_step=share,
    )


def _layers_of(params: float) -> float:
    """Return the layers of a GPT of a size: 12 n d^2 weights in n layers of width d = 128 n."""
    layers: float = (params / (12 * 128**2)) ** (1 / 3)
    return max(layers, 1.0)


def bytes_text(count: float) -> str:
    """Return bytes in words, in powers of 1000.

    Example:
        >>> [bytes_text(x) for x in (512, 2.5e6, 1.31e12, math.inf)]
        ['512 B', '2.5 MB', '1.31 TB', 'no limit']
    """
    if math.isinf(count):
        return "no limit"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
