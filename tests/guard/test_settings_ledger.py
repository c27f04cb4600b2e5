"""Settings that change: written down, suspected, put back; and changes that are announced."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.guard.inner import inner
from tests.guard.tiny import SHORT_TRIALS, Setup, events_of, guard_of, make, rows_of
from trimtab import analyze
from trimtab.detectors.judge import judge_record
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.recovery.branch import put_in_force, take_back, what_is_in_force
from trimtab.guard.settings.ledger import SettingsLedger
from trimtab.guard.settings.reader import SettingsReader
from trimtab.guard.state.training_state import Training
from trimtab.plan.expected import ExpectedChanges
from trimtab.plan.policy import Mode
from trimtab.plan.trials import Trial
from trimtab.readers import read_run

pytestmark = pytest.mark.torch

STEPS = 130
CHANGE = 70


def train(
    run: Path, change: Any, *, mode: Mode = "act", prepare: Any = None, **given: Any
) -> tuple[Guard, Setup]:
    """Train the tiny model; `change` is made before step CHANGE whenever that step comes."""
    s = make(num_samples=4 * STEPS, dropout=0.0)
    guard = guard_of(s, run, mode=mode, steps=STEPS, policy=SHORT_TRIALS, **given)
    if prepare is not None:
        prepare(guard)
    for batch in guard:
        if guard.step_number + 1 == CHANGE and guard.phase != "probe":
            change(s)
        guard.backward(s.loss(batch))
        guard.step()
    return guard, s


def drop_most(s: Setup) -> None:
    s.model.dropout.p = 0.98


def changes(run: Path) -> list[str]:
    return [str(e.data["setting"]) for e in events_of(run, "setting-changed")]


@pytest.mark.slow
def test_a_setting_that_ruins_the_run_is_named_and_put_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, s = train(run, drop_most)
    assert set(changes(run)) == {"Dropout.p"}
    kept = [a for a in guard.actions if "put-back" in str(a["remedy"])]
    assert kept, [str(e.data) for e in events_of(run, "outcome", "decision")]
    explained = [e for e in events_of(run, "incident") if e.data["state"] == "explained"]
    assert explained[0].data["causes"][0]["cause"] == "setting-changed"
    assert s.model.dropout.p == 0.0
    assert guard.step_number == STEPS


def test_what_is_held_is_in_force_in_the_forward_pass_whatever_the_loop_sets(
    tmp_path: Path,
) -> None:
    s, seen = make(dropout=0.0), list[float]()
    s.model.dropout.register_forward_pre_hook(lambda m, _: seen.append(m.p))
    guard = guard_of(s, tmp_path / "run", mode="act", steps=8, policy=SHORT_TRIALS)
    for batch in guard:
        if guard.step_number == 2:
            inner(guard).engine.hold_settings({"Dropout.p": (0.0,)})
        if guard.step_number == 5:
            inner(guard).engine.release_settings({"Dropout.p": ()})
        s.model.dropout.p = 0.5
        guard.backward(s.loss(batch))
        guard.step()
    assert seen == [0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5]


@pytest.mark.slow
def test_what_is_put_back_can_be_taken_back_and_outlives_a_restart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, _ = train(run, drop_most)
    assert [a for a in guard.actions if "put-back" in str(a["remedy"])]
    again = make(num_samples=4 * STEPS, dropout=0.98)  # the launch sets it anew
    more = guard_of(again, run, mode="act", steps=STEPS + 4, policy=SHORT_TRIALS)
    assert again.model.dropout.p == 0.0
    told = more.undo("put-back", why="wanted")
    assert "no longer hold Dropout.p" in told
    again.model.dropout.p = 0.05
    for batch in more:
        more.backward(again.loss(batch))
        more.step()
    assert again.model.dropout.p == 0.05


@pytest.mark.slow
def test_schedules_and_changes_by_hand_are_no_unannounced_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make(num_samples=4 * STEPS, schedule="onecycle")  # moves rate and beta1 in each step
    guard = guard_of(s, run, mode="act", steps=60, policy=SHORT_TRIALS)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        if guard.step_number == 30:
            guard.set_optimizer(weight_decay=0.3, why="a test")
    assert changes(run) == []
    assert rows_of(run)[0]["dropout"] == 0.1
    assert not [r for r in rows_of(run) if r.get("unannounced_changes")]


def test_live_and_from_files_the_same_change_is_found(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def change(s: Setup) -> None:
        s.model.eval()
        s.model.embedding.weight.requires_grad_(False)

    train(run, change, mode="observe")
    assert set(changes(run)) >= {"Dropout.training", "requires_grad"}
    live = {
        (str(e.data["signal"]), e.step - 1)
        for e in events_of(run, "finding")
        if "not announced" in str(e.data["text"])
    }
    assert live == {("trainable_parameters", CHANGE - 1), ("eval_modules", CHANGE - 1)}
    found = judge_record(read_run(run))
    assert live == {(f.signal, f.onset_row) for f in found if f.detector == "unannounced-change"}


def test_parameters_that_are_set_free_are_written_down_and_not_suspected(tmp_path: Path) -> None:
    s, run = make(), tmp_path / "run"
    s.model.embedding.weight.requires_grad_(False)
    guard = guard_of(s, run, mode="act", steps=12, policy=SHORT_TRIALS)
    for batch in guard:
        if guard.step_number == 6:
            s.model.embedding.weight.requires_grad_(True)
        guard.backward(s.loss(batch))
        guard.step()
    assert changes(run) == ["requires_grad"]
    assert not [r for r in rows_of(run) if r.get("unannounced_changes")]


@pytest.mark.slow
def test_an_announced_change_is_written_down_and_not_acted_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, s = train(
        run, drop_most, prepare=lambda g: g.expect("dropout", from_step=CHANGE, why="planned")
    )
    assert not guard.actions
    assert s.model.dropout.p == 0.98
    assert [e.data["announced"] for e in events_of(run, "setting-changed")] == ["dropout"]
    assert [e.data["what"] for e in events_of(run, "expected")] == ["dropout"]
    assert not events_of(run, "incident")
    assert events_of(run, "dismiss")
    assert analyze(run).verdict == "healthy"


@pytest.mark.slow
def test_values_that_are_not_finite_are_acted_on_whatever_was_announced(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def poison(s: Setup) -> None:
        if not done:
            done.append(1)
            with torch.no_grad():
                s.model.output.weight.fill_(torch.nan)

    done: list[int] = []
    guard, _ = train(run, poison, prepare=lambda g: g.expect("curriculum", from_step=CHANGE - 5))
    assert any("roll-back" in str(a["remedy"]) for a in guard.actions)


def test_an_announcement_that_means_nothing_is_refused(tmp_path: Path) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=4)
    with pytest.raises(ConfigError, match="did you mean 'unfreezing'"):
        guard.expect("unfreeze")
    with pytest.raises(ConfigError, match="expected 1 <= from_step <= until"):
        guard.expect("dropout", from_step=9, until=3)
    guard.close()


@pytest.mark.parametrize(
    ("make_optimizer", "clip", "norm", "told"),
    [
        (torch.optim.SGD, None, 50.0, False),
        (torch.optim.SGD, None, 1.1, True),
        (torch.optim.SGD, 1.5, 50.0, True),
        (torch.optim.AdamW, None, 50.0, True),
    ],
)
def test_a_gradient_that_is_not_clipped_may_write_a_matrix_anew(
    make_optimizer: Any, clip: float | None, norm: float, told: bool
) -> None:
    model = nn.Linear(4, 4)
    training = Training(model, make_optimizer(model.parameters(), lr=0.1), None, None, {})
    ledger = SettingsLedger(SettingsReader(training, clip=lambda: clip), ExpectedChanges())
    for step in range(1, 42):
        ledger.before_update(step)
        row = {"loss": 1.0, "grad_norm": norm if step == 37 else 1.0 + 0.01 * (step % 3)}
        if step % 10 == 1:
            row["weight_jump"] = 3.7 if step == 41 else 1.0
        told_of = [c.name for c in ledger.add_to(row, step)]
        ledger.after_update()
        assert told_of == (["weights"] if told and step == 41 else [])
        assert ("weight_jump" in row) is (told and step == 41)


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_a_rate_that_jumps_within_a_schedule_may_write_a_matrix_anew(factor: float) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    training = Training(model, optimizer, None, None, {})
    ledger = SettingsLedger(SettingsReader(training, clip=lambda: None), ExpectedChanges())
    row: dict[str, float] = {}
    for step in range(1, 42):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.999**step * (factor if step >= 35 else 1.0)
        ledger.before_update(step)
        row = {"loss": 1.0, "grad_norm": 1.0}
        if step % 10 == 1:
            row["weight_jump"] = 3.7 if step == 41 else 1.0
        ledger.add_to(row, step)
        ledger.after_update()
    assert ("weight_jump" in row) is (factor == 1)


def test_a_fingerprint_costs_microseconds() -> None:
    layers = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.1)) for _ in range(40)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    reader = SettingsReader(Training(model, optimizer, None, None, {}), clip=lambda: 1.0)
    ledger = SettingsLedger(reader, ExpectedChanges())
    ledger.before_update(1)
    times = []
    for step in range(2, 402):
        begun = time.perf_counter()
        ledger.before_update(step)
        ledger.after_update()
        times.append(time.perf_counter() - begun)
    # 161 modules and 160 parameters; a step of such a model takes milliseconds
    assert sorted(times)[len(times) // 2] < 1e-3


@pytest.mark.parametrize("what", ["held", "seen"])
def test_settings_of_the_optimizer_are_known_after_a_restore(what: str) -> None:
    """`load_state_dict` puts other groups in place of those that were there."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    reader = SettingsReader(Training(model, optimizer, None, None, {}), clip=lambda: 1.0)
    ledger = SettingsLedger(reader, ExpectedChanges())
    ledger.before_update(1)
    optimizer.load_state_dict(optimizer.state_dict())
    ledger.went_back(1)
    if what == "held":
        ledger.put_back({"weight_decay": (0.01,)})
    optimizer.param_groups[0]["weight_decay"] = 10.0
    model(torch.ones(1, 2))
    found = [c.name for c in ledger.before_update(2)]
    assert optimizer.param_groups[0]["weight_decay"] == (0.01 if what == "held" else 10.0)
    assert found == ([] if what == "held" else ["weight_decay"])


