"""What an audit says of positions that have no weights."""

import pytest
import torch
from torch import nn

from trimtab.model_checks import audit


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(8) / 8), persistent=False)


class Slopes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alibi_slopes", torch.ones(4))


class Small(nn.Module):
    def __init__(self, positions: nn.Module | None) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(64, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
        self.positions_of = positions
        self.lm_head = nn.Linear(32, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed_tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)
        logits: torch.Tensor = self.lm_head(x)
        return logits


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (Rotary(), "rotary, nothing to measure"),
        (Slopes(), "alibi, nothing to measure"),
        (None, "none found"),
    ],
)
def test_positions_without_weights_are_named(positions: nn.Module | None, said: str) -> None:
    assert audit(Small(positions)).facts["positions"] == said


def test_a_llama_of_transformers_has_rotary_positions() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert audit(model).facts["positions"] == "rotary, nothing to measure"
