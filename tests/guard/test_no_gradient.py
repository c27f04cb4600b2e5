"""No gradient reaches most of the weights: told with names; where that is meant, nothing is."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, relu
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from trimtab.guard import Guard

pytestmark = pytest.mark.torch

STEPS, BATCH = 260, 16
Loss = Callable[[int, Tensor, Tensor], Tensor]


@dataclass
class Loop:
    """A model, what trains it, and the loss of a batch at a step."""

    model: nn.Module
    loss: Loss
    optimizers: Sequence[torch.optim.Optimizer] = ()


class Net(nn.Module):
    """A trunk and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def trunk(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x))
        return out


def told(loop: Loop, run: Path, *, mode: str = "act") -> tuple[list[str], list[tuple[str, float]]]:
    """Train; return the lines that were said of it, and the alarms of the run as read later."""
    data = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS * BATCH, 6, generator=data)
    y = (x @ torch.randn(6, 3, generator=data)).argmax(-1)
    lines: list[str] = []
    guard = Guard(
        loop.model,
        list(loop.optimizers) or torch.optim.Adam(loop.model.parameters(), lr=1e-3),
        data=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        steps=STEPS,
        run=run,
        mode=mode,  # type: ignore[arg-type]
        say=lines.append,
    )
    for bx, by in guard:
        guard.backward(loop.loss(guard.step_number, bx, by))
        guard.step()
    (read,) = trimtab.analyze(run).runs
    alarms = [(i.kind, i.onset) for i in read.incidents if i.kind == "never-learns"]
    return [line for line in lines if "no gradient reaches" in line], alarms


# -- faults ---------------------------------------------------------------------------------


def dead_units() -> Loop:
    model = Net()
    with torch.no_grad():
        model.first.bias.sub_(100)
    return Loop(model, lambda _, x, y: cross_entropy(model(x), y))


