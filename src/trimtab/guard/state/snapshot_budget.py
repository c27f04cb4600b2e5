"""How many snapshots fit into memory: a stated budget, the arithmetic, and a refusal in time."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError
from trimtab.guard.distributed.sharding import local
from trimtab.guard.state.host_memory import free_host_bytes
from trimtab.guard.state.optimizers import optimizers_in
from trimtab.guard.state.state_copy import LEAST_SHARED_BYTES, state_bytes
from trimtab.plan.guard_costs import FIXED_BYTES, GIB, bytes_text, optimizer_state_per_element

if TYPE_CHECKING:
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.state.training_state import Training
    from trimtab.plan.policy import Policy

__all__ = ["Needed", "SnapshotBudget", "needed_for"]


@dataclass(frozen=True)
class Needed:
    """Host memory of snapshots on one rank, bytes."""

    own: int
    """Of each snapshot: what trains, and the optimizer's state."""
    shared: int
    """Held once for all of them: what does not change."""


class SnapshotBudget:
    """The host memory that the snapshots of one rank may take."""

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        """Read what is free now; a collective."""
        self._policy = policy
        self._ranks = ranks
        everyone = ranks.collect((socket.gethostname(), free_host_bytes()))
        here = [free for host, free in everyone if host == socket.gethostname()]
        known = [free for free in here if free is not None]
        self._free = min(known, default=None)
        self._ranks_here = len(here)
        self.limit = math.inf
        """Bytes; Inf where the system does not tell what is free and no number was given."""
        if policy.snapshot_memory_gib > 0:
            self.limit = policy.snapshot_memory_gib * GIB
        elif self._free is not None:
            self.limit = policy.snapshot_memory_share * self._free / self._ranks_here

    def fits(self, needed: Needed) -> int:
        """Return how many snapshots are within the budget on every rank; a collective."""
        mine = (self.limit - needed.shared) / max(needed.own, 1)
        return int(self._ranks.gather([min(mine, 1e9)]).min())

    def text(self, needed: Needed) -> str:
        """Return the arithmetic in words."""
        beside = f", beside {bytes_text(needed.shared)} held once" if needed.shared else ""
        of = "snapshot_memory_gib"
        if self._policy.snapshot_memory_gib <= 0 and self._free is not None:
            of = (
                f"{self._policy.snapshot_memory_share:g} of the {bytes_text(self._free)} that were"
                f" free at the start, for {self._ranks_here}"
                f" rank{'s' if self._ranks_here > 1 else ''} on this host"
            )
        return (
            f"one snapshot holds {bytes_text(needed.own)} on this rank{beside}; the budget is"
            f" {bytes_text(self.limit)} ({of})"
        )

    def check(self, needed: Needed) -> int:
        """Return how many snapshots are within the budget; a collective.

        Raises:
            ConfigError: Not even one is; the message holds the arithmetic.
        """
        fits = self.fits(needed)
        if fits < 1:
            raise ConfigError(
                f"no snapshot fits, so that nothing could be gone back to: {self.text(needed)}."
                " Give the host more memory, set snapshot_memory_gib or snapshot_memory_share"
                ' higher, shard the state over more ranks, or use mode="advise", which needs no'
                " snapshots"
            )
        return fits


def needed_for(training: Training) -> Needed:
    """Return what a snapshot will hold once the optimizer has its state; nothing is copied."""
    state = training.state()
    own = {
        local(p).untyped_storage().data_ptr(): local(p).nbytes
        for p in training.parameters
        if p.requires_grad
    }
    model = state["model"]
    shared = 0
    if isinstance(model, dict):  # an engine with a state of its own may give something else
        shared = sum(
            mine.nbytes
            for mine in (local(t) for t in model.values() if isinstance(t, torch.Tensor))
            if mine.nbytes >= LEAST_SHARED_BYTES and mine.untyped_storage().data_ptr() not in own
        )
    own_bytes = state_bytes(state) - shared + _to_come(training) + FIXED_BYTES
    return Needed(own=own_bytes, shared=shared)


def _to_come(training: Training) -> int:
    """Return the bytes of the state that the optimizers make in their first step."""
    total = 0.0
    for part in optimizers_in(training.optimizer):
        for group in part.param_groups:
            for p in group["params"]:
                if p.requires_grad and not part.state.get(p):
                    mine = local(p)
                    per = optimizer_state_per_element(type(part).__name__, group, tuple(mine.shape))
                    total += per * mine.nbytes
    return int(total)
