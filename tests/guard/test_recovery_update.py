"""Recovery as a function: replayed from recordings of real runs, and driven without a model."""

import ast
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.guard import small_lab
from tests.guard.inner import snapshots_of_recovery
from tests.guard.small_lab import bad_data, bad_lr, guarded
from trimtab.detectors.contract import Finding, Row
from trimtab.detectors.suspect_change import SuspectChangeDetector
from trimtab.guard.recovery import commands as c
from trimtab.guard.recovery import events as ev
from trimtab.guard.recovery import executor, notices, opening, trial_cycle
from trimtab.guard.recovery.case import Verification
from trimtab.guard.recovery.events import Event, IncidentInRecord, Standing, StepDone
from trimtab.guard.recovery.expectation import Expectation
from trimtab.guard.recovery.rough_start import wait_for_start
from trimtab.guard.recovery.state import LeftAlone, Phase, ReadingWanted, RecoveryState
from trimtab.guard.recovery.triage import find_incident, is_trouble
from trimtab.guard.recovery.update import update
from trimtab.guard.recovery.values import InForce, RestorePoint
from trimtab.guard.yardstick.reading import Reading
from trimtab.lab.scenarios import Scenario
from trimtab.plan.effects import Effect
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.plan.policy import Policy
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.plan.trials import SettingPutBack, Trial
from trimtab.record import RecordBuilder, RunRecord

pytestmark = pytest.mark.torch

SHORT: dict[str, Any] = {
    "trial_steps": 24,
    "patience_steps": 4,
    "healing_steps": 0,
    "max_wasted_share": 4.0,
    "verify_steps": 16,
    "cooldown_steps": 16,
}


# -- recorded from real runs ----------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """One call of `update` in a run."""

    before: RecoveryState
    events: tuple[Event, ...]
    after: RecoveryState
    commands: tuple[c.Command, ...]


