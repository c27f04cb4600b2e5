"""The small twin model, with the kinds of layers of a config, and its tensor-parallel plan.

Shape letters: B batch, T tokens, D width, H heads, K width per head, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import functional

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from trimtab.configs.shrink import Twin

__all__ = ["TwinModel", "make_optimizer", "tensor_plan"]


class TwinModel(nn.Module):
    """Pre-norm decoder-only transformer of the kinds in `twin`.

    Building draws from torch's global generator.

    Under µP (arXiv:2203.03466, table 8, Adam): matrices start at std ∝ 1/√width, scores are divided
    by the width of a head, the output layer's input multiplied by base/width, and `make_optimizer`
    gives matrices a rate ∝ 1/width. At `base_hidden` all of it is the standard parametrisation.
    """

    def __init__(self, twin: Twin) -> None:
        """Build the model and draw its first weights."""
        super().__init__()
        self.twin = twin
        self.embed = _Embedding(twin)
        self.blocks = nn.ModuleList([_Block(twin) for _ in range(twin.layers)])
        self.final_norm = _norm(twin, twin.hidden)
        self.lm_head = nn.Linear(twin.hidden, twin.vocab, bias=False)
        self.initialize()
        # Only now: a tied matrix is drawn as an embedding, not as an output layer.
        if twin.tied:
            self.lm_head.weight = self.embed.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, float [B, T, V], for tokens, int64 [B, T]."""
        x_BTD = self.embed(tokens)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        x_BTD = self.final_norm(x_BTD)
        if self.twin.mup:
            x_BTD = x_BTD * (self.twin.base_hidden / self.twin.hidden)
        logits: Tensor = self.lm_head(x_BTD)
        return logits

    def initialize(self) -> None:
        """Draw the weights from the current generator."""
        twin, depth = self.twin, math.sqrt(2.0 * self.twin.layers)
        narrow = math.sqrt(twin.base_hidden / twin.hidden) if twin.mup else 1.0
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            std = twin.init_std
            if name.startswith("blocks."):
                std *= narrow / (depth if name.endswith(("out.weight", "down.weight")) else 1.0)
            nn.init.normal_(weight, std=std)


def _norm(twin: Twin, width: int) -> nn.Module:
    return nn.LayerNorm(width) if twin.norm == "layernorm" else nn.RMSNorm(width, eps=1e-6)


