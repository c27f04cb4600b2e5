"""What a person passes by hand: taken as what it means, or refused before anything is done.

And told.
"""

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.guard.inner import inner
from tests.guard.tiny import differences, events_of, guard_of, make, state_of, train_guarded
from trimtab.errors import ActError, ConfigError
from trimtab.guard import Guard
from trimtab.guard.control.arguments import run_folder
from trimtab.guard.recovery.case import Verification
from trimtab.guard.recovery.expectation import Expectation

pytestmark = pytest.mark.torch


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    return guard_of(make(), tmp_path / "run", steps=6, mode="act")


@pytest.mark.parametrize("half", [np.float32(0.5), torch.tensor(0.5), np.float64(0.5), 0.5])
def test_a_number_of_another_kind_is_taken_as_what_it_means(
    tmp_path: Path, guard: Guard, half: Any
) -> None:
    guard.scale_lr(half, why="a test")
    guard.tighten_clip(half, why="a test")
    guard.limit_lr(half, why="a test")
    guard.set_optimizer(beta2=half, why="a test")
    guard.skip_samples(np.int64(90), torch.tensor(91), why="a test")  # type: ignore[arg-type]
    values = [e.data["values"] for e in events_of(tmp_path / "run", "action")]
    assert [
        v.get("factor") or v.get("clip_factor") or v.get("lr_limit") or v.get("beta2")
        for v in values[:4]
    ] == [0.5] * 4
    assert values[4]["skip_samples"] == [90, 91]
    assert not inner(guard).edge.stood_down
    guard.close()


CALLS: dict[str, Callable[[Guard, Any], object]] = {
    "scale_lr": lambda g, x: g.scale_lr(x, why="a test"),
    "limit_lr": lambda g, x: g.limit_lr(x, why="a test"),
    "tighten_clip": lambda g, x: g.tighten_clip(x, why="a test"),
    "set_optimizer": lambda g, x: g.set_optimizer(beta2=x, why="a test"),
    "skip_samples": lambda g, x: g.skip_samples(x, 5, why="a test"),
    "reset_moments": lambda g, x: g.reset_moments(why="a test", rewarm_steps=x),
    "set_loss_scale": lambda g, x: g.set_loss_scale(x, why="a test"),
    "roll_back": lambda g, x: g.roll_back(x, why="a test", confirm=True),
    "roll_back lr_factor": lambda g, x: g.roll_back(0, lr_factor=x, why="a test", confirm=True),
    "override_lr": lambda g, x: g.override_lr(x, why="a test"),
    "schedule_weight_decay": lambda g, x: g.schedule_weight_decay(x, why="a test"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_number_is_refused_before_anything_is_done(
    tmp_path: Path, guard: Guard, call: str
) -> None:
    before = inner(guard).engine.standing()
    for wrong in ("0.5", True, torch.zeros(2), float("nan"), [1]):
        with pytest.raises(ConfigError) as caught:
            CALLS[call](guard, wrong)
        assert call.split()[0] in str(caught.value)
        assert "\n" not in str(caught.value)
    assert inner(guard).engine.standing() == before
    assert inner(guard).parts.rates.lr_override is inner(guard).parts.rates.weight_decay is None
    assert events_of(tmp_path / "run", "action", "fault") == []
    guard.close()


def test_a_slip_that_ends_the_training_is_refused(tmp_path: Path, guard: Guard) -> None:
    calls: dict[str, Callable[[], object]] = {
        "nothing would be trained": lambda: guard.scale_lr(1e-320, why="a test"),
        "factors together.*nothing would": lambda: guard.scale_lr(1e-5, why="a test"),
        "one pass over the data": lambda: guard.skip_samples(0, 10**30, why="a test"),
        r"schedule raised ZeroDivisionError \(.division": lambda: guard.override_lr(
            lambda _: 1 / 0, why="a test"
        ),
    }
    guard.scale_lr(1e-5, why="a test")
    for said, call in calls.items():
        with pytest.raises(ConfigError, match=said):
            call()
    assert (guard.lr_factor, guard.skipped_samples) == (1e-5, ())
    assert len(events_of(tmp_path / "run", "action")) == 1
    guard.skip_samples(0, 10**9, why="a test", confirm=True)
    guard.close()


@pytest.mark.parametrize("why", [RuntimeError("x"), "\ud800", "", "  ", "\u200b\u3164", None, 3])
def test_a_reason_that_cannot_be_written_down_is_refused_before_anything_is_done(
    tmp_path: Path, guard: Guard, why: Any
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: guard.scale_lr(0.5, why=why),
        lambda: guard.tighten_clip(0.5, why=why),
        lambda: guard.skip_samples(0, 5, why=why),
        lambda: guard.override_lr(lambda _: 1e-3, why=why),
        lambda: guard.reset_moments(why=why),
        lambda: guard.undo("lower-lr", why=why),
        lambda: guard.start_over(why=why, confirm=True),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"why=.*(expected a reason|lone surrogate)"):
            call()
    assert (guard.lr_factor, guard.skipped_samples) == (1.0, ())
    assert events_of(tmp_path / "run", "action", "fault") == []
    guard.close()


def test_what_is_done_by_hand_is_said_in_a_line(tmp_path: Path) -> None:
    s = make()
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=40, mode="act", say=said.append)
    train_guarded(s, guard, until=4)
    del said[:]
    guard.scale_lr(0.5, why="it \x1b[31mclimbs\n")
    guard.undo("lower-lr", why="calm")
    guard.undo("lower-lr", why="calm", confirm=True)
    assert said == [
        "step      4  by hand: lower-lr · lr factor 0.5, factor 0.5 · it climbs",
        (
            "step      4  dry run: take the factor 0.5 off the learning rate; it raises the"
            " learning rate: call it with confirm=True"
        ),
        "step      4  by hand: undo lower-lr · take the factor 0.5 off the learning rate · calm",
    ]
    guard.tighten_clip(0.5, why="a test")
    with pytest.raises(
        ConfigError, match=r"in force: tighten-clip; what can be undone: lower-lr, tig"
    ):
        guard.undo("nonsense", why="x")
    before = state_of(s)
    with pytest.raises(ConfigError, match=r"roll_back\(100000\): the run is at step 4"):
        guard.roll_back(100_000, why="future", confirm=True)
    assert (guard.step_number, differences(before, state_of(s))) == (4, [])
    guard.start_over(why="a bad start", confirm=True)
    assert said[-1] == "run the script again: it begins as 2.0"
    s = make()
    guard_of(s, tmp_path / "run", steps=40).close()
    assert events_of(tmp_path / "run", "attempt")[-1].data["why"] == "started over: a bad start"


def test_a_new_run_has_no_state_to_go_back_to(guard: Guard) -> None:
    with pytest.raises(ActError, match=r"roll_back\(0\): .*; there is none yet"):
        guard.roll_back(0, why="x", confirm=True)
    guard.close()


# -- what a guard is made of --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "model is None, expected the torch.nn.Module"),
        ({"optimizer": None}, "optimizer is None, expected a torch.optim"),
        ({"scheduler": object()}, "scheduler is <object.*expected a learning-rate scheduler, or"),
        ({"policy": {"mode": "act"}}, "policy is {'mode': 'act'}, expected a Policy"),
        ({"policy": {}}, "policy is {}, expected a Policy"),
        ({"run": None}, "run is None, expected the run's own folder"),
        ({"run": 5}, "run is 5, expected the run's own folder"),
        ({"run": ""}, "run is '', expected the run's own folder"),
        ({"run": __file__}, "run is .*, a file; expected a folder of the run's own"),
        ({"run": Path(__file__) / "x"}, "run is .*, within .*, which is a file; expected a folder"),
        ({"run": "a\0b"}, "can be no folder here .*NUL"),
        ({"run": "/tmp/" + "a" * 10_000}, "can be no folder here"),
    ],
)
def test_what_is_no_part_of_a_run_is_refused_in_a_sentence(
    settings: dict[str, Any], message: str
) -> None:
    s = make()
    arguments = {"model": s.model, "optimizer": s.optimizer, "data": s.loader, "run": "x"}
    with pytest.raises(ConfigError, match=message) as caught:
        Guard(**{**arguments, **settings})
    assert len(str(caught.value)) < 350


