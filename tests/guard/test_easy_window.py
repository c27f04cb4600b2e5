"""A window of one class: where it ends the loss leaps, and it is the window that is left out."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.guard import Guard

_SIZE, _FIRST, _STEPS = 64, 500, 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 7])
def test_the_window_is_left_out_and_not_gone_back_into(tmp_path: Path, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    inputs = torch.randn(60_000, 32, generator=drawn)
    hidden = torch.tanh(inputs @ torch.randn(32, 64, generator=drawn) / 3)
    scores = hidden @ torch.randn(64, 10, generator=drawn)
    classes = (scores + 2 * torch.randn(scores.shape, generator=drawn)).argmax(-1)
    order = torch.arange(len(classes))
    begin, end = _FIRST * _SIZE, (_FIRST + _STEPS) * _SIZE
    of_one = torch.nonzero(classes == 3).flatten()
    order[begin:end] = of_one[torch.randint(0, len(of_one), (end - begin,), generator=drawn)]
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs[order], classes[order]), batch_size=_SIZE
    )
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    guard = Guard(model, optimizer, data=data, run=tmp_path / "run", mode="act", steps=900)
    for x, y in guard:
        guard.backward(nn.functional.cross_entropy(model(x), y))
        guard.step()
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    ((first, last),) = guard.skipped_samples
    assert begin <= first <= begin + 8 * _SIZE
    assert last == end - 1
    assert guard.wasted_steps < 0.1
