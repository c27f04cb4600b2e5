"""Everything that decides the future is saved.

Each part for itself, from one process to the next.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.guard.inner import inner
from tests.guard.tiny import (
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    state_of,
    train_guarded,
)
from trimtab.errors import ActError
from trimtab.guard import Guard
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.state.checkpoint_io import save_state
from trimtab.guard.state.training_state import capture_rng
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 60
POLICY = Policy(mode="act", checkpoint_every_steps=10, checkpoint_in_background=False)


def saved_after_two_steps(run: Path) -> None:
    s = make()
    guard = guard_of(s, run, steps=STEPS)
    train_guarded(s, guard, until=2)
    guard.checkpoint()
    guard.close()


class Counting:
    """A part of the user's own that counts."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def test_what_is_on_the_host_is_written_without_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch copies ahead on a stream of CUDA, which would start it where a GPU is in sight."""
    started: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: started.append("CUDA"))
    final, aside = tmp_path / "step-1", tmp_path / "aside"
    save_state({"w": torch.ones(3)}, {}, final, step=1, attempt="1.0", aside=aside, ranks=Ranks())
    assert not started


def setup() -> tuple[Setup, Counting]:
    s = make(precision="fp16", schedule="onecycle", shuffle=True, dropout=0.2)
    return s, Counting()


def guarded(run: Path) -> tuple[Guard, Setup, Counting]:
    s, counting = setup()
    guard = guard_of(s, run, steps=STEPS, policy=POLICY, extra={"counting": counting})
    return guard, s, counting


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of 23 steps that made decisions, saved at its end; and what it was at that moment."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("saved") / "run"
    guard, s, counting = guarded(run)

    def draw(_guard: Guard, _batch: torch.Tensor) -> None:
        random.random()
        np.random.rand()  # noqa: NPY002 - the global state is what is saved
        counting.count += 1

    train_guarded(s, guard, until=17, on_batch=draw)
    guard.scale_lr(0.5, why="a test")
    guard.tighten_clip(0.5, why="a test")
    guard.set_optimizer(beta2=0.9, why="a test")
    guard.skip_samples(100, 103, why="a test")
    guard.reset_moments(why="a test", rewarm_steps=9)
    inner(guard).engine.decisions.rollbacks = 2
    inner(guard).engine.decisions.last_onsets = [5, 9]
    train_guarded(s, guard, until=23, on_batch=draw)
    guard.checkpoint()
    everything = all_of(guard, s, counting)
    guard.close()
    return run, everything


def all_of(guard: Guard, s: Setup, counting: Counting) -> dict[str, Any]:
    engine = inner(guard).engine
    assert engine.data is not None
    parts = state_of(s) | {
        "rng": capture_rng(),
        "data": engine.data.state_dict(),
        "skips": guard.skipped_samples,
        "judge": inner(guard).parts.judgement.to_json(),
        "counters": vars(engine.counters),
        "decisions": {k: v for k, v in vars(engine.decisions).items() if k not in ("minor", "row")},
        "extra": counting.count,
    }
    return copy.deepcopy(parts)


PARTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "model": lambda e: e["model"],
    "optimizer": lambda e: e["optimizer"]["state"],
    "adam-step": lambda e: [v["step"] for v in e["optimizer"]["state"].values()],
    "optimizer-groups": lambda e: e["optimizer"]["param_groups"],
    "scheduler": lambda e: e["scheduler"],
    "scaler": lambda e: e["scaler"],
    "rng-python": lambda e: e["rng"]["python"],
    "rng-numpy": lambda e: list(e["rng"]["numpy"]),
    "rng-torch": lambda e: e["rng"]["torch"],
    "data-position": lambda e: e["data"],
    "skip-list": lambda e: e["skips"],
    "detectors": lambda e: e["judge"],
    "counters": lambda e: e["counters"],
    "lr-factor": lambda e: e["decisions"]["lr_cuts"],
    "policy-counters": lambda e: e["decisions"],
    "extra": lambda e: e["extra"],
}


