"""Many small tensors as few: what is asked of all of them costs one operation instead of one each.

A model has a handful of large matrices and many small ones, of which each takes microseconds per
operation whatever is done with it. Small ones that are alike in type, place and share are copied
into one row; a large one stays by itself and is not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SMALL", "Pack", "absolute_sums", "largest", "nonzeros", "pack", "spread_sample", "sums"]

SMALL = 1 << 16
"""Elements up to which copying a tensor is cheaper than an operation of its own."""
_RUN = 64
"""Neighbours in a sample: a memory line or more, so that what lies between is not read."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Tensors in a row, flat [n]."""

    flat: torch.Tensor
    share: float
    """What this rank's part of them counts in a sum over all ranks."""
    members: tuple[int, ...]
    """Which of the tensors, in their order."""
    ends: tuple[int, ...]
    """Where each of them ends in `flat`."""


def pack(tensors: Sequence[torch.Tensor], shares: Sequence[float]) -> list[Pack]:
    """Return the tensors as packs; empty ones are left out.

    Args:
        tensors: Local and dense, of any types and devices.
        shares: Of each, see `Pack.share`.

    Example:
        >>> big, small = torch.ones(300, 300), torch.ones(2, 3)
        >>> [(len(p.flat), p.members, p.ends) for p in pack([small, big, small], [1.0] * 3)]
        [(90000, (1,), (90000,)), (12, (0, 2), (6, 12))]
    """
    # of a complex one, real and imaginary parts are elements
    tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    packs: list[Pack] = []
    small: dict[tuple[torch.dtype, torch.device, float], list[int]] = {}
    for i, (tensor, share) in enumerate(zip(tensors, shares, strict=True)):
        size = tensor.numel()
        if size > SMALL:
            flat = tensor.detach().reshape(-1)
            packs.append(Pack(flat=flat, share=share, members=(i,), ends=(size,)))
        elif size:
            small.setdefault((tensor.dtype, tensor.device, share), []).append(i)
    for (*_, share), members in small.items():
        ends, total = [], 0
        for i in members:
            total += tensors[i].numel()
            ends.append(total)
        flat = torch.cat([tensors[i].detach().flatten() for i in members])
        packs.append(Pack(flat=flat, share=share, members=tuple(members), ends=tuple(ends)))
    return packs


def spread_sample(flat: torch.Tensor, most: int) -> torch.Tensor:
    """Return an even sample of a flat tensor [n] as a view [k, 64], or all of it, [n].

    Runs of 64 elements, the distance of which is an odd number of runs: no column of a matrix by
    itself. It reads no more of the memory than it returns.

    Args:
        flat: Contiguous.
        most: Elements up to which all are returned, and about as many as a sample has.

    Example:
        >>> spread_sample(torch.arange(10.0), 100).shape
        torch.Size([10])
        >>> spread_sample(torch.arange(64.0 * 300), 6400)[:2, 0]
        tensor([  0., 192.])
    """
    every = -(-len(flat) // most) | 1
    num = len(flat) // (_RUN * every)
    if len(flat) <= most or not num:
        return flat
    return flat.as_strided((num, _RUN), (every * _RUN, 1))


# -- asked of many at once ------------------------------------------------------------------
#
# On a GPU an operation costs what it takes to start it, 10 microseconds whatever its size: torch's
# own operations over lists start one for many tensors. On a CPU they go one by one and are slower
# than reductions that use its vector instructions.


def _at_once(flats: Sequence[torch.Tensor]) -> bool:
    first = flats[0]
    return first.is_cuda and all(
        t.dtype == torch.float32 and t.device == first.device for t in flats
    )


def largest(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the largest absolute element of each tensor, scalar tensors; NaN where there is one.

    Args:
        flats: Any number, each of at least one element.

    Example:
        >>> largest([torch.tensor([1.0, -3.0]), torch.tensor([float("nan"), 1.0])])
        [tensor(3.), tensor(nan)]
    """
    if flats and _at_once(flats):
        return list(torch._foreach_norm(list(flats), torch.inf))
    found = []
    for flat in flats:
        low, high = torch.aminmax(flat)
        found.append(torch.maximum(-low, high))
    return found


def sums(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sum of each tensor, none of whose elements is negative: else it may be another."""
    if flats and _at_once(flats):
        return list(torch._foreach_norm(list(flats), 1))
    return [flat.sum() for flat in flats]


def absolute_sums(flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sum of the absolute elements of each tensor [n], scalar tensors.

    Of more than 65,536 it is estimated from an even sample of as many.
    """
    some = [spread_sample(flat, SMALL) for flat in flats]
    shares = [flat.numel() / max(s.numel(), 1) for flat, s in zip(flats, some, strict=True)]
    if flats and _at_once(flats):
        return list(torch._foreach_mul(torch._foreach_norm(some, 1), shares))
    return [s.abs().sum(dtype=torch.float32) * share for s, share in zip(some, shares, strict=True)]


def nonzeros(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return how many elements of each tensor are not zero, scalar tensors."""
    if tensors and _at_once(tensors):
        return list(torch._foreach_norm(list(tensors), 0))
    return [torch.count_nonzero(t) for t in tensors]
