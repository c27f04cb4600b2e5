"""A loop that carries something from batch to batch, which a reading of fixed batches changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trimtab.chronicle.journal import read_journal
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

STEPS, ROWS, LENGTH = 60, 4, 8
POLICY = Policy(mode="act", yardstick_share=0.2, snapshot_every_steps=10)


class Recurrent(nn.Module):
    """Dropout, noise that is drawn with each pass, and a memory: all of them are the model's."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 12)
        self.cell = nn.LSTM(12, 16, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(16))
        self.memory: list[Tensor] = []

    def forward(
        self, tokens: Tensor, hidden: tuple[Tensor, Tensor] | None, noise: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, hidden = self.cell(self.embedding(tokens), hidden)
        self.seen = 0.9 * self.seen + 0.1 * out.detach().mean((0, 1))
        self.memory = [*self.memory[-2:], out.detach().mean()]
        out = out + 0.1 * torch.randn_like(out) + 0.1 * noise + sum(self.memory)
        return self.head(self.dropout(out) + self.seen), hidden


def trained(
    run: Path | None, carried: Literal["always", "outside of probes", "never"]
) -> tuple[list[float], list[str], list[str], int]:
    """Return the losses of the steps, what was said, the notes, and how many readings there were."""
    torch.manual_seed(0)
    own = torch.Generator().manual_seed(1)
    tokens = torch.arange(STEPS * LENGTH + 1) * 3 + torch.randint(0, 2, (ROWS, 1))
    tokens = (tokens + (torch.rand(tokens.shape) < 0.1)) % 8
    parts = torch.stack([tokens[:, i * LENGTH : (i + 1) * LENGTH + 1] for i in range(STEPS)])
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader, said = DataLoader(TensorDataset(parts), batch_size=1), list[str]()
    guard = None
    if run is not None:
        guard = Guard(
            model, optimizer, data=loader, steps=STEPS, run=run, policy=POLICY, say=said.append
        )
    hidden, losses = None, list[float]()
    for (batch,) in loader if guard is None else guard:
        part = batch[0]
        in_probe = guard is not None and guard.phase == "probe"
        noise = torch.randn(16, generator=own)
        out, after = model(part[:, :-1], hidden, noise)
        if carried == "always" or (carried == "outside of probes" and not in_probe):
            hidden = tuple(h.detach() for h in after)
        loss = functional.cross_entropy(out.flatten(0, 1), part[:, 1:].flatten())
        if not in_probe:
            losses.append(loss.item())
        if guard is None:
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        else:
            guard.backward(loss)
            guard.step()
    if run is None:
        return losses, said, [], 0
    events = read_journal(run / "journal.jsonl")[0]
    notes = [str(e.data["text"]) for e in events if e.event == "note"]
    return losses, said, notes, sum(e.event == "yardstick" for e in events)


def test_it_is_recognised_at_the_first_reading_and_read_no_more(tmp_path: Path) -> None:
    _, said, notes, readings = trained(tmp_path / "run", "always")
    for lines in (said, notes):
        (told,) = [x for x in lines if "carries something from one batch to the next" in x]
        assert "guard.phase is 'probe'" in told
        assert "validate" in told
    assert readings == 0


@pytest.mark.parametrize("carried", ["outside of probes", "never"])
def test_what_a_reading_leaves_as_it_was_is_read_on(
    tmp_path: Path, carried: Literal["outside of probes", "never"]
) -> None:
    plain, *_ = trained(None, carried)
    losses, said, _, readings = trained(tmp_path / "run", carried)
    assert losses == plain
    assert not [x for x in said if "yardstick is off" in x]
    assert readings >= 3
