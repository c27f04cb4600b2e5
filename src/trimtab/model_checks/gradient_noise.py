"""The gradient noise scale: at which batch size the gradient's noise is as large as the gradient.

Below it twice the batch is nearly twice the progress of a step; far above it more samples buy
little. From gradients g_i of K batches of b_i samples each, of one and the same model:

    G     = sum(b_i g_i) / B,  B = sum(b_i)
    S     = sum(b_i |g_i - G|^2) / (K - 1)      trace of the covariance of one sample's gradient
    scale = S / (|G|^2 - S / B)                 samples

Both are without bias, whatever the sizes. Source: McCandlish et al., An Empirical Model of
Large-Batch Training, 2018 (the simple scale, section 2.2 and appendix A.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trimtab.errors import ConfigError
from trimtab.model_checks.gradients import put_back

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from trimtab.model_checks.gradients import LossFunction

__all__ = ["NoiseScale", "noise_scale"]

_FEWEST = 8
"""Batches from which their spread is more than a guess. Ours."""
_PARTS = 4


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """What the gradients of some batches show."""

    samples: float
    """The scale, in samples; Inf where the gradient is not told from its noise."""
    low: float
    high: float
    """One standard error on each side, from quarters of the batches; 0 and Inf where one of them
    does not tell the gradient from its noise."""
    noise: float
    """S: trace of the covariance of one sample's gradient."""
    gradient: float
    """Norm of the gradient without noise; 0 where it is not told from it."""
    batches: int
    batch_samples: float
    """Samples of a batch, in the mean."""

    def __str__(self) -> str:
        """Return it in a line."""
        return (
            f"gradient noise scale: {self.samples:.3g} samples ({self.low:.3g} to {self.high:.3g}),"
            f" from {self.batches} batches of {self.batch_samples:.4g}"
        )


def noise_scale(
    model: nn.Module, batches: Iterable[Any], loss: LossFunction, *, sizes: Iterable[int] = ()
) -> NoiseScale:
    """Return the gradient noise scale of a model as it is, from a backward pass for each batch.

    The scale grows while a run goes on: measure it on the checkpoint that is asked about. Batches
    that are small against it, and many of them, tell most.

    Args:
        model: In the mode in which it trains; on one process. Weights, gradients, buffers, modes
            and random states are put back.
        batches: 8 at least, drawn as training draws them; each is handed to `loss`.
        loss: (model, batch) → mean loss over the samples, a scalar tensor.
        sizes: Samples of each batch; default: the length of its first tensor. In tokens, the scale
            is in tokens.

    Raises:
        ConfigError: There are fewer batches, one has no size, a loss is no scalar with a graph, or
            a gradient is not finite.

    Cost: a forward and a backward pass for each batch; twice the memory of the gradients.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    known = iter(tuple(sizes))
    whole, part = _Sum(), _Sum()
    parts: list[_Sum] = []
    listed = list(batches)
    if len(listed) < _FEWEST:
        raise ConfigError(f"noise_scale: {len(listed)} batches; at least {_FEWEST} tell a spread")
    ends = {round(len(listed) * (i + 1) / _PARTS) for i in range(_PARTS)}
    with put_back(model):
        for i, batch in enumerate(listed):
            size = next(known, None) or _size_of(batch, i)
            gradients = _gradients(model, parameters, loss(model, batch), i)
            whole.add(size, gradients)
            part.add(size, gradients)
            if i + 1 in ends:
                parts.append(part)
                part = _Sum()
    noise, square = whole.estimate()
    scale = noise / square if square > 0 else math.inf
    low, high = _interval(scale, parts)
    return NoiseScale(
        samples=scale,
        low=low,
        high=high,
        noise=noise,
        gradient=math.sqrt(max(square, 0.0)),
        batches=len(listed),
        batch_samples=whole.size / len(listed),
    )


class _Sum:
    """Gradients of batches, added up."""

    def __init__(self) -> None:
        self.size = 0
        self._count = 0
        self._squares = 0.0
        self._total: list[Tensor] = []

    def add(self, size: int, gradients: list[Tensor]) -> None:
        self.size += size
        self._count += 1
        self._squares += size * _square(gradients)
        if not self._total:
            self._total = [torch.zeros_like(g, dtype=torch.float32) for g in gradients]
        for total, gradient in zip(self._total, gradients, strict=True):
            total.add_(gradient, alpha=size)

    def estimate(self) -> tuple[float, float]:
        """Return S and |G|^2, both without bias; the second may be below 0."""
        mean = _square(self._total) / self.size**2
        noise = (self._squares - self.size * mean) / (self._count - 1)
        return noise, mean - noise / self.size


def _interval(scale: float, parts: list[_Sum]) -> tuple[float, float]:
    found = [p.estimate() for p in parts]
    if not math.isfinite(scale) or scale <= 0 or any(n <= 0 or s <= 0 for n, s in found):
        return 0.0, math.inf
    logs = [math.log(n / s) for n, s in found]
    middle = sum(logs) / len(logs)
    spread = math.sqrt(sum((x - middle) ** 2 for x in logs) / (len(logs) - 1))
    error = spread / math.sqrt(len(logs))
    return scale * math.exp(-error), scale * math.exp(error)


def _gradients(
    model: nn.Module, parameters: list[nn.Parameter], loss: object, index: int
) -> list[Tensor]:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ConfigError(
            f"noise_scale: the loss of batch {index} is no scalar tensor with a graph; return the"
            " mean loss of the samples, undetached"
        )
    model.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    if not math.isfinite(_square(gradients)):
        raise ConfigError(f"noise_scale: the gradient of batch {index} is not finite; leave it out")
    return gradients


def _square(tensors: list[Tensor]) -> float:
    """Return the squared norm of all, summed in float64."""
    norms = torch._foreach_norm(tensors)
    return float(torch.stack([n.double() for n in norms]).square().sum())


def _size_of(batch: Any, index: int) -> int:
    parts = [batch] if isinstance(batch, torch.Tensor) else batch
    parts = list(parts.values()) if hasattr(parts, "values") else list(parts)
    first = next((p for p in parts if isinstance(p, torch.Tensor) and p.dim()), None)
    if first is None or not len(first):
        raise ConfigError(f"noise_scale: batch {index} has no tensor with samples; give sizes=")
    return len(first)
