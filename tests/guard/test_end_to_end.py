"""Planted faults from the first sign to the verdict, and faults that nothing cures."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from tests.guard import small_lab
from tests.guard.inner import inner, silence_store
from tests.guard.small_lab import SOUND, STEPS, Outcome, bad_data, bad_lr, guarded, plain
from tests.guard.tiny import events_of, rows_of
from trimtab.checkpoints.manifest import list_checkpoints, verify
from trimtab.detectors.judge import judge_record
from trimtab.guard import Guard
from trimtab.lab.text import Text
from trimtab.lab.train import Parts, build, evaluate
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory

pytestmark = pytest.mark.torch

DATA_FAULT = bad_data(240, 12)
LR_FAULT = bad_lr(200, 30.0)


@pytest.fixture(scope="module")
def text() -> Text:
    return small_lab.make_text()


@pytest.fixture(scope="module")
def sound(text: Text) -> tuple[list[float], float]:
    return plain(SOUND, text)


def assert_same_verdict(run: Path) -> None:
    live = [
        (e.data["kind"], e.data["onset"], e.data["row"], e.data["severity"], e.data["text"])
        for e in events_of(run, "finding")
    ]
    offline = judge_record(read_run_directory(run))
    assert live == [(f.kind, f.onset, f.row, f.severity, f.text) for f in offline]


def guard_in(caught: pytest.ExceptionInfo[BaseException]) -> Guard:
    """The guard of a loop that was left by an exception."""
    guard = next(f.frame for f in caught.traceback if f.name == "guarded").f_locals["guard"]
    assert isinstance(guard, Guard)
    return guard


def assert_in_order(run: Path, *names: str) -> None:
    """The events of these kinds appear in this order, others between them."""
    rest = iter(events_of(run))
    for name in names:
        assert any(e.event == name for e in rest), f"no {name} in its place"


@pytest.mark.slow
def test_a_healthy_run_is_left_alone_bit_for_bit(
    tmp_path: Path, text: Text, sound: tuple[list[float], float]
) -> None:
    o = guarded(SOUND, text, tmp_path / "run")
    assert o.losses == sound[0]
    assert o.validation == sound[1]
    assert o.guard.wasted_steps == 0.0
    assert_same_verdict(tmp_path / "run")


@pytest.mark.slow
def test_bad_data_is_left_out_and_the_rate_kept(
    tmp_path: Path, text: Text, sound: tuple[list[float], float]
) -> None:
    run = tmp_path / "run"
    o = guarded(DATA_FAULT, text, run)
    assert o.validation == pytest.approx(sound[1], rel=0.01)
    assert o.guard.step_number == STEPS
    (action,) = o.guard.actions
    assert action["remedy"] == "roll-back+skip-data"
    assert o.guard.lr_factor == 1.0
    values = events_of(run, "action")[0].data["values"]
    assert (values["skip_samples"], values["num_samples"]) == ([1912, 2007], 96)
    assert o.guard.skipped_samples == ((1912, 2007),)  # the 12 batches from step 240, no other
    kept = max(i for i, (*_, phase) in enumerate(o.fed) if phase == "probe") + 1
    assert not [f for f in o.fed[kept:] if f[0] <= 2007 and f[1] >= 1912]
    assert_in_order(run, "finding", "incident", "decision", "action", "outcome", "end")
    assert events_of(run, "fault") == []
    attempts = [
        (e.data["number"], e.data["parent"], e.data["parent_step"])
        for e in events_of(run, "attempt")
    ]
    assert attempts == [("1.0", None, None), ("1.1", "1.0", 230)]
    assert 0 < o.guard.wasted_steps < 0.15
    assert_same_verdict(run)


@pytest.mark.slow
def test_a_wrong_rate_is_cut_before_any_data_is_left_out(
    tmp_path: Path, text: Text, sound: tuple[list[float], float]
) -> None:
    run = tmp_path / "run"
    o = guarded(LR_FAULT, text, run)
    unguarded = plain(LR_FAULT, text)[1]
    assert (unguarded - o.validation) / (unguarded - sound[1]) >= 0.9
    (action,) = o.guard.actions
    assert action["remedy"] == "roll-back+lower-lr"
    assert o.guard.lr_factor == pytest.approx(1 / 30, rel=0.2)
    trials = [e.data["why"] for e in events_of(run, "attempt") if e.data["trial"]]
    assert [("samples" in t, "LR" in t) for t in trials] == [(False, True)]
    assert o.guard.skipped_samples == ()
    numbers = [e.data["number"] for e in events_of(run, "attempt")]
    assert numbers == ["1.0", "1.1"]
    assert {e.data["parent_step"] for e in events_of(run, "attempt")} == {None, 190}
    (verdict,) = [e.data["verdict"] for e in events_of(run, "outcome") if not e.data.get("trial")]
    assert verdict == "worked"
    assert events_of(run, "fault") == []
    assert_same_verdict(run)
    last = rows_of(run, "1.1")[-1]
    assert last["step"] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-2.0, -4.0])
def test_guard_recovers_a_run_whose_loss_lies_below_zero(
    tmp_path: Path, text: Text, sound: tuple[list[float], float], shift: float
) -> None:
    for name, scenario, remedy in (
        ("data", DATA_FAULT, "roll-back+skip-data"),
        ("lr", LR_FAULT, "roll-back+lower-lr"),
    ):
        run = tmp_path / name
        o = guarded(scenario, text, run, spoil=lambda _, loss: loss + shift)
        assert [a["remedy"] for a in o.guard.actions] == [remedy]
        if name == "data":
            assert o.validation == pytest.approx(sound[1], rel=0.01)
            assert o.guard.skipped_samples == ((1912, 2007),)
        (verdict,) = [
            e.data["verdict"] for e in events_of(run, "outcome") if not e.data.get("trial")
        ]
        assert verdict == "worked"


@pytest.mark.slow
@pytest.mark.covers("S99")
def test_checkpoints_after_the_onset_are_moved_aside_and_the_one_before_is_pinned(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"
    o = guarded(LR_FAULT, text, run, checkpoint_every_steps=9)
    moved = sorted(p.name for p in (run / "aside").iterdir())
    assert moved == ["step-00000198"]
    assert [verify(run / "aside" / name) for name in moved] == [""] * len(moved)
    told = {
        e.data["path"]: e.data["grade"]
        for e in events_of(run, "checkpoint")
        if "aside" in str(e.data["path"])
    }
    assert told == {"aside/step-00000198": "suspect"}
    assert [c.step for c in list_checkpoints(run / "checkpoints") if c.pinned] == [189]
    # the newest state before the first sign at 200, not before the detection at 209
    detected = next(e for e in events_of(run, "decision") if "go back" in e.data["what"]).step
    assert detected > 205
    assert events_of(run, "attempt")[1].data["parent_step"] == 190
    assert o.guard.step_number == STEPS


@pytest.mark.slow
def test_what_was_saved_between_onset_and_detection_is_poisoned_and_kept(
    tmp_path: Path, text: Text
) -> None:
    o = guarded(SOUND, text, tmp_path / "run", checkpoints_kept=50)
    guard = o.guard
    silence_store(guard)
    inner(guard).engine.store.set_aside_after(120, first_sign=240, now=300, why="a test")
    aside = {c.step: c.grade for c in list_checkpoints(tmp_path / "run" / "aside")}
    assert aside == {180: "suspect", 240: "poisoned", 300: "poisoned", 360: "poisoned"}
    left = [(c.step, c.grade, c.pinned) for c in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert left == [(60, "healthy", False), (120, "healthy", True)]


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_trial_resumes_before_the_trouble(
    tmp_path: Path, text: Text, sound: tuple[list[float], float]
) -> None:
    run = tmp_path / "run"

    class KilledError(Exception):
        pass

    def kill(guard: Guard, loss: Tensor) -> Tensor:
        if guard.phase == "trial" and guard.step_number == 240:
            raise KilledError
        return loss

    with pytest.raises(KilledError) as caught:
        guarded(DATA_FAULT, text, run, spoil=kill, checkpoint_every_steps=20)
    guard_in(caught).close()
    assert [c.step for c in list_checkpoints(run / "checkpoints")][-1] <= 230
    o = guarded(DATA_FAULT, text, run, checkpoint_every_steps=20)
    assert o.guard.step_number == STEPS
    assert o.guard.skipped_samples == ((1912, 2007),)
    assert o.validation == pytest.approx(sound[1], rel=0.01)
    assert_same_verdict(run)


@pytest.mark.slow
def test_skipped_data_and_the_cut_rate_survive_a_restart_after_a_recovery(
    tmp_path: Path, text: Text
) -> None:
    for name, scenario in (("data", DATA_FAULT), ("lr", LR_FAULT)):
        run = tmp_path / name

        def stop(guard: Guard, loss: Tensor) -> Tensor:
            if guard.actions and guard.step_number == 290:
                raise InterruptedError
            return loss

        with pytest.raises(InterruptedError) as caught:
            guarded(scenario, text, run, spoil=stop)
        first = guard_in(caught)
        first.close()
        o = guarded(scenario, text, run)
        assert o.guard.skipped_samples == first.skipped_samples
        assert o.guard.lr_factor == first.lr_factor
        assert o.guard.actions == ()
        assert not [f for f in o.fed for a, b in o.guard.skipped_samples if f[0] <= b and f[1] >= a]
        assert o.guard.step_number == STEPS
        assert_same_verdict(run)


@pytest.mark.slow
def test_advise_changes_nothing_and_says_what_it_would_do(tmp_path: Path, text: Text) -> None:
    o = guarded(DATA_FAULT, text, tmp_path / "run", mode="advise")
    losses, validation = plain(DATA_FAULT, text)
    assert o.losses == losses
    assert o.validation == validation
    advice = [e for e in events_of(tmp_path / "run", "decision") if e.data["what"] == "advise"]
    assert advice
    assert events_of(tmp_path / "run", "action", "fault") == []
    assert_same_verdict(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.covers("S115")
def test_the_rate_is_cut_once_with_its_reason_and_then_it_cools_down(
    tmp_path: Path, text: Text
) -> None:
    """A rate thirty times too high, and soon after it was cut a window of bad data."""
    run = tmp_path / "run"
    faults = dataclasses.replace(LR_FAULT, corruption=bad_data(262, 12).corruption)
    o = guarded(faults, text, run)
    (action,) = events_of(run, "action")
    assert action.data["remedy"] == "roll-back+lower-lr"
    assert "LR back to" in action.data["why"]
    assert o.guard.lr_factor == pytest.approx(1 / 30, rel=0.2)
    waits = [
        (e.step, str(e.data["why"]))
        for e in events_of(run, "decision")
        if "cool-down" in str(e.data["why"])
    ]
    over = action.step + Policy().cooldown_steps
    assert waits
    assert all(action.step < step < over and f"until step {over}" in why for step, why in waits)


@pytest.mark.slow
@pytest.mark.covers("S129")
def test_after_an_alarm_checkpoints_are_closer_until_all_is_calm(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"
    guarded(DATA_FAULT, text, run, checkpoint_every_steps_unsettled=10, checkpoints_kept=99)
    saved = [e.step for e in events_of(run, "checkpoint")]
    acted = events_of(run, "action")[0].step
    calm = [e.step for e in events_of(run, "outcome") if not e.data.get("trial")][-1]
    before = [step for step in saved if step < 240]
    unsettled = [step for step in saved if acted < step < calm]
    after = [step for step in saved if step > calm]
    assert before == [60, 120, 180]
    assert unsettled == list(range(10 * (acted // 10 + 1), calm, 10))
    assert after == [step for step in range(60, STEPS + 1, 60) if step > calm]


@pytest.mark.slow
def test_no_rollback_allowed_means_none_is_begun(tmp_path: Path, text: Text) -> None:
    o = guarded(DATA_FAULT, text, tmp_path / "run", max_rollbacks=0)
    losses, validation = plain(DATA_FAULT, text)
    assert o.losses == losses
    assert o.validation == validation
    (reason,) = [
        e.data["why"]
        for e in events_of(tmp_path / "run", "decision")
        if e.data["what"] == "stop acting"
    ]
    assert reason == "0 rollbacks so far, the policy allows 0"
    assert len(events_of(tmp_path / "run", "attempt")) == 1


@pytest.mark.slow
def test_a_run_that_nothing_helps_is_stopped_where_the_policy_says_so(
    tmp_path: Path, text: Text
) -> None:
    with pytest.raises(SystemExit) as stopped:
        guarded(DATA_FAULT, text, tmp_path / "run", max_rollbacks=0, on_give_up="stop")
    assert stopped.value.code == 3
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text(encoding="utf-8"))
    assert (verdict["state"], verdict["restart"]) == ("given-up", False)
    assert verdict["reason"] == "0 rollbacks so far, the policy allows 0"
    assert verdict["resume_step"] < DATA_FAULT.fault_step


def nan_from(step: int) -> Callable[[Guard, Tensor], Tensor]:
    return lambda guard, loss: loss * math.nan if guard.step_number + 1 >= step else loss


def assert_gave_up(o: Outcome, run: Path, *, wasted: float) -> None:
    assert o.guard.step_number == STEPS
    reasons = [e.data["why"] for e in events_of(run, "decision") if e.data["what"] == "stop acting"]
    assert len(reasons) == 1
    assert reasons[0]
    assert o.guard.wasted_steps <= wasted
    assert events_of(run, "fault") == []
    assert events_of(run, "end")[-1].data["final_step"] == STEPS
    assert_same_verdict(run)


def assert_ended(spoil: Callable[[Guard, Tensor], Tensor], text: Text, run: Path) -> None:
    """Nothing helps against what is never finite again: exit 3, and what is kept is healthy."""
    parts = list[Parts]()
    with pytest.raises(SystemExit) as ended:
        guarded(SOUND, text, run, spoil=spoil, prepare=parts.append)
    assert ended.value.code == 3
    assert all(bool(p.isfinite().all()) for p in parts[0].model.parameters())
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["state"], verdict["restart"]) == ("given-up", False)
    assert events_of(run, "incident")
    assert events_of(run, "fault") == []
    assert_same_verdict(run)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 30, 200])
def test_nan_without_end_ends_the_process_and_keeps_what_is_healthy(
    tmp_path: Path, text: Text, step: int
) -> None:
    assert_ended(nan_from(step), text, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("step", [STEPS - 4, STEPS])
def test_nan_from_one_of_the_last_steps_on_ends_with_finite_weights(
    tmp_path: Path, text: Text, step: int
) -> None:
    o = guarded(SOUND, text, tmp_path / "run", spoil=nan_from(step))
    assert_gave_up(o, tmp_path / "run", wasted=0.75)
    assert all(bool(p.isfinite().all()) for p in o.parts.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 30, 200])
def test_a_gradient_that_is_never_finite_again_is_an_incident_and_given_up(
    tmp_path: Path, text: Text, step: int
) -> None:
    def nan_gradient(guard: Guard, loss: Tensor) -> Tensor:
        if guard.step_number + 1 >= step:
            loss.register_hook(lambda g: g * math.nan)  # type: ignore[no-untyped-call]
        return loss

    assert_ended(nan_gradient, text, tmp_path / "run")


@pytest.mark.slow
def test_gradients_that_are_nan_for_a_while_are_gone_back_before(
    tmp_path: Path, text: Text
) -> None:
    """A fault that does not come back in the replay: the updates left out are made up for."""
    seen: set[int] = set()

    def once(guard: Guard, loss: Tensor) -> Tensor:
        number = len(seen)
        if 200 <= guard.step_number + 1 < 212 and guard.phase == "calm" and number < 12:
            seen.add(guard.step_number)
            loss.register_hook(lambda g: g * math.nan)  # type: ignore[no-untyped-call]
        return loss

    o = guarded(SOUND, text, tmp_path / "run", spoil=once)
    assert [a["remedy"] for a in o.guard.actions][-1].startswith("roll-back")  # type: ignore[attr-defined]
    rows = [
        r
        for e in events_of(tmp_path / "run", "attempt")
        for r in rows_of(tmp_path / "run", e.attempt)
    ]
    assert rows[-1]["step"] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.3, 0.6])
def test_a_rate_that_nothing_cures_is_given_up_within_the_budget(
    tmp_path: Path, text: Text, budget: float
) -> None:
    scenario = bad_lr(200, 3000.0)
    o = guarded(scenario, text, tmp_path / "run", lr_jump_ratio=1e6, max_wasted_share=budget)
    assert_gave_up(o, tmp_path / "run", wasted=budget + 0.1)
    trials = [e for e in events_of(tmp_path / "run", "attempt") if e.data["trial"]]
    assert 2 <= len(trials) <= 40
    assert o.guard.lr_factor == 1.0
    assert o.guard.skipped_samples == ()


@pytest.mark.slow
def test_data_that_is_bad_to_the_end_is_given_up(tmp_path: Path, text: Text) -> None:
    o = guarded(bad_data(240, 480), text, tmp_path / "run")
    assert_gave_up(o, tmp_path / "run", wasted=0.65)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(STEPS - 12, marks=pytest.mark.slow),
        STEPS - 5,
        pytest.param(STEPS - 1, marks=pytest.mark.slow),
    ],
)
def test_trouble_in_the_last_steps_is_dealt_with_and_the_run_ends_on_its_step(
    tmp_path: Path, text: Text, first: int, sound: tuple[list[float], float]
) -> None:
    run = tmp_path / "run"
    o = guarded(bad_data(first, 20), text, run)
    assert o.guard.step_number == STEPS
    assert (
        max(row["step"] for e in events_of(run, "attempt") for row in rows_of(run, e.attempt))
        == STEPS
    )
    assert o.validation == pytest.approx(sound[1], rel=0.01)
    assert [a["remedy"] for a in o.guard.actions] == ["roll-back+skip-data"]
    last = [e for e in events_of(run, "outcome") if not e.data.get("trial")][-1]
    assert last.data["verdict"] == "unclear"  # the run ended before it could be told
    assert_same_verdict(run)


@pytest.mark.slow
def test_a_scheduler_that_ends_with_the_run_is_never_stepped_past_it(
    tmp_path: Path, text: Text
) -> None:
    from torch.optim.lr_scheduler import OneCycleLR

    from trimtab.lab.model import next_token_loss
    from trimtab.plan.policy import Policy

    parts = build(bad_data(STEPS - 10, 8), 0, text)
    scheduler = OneCycleLR(parts.optimizer, max_lr=4e-3, total_steps=STEPS + 1)
    guard = Guard(
        parts.model,
        parts.optimizer,
        data=parts.loader,
        scheduler=scheduler,
        clip=1.0,
        steps=STEPS,
        run=tmp_path / "run",
        mode="act",
        policy=Policy(snapshot_every_steps=10),
        say=lambda _line: None,
    )
    for batch in guard:
        guard.backward(next_token_loss(parts.model, batch["tokens"]))
        guard.step()
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    assert events_of(tmp_path / "run", "fault") == []
    assert scheduler.last_epoch == STEPS
    assert math.isfinite(evaluate(parts.model, text, max_bytes=8 * 1024))


@pytest.mark.slow
def test_after_a_restart_it_goes_back_to_a_checkpoint_on_disk(tmp_path: Path, text: Text) -> None:
    run = tmp_path / "run"

    def stop(guard: Guard, loss: Tensor) -> Tensor:
        if guard.step_number == 243:
            raise InterruptedError
        return loss

    with pytest.raises(InterruptedError) as caught:
        guarded(DATA_FAULT, text, run, spoil=stop, checkpoint_every_steps=30)
    first = guard_in(caught)
    first.close()
    scenario = dataclasses.replace(DATA_FAULT)
    o = guarded(scenario, text, run, checkpoint_every_steps=30, rollback_margin_steps=35)
    assert events_of(run, "resume")[0].step == 240 or events_of(run, "resume")[0].step == 210
    assert [a["remedy"] for a in o.guard.actions] == ["roll-back+skip-data"]
    trial = next(e for e in events_of(run, "attempt") if e.data["trial"])
    assert trial.data["parent"] == "1.0"
    assert trial.data["parent_step"] == 180
    assert o.guard.step_number == STEPS
    assert_same_verdict(run)
