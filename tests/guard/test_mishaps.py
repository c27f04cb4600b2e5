"""What happens to a run from outside, or in its midst, leaves it whole and says what it did."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.tiny import guard_of, make, rows_of

pytestmark = pytest.mark.torch


def test_a_step_that_fails_under_a_cut_leaves_the_rate_as_it_was(tmp_path: Path) -> None:
    class FailsTwice(torch.optim.SGD):
        left = 2

        def step(self, closure: Any = None) -> Any:
            if self.left:
                self.left -= 1
                raise RuntimeError("out of memory")
            return super().step(closure)

    s = make(schedule="none")
    s.optimizer = FailsTwice(s.model.parameters(), lr=0.1)
    guard = guard_of(s, tmp_path / "run", steps=4)
    guard.scale_lr(0.5, why="a test")
    for batch in guard:
        guard.backward(s.loss(batch))
        with contextlib.suppress(RuntimeError):
            guard.step()
        assert s.optimizer.param_groups[0]["lr"] == 0.1
    assert [row["lr"] for row in rows_of(tmp_path / "run")] == [0.05] * 4


def test_parameters_that_are_added_later_are_clipped_too(tmp_path: Path) -> None:
    s = make(schedule="none", dropout=0.0)
    late = torch.nn.Linear(1, 1, bias=False)
    s.optimizer = torch.optim.SGD(s.model.parameters(), lr=1.0)
    guard = guard_of(s, tmp_path / "run", steps=4, clip=0.01)
    for batch in guard:
        if guard.step_number == 2:
            s.optimizer.add_param_group({"params": list(late.parameters())})
        before = late.weight.detach().clone()
        guard.backward(s.loss(batch) + 1000 * late(torch.ones(1)).sum())
        guard.step()
        moved = float((late.weight.detach() - before).norm())
        assert moved == (0 if guard.step_number < 3 else pytest.approx(0.01, rel=1e-3))
    assert [row["grad_norm"] > 999 for row in rows_of(tmp_path / "run")] == [
        False,
        False,
        True,
        True,
    ]
