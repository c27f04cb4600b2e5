"""Which ranks hold which part of the model: all of it, a stage of a pipeline, experts of their own.

Ranks whose trained parameters have other names or shapes are other stages of a pipeline; in one,
ranks of the same names are still other stages where their plain parameters differ, by what they are
at the start and by their gradients in the first step, or theirs are sharded over other ranks.
Parameters marked `allreduce = False`, as
Megatron and DeepSpeed mark experts, are a rank's own, or those of the ranks with the same gradients
in the first step. Other sharded tensors say by their mesh who holds them.

So each parameter counts once in every norm and sum, which is that of the whole model on all ranks.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["Holders"]

_MARK = "allreduce"
"""Attribute of a parameter that is False where ranks that share out the data hold others."""


class Holders:
    """How many ranks hold what this one holds, sharding over a mesh left aside.

    `sharding.copies` takes that number and knows the mesh.
    """

    def __init__(
        self,
        ranks: Ranks,
        parameters: Sequence[torch.Tensor] = (),
        model: torch.nn.Module | None = None,
    ) -> None:
        """Find the stages; all ranks must call it. One collective where there are several ranks.

        Args:
            ranks: Those that train together.
            parameters: The trained ones that this rank holds.
            model: Names them.
        """
        self._ranks = ranks
        self.has_experts = False
        """Whether some rank holds experts of its own."""
        self.stage_of: tuple[int, ...] = (0,) * ranks.count
        """The stage of each rank, from 0, in the order of their first ranks."""
        self._num_same_experts = 1
        self._num_in_stage = ranks.count
        self._like = self.stage_of
        """Number of the names and shapes of each rank."""
        if ranks.count > 1:
            names = {id(p): n for n, p in model.named_parameters()} if model else {}
            shapes = [(names.get(id(p), "?"), tuple(p.shape)) for p in parameters]
            told = ranks.collect((shapes, any(_is_marked(p) for p in parameters)))
            self._take([one for one, _ in told])
            self.has_experts = any(marked for _, marked in told)
            self._like = self.stage_of
            if self.num_stages > 1:
                shared = self.shared(parameters)
                held = (self._like[ranks.index], _norms(shared) or _meshes(parameters))
                self._take(ranks.collect(held))
        self.is_settled = not self.differ
        """Whether it is known who holds what; alike on all ranks."""

    @property
    def stage(self) -> int:
        """The stage of this rank, from 0."""
        return self.stage_of[self._ranks.index]

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline; 1: there is none."""
        return max(self.stage_of) + 1

    @property
    def differ(self) -> bool:
        """Whether some rank holds parameters that another does not; alike on all ranks."""
        return self.num_stages > 1 or self.has_experts

    @property
    def text(self) -> str:
        """What ranks hold, in a sentence; empty where all hold the same."""
        stages = f"{self.num_stages} stages of a pipeline" if self.num_stages > 1 else ""
        experts = "experts of their own" if self.has_experts else ""
        found = " and ".join(filter(None, (stages, experts)))
        return found and f"ranks hold {found}: taken as one model"

    def of(self, parameter: torch.Tensor) -> int:
        """Return how many ranks hold a parameter, its sharding left aside."""
        if self.has_experts and _is_marked(parameter):
            return self._num_same_experts
        return self._num_in_stage

    def shared(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return those that all ranks of this stage hold alike."""
        return [p for p in parameters if not (isinstance(p, DTensor) or _is_marked(p))]

    def firsts(self) -> list[int]:
        """Return for each rank the first one of its stage."""
        return [self.stage_of.index(stage) for stage in self.stage_of]

    def settle(self, parameters: Sequence[torch.Tensor]) -> None:
        """Tell by gradients who holds the same, where names do not; before they are summed up.

        By gradients and not by weights: two stages, or all experts, may begin alike. All ranks must
        call it at every step; one collective in the first one with finite gradients, of a model
        whose ranks differ, and none otherwise.
        """
        if self.is_settled:
            return
        mine = _gradients(self.shared(parameters))
        plain = _norms(mine) or _meshes(parameters)
        experts = _norms(_gradients([p for p in parameters if _is_marked(p)]))
        told = self._ranks.collect((self._like[self._ranks.index], plain, experts))
        if not all(map(math.isfinite, chain.from_iterable((*p, *e) for _, p, e in told))):
            return
        if self.num_stages > 1:
            self._take([one[:2] for one in told])
        self._num_same_experts = max(told.count(told[self._ranks.index]), 1)
        self.is_settled = any(e for *_, e in told) or not self.has_experts

    def _take(self, keys: Sequence[object]) -> None:
        """Number the stages of the ranks in the order of their first ones; equal keys are one."""
        firsts = [keys.index(key) for key in keys]
        numbers = {first: i for i, first in enumerate(sorted(set(firsts)))}
        self.stage_of = tuple(numbers[first] for first in firsts)
        self._num_in_stage = self.stage_of.count(self.stage)


def _is_marked(parameter: torch.Tensor) -> bool:
    return getattr(parameter, _MARK, True) is False and not isinstance(parameter, DTensor)


def _gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse]


def _norms(tensors: Sequence[torch.Tensor]) -> tuple[float, ...]:
    norms = torch._foreach_norm([t.detach() for t in tensors]) if tensors else ()
    return tuple(float(norm) for norm in norms)


def _meshes(parameters: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """Return the ranks over which the sharded parameters lie."""
    meshes = {p.device_mesh for p in parameters if isinstance(p, DTensor)}
    return tuple(sorted({float(r) for mesh in meshes for r in mesh.mesh.flatten().tolist()}))
