"""An optimizer of another model, and a scheduler of another optimizer, are refused; the rest is not."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.guard.tiny import guard_of, make
from trimtab.errors import ConfigError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),
]


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    s = make()
    s.model = copy.deepcopy(s.model)
    with pytest.raises(ConfigError, match="none of the 7 parameters of AdamW is one of the") as e:
        guard_of(s, tmp_path / "run")
    assert "build the optimizer from model.parameters()" in str(e.value)
    assert not (tmp_path / "run").exists()


def test_a_scheduler_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    s = make()
    s.scheduler = lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), 10)
    message = r"StepLR moves the rates of another optimizer \(SGD\) than .* \(AdamW\)"
    with pytest.raises(ConfigError, match=message):
        guard_of(s, tmp_path / "run")
    s.scheduler = lr_scheduler.SequentialLR(
        s.optimizer,
        [lr_scheduler.ConstantLR(s.optimizer), lr_scheduler.StepLR(s.optimizer, 10)],
        [5],
    )
    guard_of(s, tmp_path / "run").close()


def one_of_a_loss(s: Any) -> None:
    loss = nn.Linear(3, 3)
    s.optimizer.add_param_group({"params": list(loss.parameters()), "lr": 1e-3})


def a_second_optimizer_of_a_loss(s: Any) -> None:
    s.optimizer = [s.optimizer, torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)]


def masters_in_float32(s: Any) -> None:
    s.model.to(torch.bfloat16)
    masters = [nn.Parameter(p.detach().float()) for p in s.model.parameters()]
    s.optimizer = torch.optim.AdamW(masters, lr=1e-3)


def compiled(s: Any) -> None:
    s.model = torch.compile(s.model, backend="eager")


def within_a_wrapper(s: Any) -> None:
    s.model = nn.Sequential(s.model)


def part_of_it_frozen(s: Any) -> None:
    s.optimizer = torch.optim.SGD(s.model.output.parameters(), lr=0.1)


class StandIn(torch.optim.Optimizer):
    """Shows partitions of its own, as an adapter does for an engine; torch's init is left out."""

    def __init__(self) -> None:
        self.defaults = {}
        self.param_groups = [{"params": [nn.Parameter(torch.zeros(3))], "lr": 0.1}]

    @property
    def state(self) -> Any:  # type: ignore[override]
        return {}


def stands_in_for_an_engine(s: Any) -> None:
    s.scheduler = lr_scheduler.StepLR(s.optimizer, 10)
    s.optimizer = StandIn()


@pytest.mark.parametrize(
    "change",
    [
        *(one_of_a_loss, a_second_optimizer_of_a_loss, masters_in_float32, compiled),
        *(within_a_wrapper, part_of_it_frozen, stands_in_for_an_engine),
    ],
)
def test_what_trains_the_model_among_others_is_taken(tmp_path: Path, change: Any) -> None:
    s = make(schedule="none")
    change(s)
    guard = guard_of(s, tmp_path / "run")
    guard.close()
    assert guard.step_number == 0
    assert (tmp_path / "run" / "journal.jsonl").exists()
