"""A loop that sets its rate once, far too high: gone back before that, at the script's own rate."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.guard import Guard

_STEPS, _RAISED = 1000, 300


class _Towers(nn.Module):
    """Two sparse embeddings whose product is learned, as in a recommender."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(2000, 16, sparse=True)
        self.items = nn.Embedding(1000, 16, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.head = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        u, i = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        scores: torch.Tensor = self.head(torch.cat((u, i, u * i), -1)).squeeze(-1)
        return scores


@pytest.mark.slow
@pytest.mark.torch
def test_the_rate_that_going_back_has_put_back_is_not_cut_again(tmp_path: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    of_users, of_items = (
        torch.randn(2000, 4, generator=drawn),
        torch.randn(1000, 4, generator=drawn),
    )
    users = torch.randint(0, 2000, (300_000,), generator=drawn)
    items = torch.randint(0, 1000, (300_000,), generator=drawn)
    likes = torch.sigmoid(2 * (of_users[users] * of_items[items]).sum(-1) - 1)
    labels = (torch.rand(likes.shape, generator=drawn) < likes).float()
    torch.manual_seed(1)
    model = _Towers()
    tables = [model.users.weight, model.items.weight]
    sparse = torch.optim.SparseAdam(tables, lr=1e-2)
    dense = torch.optim.Adam(model.head.parameters(), lr=2e-3)
    schedulers = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, _STEPS) for o in (sparse, dense)]
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.stack((users, items), 1), labels), batch_size=256
    )
    guard = Guard(
        model,
        [sparse, dense],
        data=data,
        scheduler=schedulers,
        run=tmp_path / "run",
        mode="act",
        steps=_STEPS,
    )
    raised = False
    for pairs, liked in guard:
        if guard.step_number >= _RAISED and not raised:
            sparse.param_groups[0]["lr"] = 1.0
            raised = True
        guard.backward(nn.functional.binary_cross_entropy_with_logits(model(pairs), liked))
        guard.step()
    (kept,) = [a for a in guard.actions if "lower-lr" in str(a["remedy"])]
    assert "tried both ways" in str(kept["why"])
    assert guard.lr_factor == 1.0
    assert sparse.param_groups[0]["lr"] == pytest.approx(5e-4, rel=0.05)