def test_a_window_covers_a_reading_whose_onset_only_lies_before_it_as_readings_are_rare(
    tmp_path: Path,
) -> None:
    s = make(num_samples=4 * STEPS, dropout=0.0)
    announced = 66

    def score() -> dict[str, tuple[float, str]]:
        worse = announced <= guard.step_number + 1 < announced + 30
        return {"reward": (0.1 if worse else 0.9 + 0.001 * (guard.step_number % 3), "up")}

    policy = dataclasses.replace(SHORT_TRIALS, yardstick_share=1.0)
    guard = guard_of(s, tmp_path / "run", steps=100, mode="act", policy=policy, validate=score)
    guard.expect("data mix", from_step=announced, until=announced + 30, why="planned")
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    (dismissed,) = events_of(tmp_path / "run", "dismiss")
    assert dismissed.data["kind"] == "held-out-worse"
    assert dismissed.data["onset"] < announced  # the row after the last good reading
    assert not guard.actions
    assert not [e for e in events_of(tmp_path / "run", "attempt") if e.data["trial"]]


def test_another_batch_size_that_came_with_another_loader_is_announced(tmp_path: Path) -> None:
    said = list[str]()
    s = make(num_samples=200, dropout=0.0)
    guard = guard_of(s, tmp_path / "run", mode="observe", steps=50, say=said.append)
    for batch in guard:
        if guard.step_number == 30 and not guard.actions:
            wide = DataLoader(s.loader.dataset, batch_size=8, shuffle=True)
            guard.change_data(wide, why="wider")
        guard.backward(s.loss(batch))
        guard.step()
    told = list(events_of(tmp_path / "run", "setting-changed"))
    assert [e.data["announced"] for e in told if e.data["setting"] == "batch_size"] == [
        "change_data"
    ]
    assert [line for line in said if "not announced" in line] == []


