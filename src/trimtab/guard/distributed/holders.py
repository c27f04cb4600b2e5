"""Which ranks hold which part of the model: all of it, a stage of a pipeline, experts of their own.

Ranks whose trained parameters have other names or shapes are other stages of a pipeline. So are
ranks of the same names where some give no loss, and within a pipeline those with other weights at the
start or other gradients, or sharded over other ranks. Parameters marked `allreduce = False`, as
Megatron and DeepSpeed mark experts, are a rank's own, or those of the ranks of their mesh.

In a pipeline, and of experts, as many ranks hold an unsharded parameter as have one of its shape
with the same gradient, to the bit, in the first step that has gradients: so a copy counts once, as
a tied embedding on the first stage and the last. Every norm and sum is that of the whole model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["Holders"]

_MARK = "allreduce"
"""Attribute of a parameter that is False where ranks that share out the data hold others."""
_MOST_TRIES = 64
"""Steps in which gradients of zero are waited out."""


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
        """Compare what the ranks hold; all must call it. One collective where there are several.

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
        self._num_in_stage = ranks.count
        self._num_same_experts = 1
        self._like = self.stage_of
        """Number of the names and shapes of each rank."""
        self._counts: dict[int, int] = {}
        """Ranks that hold an unsharded parameter, by its `id`, as its gradient told."""
        self._tries = 0
        self.may_differ = False
        """Whether ranks hold different parts, or may turn out to; alike on all ranks. It becomes
        so in the first step where all looked alike before, and some rank has no loss."""
        if ranks.count > 1:
            names = {id(p): n for n, p in model.named_parameters()} if model else {}
            shapes = [(names.get(id(p), "?"), tuple(p.shape)) for p in parameters]
            marked = [p for p in parameters if _is_marked(p)]
            experts = _norms([p for p in marked if not isinstance(p, DTensor)])
            weights = _norms(self.shared(parameters)) or _meshes(parameters)
            told = ranks.collect((shapes, weights, bool(marked), experts))
            self._like = _numbered([one[0] for one in told])
            stages = [(like, one[1]) for like, one in zip(self._like, told, strict=True)]
            self.has_experts = any(one[2] for one in told)
            self._num_same_experts = [one[3] for one in told].count(experts)
            if len(set(self._like)) > 1:
                self._take(stages)
            self.may_differ = self.differ or len(set(stages)) > 1
        self.is_settled = ranks.count == 1
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
        if self._counts and id(parameter) in self._counts:
            return self._counts[id(parameter)]
        if self.has_experts and _is_marked(parameter):
            if isinstance(parameter, DTensor):
                return parameter.device_mesh.size()
            return self._num_same_experts
        return self._num_in_stage

    def shared(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return those that all ranks of this stage hold alike."""
        return [p for p in parameters if not (isinstance(p, DTensor) or _is_marked(p))]

    def firsts(self) -> list[int]:
        """Return for each rank the first one of its stage."""
        return [self.stage_of.index(stage) for stage in self.stage_of]

    def settle(self, parameters: Sequence[torch.Tensor], *, gives_loss: bool) -> None:
        """Tell by gradients who holds the same; before they are summed up.

        All ranks must call it at every step. One collective in the first one; where ranks may hold
        different parts another, and in each step until gradients tell.

        Args:
            parameters: The trained ones.
            gives_loss: Whether this rank has a loss of the step.
        """
        if self.is_settled:
            return
        if not self.may_differ:
            self.may_differ = not self._ranks.gather([float(gives_loss)]).all()
            if not self.may_differ:
                self.is_settled = True
                return
        plain = _with_gradients(self.shared(parameters))
        experts = _with_gradients(
            p for p in parameters if _is_marked(p) and not isinstance(p, DTensor)
        )
        told = self._ranks.collect((gives_loss, _told(plain), _told(experts), _meshes(parameters)))
        norms = [norm for one in told for _, norm in (*one[1], *one[2])]
        if not all(map(math.isfinite, norms)):
            return
        is_staged = self.num_stages > 1 or not all(gives for gives, *_ in told)
        # a gradient of zero, as under an output layer that begins with zeros, says nothing
        silent = any(
            some and not any(norm for _, norm in some) for one in told for some in one[1:3]
        )
        self._tries += 1
        if silent and (is_staged or self.has_experts) and self._tries < _MOST_TRIES:
            return
        if is_staged:
            keys = [(k, one[1] or one[3]) for k, one in zip(self._like, told, strict=True)]
            self._take(keys)
            self._count(plain, [one[1] for one in told])
        self._count(experts, [one[2] for one in told])
        self.is_settled = True

    def _count(
        self, mine: Sequence[torch.Tensor], told: Sequence[tuple[tuple[object, float], ...]]
    ) -> None:
        """Count the ranks that have each of these, by shape and norm of its gradient."""
        held = [set(some) for some in told]
        for parameter, entry in zip(mine, _told(mine), strict=True):
            if entry[1]:
                self._counts[id(parameter)] = sum(entry in some for some in held)

    def _take(self, keys: Sequence[object]) -> None:
        """Number the stages of the ranks in the order of their first ones; equal keys are one."""
        self.stage_of = _numbered(keys)
        self._num_in_stage = self.stage_of.count(self.stage)


def _numbered(keys: Sequence[object]) -> tuple[int, ...]:
    """Return the number of each key among the different ones, in their order."""
    firsts = [keys.index(key) for key in keys]
    numbers = {first: i for i, first in enumerate(sorted(set(firsts)))}
    return tuple(numbers[first] for first in firsts)


def _is_marked(parameter: torch.Tensor) -> bool:
    return getattr(parameter, _MARK, True) is False


def _with_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [p for p in parameters if p.grad is not None and not p.grad.is_sparse]


def _told(parameters: Sequence[torch.Tensor]) -> tuple[tuple[object, float], ...]:
    """Return shape and norm of the gradient of each."""
    norms = _norms([p.grad for p in parameters if p.grad is not None])
    return tuple((tuple(p.shape), norm) for p, norm in zip(parameters, norms, strict=True))


def _norms(tensors: Sequence[torch.Tensor]) -> tuple[float, ...]:
    norms = torch._foreach_norm([t.detach() for t in tensors]) if tensors else ()
    return tuple(float(norm) for norm in norms)


def _meshes(parameters: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """Return the ranks over which the sharded parameters lie."""
    meshes = {p.device_mesh for p in parameters if isinstance(p, DTensor)}
    return tuple(sorted({float(r) for mesh in meshes for r in mesh.mesh.flatten().tolist()}))
