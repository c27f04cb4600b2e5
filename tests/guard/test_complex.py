"""Complex parameters, as Fourier operators have them."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimtab.chronicle.journal import read_journal
from trimtab.guard import Guard

pytestmark = pytest.mark.torch


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(5, 5, dtype=torch.cfloat))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.fft.irfft(torch.fft.rfft(x) @ self.weight, n=8).relu())
        return out


def test_no_probe_fails_on_complex_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Fourier(), torch.randn(40 * 16, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=16)
    guard = Guard(model, optimizer, data=loader, steps=40, run=tmp_path / "run", mode="act")
    for a, b in guard:
        guard.backward((model(a) - b).square().mean())
        guard.step()
    events = read_journal(tmp_path / "run" / "journal.jsonl")[0]
    assert not [e for e in events if e.event in ("fault", "rearmed")]
    assert not [e for e in events if "left out" in str(e.data.get("text", ""))]
