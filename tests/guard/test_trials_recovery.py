"""What the guard remembers, waits for and gives up on: over more than one incident."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.logs import bloom_176b
from tests.guard import small_lab
from tests.guard.small_lab import SOUND, Outcome, bad_data, bad_lr, guarded
from tests.guard.tiny import events_of, guard_of, make
from trimtab.guard import Guard
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text
from trimtab.lab.train import Parts
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS, FAULT = 190, 120


@pytest.fixture(scope="module")
def text() -> Text:
    return small_lab.make_text()


def acted(scenario: Scenario, text: Text, run: Path, **settings: Any) -> Outcome:
    policy = {
        "trial_steps": 24,
        "patience_steps": 4,
        "healing_steps": 0,
        "max_wasted_share": 4.0,
        "verify_steps": 16,
        "cooldown_steps": 16,
    }
    scenario = dataclasses.replace(scenario, steps=settings.pop("steps", STEPS))
    return guarded(scenario, text, run, **{**policy, **settings})


def trials_of(run: Path, seen_after: int = 0) -> list[str]:
    """Arms of the trials begun after a decision at or past a step, in order."""
    events = events_of(run, "decision", "attempt")
    since = next(
        i
        for i, e in enumerate(events)
        if e.event == "decision" and e.data["what"].startswith("go back") and e.step >= seen_after
    )
    return [e.data["tag"] for e in events[since:] if e.event == "attempt" and e.data["trial"]]


class TwoRises:
    """The rate rises 30 x, comes back, and rises once more later on.

    What held the first rise down ends where it comes back: it would hold the second down, too.
    """

    def __init__(self, first: int, back: int, second: int) -> None:
        self.first, self.back, self.second = first, back, second

    def rate(self, done: int) -> float:
        step = done + 1
        rise = 30.0 if self.first <= step < self.back or step >= self.second else 1.0
        return min(step / 20, 1.0) * rise

    def prepare(self, parts: Parts) -> None:
        object.__setattr__(parts, "scheduler", LambdaLR(parts.optimizer, self.rate))


@pytest.mark.slow
@pytest.mark.covers("S266")
@pytest.mark.covers("S251")
def test_the_second_incident_of_a_kind_tries_first_what_worked_in_the_first(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"
    rises = TwoRises(FAULT, 165, 190)
    acted(SOUND, text, run, prepare=rises.prepare, steps=240)
    first, second = events_of(run, "action")
    assert first.data["remedy"] == second.data["remedy"] == "roll-back+lower-lr"
    later = trials_of(run, seen_after=190)
    assert trials_of(run)[0] == "lower-lr"  # a rate that is known to have risen comes first
    assert later == ["lower-lr"]
    for event in (first, second):  # the rollback and the rate are one action with one record
        assert event.data["values"]["to_step"] < event.data["values"]["lr_from_step"]
        assert event.data["values"]["lr_limit"] < 0.01

    other = tmp_path / "other"
    acted(bad_lr(FAULT, 30.0), text, other, past_runs=(str(run),))
    assert trials_of(other) == ["lower-lr"]


class Series:
    """A loop whose loss and gradient norm are a given series, whatever the model does."""

    def __init__(self, losses: list[float], norms: list[float]) -> None:
        self.losses, self.norms = losses, norms

    def run(self, folder: Path, **policy: Any) -> Guard:
        s = make(schedule="none", lr=1e-9)
        weight = s.model.output.weight
        size = math.sqrt(weight.numel())
        settings = Policy(checkpoint_every_steps=10_000, snapshot_every_steps=10, **policy)
        guard = guard_of(s, folder, steps=len(self.losses), mode="act", clip=None, policy=settings)
        for number, _ in enumerate(guard):
            assert number < 5 * len(self.losses)
            at = min(guard.step_number, len(self.losses) - 1)
            total = (weight - weight.detach()).sum() * (self.norms[at] / size)
            guard.backward(total + torch.tensor(self.losses[at]))
            guard.step()
        return guard


def bloom(seed: int, *, stays_at: float | None = None) -> Series:
    record = bloom_176b.as_record(rows_before=200, rows_after=90, seed=seed)
    losses = record.columns["loss"].values.copy()
    if stays_at is not None:
        noise = 0.02 * np.random.default_rng(seed).standard_normal(len(losses))
        losses[205:] = stays_at + noise[205:]
    return Series(losses.tolist(), record.columns["grad_norm"].values.tolist())


@pytest.mark.covers("S269")
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_blooms_spike_is_trained_through_and_only_logged(tmp_path: Path, seed: int) -> None:
    run = tmp_path / "run"
    guard = bloom(seed).run(run)
    assert guard.actions == ()
    assert len(events_of(run, "attempt")) == 1
    assert events_of(run, "action", "fault") == []
    assert any(e.data["kind"] == "spike" for e in events_of(run, "incident"))
    said = [e.data["what"] for e in events_of(run, "decision")]
    assert said
    assert set(said) <= {"wait", "train through", "leave alone"}
    assert "train through" in said


@pytest.mark.slow
@pytest.mark.covers("S140")
def test_a_wait_has_a_deadline_and_then_it_is_acted_on(tmp_path: Path) -> None:
    """The same spike, which stays half-way down instead of healing."""
    run = tmp_path / "run"
    bloom(0, stays_at=3.2).run(
        run, patience_steps=8, healing_steps=32, bisect="never", yardstick_share=0
    )
    waits = [e for e in events_of(run, "decision") if e.data["what"] == "wait"]
    back = next(e for e in events_of(run, "decision") if e.data["what"].startswith("go back"))
    first = waits[0]
    assert f"until step {first.step + 8}" in first.data["why"]
    assert first.step + 8 - 1 <= back.step <= first.step + 8 + 32 + 1


@pytest.mark.slow
@pytest.mark.covers("S262")
def test_every_change_is_labelled_by_four_metrics_and_a_missing_label_is_shown(
    tmp_path: Path, text: Text, capsys: pytest.CaptureFixture[str]
) -> None:
    from trimtab.cli import main

    run = tmp_path / "run"

    def change(guard: Guard, loss: Tensor) -> Tensor:
        if guard.step_number == 60 and guard.phase == "calm" and guard.lr_factor == 1.0:
            guard.scale_lr(0.9, why="a test")
        if guard.step_number == STEPS - 3:
            guard.tighten_clip(0.9, why="too late to tell")
        return loss

    acted(bad_data(FAULT, 10), text, run, spoil=change)
    told = {e.data["remedy"]: e.data for e in events_of(run, "outcome") if "label" in e.data}
    assert set(told) == {"lower-lr", "roll-back+skip-data"}
    assert told["roll-back+skip-data"]["label"] == "better"
    assert told["roll-back+skip-data"]["metrics"]["loss"] == "better"
    assert all(
        set(d["metrics"]) == {"loss", "loss spread", "grad norm", "alarms"} for d in told.values()
    )
    assert main(["chronicle", str(run)]) == 0
    page = capsys.readouterr().out
    changes = page[page.index("## Changes") :]
    assert "| tighten clip | " in changes
    line = next(x for x in changes.splitlines() if x.startswith("| tighten clip |"))
    assert "no label" in line
    line = next(x for x in changes.splitlines() if x.startswith("| roll back+skip data |"))
    assert "better" in line


@pytest.mark.slow
@pytest.mark.covers("S139")
def test_a_run_is_stopped_with_a_reason_after_so_many_failed_recoveries(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"

    def sick(guard: Guard, loss: Tensor) -> Tensor:
        """It looks cured in every trial and falls ill again a while after."""
        ill = guard.phase == "calm" and guard.step_number % 40 in range(25, 40)
        return loss + 6.0 if ill and guard.step_number > 80 else loss

    with pytest.raises(SystemExit) as stopped:
        acted(
            SOUND,
            text,
            run,
            spoil=sick,
            steps=400,
            max_failures=2,
            max_rollbacks=50,
            on_give_up="stop",
            cooldown_steps=0,
            bisect="never",
            lr_factors=(0.5,),
            verify_steps=32,
            yardstick_share=0,  # only the number is ill, which the yardstick sees
        )
    assert stopped.value.code == 3
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["reason"] == "2 recoveries in a row did not hold, the policy allows 2"
    failed = [
        e
        for e in events_of(run, "outcome")
        if e.data["verdict"] == "did not" and not e.data.get("trial")
    ]
    assert [e.data["failures"] for e in failed] == [1, 2]
