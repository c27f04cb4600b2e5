"""The loss scaler's logic, the order of unscale and clip, dividing before the sum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks.scaling import (
    ScalerRules,
    check_clip_order,
    check_predivide,
    check_scaler,
)

pytestmark = pytest.mark.torch


def scaler(**changes: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 5, **changes})


RULES = ScalerRules(init_scale=1024.0, growth_interval=5)


@pytest.mark.covers("S213")
def test_torchs_scaler_does_as_it_should() -> None:
    assert check_scaler(scaler, RULES) == ()


@pytest.mark.covers("S213")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: scaler(backoff_factor=0.9), "scale"),
        (lambda: scaler(growth_interval=4), "scale"),
        (lambda: scaler(growth_interval=6), "scale"),
        (lambda: scaler(growth_factor=4.0), "scale"),
        (lambda: NeverSkips(), "weight"),
        (lambda: CountsOn(), "scale"),
    ],
)
def test_a_scaler_that_does_otherwise_is_named(make: Callable[[], Any], what: str) -> None:
    (found,) = check_scaler(make, RULES)
    assert (found.rule, found.severity, found.values["what"]) == ("L25", "error", what)


class CountsOn:
    """An overflow does not start the count anew: it grows too soon after one."""

    def __init__(self) -> None:
        self.current, self.steps, self.bad = 1024.0, 0, False

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.current

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        grads = [w.grad for g in optimizer.param_groups for w in g["params"]]
        self.bad = not all(bool(g.isfinite().all()) for g in grads)
        if not self.bad:
            for grad in grads:
                grad /= self.current
            optimizer.step()

    def update(self) -> None:
        self.steps += not self.bad
        if self.bad:
            self.current /= 2
        elif self.steps % 5 == 0:
            self.current *= 2

    def get_scale(self) -> float:
        return self.current


class NeverSkips(CountsOn):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        if self.bad:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.grad = torch.ones_like(weight)
            optimizer.step()


# ------------------------------------------------------------ clip and unscale


def loop(order: str) -> tuple[Callable[[], None], nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    grad_scaler = scaler()
    x = torch.randn(4, 8) * 10

    def step() -> None:
        optimizer.zero_grad()
        grad_scaler.scale(model(x).square().mean()).backward()
        if order == "clip after unscale":
            grad_scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()

    return step, model, optimizer, grad_scaler


def test_clipping_before_unscaling_is_found() -> None:
    (found,) = check_clip_order(*loop("clip before unscale"))
    assert (found.rule, found.severity) == ("L14", "error")
    assert found.values["norms"] == pytest.approx([1 / 256, 1 / 16], rel=1e-3)


def test_clipping_after_unscaling_is_silent_and_nothing_is_left_changed() -> None:
    step, model, optimizer, grad_scaler = loop("clip after unscale")
    step()
    before = {n: w.clone() for n, w in model.state_dict().items()}
    state = grad_scaler.state_dict()
    assert check_clip_order(step, model, optimizer, grad_scaler) == ()
    assert all(torch.equal(before[n], w) for n, w in model.state_dict().items())
    assert grad_scaler.state_dict() == state
    assert all(float(s["step"]) == 1 for s in optimizer.state.values())


# ------------------------------------------------------------ dividing before the sum


@pytest.mark.covers("S194")
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0, 992.0**0.5])
def test_dividing_first_is_neutral(factor: float) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(1000) for _ in range(16)]
    assert check_predivide(gradients, factor=factor) == ()


def test_a_factor_that_is_not_undone_is_found() -> None:
    gradients = [torch.ones(3) for _ in range(4)]

    def forgets(every: Any, factor: float) -> Tensor:
        return torch.stack([g / factor for g in every]).mean(0)

    (found,) = check_predivide(gradients, factor=32.0, reduce=forgets)
    assert (found.rule, found.severity) == ("L31", "error")
    with pytest.raises(ConfigError, match="positive factor"):
        check_predivide(gradients, factor=0.0)
