"""A loader that hands out one batch for ever is told of while the run goes on."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from trimtab.guard import Guard

BATCH, STEPS, STUCK = 8, 80, 30


class Stuck(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are those of one batch from the step `STUCK` on."""

    def __init__(self, stuck: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(BATCH * STEPS, 6, generator=g)
        self.y = torch.randint(3, (BATCH * STEPS,), generator=g)
        self.first = stuck * BATCH

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        i = i if i < self.first else self.first + (i - self.first) % BATCH
        return self.x[i], self.y[i]


def said(run: Path, stuck: int) -> list[str]:
    torch.manual_seed(0)
    model, lines = nn.Linear(6, 3), list[str]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = DataLoader(Stuck(stuck), batch_size=BATCH)
    guard = Guard(
        model, optimizer, data=data, steps=STEPS, run=run, mode="observe", say=lines.append
    )
    for x, y in guard:
        guard.backward(cross_entropy(model(x), y))
        guard.step()
    return [line for line in lines if "again and again" in line]


def test_a_batch_that_comes_for_ever_is_said_within_twenty_steps(tmp_path: Path) -> None:
    (line,) = said(tmp_path / "stuck", STUCK)
    assert line.startswith("step")
    assert STUCK < int(line.split()[1]) <= STUCK + 20


def test_one_full_batch_from_the_first_step_on_is_not(tmp_path: Path) -> None:
    assert said(tmp_path / "full", 0) == []
