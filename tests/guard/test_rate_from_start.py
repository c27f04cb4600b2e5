"""A rate that is far too high from the first step: gone back on and lowered before it settles in."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.guard import Guard


def _trained(rate: float, folder: Path) -> tuple[Guard, float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    inputs = torch.randn(4096, 16)
    targets = torch.sin(inputs[:, :4]) + 0.1 * torch.randn(4096, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=16, shuffle=True
    )
    guard = Guard(model, optimizer, data=data, run=folder, mode="act", clip=1.0, steps=240)
    for x, y in guard:
        loss = nn.functional.mse_loss(model(x), y)
        guard.backward(loss)
        guard.step()
    with torch.no_grad():
        return guard, float(nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :4])))


@pytest.mark.slow
def test_the_first_updates_are_brought_to_the_size_of_sound_ones(tmp_path: Path) -> None:
    sound, error = _trained(3e-3, tmp_path / "sound")
    assert not sound.actions
    guard, mended = _trained(3e-3 * 60, tmp_path / "bad")
    assert [a["remedy"] for a in guard.actions] == ["roll-back+lower-lr"]
    values = guard.actions[0]["values"]
    assert isinstance(values, dict)
    assert values["factor"] in (1 / 10, 1 / 30)
    assert mended < 2 * error
    assert "write the weights anew" in (tmp_path / "bad" / "journal.jsonl").read_text()