@pytest.mark.parametrize("again", [True, False])
def test_rollback_brings_back_what_was_trained_and_set_and_makes_it_again_at_its_step(
    tmp_path: Path, again: bool
) -> None:
    s, seen, done = make(dropout=0.0), list[tuple[int, float, bool]](), set[int]()
    guard = guard_of(s, tmp_path / "run", mode="act", steps=24)
    for batch in guard:
        step = guard.step_number + 1
        if step == 14 and (again or step not in done):  # once only, as a callback would
            done.add(step)
            s.model.dropout.p = 0.25
            s.model.hidden.weight.requires_grad_(False)
        guard.backward(s.loss(batch))
        guard.step()
        seen.append((step, s.model.dropout.p, s.model.hidden.weight.requires_grad))
        if len(seen) == 16:
            guard.roll_back(8, why="test", confirm=True)
    after = {step: what for step, *what in seen[16:]}
    first = min(after)
    assert first < 12
    assert after[first] == [0.0, True]
    assert after[13] == [0.0, True]
    assert after[14] == [0.25, False]
    assert after[24] == [0.25, False]


def test_parameters_that_are_frozen_and_set_free_are_named(tmp_path: Path) -> None:
    s, said = make(num_samples=400), list[str]()
    s.model.output.weight.requires_grad_(False)
    guard = guard_of(s, tmp_path / "run", steps=60, policy=SHORT_TRIALS, say=said.append)
    for batch in guard:
        if guard.step_number == 40:
            s.model.output.weight.requires_grad_(True)
            s.model.hidden.weight.requires_grad_(False)
        guard.backward(s.loss(batch))
        guard.step()
    (told,) = [x for x in said if "requires_grad" in x and "not announced" in x][:1]
    assert "frozen: hidden.weight, set free: output.weight" in told


def test_what_a_trial_sets_is_not_the_scripts_doing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make(num_samples=4 * STEPS, dropout=0.0)
    guard = guard_of(s, run, mode="act", steps=STEPS, policy=SHORT_TRIALS)
    engine = inner(guard).engine
    trial = Trial(name="beta2 0.95", settings=(("beta2", 0.95),))
    before = what_is_in_force(engine)
    betas = []
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        betas.append(s.optimizer.param_groups[0]["betas"][1])
        if guard.step_number == 40:
            put_in_force(engine, trial, before)
        elif guard.step_number == 60:
            take_back(engine, trial, before)
    assert (betas[39], betas[40], betas[59], betas[60]) == (0.999, 0.95, 0.95, 0.999)
    assert not events_of(run, "setting-changed")
    guard.close()
