"""`verdict` in `verdict.json`: that of a run that is done is what its directory gets offline."""

import json
import math
from pathlib import Path

import pytest
from torch import Tensor

import trimtab
from tests.guard.tiny import guard_of, make, train_guarded

pytestmark = pytest.mark.torch


def verdict_of(run: Path) -> str:
    return str(json.loads((run / "verdict.json").read_text(encoding="utf-8"))["verdict"])


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_verdict_of_a_calm_run_is_that_of_its_directory(tmp_path: Path, mode: str) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=600, mode=mode))
    assert verdict_of(tmp_path / "run") == trimtab.analyze(tmp_path / "run").verdict == "healthy"


def test_verdict_of_a_run_that_ends_in_nan_is_an_incident(tmp_path: Path) -> None:
    s = make()

    def spoil(_: object, batch: Tensor) -> None:
        del batch
        if guard.step_number >= 30:
            with_nan = next(iter(s.model.parameters()))
            with_nan.data.fill_(math.nan)

    guard = guard_of(s, tmp_path / "run", steps=60, mode="observe")
    train_guarded(s, guard, on_batch=spoil)
    assert verdict_of(tmp_path / "run") == trimtab.analyze(tmp_path / "run").verdict == "incident"


def test_verdict_of_a_few_steps_is_not_judged(tmp_path: Path) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=5, mode="observe"))
    assert verdict_of(tmp_path / "run") == trimtab.analyze(tmp_path / "run").verdict
    assert verdict_of(tmp_path / "run") == "not-judged"
