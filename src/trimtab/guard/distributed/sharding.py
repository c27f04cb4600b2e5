"""Norms under every sharding: plain tensors, FSDP2 shards, tensor-parallel ones, and mixtures.

Each rank sums over what it holds and divides by how many ranks hold the same; summed over all ranks
that is the global value, whatever is sharded or replicated over whichever mesh. So one reduction
serves all layouts at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["copies", "is_sharded", "layouts", "local", "sum_over_ranks"]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    if isinstance(tensor, DTensor):
        # `to_local()` would be part of the autograd graph where gradients are on.
        return tensor._local_tensor
    return tensor


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this rank holds only a part of it."""
    return isinstance(tensor, DTensor) and any(
        not isinstance(p, Replicate) for p in tensor.placements
    )


def copies(tensor: torch.Tensor, num_ranks: int) -> int:
    """Return how many ranks hold what this rank holds of a tensor, one of `num_ranks` that hold it.

    Raises:
        ActError: It is a partial sum, of which no rank holds the value.
    """
    if not isinstance(tensor, DTensor):
        return num_ranks
    mesh, same = tensor.device_mesh, 1
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Partial):
            raise ActError("a gradient is a partial sum over ranks; reduce it before the step")
        if isinstance(placement, Replicate):
            same *= mesh.size(dimension)
    # Where a mesh covers a part of the ranks only, the others hold the same on meshes of their own.
    return same * max(num_ranks // mesh.size(), 1)


def layouts(tensors: Sequence[torch.Tensor]) -> int:
    """Return on how many different meshes the tensors lie, plain ones counting as one."""
    return len({t.device_mesh if isinstance(t, DTensor) else None for t in tensors})


def sum_over_ranks(
    values: torch.Tensor, tensors: Sequence[torch.Tensor], held: Sequence[int], ranks: Ranks
) -> torch.Tensor:
    """Return the global sum of one value per tensor, float64 scalar.

    Args:
        values: [n], each computed from what this rank holds of its tensor, additive over shards.
        tensors: The n tensors.
        held: How many ranks hold the same of each, see `copies`.
        ranks: The ranks; all must call. One collective.
    """
    counts = [1.0 / copies(t, n) for t, n in zip(tensors, held, strict=True)]
    shares = torch.tensor(counts, dtype=torch.float64)
    mine = float((values.detach().to("cpu", torch.float64) * shares).sum())
    return torch.tensor(ranks.gather([mine]).sum(), dtype=torch.float64)
