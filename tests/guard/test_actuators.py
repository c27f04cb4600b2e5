"""Changes to optimizer and scaler in mid-run.

In force at once, after a rollback and after a restart.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.inner import inner
from tests.guard.tiny import (
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
)
from trimtab.errors import ActError, ConfigError
from trimtab.guard.settings.in_force import in_force as told_in_force
from trimtab.guard.state.decisions import Decisions
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

SETTINGS = [
    pytest.param("beta1", 0.8, marks=pytest.mark.covers("S122")),
    pytest.param("beta2", 0.95, marks=pytest.mark.covers("S122")),
    pytest.param("eps", 1e-6, marks=pytest.mark.covers("S123")),
    pytest.param("weight_decay", 0.05, marks=pytest.mark.covers("S124")),
]


def in_force(s: Setup, name: str) -> list[Any]:
    places = {"beta1": ("betas", 0), "beta2": ("betas", 1)}
    key, index = places.get(name, (name, None))
    values = [g[key] for g in s.optimizer.param_groups]
    return values if index is None else [v[index] for v in values]


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_setting_holds_at_once_through_a_rollback_and_a_restart(
    tmp_path: Path, name: str, value: float
) -> None:
    expected = [value, 0.0] if name == "weight_decay" else [value, value]
    s, run = make(), tmp_path / "run"
    guard = guard_of(s, run, steps=60, mode="act")
    train_guarded(s, guard, until=10)
    early = inner(guard).engine.snapshot()
    guard.checkpoint()
    guard.set_optimizer(why="asked for", **{name: value})
    assert in_force(s, name) == expected
    inner(guard).engine.restore(early)
    assert in_force(s, name) == expected
    train_guarded(s, guard, until=30)
    guard.close()
    again = make()
    guard = guard_of(again, run, steps=60)
    assert guard.step_number == 10  # the checkpoint is from before the change
    assert in_force(again, name) == expected
    train_guarded(again, guard, until=20)
    guard.close()
    logged = {"eps": "adam_eps"}.get(name, name)
    assert rows_of(run, "1.1")[-1][logged] == value
    (action,) = events_of(run, "action")
    assert action.data["values"][name] == value
    assert action.data["values"]["before"] == {
        name: pytest.approx({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}[name])
    }


def test_what_cannot_be_set_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=9)
    before = [dict(g, params=0) for g in s.optimizer.param_groups]
    for values in ({"beta2": 1.0}, {"eps": -1.0}, {"momentum": 0.9}, {"beta1": math.nan}, {}):
        with pytest.raises(ConfigError, match="set_optimizer"):
            guard.set_optimizer(why="x", **values)
    with pytest.raises(ConfigError, match="reason"):
        guard.set_optimizer(why="", beta2=0.9)
    assert [dict(g, params=0) for g in s.optimizer.param_groups] == before
    guard.close()
    plain = make()
    plain.optimizer = torch.optim.SGD(plain.model.parameters(), lr=0.1)
    plain.scheduler = None
    guard = guard_of(plain, tmp_path / "sgd", steps=9)
    with pytest.raises(ConfigError, match="SGD has no betas"):
        guard.set_optimizer(why="x", beta2=0.9)
    guard.close()


@pytest.mark.covers("S83")
def test_a_state_that_would_undo_new_betas_is_an_error_that_names_them(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=10)
    guard.checkpoint()
    guard.close()
    other = make()
    for group in other.optimizer.param_groups:
        group["betas"] = (0.0, 0.999)
    with pytest.raises(ActError, match=r"launched with betas=\(0\.9, 0\.999\), now with \(0\.0, "):
        guard_of(other, tmp_path / "run", steps=20)


@pytest.mark.covers("S126")
def test_reset_moments_start_anew_under_a_rate_that_rises_again(tmp_path: Path) -> None:
    s = make(schedule="none")
    guard = guard_of(s, tmp_path / "run", steps=40, mode="act")
    train_guarded(s, guard, until=20)
    guard.reset_moments(why="their state is suspect", rewarm_steps=10)
    for held in s.optimizer.state.values():
        assert float(held["step"]) == 0
        assert not held["exp_avg"].any()
        assert not held["exp_avg_sq"].any()
    seen: list[float] = []
    train_guarded(s, guard, on_batch=lambda g, _: seen.append(g.lr_factor))
    assert seen == pytest.approx([*[(i + 1) / 10 for i in range(10)], *[1.0] * 10])
    rates = [r["lr"] / 3e-3 for r in rows_of(tmp_path / "run")]
    assert rates == pytest.approx([*[1.0] * 20, *seen])
    (action,) = events_of(tmp_path / "run", "action")
    assert action.data["remedy"] == "optimizer-reset"
    assert action.data["values"]["risk"] == ""
    cold = guard_of(make(), tmp_path / "cold", steps=5)
    cold.reset_moments(why="x", rewarm_steps=0)
    cold.close()
    assert "spike is likely" in events_of(tmp_path / "cold", "action")[0].data["values"]["risk"]


@pytest.mark.covers("S127")
@pytest.mark.covers("S128")
def test_a_resume_restores_the_loss_scale_and_only_a_request_resets_it(tmp_path: Path) -> None:
    s = make(precision="fp16")
    guard = guard_of(s, tmp_path / "run", steps=60)
    train_guarded(s, guard, until=23)
    assert s.scaler is not None
    scale = s.scaler.get_scale()
    assert scale != 2.0**16
    guard.checkpoint()
    guard.close()
    again = make(precision="fp16")
    assert again.scaler is not None
    guard = guard_of(again, tmp_path / "run", steps=60)
    assert again.scaler.get_scale() == scale
    guard.set_loss_scale(2.0**10, why="start low")
    assert again.scaler.get_scale() == 2.0**10
    train_guarded(again, guard, until=25)
    assert rows_of(tmp_path / "run", "1.1")[0]["loss_scale"] == 2.0**10
    assert events_of(tmp_path / "run", "action")[0].data["values"]["before"] == scale
    with pytest.raises(ConfigError, match="positive"):
        guard.set_loss_scale(0.0, why="x")
    guard.close()
    other = guard_of(make(), tmp_path / "fp32", steps=5)
    with pytest.raises(ConfigError, match="no loss scaler"):
        other.set_loss_scale(4.0, why="x")
    other.close()


@pytest.mark.covers("S116")
@pytest.mark.covers("S118")
def test_a_rate_can_be_halved_again_and_again_and_is_never_raised(tmp_path: Path) -> None:
    s = make(schedule="none")
    guard = guard_of(s, tmp_path / "run", steps=30)
    for until, factor in ((10, 1.0), (20, 0.5), (30, 0.25)):
        train_guarded(s, guard, until=until)
        assert rows_of(tmp_path / "run")[-1]["lr"] == pytest.approx(3e-3 * factor)
        if until < 30:
            guard.scale_lr(0.5, why="halve")
    guard.close()
    assert [e.data["values"]["lr_factor"] for e in events_of(tmp_path / "run", "action")] == [
        0.5,
        0.25,
    ]
    other = guard_of(make(), tmp_path / "other", steps=5)
    with pytest.raises(ConfigError, match="never raised"):
        other.scale_lr(2.0, why="faster")
    other.close()
    with pytest.raises(ConfigError, match="lr_raise_allowed"):
        Policy(lr_raise_allowed=True)


@pytest.mark.covers("S114")
def test_clipping_changes_the_moments_where_skipping_does_not(tmp_path: Path) -> None:
    """An update whose gradient is 1000 times too large.

    Clipped it enters the moments, skipped not.
    """

    def moments(mode: str, spoil: float) -> tuple[dict[str, Any], dict[str, Any]]:
        s = make(dropout=0.0)
        guard = guard_of(s, tmp_path / f"{mode}-{spoil}", steps=12, mode=mode)
        train_guarded(s, guard, until=11)
        before = state_of(s)["optimizer"]["state"]
        for batch in guard:
            guard.backward(s.loss(batch))
            for p in s.model.parameters():
                assert p.grad is not None
                p.grad.mul_(spoil)
            guard.step()
        return before, state_of(s)["optimizer"]["state"]

    before, after = moments("act", math.inf)
    assert differences(before, after) == []
    before, after = moments("act", 1000.0)
    assert differences(before, after) != []


def test_modules_put_back_into_their_mode_are_told_in_words() -> None:
    held = told_in_force(Decisions(held_settings={"Linear.training": [0.0, 1.0]}), step=3)
    assert held == ("Linear modules kept in train or eval mode, as they were before",)
