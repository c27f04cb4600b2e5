"""A small pre-norm decoder-only transformer.

Shape letters: B batch, T tokens, D width, H heads, K width per head, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

if TYPE_CHECKING:
    import torch

    from trimtab.lab.config import ModelConfig

__all__ = ["Transformer", "next_token_loss"]


class Transformer(nn.Module):
    """Byte-level language model: pre-RMSNorm blocks, learned positions, no biases, no dropout.

    Matrices start at `config.init_std`; those that write into the residual stream are divided by
    sqrt(2 num_layers), as in GPT-2. The output layer `lm_head` is not tied to the embedding.
    Building one draws from torch's global generator: seed it first.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context_tokens, config.width)
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.num_layers)])
        self.final_norm: nn.Module = nn.Identity()
        if config.final_norm:
            self.final_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self._initialise()

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.lm_head.weight.device

    def forward(self, tokens: Tensor) -> Tensor:
        """Return next-token logits, float [B, T, V], for tokens, int64 [B, T]."""
        x_BTD = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: Tensor = self.lm_head(self.final_norm(x_BTD))
        return logits_BTV

    def _initialise(self) -> None:
        residual_scale = 1.0 / math.sqrt(2.0 * self.config.num_layers)
        for name, weight in self.named_parameters():
            # Gains of the norms stay at 1.
            if weight.dim() < 2:
                continue
            writes_residual = name.endswith(("attention.output.weight", "down.weight"))
            scale = residual_scale if writes_residual else 1.0
            nn.init.normal_(weight, std=self.config.init_std * scale)


class _Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = _Attention(config)
        self.feedforward_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        hidden = F.gelu(self.up(self.feedforward_norm(x_BTD)))
        fed_BTD: Tensor = self.down(hidden)
        return x_BTD + fed_BTD


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = self.qkv(x_BTD).view(B, T, 3, self.num_heads, D // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        projected: Tensor = self.output(mixed.transpose(1, 2).reshape(B, T, D))
        return projected


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of each next token, a scalar in nats, computed in fp32.

    Args:
        model: Gives logits [B, T, V] for tokens [B, T].
        tokens: int64 [B, T + 1]; the first T are read, the last T are predicted.
    """
    logits_BTV: Tensor = model(tokens[:, :-1])
    # Under autocast the logits are half precision; the softmax over V needs fp32.
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens[:, 1:].flatten())
