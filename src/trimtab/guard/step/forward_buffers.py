"""Buffers that a forward pass changes, put back where its update is left out.

Batch normalisation folds each batch into its running statistics before anybody knows whether the
batch is sound; a NaN in it would stay there for good. Only small buffers are looked after: running
statistics and counters are, and tables and masks do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ForwardBuffers"]

_MOST_ELEMENTS = 1 << 16


class ForwardBuffers:
    """Remembers the small buffers of a model from before a step."""

    def __init__(self, model: nn.Module) -> None:
        """Find them; one that is added later is not looked after."""
        self._places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and 0 < buffer.numel() <= _MOST_ELEMENTS
        ]
        self._copies: list[torch.Tensor] = []
        self._is_kept = False

    def _live(self) -> list[torch.Tensor | None]:
        return [module._buffers.get(name) for module, name in self._places]

    def keep(self) -> None:
        """Remember them as they are: before the forward pass of a step.

        Cost: one copy of what they hold; nothing for a model without buffers.
        """
        if not self._places:
            return
        live = self._live()
        whole = [x for x in live if x is not None]
        fits = len(whole) == len(live) and len(whole) == len(self._copies)
        if fits and all(_alike(a, b) for a, b in zip(whole, self._copies, strict=True)):
            torch._foreach_copy_(self._copies, whole)
        elif len(whole) == len(live):
            self._copies = [x.detach().clone() for x in whole]
        self._is_kept = len(whole) == len(live)

    def put_back(self, *, where: torch.Tensor | None = None) -> None:
        """Put back what was remembered for this step, if anything was.

        Args:
            where: Scalar on the device; only where it is 1, which the host does not know yet.
        """
        if not self._is_kept:
            return
        self._is_kept = False
        with torch.no_grad():
            for now, then in zip(self._live(), self._copies, strict=True):
                if now is not None and _alike(now, then):
                    # by choice, not by a product: 0 x NaN is NaN
                    same = (
                        then if where is None else torch.where(where.to(now.device) > 0, then, now)
                    )
                    now.copy_(same)

    def forget(self) -> None:
        """Remember nothing: the update was done."""
        self._is_kept = False


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
