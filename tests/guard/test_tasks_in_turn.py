"""Data in an order that means something: the fixed batches are of a task that comes last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trimtab.chronicle.journal import read_journal
from trimtab.guard import Guard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

TASKS, EACH, BATCH = 3, 200, 32
FAULT = 320
"""Steps of the second task are 201-400."""


def trained(run: Path, *, jumps: bool) -> tuple[Guard, float, list[str]]:
    """Return the guard, the loss on held-out data of the last task, and what was said."""
    torch.manual_seed(0)
    draws, count = torch.Generator().manual_seed(11), TASKS * EACH * BATCH
    inputs = torch.randn(count, 16, generator=draws)
    maps = torch.randn(TASKS, 16, 4, generator=draws)
    task = torch.arange(count) // (EACH * BATCH)
    labels = torch.einsum("nd,ndk->nk", inputs, maps[task]).argmax(1)
    held_out = torch.randn(512, 16, generator=draws)
    model = nn.Sequential(nn.Linear(16 + TASKS, 128), nn.ReLU(), nn.Linear(128, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(x: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = model(torch.cat([x, functional.one_hot(t, TASKS).float()], 1))
        return functional.cross_entropy(out, y)

    said = list[str]()
    loader = DataLoader(TensorDataset(inputs, task, labels), batch_size=BATCH)
    guard = Guard(
        model,
        optimizer,
        data=loader,
        steps=TASKS * EACH,
        run=run,
        mode="act",
        say=said.append,
    )
    for x, t, y in guard:
        if jumps and guard.phase != "probe" and guard.step_number >= FAULT - 1:
            optimizer.param_groups[0]["lr"] = 2.0
        guard.backward(loss_of(x, t, y))
        guard.step()
    last = torch.full((512,), TASKS - 1)
    with torch.no_grad():
        loss = float(loss_of(held_out, last, (held_out @ maps[-1]).argmax(1)))
    return guard, loss, said


def test_fixed_batches_of_a_task_to_come_accuse_no_state_and_choose_no_remedy(
    tmp_path: Path,
) -> None:
    twin, healthy, said = trained(tmp_path / "twin", jumps=False)
    assert twin.wasted_steps == 0
    assert len([x for x in said if "another kind of data" in x]) == 1
    guard, loss, said = trained(tmp_path / "run", jumps=True)
    assert [a["remedy"] for a in guard.actions] == ["roll-back+lower-lr"]
    assert "learning rate held at 0.1 until" in said[-1]
    (trial,) = [x for x in said if x.strip().startswith("trial ")]
    assert "✓  loss " in trial
    assert loss == pytest.approx(healthy, abs=0.02)


def test_a_model_that_is_broken_in_eval_mode_is_accused_by_what_was_fed_as_well(
    tmp_path: Path,
) -> None:
    """Running statistics that are spoiled in mid-run make all batches worse, in eval mode alone."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(3)
    inputs = torch.randn(340 * BATCH, 8, generator=draws)
    targets = (inputs @ torch.randn(8, 1, generator=draws)).tanh()
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32, momentum=0.01), nn.Linear(32, 1))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    guard = Guard(model, optimizer, data=loader, steps=340, run=tmp_path / "run", mode="act")
    spoiled = False
    for x, y in guard:
        if guard.step_number == 300 and guard.phase != "probe" and not spoiled:
            spoiled = True
            model[1].running_mean.add_(500.0)  # type: ignore[operator]
        guard.backward((model(x) - y).square().mean())
        guard.step()
    events = read_journal(tmp_path / "run" / "journal.jsonl")[0]
    assert "held-out-worse" in {e.data["kind"] for e in events if e.event == "incident"}


@pytest.mark.parametrize("noise", [0.8, 1.5])
def test_data_that_becomes_of_the_kind_of_the_fixed_batches_costs_no_step(
    tmp_path: Path, noise: float
) -> None:
    torch.manual_seed(0)
    draws, count = torch.Generator().manual_seed(12), 400 * BATCH
    inputs = torch.randn(count, 16, generator=draws)
    labels = (inputs @ torch.randn(16, 4, generator=draws)).argmax(1)
    inputs[240 * BATCH :] += noise * torch.randn(160 * BATCH, 16, generator=draws)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH)
    said = list[str]()
    guard = Guard(
        model, optimizer, data=loader, steps=400, run=tmp_path, mode="act", say=said.append
    )
    for x, y in guard:
        guard.backward(functional.cross_entropy(model(x), y))
        guard.step()
    assert any("another kind of data" in x for x in said)
    assert any("costs what they do: other data" in x for x in said)
    assert (guard.wasted_steps, guard.actions) == (0, ())