class _Embedding(nn.Module):
    def __init__(self, twin: Twin) -> None:
        super().__init__()
        self.tokens = nn.Embedding(twin.vocab, twin.hidden)
        self.positions = (
            nn.Embedding(twin.context, twin.hidden) if twin.position == "learned" else None
        )
        self.norm = _norm(twin, twin.hidden) if twin.embed_norm else None
        if twin.position == "sinusoidal":
            self.register_buffer(
                "waves", sinusoids(twin.context, twin.hidden) * twin.init_std, persistent=False
            )

    def forward(self, tokens: Tensor) -> Tensor:
        x_BTD: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        elif hasattr(self, "waves"):
            x_BTD = x_BTD + self.waves[: tokens.shape[1]]  # type: ignore[index]
        return x_BTD if self.norm is None else self.norm(x_BTD)


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table of Vaswani et al., float [positions, width]: sines, then cosines."""
    rate = torch.exp(torch.arange(width // 2) * (-math.log(10000.0) / max(width // 2 - 1, 1)))
    angle = torch.arange(positions)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class _Block(nn.Module):
    def __init__(self, twin: Twin) -> None:
        super().__init__()
        self.attention_norm = _norm(twin, twin.hidden)
        self.attention = _Attention(twin)
        self.ffn_norm = _norm(twin, twin.hidden)
        self.ffn = _FeedForward(twin)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        added: Tensor = self.ffn(self.ffn_norm(x_BTD))
        return x_BTD + added


class _FeedForward(nn.Module):
    def __init__(self, twin: Twin) -> None:
        super().__init__()
        # Two thirds of 4 h, as a gated block has three matrices in place of two.
        inner = (8 * twin.hidden // 3 + 7) // 8 * 8 if twin.gated else 4 * twin.hidden
        self.gate = nn.Linear(twin.hidden, inner, bias=False) if twin.gated else None
        self.up = nn.Linear(twin.hidden, inner, bias=False)
        self.down = nn.Linear(inner, twin.hidden, bias=False)
        self.activation: nn.Module = {
            "gelu": nn.GELU(),
            "gelu-tanh": nn.GELU(approximate="tanh"),
            "relu": nn.ReLU(),
            "silu": nn.SiLU(),
        }[twin.activation]

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner = self.up(x_BTD)
        acted = (
            self.activation(inner)
            if self.gate is None
            else self.activation(self.gate(x_BTD)) * inner
        )
        down: Tensor = self.down(acted)
        return down


class _Attention(nn.Module):
    def __init__(self, twin: Twin) -> None:
        super().__init__()
        self.twin = twin
        self.head_width = twin.hidden // twin.heads
        self.q = nn.Linear(twin.hidden, twin.hidden, bias=False)
        self.k = nn.Linear(twin.hidden, twin.hidden, bias=False)
        self.v = nn.Linear(twin.hidden, twin.hidden, bias=False)
        self.out = nn.Linear(twin.hidden, twin.hidden, bias=False)
        self.q_norm = _norm(twin, self.head_width) if twin.qk_norm else nn.Identity()
        self.k_norm = _norm(twin, self.head_width) if twin.qk_norm else nn.Identity()

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        # -1 heads: under tensor parallelism a rank holds some of them
        q_BTHK, k_BTHK, v_BTHK = (
            m(x_BTD).view(B, T, -1, self.head_width) for m in (self.q, self.k, self.v)
        )
        q_BTHK, k_BTHK = self.q_norm(q_BTHK), self.k_norm(k_BTHK)
        if self.twin.position == "rotary":
            q_BTHK, k_BTHK = _rotate(q_BTHK), _rotate(k_BTHK)
        scale = None
        if self.twin.mup:
            base = self.twin.base_hidden // self.twin.heads
            # 1/d in place of 1/sqrt(d), equal to it at the base width (arXiv:2203.03466, table 8).
            scale = math.sqrt(base) / self.head_width
        mixed = functional.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BTHK.transpose(1, 2),
            v_BTHK.transpose(1, 2),
            is_causal=True,
            scale=scale,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, -1))
        return out


def _rotate(x_BTHK: Tensor) -> Tensor:
    half = x_BTHK.shape[-1] // 2
    rate = 10000.0 ** (-torch.arange(half, dtype=x_BTHK.dtype, device=x_BTHK.device) / half)
    angle = (
        torch.arange(x_BTHK.shape[1], dtype=x_BTHK.dtype, device=x_BTHK.device)[:, None, None]
        * rate
    )
    first, second = x_BTHK[..., :half], x_BTHK[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def make_optimizer(model: TwinModel, *, lr: float | None = None) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, not on embeddings and norms.

    Under µP the rate of the blocks' matrices is divided by width/base, and their decay multiplied
    by it, so that what decays per step stays.
    """
    twin = model.twin
    peak, times = twin.lr if lr is None else lr, twin.hidden / twin.base_hidden if twin.mup else 1.0
    inner = [w for n, w in model.named_parameters() if w.dim() >= 2 and n.startswith("blocks.")]
    # By identity: a tied output layer is the embedding, and must not be in two groups.
    known = {id(w) for w in inner} | {id(model.embed.tokens.weight)}
    head = [w for n, w in model.named_parameters() if n == "lm_head.weight" and id(w) not in known]
    known |= {id(w) for w in head}
    rest = [w for w in model.parameters() if id(w) not in known] + [model.embed.tokens.weight]
    groups: list[dict[str, object]] = [
        {"params": inner, "lr": peak / times, "weight_decay": twin.weight_decay * times},
        {"params": rest, "weight_decay": 0.0},
    ]
    if head:
        groups.append({"params": head, "weight_decay": twin.weight_decay})
    return torch.optim.AdamW(groups, lr=peak, betas=twin.betas, eps=twin.eps, foreach=False)


def tensor_plan(twin: Twin, *, sequence: bool = False) -> dict[str, ParallelStyle]:
    """Return torch's tensor-parallel plan of the model.

    `sequence` also splits norms and the residual stream along T.

    Norms on queries and keys act on a rank's own heads, so their gradient is a partial sum: the
    plan makes them `SequenceParallel` over the dimension of heads, which adds them up.
    """
    plan: dict[str, ParallelStyle] = {}
    split = Shard(1) if sequence else Replicate()
    for i in range(twin.layers):
        at = f"blocks.{i}."
        for name in (
            "attention.q",
            "attention.k",
            "attention.v",
            "ffn.up",
            *(("ffn.gate",) if twin.gated else ()),
        ):
            plan[at + name] = ColwiseParallel()
        for name in ("attention.out", "ffn.down"):
            plan[at + name] = RowwiseParallel(output_layouts=split)
        if twin.qk_norm:
            for name in ("attention.q_norm", "attention.k_norm"):
                plan[at + name] = SequenceParallel(sequence_dim=2, use_local_output=True)
        if sequence:
            for name in ("attention_norm", "ffn_norm"):
                plan[at + name] = SequenceParallel()
            for name in ("attention", "ffn"):
                plan[at + name] = PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                )
    if sequence:
        plan["embed"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1)
        )
        plan["final_norm"] = SequenceParallel()
        plan["lm_head"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
    return plan
