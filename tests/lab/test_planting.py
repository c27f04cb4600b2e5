"""Damage to tensors: the right one, the right number, at the right time, once."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from trimtab.errors import ConfigError
from trimtab.lab.faults import StateFault
from trimtab.lab.planting import Planter, flip_bit

pytestmark = pytest.mark.torch

FAULT = StateFault(step=3, tensor="weight", place="weight", element=1, factor=8.0)


@pytest.fixture
def trained() -> tuple[nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_bits_are_those_of_ieee_754() -> None:
    x = torch.tensor([1.0, -2.5])
    flip_bit(x, 31)
    assert x.tolist() == [-1.0, 2.5]
    flip_bit(x, 22)  # the highest of the mantissa: 1.0 is 1.0 x 2^0, 2.5 is 1.25 x 2^1
    assert x.tolist() == [-1.5, 3.5]
    small = torch.tensor([0.5])
    flip_bit(small, 30)  # the highest of the exponent: times 2^128
    assert small.item() == 2.0**127


@pytest.mark.parametrize("place", ["weight", "gradient", "exp_avg", "exp_avg_sq"])
def test_one_element_of_one_tensor_is_damaged_at_its_step_and_not_again(
    trained: tuple[nn.Linear, torch.optim.AdamW], place: Any
) -> None:
    model, optimizer = trained
    held = optimizer.state[model.weight]
    tensors = {"weight": model.weight, "gradient": model.weight.grad, **held}
    before = {name: t.detach().clone() for name, t in tensors.items()}
    planter = Planter(dataclasses.replace(FAULT, place=place), model, optimizer)
    for step in (1, 2, 3, 3, 4):  # step 3 is done again, as after a rollback
        planter.on_gradients(step)
        planter.after_update(step)
        for name, tensor in tensors.items():
            changed = (tensor != before[name]).flatten().tolist()
            hit = name == place and step >= 3
            assert changed == ([False, True, False] if hit else [False] * len(changed))
    target = tensors[place]
    assert target is not None
    assert target.flatten()[1].item() == pytest.approx(8 * before[place].flatten()[1].item())


def test_gradients_may_be_damaged_several_steps_in_a_row(
    trained: tuple[nn.Linear, torch.optim.AdamW],
) -> None:
    model, optimizer = trained
    fault = StateFault(step=2, tensor="*", place="gradient", factor=math.nan, num_steps=2)
    planter = Planter(fault, model, optimizer)
    broken = []
    for step in range(1, 6):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        planter.on_gradients(step)
        broken.append(
            [bool(p.grad.isnan().all()) for p in model.parameters() if p.grad is not None]
        )
    assert broken == [[False] * 2, [True] * 2, [True] * 2, [False] * 2, [False] * 2]


def test_other_ranks_are_spared(trained: tuple[nn.Linear, torch.optim.AdamW]) -> None:
    model, optimizer = trained
    before = model.weight.detach().clone()
    fault = dataclasses.replace(FAULT, rank=1)
    Planter(fault, model, optimizer, rank=0).after_update(3)
    assert torch.equal(model.weight, before)
    Planter(fault, model, optimizer, rank=1).after_update(3)
    assert not torch.equal(model.weight, before)


def test_impossible_faults_are_refused(trained: tuple[nn.Linear, torch.optim.AdamW]) -> None:
    with pytest.raises(ConfigError, match="'down'; the model has weight"):
        Planter(dataclasses.replace(FAULT, tensor="down"), *trained)
    with pytest.raises(ConfigError, match="bit is 32"):
        dataclasses.replace(FAULT, factor=1.0, bit=32)
    with pytest.raises(ConfigError, match="nothing or two things"):
        dataclasses.replace(FAULT, bit=30)
    with pytest.raises(ConfigError, match="num_steps is 2"):
        dataclasses.replace(FAULT, num_steps=2)
    with pytest.raises(ConfigError, match="place is 'bias'"):
        StateFault(step=1, tensor="*", place="bias", bit=1)  # type: ignore[arg-type]
