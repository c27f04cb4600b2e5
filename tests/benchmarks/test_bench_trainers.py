"""The bench of the guard in each trainer: loops that take turns, and a figure for all it names."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import trainer_cost
from benchmarks.interleave import Paced, time_in_turns
from benchmarks.peer_monitors import is_installed
from benchmarks.trainer_loops import LOOPS, Loop, TrainingPlace
from tests.guard.tiny import events_of, rows_of
from trimtab.lab.config import ModelConfig
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import build

pytestmark = pytest.mark.torch

SMALL = ModelConfig(width=8, num_layers=1, num_heads=1, context_tokens=8)


def test_loops_take_turns_and_are_ended() -> None:
    seen: list[str] = []

    def loop(pause: Callable[[], None], *, name: str) -> None:
        try:
            while True:
                seen.append(name)
                pause()
        finally:
            seen.append(f"end of {name}")

    paced = {name: Paced(partial(loop, name=name)) for name in "abc"}
    times = time_in_turns(paced, rounds=2, warm_up=1)
    assert [sorted(seen[i : i + 3]) for i in (0, 3, 6)] == [[*"abc"]] * 3
    assert sorted(seen[9:]) == ["end of a", "end of b", "end of c"]
    assert {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_loop_that_fails_or_ends_says_so() -> None:
    def fails(_pause: Callable[[], None]) -> None:
        raise ValueError("no such thing")

    with pytest.raises(RuntimeError, match="ended before it was told to") as caught:
        time_in_turns({"a": Paced(fails)}, rounds=1)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RuntimeError, match="ended before it was told to"):
        time_in_turns({"a": Paced(lambda _pause: None)}, rounds=1)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_the_guard_of_each_trainer_guards(tmp_path: Path, loop: Loop) -> None:
    for package in loop.packages:
        pytest.importorskip(package)
    scenario = Scenario(
        name="test",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=SMALL,
        batch_size=2,
        warmup_steps=10,
        steps=40,
    )
    parts = build(scenario, 0, load_text(None))
    paced = Paced(
        lambda pause: loop.train(
            TrainingPlace(parts=parts, folder=tmp_path, pause=pause, mode="act")
        )
    )
    for _ in range(12):
        paced.step()
    paced.close()
    assert [row["step"] for row in rows_of(tmp_path / "run")] == list(range(1, 13))
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
def test_every_trainer_and_what_watches_it_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    size = dataclasses.replace(trainer_cost.SIZES[0], model=SMALL, batch_size=2)
    monkeypatch.setattr(trainer_cost, "SIZES", (size,))
    lines: list[str] = []
    rows = trainer_cost.run_trainer_bench(rounds=10, say=lines.append)["trainers"]
    for loop in LOOPS:
        found = [row for row in rows if row["trainer"] == loop.name]
        if not all(map(is_installed, loop.packages)):
            assert found == [{"size": size.name, "trainer": loop.name, "installed": False}]
            continue
        names = [row["beside"] for row in found]
        assert names[:2] == ["guard in observe", "guard in act"]
        for row in found:
            assert 0 < row["low"] <= row["ratio"] <= row["high"]
            assert any(row["beside"] in line for line in lines)


def test_a_trainer_that_is_not_installed_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Loop(name="Other", packages=("no_such_package",), train=lambda _: None, beside={})
    monkeypatch.setattr(trainer_cost, "LOOPS", (missing,))
    lines: list[str] = []
    rows = trainer_cost.run_trainer_bench(rounds=10, say=lines.append)["trainers"]
    assert [row["installed"] for row in rows] == [False] * len(trainer_cost.SIZES)
    assert sum("no_such_package not installed" in line for line in lines) == len(rows)
