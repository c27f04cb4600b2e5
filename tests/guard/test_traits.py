"""A guarded run states what its model and its optimizer have, and advice keeps to it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.guard.tiny import events_of, guard_of, make
from trimtab.guard.loop.run_traits import traits
from trimtab.guard.state.optimizers import OptimizerSet

pytestmark = pytest.mark.torch


class Lion(torch.optim.SGD):
    """Has betas, and no mean of squares."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1e-3, momentum=0.9)
        for group in self.param_groups:
            group["betas"] = (0.9, 0.99)


def of(optimizer: Any, model: nn.Module | None = None) -> str:
    model = make().model if model is None else model
    return traits(model, optimizer(model.parameters()))["traits"]


def test_traits_of_optimizers() -> None:
    assert of(torch.optim.AdamW) == "moments, second-moment"
    assert of(lambda p: torch.optim.SGD(p, lr=0.1)) == "none"
    assert of(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)) == "moments"
    assert of(Lion) == "moments"
    model = make().model
    both = OptimizerSet(
        [
            torch.optim.SGD(model.hidden.parameters(), lr=0.1),
            torch.optim.AdamW(model.output.parameters()),
        ]
    )
    assert traits(model, both)["traits"] == "moments, second-moment"


def test_attention_is_known_by_the_names_of_modules() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    assert "attention" in of(torch.optim.AdamW, encoder)
    own = nn.ModuleDict({"block": nn.ModuleDict({"q_proj": nn.Linear(2, 2)})})
    assert "attention" in of(torch.optim.AdamW, own)


def test_a_guards_own_advice_keeps_to_the_optimizer(tmp_path: Path) -> None:
    s = make(num_samples=2400, schedule="none")
    s.optimizer = torch.optim.SGD(s.model.parameters(), lr=0.05)
    guard = guard_of(s, tmp_path / "run", mode="advise", steps=160)
    for batch in guard:
        factor = float(2 ** min(max(guard.step_number - 79, 0), 30))
        guard.backward(s.loss(batch) * factor)
        guard.step()
    advised = [e.data["why"] for e in events_of(tmp_path / "run", "decision")]
    assert advised
    assert not any("beta2" in str(w) or "queries" in str(w) for w in advised)
    assert events_of(tmp_path / "run", "start")[0].data["settings"]["traits"] == "none"
