"""What a person sees of a run: its start, its trouble, its end; each thing once."""

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
    train_plain,
)
from trimtab.analysis.assemble import make_account
from trimtab.analysis.resolution import resolved
from trimtab.guard import Guard
from trimtab.guard.loop import run_status
from trimtab.guard.recovery import executor, triage
from trimtab.incidents import Incident
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory
from trimtab.report.headline import standing
from trimtab.report.sections import cards_html
from trimtab.report.terminal import terminal_text

pytestmark = pytest.mark.torch

Bad = Callable[[int], bool]


def train(run: Path, bad: Bad, *, steps: int = 60, **settings: Any) -> tuple[list[str], Guard]:
    """Train with NaN as the loss of the steps that are `bad`; return what was said."""
    said: list[str] = []
    s = make()
    guard = guard_of(s, run, steps=steps, say=said.append, **settings)
    for batch in guard:
        loss = s.loss(batch)
        guard.backward(loss * math.nan if bad(guard.step_number + 1) else loss)
        guard.step()
    return said, guard


@pytest.mark.parametrize("mode", ["observe", "advise", "act"])
def test_a_nan_is_said_and_journalled_once_in_every_mode(tmp_path: Path, mode: str) -> None:
    run = tmp_path / "run"
    said, _ = train(run, lambda step: step == 40, mode=mode)
    (event,) = [e for e in events_of(run, "incident") if e.data["onset"] == 40]
    assert (event.data["state"], event.step) == ("open", 40)
    lines = [line for line in said if line.endswith(str(event.data["headline"]))]
    assert lines[0] == f"step     40  {event.data['headline']}"
    if mode == "advise":
        assert said[said.index(lines[0]) + 1].startswith(" " * 13 + "advice: ")
    assert len(lines) == 1
    notes = [e.data["text"] for e in events_of(run, "note")]
    poisoned = [
        n
        for n in notes
        if n.startswith("the gradient of step 40, which was not finite, is in Adam's state")
    ]
    assert len(poisoned) == (0 if mode == "act" else 1)
    assert not [line for line in said if "impossible values" in line]


def test_by_default_lines_go_to_standard_error_in_observe_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = make()
    run = tmp_path / "run"
    train_guarded(s, Guard(s.model, s.optimizer, data=s.loader, run=run, steps=4, mode="observe"))
    assert capsys.readouterr().err.splitlines() == [
        f"recording to {run} (mode observe)",
        f"4 steps done, 0 incidents, 0 actions; trimtab report {run}",
    ]


@pytest.mark.slow
def test_alarms_that_open_all_the_time_read_the_record_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(*args: Any) -> Any:
        reads.append(1)
        return triage.find_incident(*args)

    monkeypatch.setattr(executor, "find_incident", counted)
    said, _ = train(
        tmp_path / "run", lambda step: step > 30 and step % 2 == 0, steps=300, mode="observe"
    )
    assert 1 <= len(reads) <= 300 // 64 + 2
    assert len(events_of(tmp_path / "run", "incident")) <= len(reads)
    # what an update took in that is not finite is said once in 200 steps
    assert len(said) <= len(reads) + 2 + 300 // 200 + 1


def test_skipped_updates_are_one_action_for_each_run_of_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said, guard = train(run, lambda step: step in (20, 40, 41), mode="act")
    rows = {row["step"]: row for row in rows_of(run)}
    assert [s for s, row in rows.items() if row["skipped"]] == [20, 40, 41]
    told = [(a["step"], a["remedy"], a["values"]) for a in guard.actions]
    # 42 samples in batches of 4: step 20 is the ninth batch of the second epoch
    assert told == [
        (20, "skip-update", {"samples": [74, 77], "num": 1}),
        (40, "skip-update", {"samples": [150, 157], "num": 2}),
    ]
    journalled = [e.data for e in events_of(run, "action")]
    assert [(d["remedy"], d["values"]) for d in journalled] == [t[1:] for t in told]
    assert [line for line in said if "update skipped" in line] == [
        "step     20  loss is nan: update skipped (samples 74-77)",
        "step     40  loss is nan: update skipped (samples 150-153)",
    ]
    number = len([e for e in events_of(run, "incident") if e.data["state"] == "open"])
    counted = f"0 incidents, {number} more told on the way (settled, or notes)"
    assert said[-1] == f"60 steps done, {counted}, 2 actions; trimtab report {run}"