def plain(value: Any) -> Any:
    """Arrays as tensors, tuples as lists: what JSON gives back is compared by value."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.astype(np.float64))
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def restored(saved: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """What a new process has before its first step, after random draws of its own."""
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    guard, s, counting = guarded(saved[0])
    torch.rand(3)
    inner(guard).loop.on_train_begin()
    everything = all_of(guard, s, counting)
    guard.close()
    return everything


@pytest.mark.parametrize("part", PARTS)
def test_a_new_process_has_what_was_saved(
    saved: tuple[Path, dict[str, Any]], restored: dict[str, Any], part: str
) -> None:
    expected, found = PARTS[part](saved[1]), PARTS[part](restored)
    assert differences(plain(expected), plain(found), part) == []


def test_what_was_saved_is_in_no_part_what_a_new_run_begins_with(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Else the test above could not fail."""
    random.seed(98)
    np.random.seed(98)  # noqa: NPY002
    guard, s, counting = guarded(tmp_path / "run")
    fresh = all_of(guard, s, counting)
    guard.close()
    pairs = {name: (plain(part(saved[1])), plain(part(fresh))) for name, part in PARTS.items()}
    assert [name for name, (a, b) in pairs.items() if not differences(a, b)] == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_the_random_state_of_the_device_is_saved(tmp_path: Path) -> None:
    torch.cuda.manual_seed_all(5)
    torch.rand(3, device="cuda")
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=STEPS)
    train_guarded(s, guard, until=3)
    guard.checkpoint()
    expected = torch.cuda.get_rng_state_all()
    guard.close()
    torch.cuda.manual_seed_all(6)
    guard = guard_of(make(), tmp_path / "run", steps=STEPS)
    inner(guard).loop.on_train_begin()
    guard.close()
    for a, b in zip(expected, torch.cuda.get_rng_state_all(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.covers("S83")
@pytest.mark.parametrize(
    ("group", "field", "value"),
    [
        (0, "lr", 1e-3),
        (0, "betas", (0.0, 0.999)),
        (1, "betas", (0.9, 0.95)),
        (0, "eps", 1e-6),
        (0, "weight_decay", 0.01),
        (1, "weight_decay", 0.1),
        (0, "amsgrad", True),
        (1, "maximize", True),
    ],
)
def test_a_setting_that_loading_would_undo_is_an_error_that_names_it(
    tmp_path: Path, group: int, field: str, value: Any
) -> None:
    saved_after_two_steps(tmp_path / "run")
    s = make()
    s.optimizer.param_groups[group][field] = value
    with pytest.raises(ActError, match=rf"group {group} was launched with {field}=.*, now with"):
        guard_of(s, tmp_path / "run", steps=STEPS)
    guard = guard_of(make(), tmp_path / "run", steps=STEPS)
    assert guard.step_number == 2
    guard.close()


def test_parameters_in_another_order_are_refused_since_each_would_get_anothers_moments(
    tmp_path: Path,
) -> None:
    saved_after_two_steps(tmp_path / "run")
    s = make()
    s.optimizer.param_groups[0]["params"].reverse()
    with pytest.raises(ActError, match="group 0 holds other parameters than in the run, or in ano"):
        guard_of(s, tmp_path / "run", steps=STEPS)
    guard = guard_of(make(), tmp_path / "run", steps=STEPS)
    assert guard.step_number == 2
    guard.close()


def test_a_setting_that_another_optimizer_does_not_have_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    saved_after_two_steps(tmp_path / "run")
    s = make(schedule="none")
    s.optimizer = torch.optim.SGD(s.model.parameters(), lr=3e-3)
    with pytest.raises(ActError, match="optimizer groups"):
        guard_of(s, tmp_path / "run", steps=STEPS)
    s = make()
    groups = [{"params": g["params"], "lr": g["lr"]} for g in s.optimizer.param_groups]
    s.optimizer = torch.optim.SGD(groups, lr=3e-3)
    with pytest.raises(ActError, match=r"other settings than the run's \(.*betas"):
        guard_of(s, tmp_path / "run", steps=STEPS)


def test_a_load_that_leaves_other_settings_in_force_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer whose `load_state_dict` sets what nobody asked for."""
    saved_after_two_steps(tmp_path / "run")
    s = make()
    load = s.optimizer.load_state_dict

    def careless(state: dict[str, Any]) -> None:
        load(state)
        s.optimizer.param_groups[1]["eps"] = 1e-3

    monkeypatch.setattr(s.optimizer, "load_state_dict", careless)
    with pytest.raises(ActError, match=r"group 1: eps is 0\.001 after the load, 1e-08 was"):
        guard_of(s, tmp_path / "run", steps=STEPS)
    assert events_of(tmp_path / "run", "fault") == []
