"""Settings of the lab's transformer; free of torch, so that scenarios can name them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.errors import ConfigError

__all__ = ["ModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder-only transformer; the default has 0.18 M weights and steps in ~20 ms."""

    vocab_size: int = 256
    """Number of token ids; 256 = one per byte."""
    width: int = 64
    """Residual stream, in channels."""
    num_layers: int = 3
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads per block; divides `width`."""
    context_tokens: int = 64
    """Longest sequence, in tokens; positions are learned up to here."""
    norm_eps: float = 1e-6
    """Added to the mean square inside RMSNorm."""
    final_norm: bool = True
    """Whether a norm stands before the output layer; without it training is far less stable."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "num_layers", "num_heads", "context_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"ModelConfig.{name} is {value}; it must be at least 1")
        if self.width % self.num_heads:
            raise ConfigError(
                f"ModelConfig.width is {self.width} and num_heads is {self.num_heads}; "
                "choose a width that the number of heads divides"
            )

    @property
    def init_std(self) -> float:
        """Standard deviation of all matrices at the start: sqrt(2 / (5 width)).

        References:
            Nguyen and Salazar (2019), Transformers without tears, arXiv:1910.05895 ("small init").
        """
        return math.sqrt(2.0 / (5.0 * self.width))
