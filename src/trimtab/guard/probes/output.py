"""The output layer: whether its logits drift off as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.kept_error import KeptError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LogZProbe"]

MAX_ROWS = 256


class LogZProbe:
    """Root mean square of log Z (log of the softmax's denominator), while `armed`.

    Sampled on rows of the logits. Where the vocabulary is split over ranks the layer gives only
    part of the logits, and nothing is measured; nor of one output, which is no softmax: its log Z
    is the logit itself, and moves as the answer does.
    """

    def __init__(self, layer: nn.Module | None) -> None:
        """Hook an output layer; does nothing without one."""
        self.armed = False
        self.kept = KeptError()
        self.value: torch.Tensor | None = None
        weight = getattr(layer, "weight", None)
        self._vocab = weight.shape[0] if isinstance(weight, torch.Tensor) else None
        off = layer is None or self._vocab == 1
        self._handle = None if off or layer is None else layer.register_forward_hook(self._hook)

    def _hook(self, _module: nn.Module, _inputs: object, output: object) -> None:
        if not self.armed or not torch.is_grad_enabled() or not isinstance(output, torch.Tensor):
            return
        try:
            self._measure(output)
        except Exception as error:  # noqa: BLE001 - in the user's forward pass; `take` raises it
            self.armed, self.kept.error = False, error

    def _measure(self, output: torch.Tensor) -> None:
        logits = local(output.detach())
        if logits.dim() < 2 or logits.shape[-1] != self._vocab or not logits.numel():
            return
        rows = logits.flatten(0, -2)
        picked = rows[:: max(len(rows) // MAX_ROWS, 1)].float()
        self.value = torch.logsumexp(picked, dim=-1).square().mean().sqrt()

    def take(self) -> float | None:
        """Return the value of the last forward pass, and forget it; None without one."""
        self.kept.raise_once()
        value, self.value = self.value, None
        return None if value is None else float(value)

    @property
    def num_outputs(self) -> int:
        """Width of the layer; 0 where it is not known."""
        return self._vocab or 0

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
