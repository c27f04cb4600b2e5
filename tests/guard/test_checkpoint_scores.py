"""A user's evaluation of every few checkpoints, as their script asks for it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.tiny import Setup, events_of, guard_of, make, rows_of, train_guarded
from trimtab.cli import main
from trimtab.errors import ConfigError
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

POLICY = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)


def scores_of(run: Path) -> list[tuple[str, int, Any]]:
    """Attempt, step and figures of each evaluation."""
    return [
        (e.attempt, e.step, e.data["results"])
        for e in events_of(run, "note")
        if "results" in e.data
    ]


def started(run: Path, s: Setup, steps: int = 60) -> Any:
    return guard_of(s, run, steps=steps, policy=POLICY)


@pytest.mark.covers("S30")
def test_every_second_checkpoint_is_scored_and_filed_under_its_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, s, seen = tmp_path / "run", make(), list[int]()
    guard = started(run, s)

    def lambada() -> dict[str, Any]:
        seen.append(guard.step_number)
        assert not s.model.training
        return {"lambada": 0.1 * len(seen), "piqa": torch.tensor(0.5)}

    guard.on_checkpoint(lambada, every=2)
    train_guarded(s, guard)
    guard.close()
    assert seen == [20, 40, 60]
    assert [(a, step) for a, step, _ in scores_of(run)] == [("1.0", 20), ("1.0", 40), ("1.0", 60)]
    assert main(["chronicle", str(run), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["lineage"]["results"]
    assert [(r["name"], r["step"], r["attempt"]) for r in results[:2]] == [
        ("lambada", 20, "1.0"),
        ("piqa", 20, "1.0"),
    ]
    assert [r["value"] for r in results] == pytest.approx([0.1, 0.5, 0.2, 0.5, 0.3, 0.5])


def test_after_a_rollback_scores_stand_under_the_attempt_that_follows(tmp_path: Path) -> None:
    run, s = tmp_path / "run", make()
    guard = started(run, s)
    guard.on_checkpoint(lambda: 1.0, every=1)
    train_guarded(s, guard, until=25)
    guard.roll_back(15, why="a look back", confirm=True)
    train_guarded(s, guard)
    guard.close()
    found = [(a, step) for a, step, _ in scores_of(run)]
    assert found[:2] == [("1.0", 10), ("1.0", 20)]
    assert {a for a, _ in found[2:]} == {"1.1"}


def test_an_evaluation_changes_no_bit_of_the_run(tmp_path: Path) -> None:
    losses = {}
    for evaluated in (False, True):
        s = make(dropout=0.2)
        guard = started(tmp_path / str(evaluated), s)
        if evaluated:

            def careless(s: Setup = s) -> float:
                torch.randn(7)
                s.model.train()
                with torch.no_grad():
                    s.model.output.weight.mul_(2.0)
                s.model.zero_grad()
                return 0.0

            guard.on_checkpoint(careless)
        train_guarded(s, guard)
        guard.close()
        losses[evaluated] = [r["loss"] for r in rows_of(tmp_path / str(evaluated))]
    assert losses[True] == losses[False]
    assert len(scores_of(tmp_path / "True")) == 6


def test_a_run_that_goes_on_counts_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for until in (15, 60):
        s = make()
        guard = started(run, s)
        guard.on_checkpoint(lambda: 1.0, every=3)
        train_guarded(s, guard, until=until)
        guard.close()
    assert [step for _, step, _ in scores_of(run)] == [30, 60]


def test_scores_that_are_not_finite_are_kept_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, s = tmp_path / "run", make()
    guard = started(run, s, steps=10)
    guard.on_checkpoint(lambda: {"broken": math.nan, "worse": -math.inf})
    train_guarded(s, guard)
    guard.close()
    assert main(["chronicle", str(run)]) == 0
    told = capsys.readouterr().out
    assert "broken" in told
    assert "worse" in told


@pytest.mark.parametrize("found", ["good", {"a": "b"}, None, {"a": object()}])
def test_what_is_no_score_is_told_and_training_goes_on(
    tmp_path: Path, found: object, capsys: pytest.CaptureFixture[str]
) -> None:
    run, s = tmp_path / "run", make()
    guard = started(run, s, steps=20)
    guard.on_checkpoint(lambda: found)
    train_guarded(s, guard)
    guard.close()
    assert guard.step_number == 20
    assert scores_of(run) == []
    assert "expected a number, or {name: number}" in capsys.readouterr().err


def test_an_evaluation_that_cannot_be_called_is_refused(tmp_path: Path) -> None:
    guard = started(tmp_path / "run", make())
    with pytest.raises(ConfigError, match="expected a function"):
        guard.on_checkpoint(0.5)
    with pytest.raises(ConfigError, match="every"):
        guard.on_checkpoint(lambda: 1.0, every=0)
    guard.close()
