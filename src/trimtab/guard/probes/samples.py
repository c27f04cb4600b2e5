"""Losses of single samples, where the loop has them: which of a batch stand out."""

from __future__ import annotations

import torch

from trimtab.signals.robust import MAD_TO_SIGMA

__all__ = ["SampleProbe", "outstanding"]

OUTLIER_SIGMA = 8.0
"""Robust standard deviations from the batch's median from which a sample stands out; as in `spike`.
"""
_LEAST_SPREAD = 0.02
"""Smallest spread believed, share of the median."""
_NAMED = 8


class SampleProbe:
    """The losses of the samples of one step, as the loop hands them in."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self._parts: list[torch.Tensor] = []

    def forget(self) -> None:
        """Begin a new step."""
        self._parts.clear()

    def take_in(self, losses: object) -> bool:
        """Take in what should be losses of samples; return whether it is a tensor of such."""
        if not isinstance(losses, torch.Tensor) or not losses.numel() or losses.is_complex():
            return False
        self.note(losses)
        return True

    def note(self, losses: torch.Tensor) -> None:
        """Take in the losses of a batch, or a part of one: [samples], or [samples, tokens]."""
        losses = losses.detach().float()
        self._parts.append(losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses.flatten())

    def take(self) -> tuple[float, tuple[int, ...]] | None:
        """Return the largest loss, nats per token, and which samples of the step stand out upwards.

        A sample stands out whose loss is not finite, or more than 8 robust standard deviations
        above the batch's median; fewer than 8 samples have no spread to be held against. None where
        nothing was noted. One read of the device.
        """
        losses = self.hold()
        return None if losses is None else outstanding(losses.to("cpu", torch.float64))

    def hold(self) -> torch.Tensor | None:
        """Return the losses of the step, [samples], where they lie, and forget them.

        None without any.
        """
        parts, self._parts = self._parts, []
        return torch.cat(parts) if parts else None


def outstanding(losses: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    """Return what `SampleProbe.take` does of losses that were read, float64 [samples]."""
    finite = losses[losses.isfinite()]
    odd = ~losses.isfinite()
    if len(finite) >= 8:
        middle = finite.median()
        spread = MAD_TO_SIGMA * (finite - middle).abs().median()
        spread = torch.maximum(spread, _LEAST_SPREAD * middle.abs())
        odd |= losses > middle + OUTLIER_SIGMA * spread
    return float(losses.max()), tuple(odd.nonzero().flatten().tolist()[:_NAMED])
