"""Models with one thing wrong, for the audit."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.configs.shrink import Twin
from trimtab.model_checks.twin import TwinModel


def twin(seed: int = 0, **changes: Any) -> TwinModel:
    torch.manual_seed(seed)
    return TwinModel(Twin(**{"hidden": 64, "layers": 2, "heads": 4, "context": 32, **changes}))


def decayed(model: nn.Module, *, wrong: tuple[str, ...] = ()) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone; what `wrong` names is put in the other group."""
    decay: list[nn.Parameter] = []
    none: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() >= 2 and "embed" not in name
        (decay if is_matrix != (name in wrong) else none).append(weight)
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": none, "weight_decay": 0.0}], lr=1e-3
    )


class StableEmbedding(nn.Embedding):
    """As in bitsandbytes: Xavier-uniform, and a LayerNorm of its own."""

    def __init__(self, rows: int, width: int, *, xavier: bool = True) -> None:
        super().__init__(rows, width)
        if xavier:
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.normal_(self.weight, std=0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(tokens))
        return normed


class Scaled(nn.Module):
    """Token embedding times a factor, and one block."""

    def __init__(self, factor: float, std: float = 0.02) -> None:
        super().__init__()
        self.factor = factor
        self.wte = nn.Embedding(128, 64)
        nn.init.normal_(self.wte.weight, std=std)
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        self.head = nn.Linear(64, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) * self.factor
        for layer in self.layers:
            x = torch.tanh(layer(x))
        logits: Tensor = self.head(x)
        return logits


def embedded(embedding: nn.Module) -> nn.Module:
    """A model around an embedding."""
    model = Scaled(1.0)
    model.wte = embedding  # type: ignore[assignment]
    return model


def sigma_over_depth(sigma: float, layers: int) -> float:
    return sigma / math.sqrt(2 * layers)
