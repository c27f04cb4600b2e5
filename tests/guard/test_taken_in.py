"""A window of other data that the model learns while it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trimtab import Guard

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, LENGTH, BATCH, STEPS, FIRST, LAST = 48, 24, 16, 560, 300, 340


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 48)
        self.cell = nn.GRU(48, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.cell(self.embedding(tokens))[0])
        return out


def chains(count: int, seed: int) -> torch.Tensor:
    shape = torch.Generator().manual_seed(1)
    moves = torch.softmax(2 * torch.randn(VOCABULARY, VOCABULARY, generator=shape), -1)
    draws = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(count, LENGTH + 1, dtype=torch.long)
    for t in range(LENGTH):
        tokens[:, t + 1] = torch.multinomial(moves[tokens[:, t]], 1, generator=draws).squeeze(1)
    return tokens


def trained(run: Path, *, one_label: bool) -> tuple[Guard, float]:
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = chains(STEPS * BATCH, 2)
    inputs, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    if one_label:
        labels[FIRST * BATCH : LAST * BATCH] = 3
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH)
    guard = Guard(model, optimizer, data=loader, clip=1.0, steps=STEPS, run=run, mode="act")
    for x, y in guard:
        guard.backward(functional.cross_entropy(model(x).flatten(0, 1), y.flatten()))
        guard.step()
    held_out = chains(256, 3)
    with torch.no_grad():
        out = model(held_out[:, :-1]).flatten(0, 1)
        return guard, float(functional.cross_entropy(out, held_out[:, 1:].flatten()))


@pytest.mark.slow
def test_the_loss_comes_back_within_the_window_and_the_fixed_batches_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard, loss = trained(tmp_path / "run", one_label=True)
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    assert "the fixed batches are not" in "".join(capsys.readouterr())
    left_out = {s for first, last in guard.skipped_samples for s in range(first, last + 1)}
    assert left_out == set(range(FIRST * BATCH, LAST * BATCH))
    twin, healthy = trained(tmp_path / "twin", one_label=False)
    assert not twin.actions
    assert loss < 1.005 * healthy
