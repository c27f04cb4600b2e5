"""A script that changes its own rate, and puts it back: what the guard holds, says and gives up."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.guard.tiny import events_of, guard_of, make
from trimtab import analyze
from trimtab.guard import Guard
from trimtab.plan.policy import Policy
from trimtab.readers import read_run

pytestmark = pytest.mark.torch

STEPS, RAISED = 150, 90
SOUND, HIGH = 0.05, 1.5
POLICY = Policy(
    trial_steps=16,
    patience_steps=6,
    healing_steps=8,
    verify_steps=16,
    cooldown_steps=16,
    max_wasted_share=4.0,
    checkpoint_in_background=False,
)


class Trained:
    """One guarded run of a small regression with SGD, whose loop sets its rate in each step."""

    def __init__(self, run: Path, rate: Callable[[int, int], float]) -> None:
        torch.manual_seed(0)
        x = torch.randn(32 * STEPS * 2, 16)
        y = torch.tanh(x @ torch.randn(16, 4)) + 0.1 * torch.randn(len(x), 4)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=SOUND, momentum=0.9)
        self.run, self.said = run, list[str]()
        self.guard = Guard(
            model,
            optimizer,
            data=DataLoader(TensorDataset(x, y), batch_size=32),
            run=run,
            mode="act",
            steps=STEPS,
            policy=POLICY,
            say=self.said.append,
        )
        for count, (inputs, targets) in enumerate(self.guard, start=1):
            for group in optimizer.param_groups:
                group["lr"] = rate(self.guard.step_number + 1, count)
            self.guard.backward(nn.functional.mse_loss(model(inputs), targets))
            self.guard.step()
        record = read_run(run)
        self.rates = record.columns["lr"].values[record.lineage_rows()].tolist()
        """In force, of the steps that count."""
        self.verdict = json.loads((run / "verdict.json").read_text())
        self.trials = [
            str(e.data["why"]).removeprefix("trial: ")
            for e in events_of(run, "attempt")
            if e.data["trial"]
        ]
        self.causes = [
            [str(c["cause"]) for c in e.data["causes"]]
            for e in events_of(run, "incident")
            if e.data["state"] == "explained"
        ]


@pytest.mark.slow
def test_a_rate_that_the_script_puts_back_is_not_multiplied(tmp_path: Path) -> None:
    back = RAISED + 40
    o = Trained(tmp_path / "run", lambda step, _: HIGH if RAISED <= step < back else SOUND)
    # the cause is named by the ledger: its arm is the first, and no good sample is left out
    assert o.trials == [f"LR back to {SOUND:g} (x {SOUND / HIGH:.3g})"]
    assert o.guard.skipped_samples == ()
    assert set(o.rates) == {SOUND}
    # and it is held no longer, with a record, once the script is there itself
    (ended,) = [e for e in events_of(o.run, "decision") if "no longer hold" in str(e.data["what"])]
    assert ended.step == back - 1
    assert any("learning rate at 0.05 is held no longer" in line for line in o.said)
    assert (o.verdict["in_force"], o.verdict["lr"], o.guard.lr_factor) == ([], SOUND, 1.0)
    assert "in force" not in o.said[-1]


@pytest.mark.slow
def test_what_is_held_is_said_wherever_the_run_is_looked_at(tmp_path: Path) -> None:
    o = Trained(tmp_path / "run", lambda step, _: HIGH if step >= RAISED else SOUND)
    assert set(o.rates) == {SOUND}
    held = "learning rate held at 0.05 until the script asks for 0.05 or less"
    assert o.verdict["in_force"] == [held]
    assert (o.verdict["lr"], o.verdict["script_lr"]) == (SOUND, HIGH)
    assert f"in force: {held}" in o.said[-1]
    assert any(held in note for note in analyze(o.run).runs[0].notes)
    assert o.guard.lr_factor == pytest.approx(SOUND / HIGH)


@pytest.mark.slow
def test_a_fault_that_the_script_has_ended_is_judged_again_and_costs_no_rate(
    tmp_path: Path,
) -> None:
    # raised for four of the loop's own iterations: over before anything is decided
    o = Trained(tmp_path / "run", lambda _, i: HIGH if RAISED <= i < RAISED + 4 else SOUND)
    assert o.trials[:1] in ([], ["as it was"])
    assert not [a for a in o.guard.actions if "lower-lr" in str(a["remedy"])]
    assert all(causes[0] == "learning-rate-jump" for causes in o.causes)
    assert o.verdict["in_force"] == []
    assert set(o.rates) == {SOUND}


@pytest.mark.slow
def test_batches_that_the_loop_spoiled_once_are_no_hardware_fault(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = tmp_path / "run"
    x = torch.randn(32 * STEPS * 2, 16)
    y = torch.tanh(x @ torch.randn(16, 4)) + 0.1 * torch.randn(len(x), 4)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=SOUND, momentum=0.9)
    data = DataLoader(TensorDataset(x, y), batch_size=32)
    guard = Guard(
        model, optimizer, data=data, run=run, mode="act", steps=STEPS, policy=POLICY,
        say=lambda _: None,
    )  # fmt: skip
    for count, (inputs, targets) in enumerate(guard, start=1):
        wrong = RAISED <= count < RAISED + 6  # over before anything is looked at
        loss = nn.functional.mse_loss(model(inputs * 8 if wrong else inputs), targets)
        guard.backward(loss * 4 if wrong else loss)
        guard.step()
    explained = [e for e in events_of(run, "incident") if e.data["state"] == "explained"]
    for event in explained:
        first = event.data["causes"][0]
        assert first["cause"] != "hardware-fault"
        assert first["confidence"] < 0.9
    assert guard.skipped_samples == ()
    assert explained


@pytest.mark.slow
@pytest.mark.parametrize("on_give_up", ["advise", "stop"])
def test_where_nothing_holds_the_least_bad_branch_goes_on_and_recovery_pauses(
    tmp_path: Path, on_give_up: Literal["advise", "stop"]
) -> None:
    torch.manual_seed(0)
    run, said = tmp_path / "run", list[str]()
    x = torch.randn(16 * STEPS * 2, 8)
    y = x @ torch.randn(8, 2) + 0.1 * torch.randn(len(x), 2)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    policy = dataclasses.replace(
        POLICY,
        on_give_up=on_give_up,
        max_rollbacks=1,
        arms=("replay", "lower-lr"),
        bisect="always",
        lr_factors=(0.5, 0.25),
    )
    guard = Guard(
        model, optimizer, data=DataLoader(TensorDataset(x, y), batch_size=16), run=run,
        mode="act", steps=130, policy=policy, say=said.append,
    )  # fmt: skip

    def train() -> None:
        for inputs, targets in guard:
            loss = nn.functional.mse_loss(model(inputs), targets)
            if guard.step_number + 1 >= RAISED:  # noise that no branch takes away, in the gradient
                noise = (model.weight * torch.randn(2, 8) * 30).sum()
                loss = loss + noise - noise.detach()
            guard.backward(loss)
            guard.step()

    if on_give_up == "stop":
        with pytest.raises(SystemExit) as stopped:
            train()
        assert stopped.value.code == 3
        assert json.loads((run / "verdict.json").read_text())["state"] == "given-up"
        return
    train()
    (kept,) = [a for a in guard.actions if "lower-lr" in str(a["remedy"])]
    assert "no trial held" in str(kept["why"])
    assert "the least bad branch: LR x " in str(kept["why"])
    assert not [line for line in said if "kept:" in line]  # recovery is disabled with it
    least = next(i for i, line in enumerate(said) if "nothing held, least bad: LR x " in line)
    assert "automatic recovery disabled: no trial held" in said[least + 1]
    assert [e for e in events_of(run, "decision") if e.data["what"] == "stop acting"]
    assert guard.step_number == 130
    assert "in force: learning rate x " in said[-1]


def test_a_loop_that_is_left_says_so_and_not_that_it_was_killed(tmp_path: Path) -> None:
    s, run = make(), tmp_path / "run"
    guard = guard_of(s, run, steps=8)

    def verdict() -> dict[str, object]:
        found: dict[str, object] = json.loads((run / "verdict.json").read_text())
        return found

    for stop in (3, 8):
        for batch in guard:
            assert verdict()["state"] == "running"
            guard.backward(s.loss(batch))
            guard.step()
            if guard.step_number == stop:
                break
        if stop == 3:
            assert verdict()["state"] == "interrupted"
            assert verdict()["reason"] == "its loop was left after step 3"
    assert (verdict()["state"], verdict()["reason"]) == ("done", "all steps done")
    guard.close()
