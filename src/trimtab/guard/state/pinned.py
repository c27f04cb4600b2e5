"""Copies of a device's tensors in pinned host memory, which the device writes at full speed.

Into fresh pages a copy takes five to ten times as long, and longer still where the system first
has to find the pages. torch keeps pinned memory that is no longer needed for the next copy, but
takes powers of two: a matrix of 1280 x 1280 would waste 28 % of it. So tensors that fill a power of
two well have their own, and the others lie side by side in larger pieces.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

__all__ = ["PinnedCopies", "places"]

_WASTE = 1.25
"""Most that pinned memory may be larger than what lies in it. Ours."""

_LEAST_PINNED = 1 << 16
"""Bytes below which it does not matter."""

_LARGEST_PIECE = 1 << 30
"""Bytes of a piece that several share: small enough that what one state leaves fits another."""

_STEP = 512
"""Bytes to which places in a piece are aligned, as torch aligns memory on a device."""


class PinnedCopies:
    """Copies of those tensors that lie on a CUDA device; of the others none are made here."""

    def __init__(self, tensors: Iterable[torch.Tensor | np.ndarray[Any, Any]] = ()) -> None:
        """Copy them, and wait for the last; where no more memory can be pinned, the rest is left.

        Args:
            tensors: Of any kind, each once; of arrays none are made. They must live as long as this object is asked.
        """
        self._copies: dict[int, torch.Tensor] = {}
        self.seconds = 0.0
        """What copying took, without the finding of memory."""
        mine = [t for t in tensors if isinstance(t, torch.Tensor) and _can_be_pinned(t)]
        if not mine:
            return
        room = list(zip(mine, _room_for(mine), strict=True))
        device = mine[0].device
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for tensor, place in room:
            if place is not None:
                self._copies[id(tensor)] = place.copy_(tensor.detach(), non_blocking=True)
        for one in {t.device for t in mine}:
            torch.cuda.synchronize(one)
        self.seconds = time.perf_counter() - began

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the copy of one of the tensors; None where there is none."""
        return self._copies.get(id(tensor))


def _can_be_pinned(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return (
        plain
        and tensor.is_cuda
        and tensor.layout == torch.strided
        and tensor.nbytes >= _LEAST_PINNED
    )


def _room_for(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return room in pinned memory for each tensor; None where none is to be had."""
    room: list[torch.Tensor | None] = [None] * len(tensors)
    together = []
    with contextlib.suppress(RuntimeError):  # no more memory can be pinned
        for i, tensor in enumerate(tensors):
            if _power_of_two(tensor.nbytes) <= _WASTE * tensor.nbytes:
                room[i] = _memory(tensor.nbytes, like=tensor)
            elif tensor.is_contiguous():
                together.append(i)
        pieces: dict[int, torch.Tensor] = {}
        sizes, found = places([tensors[i].nbytes for i in together])
        for i, place in zip(together, found, strict=True):
            if place is None:
                continue
            piece, at = place
            if piece not in pieces:
                pieces[piece] = _memory(sizes[piece])
            held = pieces[piece][at : at + tensors[i].nbytes]
            room[i] = held.view(tensors[i].dtype).view(tensors[i].shape)
    return room


def _memory(size: int, like: torch.Tensor | None = None) -> torch.Tensor:
    if like is not None:
        return torch.empty_like(like, device="cpu", pin_memory=True)
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def places(sizes: Sequence[int]) -> tuple[list[int], list[tuple[int, int] | None]]:
    """Return the sizes of pieces that are powers of two, and the place of each size in them.

    A place is the number of a piece and where in it. None: what would leave more than a fifth of a
    large piece empty.

    Args:
        sizes: Bytes of each.

    Example:
        >>> places([3 << 20, 3 << 20, 1 << 20, 1 << 20])
        ([8388608], [(0, 0), (0, 3145728), (0, 6291456), (0, 7340032)])
        >>> places([3 << 30])
        ([], [None])
    """
    aligned = [-(-size // _STEP) * _STEP for size in sizes]
    pieces: list[int] = []
    found: list[tuple[int, int] | None] = [None] * len(sizes)
    waiting = sorted(range(len(sizes)), key=lambda i: -aligned[i])
    while waiting:
        need, most = sum(aligned[i] for i in waiting), aligned[waiting[0]]
        size = min(_power_of_two(need), _LARGEST_PIECE)
        if size > _WASTE * need and size > _STEP and size // 2 >= most:
            size //= 2  # the rest has a piece of its own
        size = max(size, _power_of_two(most))
        filled, rest = 0, []
        taken: list[tuple[int, int]] = []
        for i in waiting:
            if filled + aligned[i] <= size:
                taken.append((i, filled))
                filled += aligned[i]
            else:
                rest.append(i)
        if size > _WASTE * filled and size > _WASTED_ANYWAY:
            waiting = waiting[1:]  # without the largest, for which this piece was too large
            continue
        for i, at in taken:
            found[i] = (len(pieces), at)
        pieces.append(size)
        waiting = rest
    return pieces, found


_WASTED_ANYWAY = 1 << 26
"""Bytes of a piece that may be as empty as it likes."""


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
