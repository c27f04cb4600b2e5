"""Gradients: clipped to a global norm under any sharding, and looked at layer by layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from trimtab.guard.distributed.sharding import copies, is_sharded, layouts, local, sum_over_ranks
from trimtab.guard.probes.packs import SMALL, nonzeros, spread_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks

__all__ = [
    "clip_gradients",
    "count_zeros",
    "finite_flags",
    "first_nonfinite",
    "global_grad_norm",
    "squared_norms",
    "sums_by_group",
]


def clip_gradients(
    parameters: Sequence[torch.Tensor],
    limit: float | None,
    ranks: Ranks,
    holders: Holders,
    *,
    look: Callable[[], object] | None = None,
) -> torch.Tensor:
    """Clip the gradients to a global L2 norm, None: only measure it; return it as it was before.

    A scalar tensor: the host reads nothing, but to look, for mixtures, for shards that are not
    clipped, and where ranks hold different parts of the model. Where torch can clip them it does,
    bit for bit as a plain loop would; mixtures of plain and sharded gradients, or of several meshes,
    which it refuses, and parts of a model are clipped here. All ranks must call. `look` is called where the norm is not finite, before the clipping spreads a NaN to all
    tensors.
    """
    owners = [p for p in parameters if p.grad is not None]
    grads = [p.grad for p in owners if p.grad is not None]
    sharded = any(is_sharded(g) for g in grads)
    whole = not holders.differ
    if whole and limit is not None and any(g.is_sparse for g in grads):  # torch clips none of those
        norm = global_grad_norm(owners)
        if look is not None and not math.isfinite(float(norm)):
            look()
        share = min(limit / (float(norm) + 1e-6), 1.0)
        for grad in grads:
            grad.mul_(share)
        return norm
    if whole and layouts(grads) < 2 and (limit is not None or not sharded):
        if limit is None:
            norm = global_grad_norm(owners)
        elif hasattr(torch.nn.utils, "get_total_norm"):  # the two halves of `clip_grad_norm_`
            norm = torch.nn.utils.get_total_norm(grads)
        else:  # torch before 2.6: at once
            norm, limit = torch.nn.utils.clip_grad_norm_(owners, limit), None
        plain = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if look is not None and not math.isfinite(float(plain)):
            look()
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(owners, limit, norm)
        return plain
    # One collective, and one sync: the norm of shards is known only over all ranks.
    total = float(_sharded_norm(grads, [holders.of(p) for p in owners], ranks))
    if look is not None and not math.isfinite(total):
        look()
    if limit is not None:
        share = min(limit / (total + 1e-6), 1.0)  # NaN stays, as in torch
        for grad in grads:
            local(grad).mul_(share)
    return torch.tensor(total, dtype=torch.float64)


def _sharded_norm(
    tensors: Sequence[torch.Tensor], held: Sequence[int], ranks: Ranks
) -> torch.Tensor:
    """Return the global L2 norm of tensors under any sharding, float64 scalar."""
    # one that holds none, as a stage whose part is frozen, comes to the collective all the same
    squares = squared_norms(tensors) if tensors else torch.zeros(0, dtype=torch.float64)
    return sum_over_ranks(squares, tensors, held, ranks).sqrt()


def global_grad_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the global L2 norm of unsharded gradients, a scalar tensor; 0 where there are none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norms = torch._foreach_norm([_plain(g) for g in grads])
    together = torch.stack([n.to(norms[0].device, torch.float32) for n in norms])
    total: torch.Tensor = torch.linalg.vector_norm(together)
    return total


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else local(tensor)


def squared_norms(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squared L2 norm of what this rank holds of each tensor, float64 [n]."""
    norms = torch._foreach_norm([_plain(t) for t in tensors])
    return torch.stack([n.to(norms[0].device, torch.float32) for n in norms]).double().square()


def sums_by_group(
    values: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    groups: Sequence[int],
    held: Sequence[int],
) -> list[float]:
    """Return this rank's share of the sum of values in each group; the shares add up to it.

    Args:
        values: [n], one per tensor, additive over shards.
        tensors: The n tensors: how many ranks hold the same of them.
        groups: Group of each, from 0.
        held: How many ranks hold the same of each, see `copies`.
    """
    sums = [0.0] * (max(groups, default=-1) + 1)
    for value, tensor, group, n in zip(values.tolist(), tensors, groups, held, strict=True):
        sums[group] += value / copies(tensor, n)
    return sums


def first_nonfinite(
    parameters: Iterable[torch.Tensor], names: Mapping[int, str]
) -> tuple[str, int] | None:
    """Return the first tensor in the model's order with a gradient not finite, and their number.

    It is None where all gradients that this rank holds are finite. One pass over all gradients.
    """
    bad = [
        names.get(id(p), "?")
        for p in parameters
        if p.grad is not None and not bool(_plain(p.grad).isfinite().all())
    ]
    return (bad[0], len(bad)) if bad else None


def finite_flags(parameters: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the tensors with a gradient, and for each whether all of it is finite.

    1 or 0, float64 [n].

    What `first_nonfinite` would say, for one that cannot look later; the host reads nothing. One
    pass.
    """
    owners = [p for p in parameters if p.grad is not None and _plain(p.grad).numel()]
    if not owners:
        return [], torch.zeros(0, dtype=torch.float64)
    tops = torch._foreach_norm([_plain(p.grad) for p in owners if p.grad is not None], torch.inf)
    together = torch.stack([top.to(tops[0].device, torch.float32) for top in tops])
    return owners, together.isfinite().double()


def count_zeros(grads: Sequence[torch.Tensor], held: Sequence[int]) -> float:
    """Return this rank's share of the number of gradient elements that are exactly zero.

    Of a tensor of more than 65,536 elements it is estimated from an even sample of as many.
    """
    if not grads:
        return 0.0
    whole = [_plain(grad) for grad in grads]
    some = [spread_sample(v.reshape(-1), SMALL) if v.numel() > SMALL else v for v in whole]
    counts = [
        local(grad).numel() - count * (v.numel() / max(sample.numel(), 1))
        for grad, v, sample, count in zip(grads, whole, some, nonzeros(some), strict=True)
    ]
    together = torch.stack(counts).double()
    return sums_by_group(together, grads, [0] * len(grads), held)[0]