def hooks() -> Loop:
    model = Net()

    def loss(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step == 60:
            for layer in (model.first, model.second):
                layer.weight.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
        return cross_entropy(model(x), y)

    return Loop(model, loss)


def detached() -> Loop:
    model = Net()

    def loss(step: int, x: Tensor, y: Tensor) -> Tensor:
        hidden = model.trunk(x)
        return cross_entropy(model.head(hidden if step < 60 else hidden.detach()), y)

    return Loop(model, loss)


@pytest.mark.parametrize(
    ("make", "since", "named"),
    [(dead_units, 1, "first.weight"), (hooks, 61, "second.weight"), (detached, 61, "second.bias")],
)
def test_most_weights_without_a_gradient_are_told_live_and_offline(
    make: Callable[[], Loop], since: int, named: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    lines, alarms = told(make(), tmp_path / "run")
    assert any(f"since step {since}" in line for line in lines), lines
    assert any(named in line for line in lines), lines
    assert ("never-learns", since) in alarms
    events = [json.loads(s) for s in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
    assert not [e for e in events if e["event"] in ("rollback", "trial", "remedy")]


# -- where it is meant ------------------------------------------------------------------------


class Recommender(nn.Module):
    """Most of it is a table of which each batch uses a few rows."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(3000, 8, sparse=sparse)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.table((x.abs().sum(-1) * 100).long()))
        return out


def table(*, sparse: bool) -> Loop:
    model = Recommender(sparse=sparse)
    rate = torch.optim.SGD(model.parameters(), lr=0.1)
    return Loop(model, lambda _, x, y: cross_entropy(model(x), y), [rate])


def experts() -> Loop:
    model = nn.ModuleList([nn.Linear(6, 6), *(nn.Linear(6, 3) for _ in range(20))])

    def loss(step: int, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model[1 + step * 7 % 20](model[0](x)), y)  # the others get none

    return Loop(model, loss)


def off_at_times() -> Loop:
    model = Net()
    return Loop(model, lambda step, x, y: cross_entropy(model(x * (step % 10 > 3)), y))


def frozen(*, until: int) -> Loop:
    model = Net()
    for p in (*model.first.parameters(), *model.second.parameters()):
        p.requires_grad_(False)

    def loss(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step == until:
            for p in (*model.first.parameters(), *model.second.parameters()):
                p.requires_grad_(True)
        return cross_entropy(model(x), y)

    return Loop(model, loss)


def frozen_late() -> Loop:
    model = Net()

    def loss(step: int, x: Tensor, y: Tensor) -> Tensor:
        if step == 60:
            for p in (*model.first.parameters(), *model.second.parameters()):
                p.requires_grad_(False)
        return cross_entropy(model(x), y)

    return Loop(model, loss)


def head_only() -> Loop:
    model = Net()

    def loss(_: int, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = model.trunk(x)
        return cross_entropy(model.head(hidden), y)

    return Loop(model, loss)


def zero_at_first() -> Loop:
    model = Net()
    nn.init.zeros_(model.head.weight)
    return Loop(model, lambda _, x, y: cross_entropy(model(x), y))


def in_turn(*, period: int, of: int) -> Loop:
    made, judge = Net(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.ModuleDict({"made": made, "judge": judge})
    rates = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (made, judge)]

    def loss(step: int, x: Tensor, _: Tensor) -> Tensor:
        if step // period % of == 1:  # the judge is not trained, its gradient is thrown away
            given: Tensor = mse_loss(judge(made(x)), torch.ones(len(x), 1))
            return given
        false, true = judge(made(x).detach()), judge(relu(x[:, :3]))
        both: Tensor = mse_loss(false, torch.zeros_like(false)) + mse_loss(
            true, torch.ones_like(true)
        )
        return both

    return Loop(model, loss, rates)


MEANT: dict[str, Callable[[], Loop]] = {
    "sound": lambda: Loop(m := Net(), lambda _, x, y: cross_entropy(m(x), y)),
    "table": lambda: table(sparse=False),
    "sparse table": lambda: table(sparse=True),
    "experts": experts,
    "off at times": off_at_times,
    "frozen": lambda: frozen(until=10**6),
    "frozen at first": lambda: frozen(until=150),
    "frozen late": frozen_late,
    "head only": head_only,
    "zero at first": zero_at_first,
    "in turn": lambda: in_turn(period=1, of=2),
    "one in ten": lambda: in_turn(period=1, of=10),
    "long turns": lambda: in_turn(period=60, of=2),
}


@pytest.mark.parametrize("name", MEANT)
def test_weights_that_are_not_meant_to_move_are_not_told(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert told(MEANT[name](), tmp_path / "run") == ([], [])


# -- a loss that stays at a guess among the model's outputs ------------------------------------


def guesses(labels: str, run: Path) -> list[str]:
    """Train a net of 8 outputs; return what was said of it."""
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS * BATCH, 6, generator=data)
    y = (x @ torch.randn(6, 8, generator=data)).argmax(-1)
    if labels == "random":
        y = torch.randint(8, y.shape, generator=data)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8))
    rate = torch.optim.SGD(model.parameters(), lr=0.01 if labels == "slowly" else 0.1)
    lines: list[str] = []
    guard = Guard(
        model,
        rate,
        data=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        steps=STEPS,
        run=run,
        mode="observe",
        say=lines.append,
    )
    for bx, by in guard:
        guard.backward(cross_entropy(model(bx), by))
        guard.step()
    return [line for line in lines if "nothing is learned" in line]


def test_a_loop_that_guesses_among_its_outputs_is_told(tmp_path: Path) -> None:
    (line,) = guesses("random", tmp_path / "run")
    assert "outputs has it" in line


@pytest.mark.parametrize("labels", ["true", "slowly"])
def test_a_loop_that_learns_is_not(labels: str, tmp_path: Path) -> None:
    assert guesses(labels, tmp_path / "run") == []