@pytest.mark.slow
def test_advice_is_in_words_and_comes_again_while_it_lasts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    said, _ = train(run, lambda step: step >= 40, steps=460, mode="advise")
    (decision,) = [e for e in events_of(run, "decision") if e.data["what"] == "advise"]
    lines = [line.partition("advice: ")[2] for line in said if line.startswith(" " * 13 + "advice")]
    assert 1 <= len(lines) <= 3
    assert decision.data["why"] == "; ".join(lines)
    assert not any(mark in line for line in lines for mark in "{}'")
    again = [line for line in said if "still open: " in line]
    assert len(again) == 2
    assert str(events_of(run, "incident")[0].data["headline"]) in again[0]


def test_a_resume_says_so_and_its_events_carry_the_new_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(
        s, run, steps=40, policy=Policy(checkpoint_every_steps=10, checkpoint_in_background=False)
    )
    train_guarded(s, guard, until=25)
    guard.close()
    said, _ = train(run, lambda _: False, steps=40)
    assert said[0] == "resumed at step 20 from step-00000020 (attempt 1.1)"
    assert [e.attempt for e in events_of(run, "resume")] == ["1.1"]
    before = events_of(run)
    said, _ = train(run, lambda _: False, steps=40)
    assert said == ["nothing left to do: 40 of 40 steps done"]
    assert events_of(run) == before
    assert sorted(p.stem for p in (run / "signals").glob("*.jsonl")) == ["1.0", "1.1"]


