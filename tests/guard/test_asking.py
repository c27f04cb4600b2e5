"""Actions that wait for a person: staged, approved, denied, at their deadline, after a kill."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.guard import small_lab
from tests.guard.small_lab import bad_data, guarded
from tests.guard.tiny import events_of, guard_of, make
from trimtab.chronicle.approvals import Answer, Mailbox, read_staged
from trimtab.chronicle.shadow import shadow_ledger
from trimtab.cli import main
from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy

pytestmark = pytest.mark.torch

STEPS = 120
FAULT = 70
SHORT: dict[str, Any] = {
    "trial_steps": 16,
    "patience_steps": 4,
    "healing_steps": 0,
    "max_wasted_share": 4.0,
    "verify_steps": 16,
    "cooldown_steps": 16,
    "snapshot_every_steps": 10,
    "checkpoint_every_steps": 25,
    "checkpoint_in_background": False,
    # the fault is of the loop, not of the weights: the fixed batches would not see it
    "yardstick_share": 0.0,
}


def train(
    run: Path,
    *,
    mode: Mode = "act",
    answer_at: int = 0,
    deny: bool = False,
    stop_at: int = 0,
    heals: int = 0,
    **settings: Any,
) -> Guard:
    """A loss that is 2.5 higher from the fault on, until a rollback or for `heals` steps."""
    s = make(num_samples=4 * STEPS)
    policy = Policy(**{**SHORT, **settings})
    guard = guard_of(s, run, mode=mode, steps=STEPS, policy=policy)
    restored: list[int] = []
    guard.on_restore(restored.append)
    until = FAULT + heals if heals else STEPS
    for batch in guard:
        step = guard.step_number
        loss = s.loss(batch)
        if FAULT <= step < until and guard.phase == "calm" and not restored:
            loss = loss + 2.5
        if step == answer_at > 0 and not restored:
            said = ["approve", str(run), "ask-1", "--why", "seen", "--author", "S. B."]
            assert main([*said, "--deny"] if deny else said) == 0
        if step == stop_at > 0:
            break
        guard.backward(loss)
        guard.step()
    guard.close()
    return guard


def went_back(guard: Guard) -> bool:
    return any("roll-back" in str(a["remedy"]) for a in guard.actions)


@pytest.mark.slow
def test_a_restore_that_is_asked_for_waits_and_is_done_once_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    guard = train(run, answer_at=90, authority={"restore": "ask"})
    staged, answered = events_of(run, "staged"), events_of(run, "answered")
    assert [e.data["id"] for e in staged] == ["ask-1"]
    assert staged[0].data["classes"] == ["restore"]
    assert staged[0].data["cost_steps"] > staged[0].data["given_up_steps"] > 0
    assert "aside/" in str(staged[0].data["undo"])
    told = {k: answered[0].data[k] for k in ("answer", "why", "by")}
    assert told == {"answer": "approved", "why": "seen", "by": "S. B."}
    assert staged[0].step < answered[0].step == 91
    backs = [e for e in events_of(run, "decision") if "go back to step" in str(e.data["what"])]
    assert backs[0].step == answered[0].step
    assert went_back(guard)
    assert guard.step_number == STEPS
    capsys.readouterr()
    assert main(["approve", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["staged"][0]["answer"] == "approved"
    assert main(["approve", str(run), "ask-1"]) == 2
    assert main(["approve", str(run), "ask-9"]) == 2
    assert main(["chronicle", str(run)]) == 0
    assert "waits for approval, ask-1: go back to step" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_denied_is_not_done_and_the_ledger_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    guard = train(run, answer_at=90, deny=True, authority={"restore": "ask"})
    assert events_of(run, "answered")[0].data["answer"] == "denied"
    assert not went_back(guard)
    assert not [e for e in events_of(run, "attempt") if e.data.get("trial")]
    capsys.readouterr()
    assert main(["shadow", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(e["why"], e["instead"]) for e in told["entries"]] == [("ask", "lasted to the end")]
    assert told["entries"][0]["saved_steps"] == max(
        STEPS - FAULT - 1 - told["entries"][0]["cost_steps"], 0
    )


@pytest.mark.slow
def test_what_may_act_is_tried_before_a_person_is_asked_for_the_rest(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def answer(guard: Guard, loss: Tensor) -> Tensor:
        if not answered and guard.phase == "calm" and events_of(run, "staged"):
            answered.append(main(["approve", str(run), "ask-1", "--reason", "go on"]))
        return loss

    answered: list[int] = []
    done = guarded(
        dataclasses.replace(bad_data(120, 10), steps=190),
        small_lab.make_text(),
        run,
        spoil=answer,
        **SHORT,
        authority={"skip-data": "ask", "change-setting": "never", "cut-rate": "never"},
    )
    staged = events_of(run, "staged")
    assert staged[0].data["classes"] == ["skip-data"]
    trials = [e for e in events_of(run, "attempt") if e.data.get("trial")]
    before = [str(e.data["why"]) for e in trials if e.t <= staged[0].t]
    assert before
    assert not [why for why in before if "without samples" in why]
    assert not [e for e in trials if "LR" in str(e.data["why"])]
    assert [a for a in done.guard.actions if "skip-data" in str(a["remedy"])]


@pytest.mark.slow
@pytest.mark.parametrize(("default", "done"), [("act", True), ("never", False)])
def test_a_deadline_without_an_answer_takes_the_stated_default(
    tmp_path: Path, default: str, *, done: bool
) -> None:
    run = tmp_path / "run"
    guard = train(run, authority={"restore": "ask"}, at_deadline=default, ask_deadline_s=1e-3)
    answered = events_of(run, "answered")
    assert (answered[0].data["answer"], answered[0].data["done"]) == ("deadline", done)
    assert went_back(guard) is done


@pytest.mark.slow
def test_waiting_keeps_training_and_asks_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard = train(run, authority={"restore": "ask"}, ask_deadline_s=1e-3)
    assert [e for e in events_of(run, "decision") if "still waits" in str(e.data["why"])]
    assert not events_of(run, "answered")
    assert (guard.step_number, guard.wasted_steps) == (STEPS, 0)


@pytest.mark.slow
def test_a_spike_that_heals_withdraws_what_was_staged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, heals=14, authority={"restore": "ask"}, spikes_trained_through=9)
    assert [e.data["answer"] for e in events_of(run, "answered")] == ["withdrawn"]
    entries = shadow_ledger(events_of(run))
    assert [(e.instead, e.saved_steps) for e in entries] == [("healed by itself", 0)]
    assert entries[0].wasted_steps == entries[0].cost_steps > 0


@pytest.mark.slow
def test_what_is_staged_outlives_the_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, stop_at=90, authority={"restore": "ask"})
    assert [s.answer for s in read_staged(run)] == [""]
    Mailbox.put(run, Answer("ask-1", approved=True, why="in the meantime"))
    guard = train(run, authority={"restore": "ask"})
    assert [s.answer for s in read_staged(run)] == ["approved"]
    assert went_back(guard)
    assert len(events_of(run, "staged")) == 1


@pytest.mark.slow
def test_a_daily_limit_ends_in_advice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard = train(run, per_day={"restore": 0})
    assert not went_back(guard)
    refused = [e for e in events_of(run, "decision") if e.data["what"] == "not allowed"]
    assert "0 × restore within 24 hours, the policy allows 0" in str(refused[0].data["why"])


@pytest.mark.parametrize("mode", ["observe", pytest.param("advise", marks=pytest.mark.slow)])
def test_what_act_would_have_done_is_kept(
    tmp_path: Path, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, mode=mode)
    capsys.readouterr()
    assert main(["shadow", str(run)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("act would have saved ")
    assert "would: go back to step 60" in told
    assert f"({mode} only)" in told
    states = [e.data["state"] for e in events_of(run, "shadow")]
    assert states == ["would", "instead"]


def test_half_an_answer_is_left_for_later(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "approvals.jsonl")
    Mailbox.put(tmp_path, Answer("ask-1", approved=True, why=""))
    with (tmp_path / "approvals.jsonl").open("a") as file:
        file.write('{"id": "ask-2", "ans')
    assert mailbox.read() == (Answer("ask-1", approved=True, why=""),)
    with (tmp_path / "approvals.jsonl").open("a") as file:
        file.write('wer": "deny"}\nnonsense\n')
    assert mailbox.read() == (Answer("ask-2", approved=False, why=""),)
    assert mailbox.read() == ()
    mailbox.close()


@pytest.mark.slow
def test_what_was_said_before_it_was_asked_is_no_answer_and_a_cut_mailbox_is_read_anew(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    mailbox = Mailbox(run / "approvals.jsonl")
    Mailbox.put(run, Answer("ask-1", approved=True, why="a long reason " * 20))
    assert [a.id for a in mailbox.read()] == ["ask-1"]
    (run / "approvals.jsonl").write_text("")
    Mailbox.put(run, Answer("ask-2", approved=False, why="cut"))
    assert [a.id for a in mailbox.read()] == ["ask-2"]
    (run / "approvals.jsonl").unlink()
    Mailbox.put(run, Answer("ask-3", approved=False, why="replaced"))
    assert [a.id for a in mailbox.read()] == ["ask-3"]
    mailbox.close()
    # approved in advance, by its foreseeable name: not an answer to what is asked later
    early = tmp_path / "early"
    early.mkdir()
    Mailbox.put(early, Answer("ask-1", approved=True, why="in advance"))
    guard = train(early, authority={"restore": "ask"})
    assert guard.actions == ()
