"""The coordinate check: the standard parametrisation fails, µP passes."""

import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from tests.model_checks.models import Scaled
from trimtab.configs.shrink import Twin
from trimtab.errors import ConfigError
from trimtab.model_checks.coordinates import coordinate_check
from trimtab.model_checks.twin import TwinModel, make_optimizer

pytestmark = pytest.mark.torch

Build = Callable[[int], tuple[nn.Module, torch.optim.Optimizer]]


def build(*, mup: bool) -> Build:
    def make(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = TwinModel(Twin(hidden=width, layers=2, mup=mup))
        return model, make_optimizer(model)

    return make


@pytest.mark.covers("S200")
def test_standard_fails_and_mup_passes() -> None:
    standard = coordinate_check(build(mup=False), (64, 128, 256), seeds=1)
    mup = coordinate_check(build(mup=True), (64, 128, 256), seeds=1)
    assert not standard.passed
    assert mup.passed
    assert standard.findings[0].rule == "L33"
    assert standard.slope["blocks.1.ffn.down"] > 1 > 0.25 > mup.slope["blocks.1.ffn.down"]
    for check in (standard, mup):
        lines = check.table().splitlines()
        assert [line.split()[0] for line in lines[1:]] == list(check.slope)
        assert lines[-1].split()[-1] == f"{check.slope['output']:.2f}"
        picture = ElementTree.fromstring(check.svg("a < b"))
        assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == len(check.slope)


def test_a_model_that_blows_up_fails() -> None:
    def make(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Scaled(1.0)
        return model, torch.optim.SGD(model.parameters(), lr=math.inf)

    check = coordinate_check(make, (64, 128), seeds=1, steps=1)
    assert not check.passed
    assert all(math.isnan(s) for s in check.slope.values())
    ElementTree.fromstring(check.svg())


def test_impossible_questions() -> None:
    with pytest.raises(ConfigError, match="two or more rising"):
        coordinate_check(build(mup=True), (128, 64))
    with pytest.raises(ConfigError, match="no token embedding"):
        coordinate_check(lambda _: (nn.Linear(2, 2), None), (64, 128))  # type: ignore[arg-type, return-value]