def test_a_display_that_fails_stops_no_run_and_a_name_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_line: str) -> None:
        raise RuntimeError("no display")

    s = make()
    guard = guard_of(s, tmp_path / "a\n\x1b[31mred", steps=3, say=broken)
    train_guarded(s, guard)
    assert guard.step_number == 3
    shown = capsys.readouterr().err
    assert "3 steps done" in shown
    assert "say raised RuntimeError: no display" in shown  # once
    assert "\x1b" not in shown
    assert shown.count("\n") == 3


def test_a_rate_launched_otherwise_is_named_as_it_is_passed(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=4)
    guard.checkpoint()
    guard.close()
    with pytest.raises(ActError, match=r"was launched with lr=0\.003, now with 0\.006"):
        guard_of(make(lr=6e-3), tmp_path / "run", steps=20)


def test_the_last_line_says_what_was_tried_and_not_verified(tmp_path: Path) -> None:
    s = make()
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=3, mode="act", say=said.append)
    train_guarded(s, guard, until=2)
    watched = Verification("roll-back", until_step=70, expected=Expectation(2.0, 0.1, 2.0))
    recovery = inner(guard).recovery
    recovery.state = dataclasses.replace(recovery.state, num_trials=3, verification=watched)
    guard.finish()
    assert said[-2:] == [
        "step      2  roll-back: not verified: the run ended",
        (
            "2 steps done (the trainer stopped), 0 incidents, 3 trials, 0 actions; trimtab report"
            f" {tmp_path / 'run'}"
        ),
    ]
    (outcome,) = events_of(tmp_path / "run", "outcome")
    assert (outcome.data["verdict"], outcome.data["text"]) == (
        "unclear",
        "not verified: the run ended",
    )


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_run_folder_that_cannot_be_looked_at_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """A quota that is used up may fail any look at a path, not the first alone."""
    looks, real = [], os.stat

    def stat(path: object, *args: object, **kwargs: object) -> object:
        if str(path).startswith(str(tmp_path)):
            looks.append(path)
            if len(looks) >= nth:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ConfigError, match="can be no folder here"):
        run_folder(str(tmp_path / "a" / "b"))