def test_other_data_at_resume_is_noted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make()
    train_guarded(s, guard_of(s, run, steps=12))
    said: list[str] = []
    guard_of(make(batch_size=6), run, steps=20, say=said.append).close()
    (note,) = events_of(run, "note")
    assert note.attempt == "1.1"
    assert "42 samples in batches of 4, now it is 42 samples in batches of 6" in note.data["text"]
    assert said[0] == note.data["text"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", ["between steps", "within a step"])
def test_an_interrupted_run_is_saved_and_goes_on_bit_for_bit(
    tmp_path: Path, at: str, number: signal.Signals
) -> None:
    plain = make()
    expected = train_plain(plain, 60)
    run, s, losses, said = tmp_path / "run", make(), list[float](), list[str]()

    def loop(s: Setup, guard: Guard, stop: int | None) -> None:
        for batch in guard:
            loss = s.loss(batch)
            if at == "within a step" and guard.step_number + 1 == stop:
                signal.raise_signal(number)
            guard.backward(loss)
            losses.append(float(loss.detach()))
            guard.step()
            if at == "between steps" and guard.step_number == stop:
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as stopped:
        loop(s, guard_of(s, run, steps=60, say=said.append), 37)
    assert number == signal.SIGINT or stopped.value.code == 143  # type: ignore[attr-defined]
    assert len(losses) == 37
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    assert (verdict["state"], verdict["restart"], verdict["resume_step"]) == (
        "interrupted",
        True,
        37,
    )
    assert events_of(run, "end")[0].data["reason"] == "interrupted"
    assert said[-1] == "interrupted at step 37; the same script goes on from step 37"
    again = make()
    loop(again, guard_of(again, run, steps=60), None)
    assert losses == expected
    assert differences(state_of(plain), state_of(again)) == []
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    assert (verdict["state"], verdict["restart"], verdict["step"]) == ("done", False, 60)


def test_a_second_interrupt_stops_at_once_and_saves_no_half_step(tmp_path: Path) -> None:
    s = make()
    reached: list[bool] = []

    def press_twice(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_guarded(s, guard_of(s, tmp_path / "run", steps=9), on_batch=press_twice)
    assert reached == [True]
    assert events_of(tmp_path / "run", "checkpoint", "fault") == []
    assert len(events_of(tmp_path / "run", "end")) == 1


def test_a_fault_in_the_last_save_does_not_hide_the_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=9)

    def broken(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(inner(guard).parts.points, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        train_guarded(
            s,
            guard,
            on_batch=lambda g, _: (
                signal.raise_signal(signal.SIGINT) if g.step_number == 3 else None
            ),
        )
    assert len(events_of(tmp_path / "run", "fault")) == 1
    assert events_of(tmp_path / "run", "end")[0].data["reason"] == "interrupted"


def test_a_jump_of_the_rate_is_told_at_its_step_and_journalled(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    s = make()
    guard = guard_of(s, run, steps=40, mode="act", say=said.append)
    guard.override_lr(lambda step: 1e-3 if step < 30 else 2e-2, why="a planted jump")
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    told = "learning rate 0.001 \u2192 0.02 in one row (x20)"
    assert [line for line in said if told in line] == [f"step     30  {told}"]
    assert [(e.step, e.data["text"]) for e in events_of(run, "note") if told in e.data["text"]] == [
        (30, told)
    ]


def test_a_restart_of_the_schedule_is_journalled_and_no_alarm(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    s = make()
    guard = guard_of(s, run, steps=70, mode="act", say=said.append)
    guard.override_lr(lambda step: 1e-3 * (1 - (step % 30) / 31), why="warm restarts")
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    assert not [line for line in said if "in one row" in line]
    assert [e.step for e in events_of(run, "note") if "in one row" in e.data["text"]] == [30]


def test_what_only_the_whole_run_shows_is_said_before_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift = Incident(
        kind="slowdown",
        attempt="1.0",
        severity="warning",
        onset_row=5,
        onset=5,
        peak_row=9,
        peak=9,
        signals=("step_time_s",),
        headline="steps became slower",
        confidence=0.9,
    )
    whole = SimpleNamespace(
        verdict="incident", incidents=[SimpleNamespace(is_open_alarm=True, incident=drift)]
    )
    monkeypatch.setattr(run_status, "make_account", lambda *_, **__: whole)
    said = list[str]()
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=40, say=said.append))
    assert said[-2].endswith("seen now that the whole run is judged: steps became slower")
    assert "40 steps done, 1 incident (warning: slowdown since step 5)," in said[-1]


def test_the_last_line_counts_what_the_verdict_names_and_the_others_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rise = Incident(
        kind="unrecovered-spike",
        attempt="1.0",
        severity="critical",
        onset_row=49,
        onset=50,
        peak_row=49,
        peak=50,
        signals=("loss",),
        headline="loss spike that did not recover",
        confidence=0.9,
    )
    whole = SimpleNamespace(
        verdict="incident", incidents=[SimpleNamespace(is_open_alarm=True, incident=rise)]
    )
    monkeypatch.setattr(run_status, "make_account", lambda *_, **__: whole)
    run = tmp_path / "run"
    said, _ = train(run, lambda step: step in (20, 40), mode="act")
    verdict = json.loads((run / "verdict.json").read_text())
    assert len(verdict["incidents"]) == 1
    told = len([e for e in events_of(run, "incident") if e.data["state"] == "open"]) - 1
    gravest = "critical: unrecovered spike since step 50, left alone"
    assert f" done, 1 incident ({gravest}), {told} more told on the way (" in said[-1]
    assert told > 0


def test_an_update_that_was_left_out_is_dealt_with_in_every_reading(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    s = make()
    guard = guard_of(s, run, steps=30, mode="act", say=said.append)
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number + 1 == 20:
            gradient = next(s.model.parameters()).grad
            assert gradient is not None
            gradient.view(-1)[0] = math.nan
        guard.step()
    assert [line for line in said if line.startswith("step     20")] == [
        "step     20  the gradient's norm is nan, in the gradient of embedding.weight: "
        "update skipped (samples 74-77)"
    ]
    account = make_account(read_run_directory(run), events=events_of(run))
    assert resolved(account) == frozenset({0})
    # no alarm is open, and so few steps were judged by nothing
    assert (account.verdict, standing(account)) == ("not-judged", "unknown")
    text = terminal_text(account, width=180)
    assert "○ not judged" in text
    assert "dealt with:" in text
    assert "update of step 20 skipped (samples 74-77)" in text
    assert "leave the faulty node out" not in text + cards_html(account)