def plain(value: object) -> object:
    """Return a value that compares as equal to its copy: NaN as text, sets in one order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare]
        return type(value).__name__, [(name, plain(x)) for name, x in named]
    if isinstance(value, Mapping):
        return [(plain(k), plain(x)) for k, x in value.items()]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    if isinstance(value, tuple | list):
        return [plain(x) for x in value]
    return repr(value)


SCENARIOS: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "bad data": (bad_data(120, 10), {"bisect": "always"}),
    "bad rate": (bad_lr(120, 30.0), {}),
    "bad to the end": (bad_data(120, 400), {"lr_factors": (0.5,), "max_rollbacks": 1}),
    "advise": (bad_data(120, 10), {"mode": "advise"}),
}


QUICK = ("bad data", "advise")


@pytest.fixture(
    scope="module",
    params=[s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in SCENARIOS],
)
def calls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    scenario, settings = SCENARIOS[request.param]
    made: list[Call] = []

    def recorded(
        state: RecoveryState, events: tuple[Event, ...]
    ) -> tuple[RecoveryState, tuple[c.Command, ...]]:
        given = plain((state, events))
        after, commands = update(state, events)
        assert plain((state, events)) == given, "update changed what it was given"
        made.append(Call(state, events, after, commands))
        return after, commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "update", recorded)
        run = tmp_path_factory.mktemp("recorded") / "run"
        scenario = dataclasses.replace(scenario, steps=190)
        guarded(scenario, small_lab.make_text(), run, **{**SHORT, **settings})
    return made


def test_update_replays_a_recorded_run_with_the_same_commands(calls: list[Call]) -> None:
    state = calls[0].before
    for call in calls:
        state, commands = update(state, call.events)
        assert plain(commands) == plain(call.commands)
    assert plain(state) == plain(calls[-1].after)
    assert len(calls) > 190


def test_update_gives_the_same_result_again_on_copies(calls: list[Call]) -> None:
    for call in calls[::7]:
        again = update(copy.deepcopy(call.before), copy.deepcopy(call.events))
        assert plain(again) == plain((call.after, call.commands))


def test_update_takes_several_events_as_one_by_one(calls: list[Call]) -> None:
    # without a question among them, as an answer must follow at once
    quiet = [i for i, call in enumerate(calls) if call.after.pending is None]
    first = next(i for i in quiet if i + 1 in quiet and calls[i].before.pending is None)
    pair = calls[first], calls[first + 1]
    together = update(pair[0].before, (*pair[0].events, *pair[1].events))
    assert plain(together) == plain((pair[1].after, (*pair[0].commands, *pair[1].commands)))


def test_update_asks_a_question_only_as_the_last_command(calls: list[Call]) -> None:
    for call in calls:
        assert not [x for x in call.commands[:-1] if isinstance(x, c.Question)]
        asked = bool(call.commands) and isinstance(call.commands[-1], c.Question)
        assert asked == (call.after.pending is not None)


def test_update_keeps_a_state_that_holds_no_tensors_and_stays_bounded(calls: list[Call]) -> None:
    for call in calls:
        state = call.after
        assert "tensor" not in repr(state)
        assert len(state.effects.recent) <= state.policy.verify_steps
        assert len(state.grace.losses) <= 64
        assert len(state.open) <= 1024
        assert state.case is None or len(state.case.ends) <= 2


def test_update_and_its_rules_import_neither_torch_nor_the_run() -> None:
    folder = Path(executor.__file__).parent
    beside = ("executor.py", "branch.py", "past_outcomes.py")
    allowed = (
        "trimtab.guard.recovery",
        "trimtab.guard.state.decisions",
        "trimtab.guard.settings.expected",
        "trimtab.guard.yardstick.reading",
    )
    for path in sorted(folder.glob("*.py")):
        if path.name in beside:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                assert not name.startswith("trimtab.guard") or name.startswith(allowed), path
                assert name.split(".")[0] not in ("torch", "time", "os", "pathlib", "random"), path


# -- driven without a model -----------------------------------------------------------------

BATCH = 8
Bad = Callable[[int, Trial | None], bool]


class World:
    """A run without a model: what the executor would observe and answer.

    Losses are 2, or 6 where the step is bad; a spike is found at the first bad step of a branch.
    """

    def __init__(self, bad: Bad, *, bad_batch: Callable[[int], bool], **policy: Any) -> None:
        settings = {**SHORT, "mode": "act", "bisect": "never", "verify_tolerance": 0.01, **policy}
        self.state = RecoveryState(policy=Policy(**settings), final_step=400)
        self.bad, self.bad_batch = bad, bad_batch
        self.points = [RestorePoint(i, 20 * i, "1.0", 160 * i, 160 * i) for i in range(20)]
        self.step, self.sample, self.row, self.executed = 0, 0, 0, 0
        self.rows: list[float] = []
        self.spiking = False
        self.commands: list[c.Command] = []
        self.phases: list[tuple[Phase, Phase]] = []
        self.failures, self.probed, self.rollbacks = 0, 0, 0
        self.attempts: list[c.BeginAttempt] = []
        self.lr_cuts: tuple[tuple[int, float], ...] = ()

    def handle(self, event: Event) -> None:
        following: Event | None = event
        while following is not None:
            before = self.state.phase
            self.state, commands = update(self.state, (following,))
            if self.state.phase != before:
                self.phases.append((before, self.state.phase))
            following = None
            for command in commands:
                self.commands.append(command)
                if isinstance(command, c.Question):
                    following = self.answer(command)
                else:
                    self.do(command)

    def do(self, command: c.Command) -> None:
        match command:
            case c.GoBackTo(point):
                self.step, self.sample, self.spiking = point.step, point.sample_id, False
            case c.PassBy(sample):
                self.sample = max(self.sample, sample - sample % BATCH)
            case c.PutInForce(trial, before):
                self.lr_cuts = before.lr_cuts_with(trial)
            case c.TakeBack(_, before):
                self.lr_cuts = before.lr_cuts
            case c.BeginAttempt():
                self.attempts.append(command)
            case c.CountProbedBatch():
                self.probed += 1
            case c.CountRollback():
                self.rollbacks += 1
            case c.SetFailures(count):
                self.failures = count
            case c.DropSnapshots(after):
                self.points = [p for p in self.points if p.step <= after]
            case _:
                pass

    def answer(self, question: c.Question) -> Event:
        match question:
            case c.FindIncident():
                record = self.record()
                found = find_incident(record, question.findings, question.handled)
                what = None if found is None else IncidentInRecord(record, *found)
                return ev.IncidentFound(step=self.step, found=what, standing=self.standing())
            case c.FindRestorePoint():
                before = [p for p in self.points if p.step <= question.step <= self.row]
                oldest = self.points[:1] if question.or_oldest else []
                point = next(iter([*before[::-1], *oldest]), None)
                return ev.RestorePointFound(step=self.step, point=point)
            case c.Survey():
                oldest_step = self.points[0].step if self.points else None
                return ev.Surveyed(
                    step=self.step, standing=self.standing(), oldest_step=oldest_step
                )
            case c.Capture():
                point = RestorePoint(
                    100 + len(self.commands), self.step, "1.x", self.sample, self.sample
                )
                return ev.Captured(step=self.step, point=point)
            case c.Confirm():
                return ev.Confirmed(step=self.step)

    def standing(self) -> Standing:
        return Standing(
            in_force=InForce(lr_cuts=self.lr_cuts),
            failures=self.failures,
            rollbacks=self.rollbacks,
            executed_steps=self.executed,
            probed_batches=self.probed,
        )

    def record(self) -> RunRecord:
        builder = RecordBuilder("world", "made up")
        for i, loss in enumerate(self.rows):
            row = {"loss": loss, "lr": 1e-3, "grad_norm": 0.2}
            counts = {"batch_size": float(BATCH), "samples_seen": float(BATCH * (i + 1))}
            builder.add(float(i + 1), row | counts)
        return builder.build()

    def train(self, steps: int) -> "World":
        for _ in range(steps):
            if self.state.phase == "probe":
                self.probe()
            else:
                self.do_step()
        return self

    def train_until(self, phase: Phase, *, limit: int = 400) -> "World":
        for _ in range(limit):
            if self.state.phase == phase:
                return self
            self.train(1)
        raise AssertionError(f"never in {phase}: {self.phases}")

    def do_step(self) -> None:
        trial = self.state.case.trial if self.state.case is not None else None
        calm = self.state.phase == "calm"
        self.step += 1
        self.executed += 1
        self.sample += BATCH
        bad = self.bad(self.step, trial)
        loss = (6.0 if bad else 2.0) + 0.01 * (self.step % 5)
        if calm and self.step == len(self.rows) + 1:
            self.rows.append(loss)
        self.row += 1
        findings = (spike(self.row - 1, self.step),) if bad and not self.spiking else ()
        self.spiking = self.spiking or bad
        self.handle(
            StepDone(
                step=self.step,
                row=self.row,
                sample=self.sample,
                loss=loss,
                norm=0.2,
                findings=findings,
                failures=self.failures,
            )
        )

    def probe(self) -> None:
        first = self.sample
        self.sample += BATCH
        self.handle(
            ev.ProbeDone(
                step=self.step,
                first=first,
                last=self.sample - 1,
                loss=6.0 if self.bad_batch(first) else 2.0 + 0.01 * (first // BATCH % 5),
                executed_steps=self.executed,
                probed_batches=self.probed,
            )
        )

    def journalled(self, event: str) -> list[dict[str, Any]]:
        found = [x for x in self.commands if isinstance(x, c.JournalEvent) and x.event == event]
        return [dict(x.data) for x in found]

    def said(self) -> list[str]:
        return [x.line for x in self.commands if isinstance(x, c.Say)]

    def decided(self) -> list[str]:
        return [str(d["what"]) for d in self.journalled("decision")]

    def actions(self) -> list[str]:
        return [x.remedy for x in self.commands if isinstance(x, c.JournalAction)]


def spike(row: int, step: int, *, signal: str = "loss") -> Finding:
    return Finding(
        detector="spike",
        kind="spike",
        signal=signal,
        severity="warning",
        row=row,
        step=float(step),
        onset_row=row,
        onset=float(step),
        peak_row=row,
        peak=float(step),
        value=6.0,
        expected=2.0,
        score=20.0,
        text="loss 6",
    )


def bad_window(step: int, trial: Trial | None) -> bool:
    return 100 <= step < 110 and (trial is None or trial.skip is None)


def bad_from_100(step: int, _trial: Trial | None) -> bool:
    return step >= 100


def in_window(sample: int) -> bool:
    return 99 * BATCH <= sample < 109 * BATCH


def never(*_: Any) -> bool:
    return False


def test_update_of_a_calm_run_does_nothing() -> None:
    world = World(never, bad_batch=never).train(90)
    assert world.commands == []
    assert (world.state.phase, world.state.alarmed, world.state.doubt) == ("calm", False, "")


def test_update_waits_for_a_spike_before_it_acts() -> None:
    world = World(bad_window, bad_batch=in_window).train(101)
    assert world.decided() == ["wait"]
    assert world.state.alarmed
    assert world.state.doubt.startswith("spike since step 100")
    assert world.state.phase == "calm"


def test_update_goes_from_calm_to_probe_when_a_spike_outlasts_the_patience() -> None:
    world = World(bad_window, bad_batch=in_window).train_until("probe")
    assert world.phases == [("calm", "probe")]
    assert world.decided()[-1].startswith("go back to step ")
    assert world.state.case is not None
    assert world.state.case.base.step < 100
    order = [type(x) for x in world.commands]
    assert order.index(c.SetAside) < order.index(c.GoBackTo) < order.index(c.Confirm)
    assert [i["state"] for i in world.journalled("incident")] == ["open"]


def test_update_goes_from_probe_to_trial_with_the_samples_that_stand_out() -> None:
    world = World(bad_window, bad_batch=in_window).train_until("trial")
    assert world.phases == [("calm", "probe"), ("probe", "trial")]
    case = world.state.case
    assert case is not None
    assert case.trial is not None
    assert case.trial.skip == (99 * BATCH, 109 * BATCH - 1)
    assert world.attempts[-1].trial
    assert world.state.num_trials == 1
    assert not world.state.open  # findings of the branch before are not about this one


def test_update_keeps_a_trial_that_held_verifies_it_and_is_calm() -> None:
    world = World(bad_window, bad_batch=in_window).train_until("trial").train_until("calm")
    assert world.phases[-1] == ("trial", "calm")
    assert world.actions() == ["roll-back+skip-data"]
    assert world.state.unsettled
    assert world.state.case is None
    assert isinstance(world.commands[-1], c.SaveCheckpoint)
    world.bad = never
    world.train(16)
    (verdict,) = [o for o in world.journalled("outcome") if not o.get("trial")]
    assert (verdict["remedy"], verdict["verdict"]) == ("roll-back+skip-data", "worked")
    assert not world.state.unsettled


def test_update_counts_a_remedy_under_which_an_alarm_opens_as_failed() -> None:
    world = World(bad_window, bad_batch=in_window).train_until("trial").train_until("calm")
    world.bad = lambda step, _: step >= world.step
    world.train(2)
    (verdict,) = [o for o in world.journalled("outcome") if not o.get("trial")]
    assert (verdict["verdict"], verdict["failures"], world.failures) == ("did not", 1, 1)


@pytest.mark.parametrize(("kind", "verdict"), [("memorised", "worked"), ("spike", "did not")])
def test_update_judges_a_remedy_by_what_rises(kind: str, verdict: str) -> None:
    world = World(never, bad_batch=never).train(20)
    watched = Verification("roll-back", until_step=36, expected=Expectation(2.0, 0.1, 3.0))
    world.state = dataclasses.replace(world.state, verification=watched)
    for step in range(21, 37):
        found = (replace(spike(step - 1, step), kind=kind),) if step == 30 else ()
        world.handle(
            StepDone(step=step, row=step, sample=8 * step, loss=2.0, norm=0.2, findings=found)
        )
    (outcome,) = world.journalled("outcome")
    assert outcome["verdict"] == verdict
    assert any("did not help" in line for line in world.said()) == (verdict == "did not")


def test_update_names_and_handles_a_level_that_was_accepted_where_it_is_left_alone() -> None:
    world = World(never, bad_batch=never).train(40)
    shift = replace(spike(30, 31), kind="shift", detector="level-16", closed=True)
    event = StepDone(step=40, row=40, sample=320, loss=2.0, norm=0.2, reads=True)
    wants = ReadingWanted(event, 20)
    world.state = replace(world.state, open={shift.key: shift}, wants=wants)
    reading = Reading(40, (2.0, 2.0), 20, (9.0, 9.0))
    world.handle(ev.ReadingDone(step=40, reading=reading, scale=Expectation(2.0, 0.1, 3.0)))
    assert [line for line in world.said() if "shift of the training loss left alone" in line]
    assert shift.key in world.state.handled


@pytest.mark.parametrize(
    ("kind", "now", "before", "times", "alone"),
    [
        ("drift", 2.02, 2.0, 0, True),  # within noise: a rise without a jump is as often meant
        ("spike", 2.02, 2.0, 0, False),
        ("spike", 2.02, 2.0, 2, True),  # harmless twice before
        ("spike", 128.9, 128.0, 0, True),  # the same weights cost 64 times as much
        ("drift", 2.5, 2.0, 2, False),
        ("spike", 3.0, 2.99, 0, True),  # the loss of the same weights has risen by as much
        ("too-good", -8.0, 2.0, 0, True),
        ("too-good", -8e14, 2.0, 0, False),  # no step takes a sound loss so far down
    ],
)
def test_update_leaves_alone_what_the_fixed_batches_show_to_be_harmless(
    kind: str, now: float, before: float, times: int, alone: bool
) -> None:
    world = World(never, bad_batch=never).train(40)
    found = replace(spike(30, 31), kind=kind)
    loss = 3.0 if now == 3.0 else 2.0
    event = StepDone(step=40, row=40, sample=320, loss=loss, norm=0.2, reads=True)
    world.state = replace(
        world.state, open={found.key: found}, wants=ReadingWanted(event, 20), times_left_alone=times
    )
    reading = Reading(40, (now, now), 20, (before, before))
    world.handle(ev.ReadingDone(step=40, reading=reading, scale=Expectation(2.0, 0.1, 3.0)))
    assert bool([line for line in world.said() if "left alone" in line]) is alone


@pytest.mark.parametrize(
    ("freed", "now", "alone"),
    [(-math.inf, 2.02, False), (20.0, 2.02, True), (-3.0, 2.02, False), (20.0, 3.0, False)],
)
def test_spikes_soon_after_parameters_were_set_free_are_left_alone_unless_the_batches_got_worse(
    freed: float, now: float, alone: bool
) -> None:
    world = World(never, bad_batch=never).train(40)
    found = spike(30, 31)
    event = StepDone(step=40, row=40, sample=320, loss=2.0, norm=0.2, reads=True)
    world.state = replace(
        world.state, open={found.key: found}, wants=ReadingWanted(event, 20), times_left_alone=0
    )
    reading = Reading(40, (now, now), 20, (2.0, 2.0))
    scale = Expectation(2.0, 0.1, 3.0)
    world.handle(ev.ReadingDone(step=40, reading=reading, scale=scale, freed_step=freed))
    assert bool([line for line in world.said() if "left alone" in line]) is alone


@pytest.mark.parametrize(
    ("now", "told", "not_told"),
    [
        (3.0, "+1 since it was left alone (", "against"),  # within the noise of the older state
        (9.0, "9 against 2.9 with the weights of step 20", "since it was left alone"),
    ],
)
def test_what_got_worse_after_all_is_told_by_the_comparison_that_decides(
    now: float, told: str, not_told: str
) -> None:
    world = World(never, bad_batch=never).train(40)
    event = StepDone(step=40, row=40, sample=320, loss=2.0, norm=0.2, reads=True)
    wants = ReadingWanted(event, 20)
    watch = LeftAlone(frozenset(), 20, (2.0, 2.0), (2.9, 2.9), due_step=40, wait_steps=8)
    world.state = replace(world.state, wants=wants, watch=watch)
    reading = Reading(40, (now, now), 20, (2.9, 2.9))
    _, commands = opening.decide(
        world.state,
        wants,
        ev.ReadingDone(step=40, reading=reading, scale=Expectation(2.0, 0.1, 3.0)),
    )
    (line,) = (s.line for s in commands if isinstance(s, c.Say) and "worse after all" in s.line)
    assert told in line
    assert not_told not in line


def test_advice_to_leave_out_more_than_the_policy_allows_says_so_and_how_it_is_done() -> None:
    known = REMEDY_BY_ID["skip-data"]
    samples = {"first_sample": 600.0, "last_sample": 799.0}
    skip = PlannedRemedy(
        remedy="skip-data", values=samples, why="", cost=known.cost, undo=known.undo, when="mid-run"
    )
    plan = Plan(remedies=(skip,))

    def line(planned: float | None) -> str:
        told = notices.within_limit(plan, Policy(), planned=planned, left_out=0)
        return notices.advice(told)[0][0]

    assert "max_skip_share = 0.1 forbids it (13% of the planned data)" in line(1560)
    assert "guard.skip_samples(600, 799, why=...)" in line(1560)
    assert "forbids" not in line(4000)
    assert "forbids" not in line(None)


def test_a_loss_that_is_too_low_is_answered_by_no_lower_rate_and_by_nothing_forbidden() -> None:
    policy = Policy(mode="act")
    assert "lower-lr" in policy.arms
    assert opening.arms_for("spike", None, policy) is None
    low = opening.arms_for("too-good", None, policy)
    assert low is not None
    assert {"replay", "other-data"} <= set(low) <= set(policy.arms)
    assert "lower-lr" not in low
    assert opening.arms_for("too-good", (), policy) == ()  # the policy allows none
    assert opening.arms_for("too-good", ("lower-lr", "other-data"), policy) == ("other-data",)


@pytest.mark.parametrize(("kind", "acts"), [("held-out-worse", False), ("spike", True)])
def test_an_evaluation_that_gives_no_number_of_an_older_state_blames_no_state(
    kind: str, *, acts: bool
) -> None:
    world = World(never, bad_batch=never).train(40)
    found = replace(spike(30, 31), kind=kind)
    event = StepDone(step=40, row=40, sample=320, loss=2.0, norm=0.2, reads=True)
    world.state = replace(world.state, open={found.key: found}, wants=ReadingWanted(event, 20))
    for reading in (
        Reading(40, (math.nan,), 20, (math.nan,), sigma=math.inf),
        Reading(40, (math.nan, 1.0), 20, (math.inf, math.nan)),
    ):
        state, commands = opening.decide(
            world.state,
            ReadingWanted(event, 20),
            ev.ReadingDone(step=40, reading=reading, scale=Expectation(2.0, 0.1, 3.0)),
        )
        assert "it is broken, not the state" in str(commands)
        assert (found.key in state.handled) is not acts
        assert (state.pending is not None) is acts


def test_a_metric_whose_spread_is_not_known_says_only_whether_it_is_a_number() -> None:
    world = World(never, bad_batch=never).train(40)
    found = replace(spike(30, 31), kind="held-out-worse")
    event = StepDone(step=40, row=40, sample=320, loss=2.0, norm=0.2, reads=True)
    world.state = replace(world.state, open={found.key: found})
    for now, said in ((5.0, ""), (math.nan, "worse")):
        reading = Reading(40, (now,), 20, (1.0,), sigma=math.inf)
        state, commands = opening.decide(
            world.state,
            ReadingWanted(event, 20),
            ev.ReadingDone(step=40, reading=reading, scale=Expectation(2.0, 0.1, 3.0)),
        )
        assert said in str(commands)
        assert ("read the fixed batches" in str(commands)) is bool(said)
        assert state.pending is not None


@pytest.mark.parametrize(
    ("late", "rate", "waits"),
    [(3.0, 0.1, True), (3.0, 1.0, False), (1.5, 1.0, True), (9.0, 0.1, False)],
)
def test_rough_start_is_waited_for_where_it_heals(late: float, rate: float, waits: bool) -> None:
    record = RecordBuilder("", "test")
    for t in range(1, 61):
        loss = 1.0 if t < 3 else 50.0 if t < 22 else 4.0 if t < 41 else late
        record.add(t, {"loss": loss, "lr": 1.0 if t < 8 else rate})
    case: Any = SimpleNamespace(
        incident=SimpleNamespace(onset=3, findings=()), record=record.build(), seen_step=60,
        level=1.0, returning=False,
        before=SimpleNamespace(lr_cuts=()),
    )  # fmt: skip
    assert (wait_for_start(case, 8) is not None) is waits
    case.incident.findings = (SimpleNamespace(detector="saturation"),)
    assert wait_for_start(case, 8) is None


@pytest.mark.parametrize(
    ("freed", "seen", "late", "waits"),
    [
        (95, 108, 3.0, True),  # too early to be judged
        (95, 140, 3.0, True),  # new: it does not run away
        (95, 140, 9.0, False),
        (95, 190, 3.0, False),  # new no longer, and no way back
        (95, 190, 1.2, True),
        (60, 140, 3.0, False),  # long before: none of its doing
        (101, 140, 3.0, False),  # after it
        (None, 140, 3.0, False),
    ],
)
def test_parameters_that_were_set_free_have_a_rough_start_of_their_own(
    freed: int | None, seen: int, late: float, waits: bool
) -> None:
    record = RecordBuilder("", "test")
    record.add(1, {"loss": 1.0, "lr": 1.0, "trainable_parameters": 5.0})
    for t in range(2, seen + 1):
        row = {"loss": 1.0 if t < 100 else 3.0 if t < seen - (seen - 100) // 3 else late, "lr": 1.0}
        record.add(t, row | ({"trainable_parameters": 10.0} if t == freed else {}))
    case: Any = SimpleNamespace(
        incident=SimpleNamespace(onset=100, findings=()), record=record.build(), seen_step=seen,
        level=1.0, returning=False,
        before=SimpleNamespace(lr_cuts=()),
    )  # fmt: skip
    assert (wait_for_start(case, 8) is not None) is waits
    # spikes that return began with the first of them
    case.incident.onset, case.first_sign, case.returning = seen - 1, 100, True
    assert (wait_for_start(case, 8) is not None) is waits


@pytest.mark.parametrize(("size", "nothing"), [(-0.004, True), (-0.5, False)])
def test_cut_that_ends_no_slow_rise_is_no_cure(size: float, nothing: bool) -> None:
    effect = Effect(size=size, low=2 * size, high=size / 2, steps=40)
    cut = Trial(name="LR x 0.5", lr_factor=0.5)
    case: Any = SimpleNamespace(
        incident=SimpleNamespace(kind="drift"), repeat="bit-equal", expected=Expectation(1, 0.1, 3),
        rows=(SimpleNamespace(name=cut.name, effect=effect),),
    )  # fmt: skip
    assert trial_cycle.cures_nothing(case, cut) is nothing
    case.repeat = "different"
    assert not trial_cycle.cures_nothing(case, cut)


@pytest.mark.parametrize(
    ("signal", "value", "trouble"),
    [
        ("trained_share", 0.1, False),
        ("rate_over_peak", 9.0, False),
        ("weight_jump", 9.0, False),
        ("adam_v_left", 0.01, False),
        ("batch_scale", 40.0, False),
        ("batch_scale", 249.0, True),
        ("batch_scale", 1 / 255, True),
        ("loss_factor", -1.0, True),
    ],
)
def test_suspect_changes_are_told_and_what_nobody_means_is_trouble(
    signal: str, value: float, trouble: bool
) -> None:
    detector = SuspectChangeDetector()
    values = np.full(len(detector.signals), np.nan)
    values[detector.signals.index(signal)] = value
    row = Row(index=5, step=6, values=values, present=np.isfinite(values))
    _, (found,) = detector.update(detector.start(), row)
    assert (found.severity != "info") is trouble
    assert is_trouble(found, 99, 8, last=False, scaled=False) is trouble
    assert not is_trouble(found, 7, 8, last=False, scaled=False)


def test_update_goes_from_trial_to_trial_where_one_failed() -> None:
    def only_a_lower_rate(step: int, trial: Trial | None) -> bool:
        return step >= 100 and (trial is None or trial.lr_factor == 1.0)

    world = World(only_a_lower_rate, bad_batch=never).train_until("probe").train_until("calm")
    assert world.phases == [("calm", "probe"), ("probe", "trial"), ("trial", "calm")]
    outcomes = [o["verdict"] for o in world.journalled("outcome")]
    assert outcomes[0] == "did not"
    assert "worked" in outcomes
    assert world.actions() == ["roll-back+lower-lr"]
    assert world.lr_cuts


def test_update_goes_further_back_where_no_trial_held_and_then_gives_up() -> None:
    world = World(bad_from_100, bad_batch=never, lr_factors=(0.5,), max_rollbacks=2)
    world.state = replace(world.state, final_step=4000)  # what trials may cost is not the limit
    world.train_until("probe").train_until("calm", limit=3000)
    assert ("trial", "probe") in world.phases
    assert world.phases[-1] == ("trial", "calm")
    bases = [d for d in world.decided() if d.startswith("go back to step ")]
    assert len(set(bases)) == len(bases) > 1
    assert world.decided()[-1] == "stop acting"
    assert world.state.advising_only
    assert world.state.given_up.startswith("no trial held")
    assert not world.attempts[-1].trial
    assert world.actions() == []


def test_update_goes_further_back_where_a_setting_that_was_put_back_did_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = SettingPutBack(
        name="weight_decay", step=90, values=(0.1,), changed_to=(0.2,), shown="weight_decay back"
    )
    standing, answer = World.standing, World.answer

    def answered(self: World, question: c.Question) -> Event:
        found = answer(self, question)
        return replace(found, worked=("other-data",)) if isinstance(found, ev.Surveyed) else found

    monkeypatch.setattr(World, "answer", answered)
    monkeypatch.setattr(
        World,
        "standing",
        lambda self: replace(standing(self), changed=(change,) * (self.row > 100)),
    )
    policy = {"arms": ("other-data", "put-back"), "max_rollbacks": 2}
    world = World(bad_from_100, bad_batch=in_window, **policy)
    world.state = replace(world.state, final_step=4000)
    world.train_until("probe").train_until("calm", limit=3000)
    first = [o["remedy"] for o in world.journalled("outcome")][:2]
    assert first == ["trial: without samples 792-871", "trial: weight_decay back"]
    assert world.phases.count(("trial", "probe")) >= 1
    assert world.decided()[-1] == "stop acting"


def test_update_only_advises_once_it_has_given_up() -> None:
    world = World(bad_from_100, bad_batch=never, max_rollbacks=0)
    world.train(140)
    assert world.decided()[-1] == "stop acting"
    assert any("automatic recovery disabled" in line for line in world.said())
    assert (world.state.phase, len(world.state.incidents)) == ("calm", 1)
    world.spiking = False
    world.train(30)
    assert world.decided()[-1] == "advise"
    assert len(world.state.incidents) == 2
    assert not [x for x in world.commands if isinstance(x, c.GoBackTo)]


def test_update_acts_again_after_a_healthy_stretch_and_pauses_for_longer_each_time() -> None:
    world = World(bad_from_100, bad_batch=never, max_rollbacks=0)
    world.train(140)
    world.bad, world.spiking = never, False
    pause = world.state.pause_steps
    # the alarm of step 100 is never closed: four pauses later its level is the run's own
    world.train(100 + 4 * pause - world.step - 1)
    assert world.decided()[-1] != "act again"
    world.train(2)
    assert (world.state.advising_only, world.state.given_up) == (False, "")
    assert world.decided()[-1] == "act again"
    assert any("automatic recovery is on again" in line for line in world.said())
    start = world.step
    world.bad = lambda step, _: step > start
    world.train(60)
    assert world.decided().count("stop acting") == 2
    assert world.state.pause_steps == 2 * pause


def test_update_forgives_earlier_rollbacks_once_it_acts_again() -> None:
    world = World(bad_window, bad_batch=in_window, max_rollbacks=1)
    world.rollbacks = 1
    world.train(140)
    stood_down = world.state.advising_only
    world.bad, world.spiking = never, False
    world.train(4 * world.state.pause_steps)
    assert (stood_down, world.state.advising_only) == (True, False)
    start = world.step
    world.bad = lambda step, trial: step > start and trial is None
    world.train_until("probe")
    assert world.decided().count("stop acting") == 1


def test_update_stays_quiet_while_alarms_go_on() -> None:
    world = World(bad_from_100, bad_batch=never, max_rollbacks=0)
    world.train(140)
    for _ in range(6):  # an alarm in every pause: the stretch begins anew each time
        world.spiking = False
        world.train(world.state.pause_steps - 4)
    assert world.state.advising_only


def test_update_advises_nothing_that_the_case_before_has_ruled_out() -> None:
    before = World(bad_from_100, bad_batch=never, lr_factors=(0.5,), max_rollbacks=2)
    before.train_until("probe").train_until("calm", limit=3000)
    left = before.state.left
    assert left is not None
    for known in (None, left, replace(left, kind="another")):
        world = World(bad_from_100, bad_batch=never, mode="advise")
        world.state = replace(world.state, left=known)
        (advised,) = [str(d["why"]) for d in world.train(340).journalled("decision")]
        # the probe of the case before found the data clean
        assert ("leave the suspect samples out" in advised) == (known is not left)


def test_update_gives_up_where_no_healthy_state_lies_before() -> None:
    world = World(bad_window, bad_batch=in_window)
    world.points = []
    world.train(140)
    assert "no healthy state" in world.state.given_up


def test_update_in_advise_mode_says_what_it_would_do_and_again_while_it_lasts() -> None:
    world = World(bad_from_100, bad_batch=never, mode="advise").train(340)
    assert world.phases == []
    assert world.decided() == ["advise"]
    lines = world.said()
    assert any("advice: " in line for line in lines)
    assert any("still open: " in line for line in lines)


def test_update_in_observe_mode_only_reports() -> None:
    world = World(bad_from_100, bad_batch=never, mode="observe").train(140)
    assert (world.phases, world.decided()) == ([], [])
    assert [i["state"] for i in world.journalled("incident")] == ["open"]


def test_update_reports_nothing_on_a_rank_that_is_not_the_first() -> None:
    world = World(bad_from_100, bad_batch=never, mode="observe")
    world.state = dataclasses.replace(world.state, chief=False)
    assert world.train(140).commands == []


@pytest.mark.parametrize("phase", ["probe", "trial"])
def test_update_breaks_off_what_is_under_way_after_a_fault(phase: Phase) -> None:
    world = World(bad_window, bad_batch=in_window).train_until(phase)
    seen = len(world.commands)
    world.handle(ev.FaultHeard(step=world.step, attempt="1.7"))
    kinds = [type(x) for x in world.commands[seen:]]
    assert kinds == ([c.TakeBack] if phase == "trial" else []) + [c.GoBackTo, c.BeginAttempt]
    assert world.attempts[-1].parent == "1.0"
    assert (world.state.phase, world.state.case) == ("calm", None)


def test_update_after_a_fault_in_a_command_forgets_the_question() -> None:
    world = World(bad_window, bad_batch=in_window).train_until("trial")
    case = world.state.case
    assert case is not None
    asked, commands = update(
        world.state,
        (
            StepDone(
                step=world.step + 1,
                row=world.row + 1,
                sample=0,
                loss=math.nan,
                norm=0.2,
                findings=(spike(world.row, world.step + 1),),
            ),
        ),
    )
    assert isinstance(commands[-1], c.Question)
    after, commands = update(asked, (ev.FaultHeard(step=world.step, attempt="1.7"),))
    assert (after.pending, after.case, after.phase) == (None, None, "calm")
    assert [type(x) for x in commands] == [c.TakeBack, c.GoBackTo, c.BeginAttempt]
    fault = ev.FaultHeard(step=world.step, attempt="1.7", can_go_back=False)
    _, commands = update(asked, (fault,))
    assert [type(x) for x in commands] == [c.TakeBack, c.BeginAttempt]


def test_update_after_a_rollback_by_hand_begins_anew() -> None:
    world = World(bad_window, bad_batch=in_window).train(102)
    watched = Verification("roll-back", until_step=200, expected=Expectation(2.0, 0.1, 2.0))
    world.state = dataclasses.replace(world.state, verification=watched)
    world.handle(ev.ChangedByHand(step=102, remedy="lower-lr"))
    assert [x.remedy for x in world.state.effects.changes] == ["lower-lr"]
    world.handle(ev.RolledBackByHand(step=80))
    state = world.state
    assert not state.unsettled
    assert (dict(state.open), dict(state.grace.waiting), state.notices.waiting) == (
        {},
        {},
        frozenset(),
    )
    assert not state.effects.changes


def test_update_labels_a_change_by_hand_once_it_was_watched() -> None:
    world = World(never, bad_batch=never).train(40)
    world.handle(ev.ChangedByHand(step=40, remedy="lower-lr"))
    world.train(15)
    assert world.journalled("outcome") == []
    world.train(1)
    (outcome,) = world.journalled("outcome")
    assert (outcome["remedy"], outcome["of_step"], outcome["label"]) == ("lower-lr", 40, "unclear")


def test_update_at_the_end_says_that_a_remedy_is_not_verified() -> None:
    world = World(never, bad_batch=never).train(20)
    watched = Verification("roll-back", until_step=200, expected=Expectation(2.0, 0.1, 2.0))
    world.state = dataclasses.replace(world.state, verification=watched)
    world.handle(ev.RunEnded(step=20, row=20))
    (outcome,) = world.journalled("outcome")
    assert (outcome["verdict"], world.state.verification) == ("unclear", None)


def test_update_makes_one_action_of_updates_skipped_in_a_row() -> None:
    world = World(never, bad_batch=never).train(20)
    for i, skipped in enumerate((True, True, False)):
        world.handle(
            ev.UpdateDone(
                step=21 + i,
                row=20 + i,
                loss=math.nan if skipped else 2.0,
                norm=0.2,
                skipped=skipped,
                first=160 + 8 * i,
                last=167 + 8 * i,
                scaled=False,
            )
        )
    noted = [x for x in world.commands if isinstance(x, c.NoteAction)]
    assert [x.revises for x in noted] == [False, True]
    (action,) = world.journalled("action")
    assert action["values"] == {"samples": [160, 175], "num": 2}


def test_update_refuses_an_answer_that_nobody_asked_for() -> None:
    world = World(never, bad_batch=never)
    with pytest.raises(AssertionError, match="nobody asked"):
        update(world.state, (ev.Confirmed(step=1),))


@pytest.mark.slow
def test_executor_lets_go_of_snapshots_that_no_state_refers_to(tmp_path: Path) -> None:
    scenario = dataclasses.replace(bad_data(120, 10), steps=190)
    o = guarded(scenario, small_lab.make_text(), tmp_path / "run", **SHORT)
    snapshots, num_taken = snapshots_of_recovery(o.guard)
    assert snapshots == {}
    assert num_taken > 0
