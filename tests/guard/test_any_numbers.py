"""Models in float64 or with complex parameters, and probes that fail: training goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trimtab.guard import Guard
from trimtab.guard.probes import activations, output
from trimtab.plan.policy import Policy


class Blocks(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8, dtype=dtype) for _ in range(3)])
        self.head = nn.Linear(8, 4, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        y: Tensor = self.head(x)
        return y


def train(run: Path, mode: str, dtype: torch.dtype = torch.float64, steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    model = Blocks(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    samples: Any = torch.randn(5 * steps, 8, dtype=dtype)
    data = DataLoader(samples, batch_size=5)
    losses: list[float] = []

    def loss_of(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), torch.arange(5) % 4)

    if mode == "plain":
        for x in data:
            loss = loss_of(x)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses
    guard = Guard(
        model,
        optimizer,
        data=data,
        steps=steps,
        run=run,
        say=lambda _line: None,
        policy=Policy(mode=mode),  # type: ignore[arg-type]
    )
    for x in guard:
        loss = loss_of(x)
        guard.backward(loss)
        guard.step()
        losses.append(loss.item())
    return losses


def test_a_model_in_float64_is_observed_bit_for_bit(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "observe") == train(tmp_path / "run", "plain")
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert "left out from now on" not in journal


@pytest.mark.parametrize(
    ("kind", "name"), [(activations.BlockProbe, "blocks"), (output.LogZProbe, "log_z")]
)
def test_a_probe_that_fails_in_the_forward_pass_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("cannot be measured")

    plain = train(tmp_path / "run", "plain", torch.float32)
    monkeypatch.setattr(kind, "_measure", fails)
    assert train(tmp_path / "run", "observe", torch.float32) == plain
    journal = (tmp_path / "run" / "journal.jsonl").read_text()
    assert f"probe {name} is left out from now on: RuntimeError: cannot be measured" in journal
