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

__all__ = ["Pack", "pack"]

SMALL = 1 << 16
"""Elements up to which copying a tensor is cheaper than an operation of its own."""


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
    packs: list[Pack] = []
    small: dict[tuple[torch.dtype, torch.device, float], list[int]] = {}
    for i, (tensor, share) in enumerate(zip(tensors, shares, strict=True)):
        size = tensor.numel()
        if size > SMALL:
            flat = tensor.detach().flatten()
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
