"""State checks by what an optimizer's state holds, and buffers of a step that is left out."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.guard.tiny import rows_of
from trimtab.guard import Guard
from trimtab.plan.policy import Policy


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum (Chen et al., 2023)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                held = self.state[p]
                if not held:
                    held["exp_avg"] = torch.zeros_like(p)
                update = held["exp_avg"].mul(first).add(p.grad, alpha=1 - first).sign_()
                p.add_(update, alpha=-group["lr"])
                held["exp_avg"].lerp_(p.grad, 1 - second)


class Shampoo(torch.optim.Optimizer):
    """Two factors for each matrix, and their roots (Gupta et al., 2018)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p]
                if p.dim() < 2:
                    p.add_(p.grad, alpha=-group["lr"])
                    continue
                if not held:
                    held["factors"] = [1e-3 * torch.eye(n) for n in p.shape]
                held["factors"][0] += p.grad @ p.grad.T
                held["factors"][1] += p.grad.T @ p.grad
                left, right = (_root(f) for f in held["factors"])
                p.add_(left @ p.grad @ right, alpha=-group["lr"])


def _root(factor: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(factor)
    return (vectors * values.clamp(min=1e-6) ** -0.25) @ vectors.T


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8, bias=False)
        self.b = nn.Linear(8, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x)))
        return out


OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], str, tuple[str, ...]]] = {
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=1e-3), "exp_avg_sq", ("m", "v")),
    "Lion": (lambda p: Lion(p, lr=1e-3), "exp_avg", ("m",)),
    "Muon": (lambda p: torch.optim.Muon(p, lr=1e-3), "momentum_buffer", ("m",)),
    "SGD": (lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), "momentum_buffer", ("m",)),
    "Adafactor": (lambda p: torch.optim.Adafactor(p, lr=1e-3), "row_var", ("v",)),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3), "square_avg", ("v",)),
    "Shampoo": (lambda p: Shampoo(p, lr=1e-3), "factors", ()),
}


def guard_of(folder: Path, model: nn.Module, optimizer: Any, **settings: Any) -> Guard:
    data = torch.randn(256, 6, generator=torch.Generator().manual_seed(2))
    policy = Policy(probe_every_steps=2, snapshot_every_steps=2, checkpoint_in_background=False)
    return Guard(
        model,
        optimizer,
        data=DataLoader(data, batch_size=4),
        run=folder / "run",
        policy=policy,
        say=lambda _: None,
        **{"mode": "observe", "steps": 12, **settings},
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_damaged_state_is_named_whatever_the_optimizer(tmp_path: Path, name: str) -> None:
    make, key, moments = OPTIMIZERS[name]
    torch.manual_seed(0)
    model = Matrices()
    optimizer = make(model.parameters())
    guard = guard_of(tmp_path, model, optimizer)
    for batch in guard:
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
        if guard.step_number == 7:
            held = optimizer.state[model.b.weight][key]
            tensor = held[1] if isinstance(held, list) else held
            tensor.view(-1)[3] = math.nan
    rows = {row["step"]: row for row in rows_of(tmp_path / "run")}
    assert rows[6]["adam_broken"] == 0
    for letter in "mv":
        assert (f"adam_{letter}_l1" in rows[6]) == (letter in moments)
    assert rows[8]["adam_broken"] >= 1
    assert f"b.weight: {key} is not finite" in rows[8]["adam_broken_at"]


def test_a_negative_second_moment_is_named_in_a_factored_state(tmp_path: Path) -> None:
    model = Matrices()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-4)
    guard = guard_of(tmp_path, model, optimizer)
    for batch in guard:
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
        if guard.step_number == 7:
            optimizer.state[model.a.weight]["col_var"].fill_(-1.0)
    at = next(r for r in rows_of(tmp_path / "run") if r["step"] == 8)
    assert "a.weight: col_var is negative" in at["adam_broken_at"]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.norm(x))
        return out


def test_an_update_that_is_left_out_leaves_no_trace_in_running_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = guard_of(tmp_path, model, optimizer, mode="act")
    before: dict[str, Tensor] = {}
    for batch in guard:
        if guard.step_number == 5 and not guard.probing:
            before = {k: v.clone() for k, v in model.state_dict().items()}
            batch = batch.clone()
            batch[0, 2] = math.nan
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
        if before:
            break
    assert guard.step_number == 6
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_healthy_step_moves_running_statistics_as_without_the_guard(tmp_path: Path) -> None:
    states = []
    for mode in ("observe", "act"):
        torch.manual_seed(0)
        model = Normed()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        guard = guard_of(tmp_path / mode, model, optimizer, mode=mode)
        for batch in guard:
            guard.backward((model(batch) - batch).square().mean())
            guard.step()
        states.append(model.state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert int(states[0]["norm.num_batches_tracked"]) == 12


def test_buffers_go_back_on_the_device_only_where_the_flag_says() -> None:
    from trimtab.guard.step.forward_buffers import ForwardBuffers

    model = Normed().train()
    kept = ForwardBuffers(model)
    for broken, goes_back in ((0.0, False), (1.0, True)):
        kept.keep()
        before = model.norm.running_mean.clone()
        model(torch.randn(4, 6) + (math.nan if goes_back else 0.0))
        kept.put_back(where=torch.tensor(broken))
        assert torch.equal(model.norm.running_mean, before) == goes_back
