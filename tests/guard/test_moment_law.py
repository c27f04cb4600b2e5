"""Adam's second moments that are lost by no update: told, and named as the cause."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.tiny import Setup, events_of, guard_of, make, rows_of, train_guarded
from trimtab.guard import Guard
from trimtab.guard.probes.moment_law import SecondMomentLaw, least_beta2
from trimtab.guard.probes.moments import Moments
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def reading(updates: float | None, elements: int = 10) -> Moments:
    return Moments(
        m_l1=1.0, m_max=1.0, v_l1=1.0, v_max=1.0, v_max_at="", broken=(), v_elements=elements,
        updates=updates,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("total", "left"), [(1.0, 1.0), (0.95**10, 1.0), (0.01, 0.01 / 0.95**10), (0.0, 0.0)]
)
def test_less_than_updates_leave_is_a_loss(total: float, left: float) -> None:
    law = SecondMomentLaw()
    assert law.left(reading(50), 1.0, 0.95) == 1.0
    assert law.left(reading(60), total, 0.95) == pytest.approx(left)


@pytest.mark.parametrize(
    ("second", "total", "beta2"),
    [
        (reading(3), 0.001, 0.95),  # reset as a whole, or gone back
        (reading(60, elements=5), 0.001, 0.95),  # half of it is trained no longer
        (reading(None), 0.001, 0.95),
        (reading(60), 0.001, None),
        (reading(60), math.nan, 0.95),
        (reading(5000), 0.0, 0.9),  # so many updates leave nothing
    ],
)
def test_where_nothing_can_be_said_nothing_is(
    second: Moments, total: float, beta2: float | None
) -> None:
    law = SecondMomentLaw()
    law.left(reading(50), 1.0, 0.95)
    assert law.left(second, total, beta2) == 1.0


def test_beta2_is_the_smallest_of_all_groups() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([a], betas=(0.9, 0.95))
    optimizer.add_param_group({"params": [b]})
    optimizer.param_groups[1]["betas"] = (0.9, 0.999)
    assert least_beta2(optimizer) == 0.95
    assert least_beta2(torch.optim.SGD([a], lr=0.1)) is None


def lose(s: Setup, at: int) -> Any:
    def spoil(guard: Guard, _: object) -> None:
        if guard.step_number == at and guard.phase == "calm":
            for held in s.optimizer.state.values():
                held["exp_avg_sq"].zero_()

    return spoil


def test_lost_moments_are_told_in_the_row_and_in_words(tmp_path: Path) -> None:
    run, s = tmp_path / "run", make()
    guard = guard_of(s, run, steps=60)
    train_guarded(s, guard, on_batch=lose(s, 33))
    told = {r["step"]: r["adam_v_left"] for r in rows_of(run) if "adam_v_left" in r}
    assert list(told) == [40]
    assert told[40] < 0.5
    notes = [str(e.data.get("text")) for e in events_of(run, "note")]
    assert any("second moments" in n for n in notes)


@pytest.mark.parametrize("how", ["reset", "rollback", "calm"])
def test_moments_that_the_guard_resets_or_puts_back_are_not_lost(tmp_path: Path, how: str) -> None:
    run, s = tmp_path / "run", make()
    guard = guard_of(s, run, steps=60, policy=Policy(checkpoint_every_steps=10))

    done: list[str] = []

    def act(guard: Guard, _: object) -> None:
        if guard.step_number == 33 and how == "reset":
            guard.reset_moments(why="a test")

    train_guarded(s, guard, on_batch=act, until=35)
    if how == "rollback" and not done:
        done.append(guard.roll_back(12, why="a test", confirm=True))
    train_guarded(s, guard)
    assert [r for r in rows_of(run) if "adam_v_left" in r] == []
