"""Which branch comes when, which one is kept, and what a table of them says."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.errors import ConfigError, PlanError
from trimtab.plan.effects import effect_of
from trimtab.plan.ladder import Commit, GiveUp, GoBack, NextStep, Situation, Wait, next_step, ways
from trimtab.plan.memory import prefer, remedy_of, what_worked
from trimtab.plan.plan import Plan
from trimtab.plan.policy import Policy
from trimtab.plan.remedy_table import REMEDIES, REMEDY_BY_ID
from trimtab.plan.trial_results import TrialRow, read_out
from trimtab.plan.trials import ARMS, DEFAULT_ORDER, SettingPutBack, Trial

CLEAN = DataProbe(num_batches=40, num_outliers=0, median_loss=3.0, worst_loss=3.2)
WINDOW = (640, 703)


def situation(**changes: object) -> Situation:
    base = Situation(
        kind="spike",
        nonfinite=False,
        lr_now=1e-3,
        lr_restore=1e-3,
        window=WINDOW,
        probe=CLEAN,
        policy=Policy(mode="act"),
        clip=1.0,
        beta2=0.999,
        eps=1e-8,
        older_state=True,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def play(s: Situation, held: Callable[[Trial], bool]) -> tuple[list[str], NextStep]:
    """Names of the arms in the order they were tried, and what was decided then."""
    tried: list[Trial] = []
    while isinstance(step := next_step(s), Trial):
        assert step not in tried
        tried.append(step)
        assert len(tried) < 40
        result = TrialResult(
            name=step.name,
            held=held(step),
            loss=3.0,
            expected_loss=3.0,
            steps=48,
            skipped=step.skip is not None,
            lr_factor=step.lr_factor,
        )
        s = dataclasses.replace(s, trials=(*s.trials, result), trial_steps=s.trial_steps + 48)
    return ["+".join(t.arms) for t in tried], step


def kept(step: NextStep) -> str:
    assert isinstance(step, Commit), step
    return "+".join(step.trial.arms)


def test_a_window_that_was_too_easy_is_left_out_first() -> None:
    easy = situation(low_window=(320, 639))
    first = next_step(easy)
    assert isinstance(first, Trial)
    assert first.skip == (320, 639)
    tried, _ = play(easy, lambda _: False)
    assert tried[0] == "other-data"
    # what stands out itself, or a setting that changed, is known for sure
    bad = dataclasses.replace(CLEAN, num_outliers=4, first_sample=640, last_sample=703)
    step = next_step(dataclasses.replace(easy, probe=bad))
    assert isinstance(step, Trial)
    assert step.skip == (640, 703)


def test_a_replay_comes_first_where_neither_data_nor_rate_is_suspected() -> None:
    tried, step = play(situation(), lambda t: t.unchanged)
    assert tried == ["replay"]
    assert kept(step) == "replay"
    tried, _ = play(situation(lr_now=9e-3), lambda t: t.lr_limit is not None)
    assert tried == ["lower-lr"]  # the rate rose, and no batch stands out: it is put back
    over = situation(lr_now=9e-3, lr_returned=True)  # the script has put it back itself
    assert play(over, lambda t: t.unchanged)[0] == ["replay"]
    returning = dataclasses.replace(over, returning=True)  # the rate is suspected all the same
    assert play(returning, lambda t: "lower-lr" in t.arms)[0] == ["lower-lr"]
    tried, _ = play(over, lambda t: t.skip is not None)
    assert tried == ["replay", "lower-lr", "other-data"]  # no rate below the script's own
    outliers = dataclasses.replace(CLEAN, num_outliers=3, first_sample=650, last_sample=660)
    tried, _ = play(situation(probe=outliers), lambda t: t.skip is not None)
    assert tried == ["other-data"]
    # A jump that the record names: put back with all the data, and with less where that fails.
    named = situation(probe=outliers, lr_now=9e-3, lr_jump_step=90)
    assert play(named, lambda t: t.lr_limit is not None)[0] == ["lower-lr"]
    tried, _ = play(named, lambda t: t.skip is not None)
    assert tried == ["lower-lr", "other-data+lower-lr"]


def test_when_the_cheap_path_fails_the_rest_is_tried_by_expected_steps() -> None:
    tried, step = play(situation(low_precision="bf16"), lambda t: False)
    assert list(dict.fromkeys(tried)) == [
        "replay",
        "lower-lr",
        "other-data",
        "other-state",
        "lower-clip",
        "adam-beta2",
        "fp32",  # keeping it costs four fifths of what it recovers
        "adam-eps",
        "optimizer-reset",
    ]
    assert isinstance(step, GoBack | GiveUp)
    never = situation(policy=Policy(mode="act", bisect="never"))
    assert set(play(never, lambda t: False)[0]) == {"other-data", "lower-lr"}


def test_branch_that_is_expected_to_cost_more_than_the_trouble_is_not_tried() -> None:
    near_end = situation(stake_steps=60, branch_steps=48)
    tried, _ = play(near_end, lambda t: False)
    assert tried[0] == "replay"  # having gone back, one is always tried
    assert "optimizer-reset" not in tried
    for way in ways(near_end):
        assert way.lost == pytest.approx(
            60 + 48 - way.chance * (60 + 48 - way.then)  # chance x steps recovered - cost
        )
    own = Policy(mode="act", arms=("optimizer-reset", "adam-eps"))
    assert play(dataclasses.replace(near_end, policy=own), lambda t: False)[0] == list(own.arms)


def test_waiting_is_one_of_the_ways_until_it_costs_more() -> None:
    s = situation(due=False, heals=0.5, lasted=8, back_steps=60, step=100)
    step = next_step(s)
    assert isinstance(step, Wait)
    assert step.until_step == 108
    assert "wait: 8 + 0.50 x 16 + 0.50 x" in step.reason
    assert isinstance(next_step(dataclasses.replace(s, lasted=100)), Trial)
    assert isinstance(next_step(dataclasses.replace(s, due=True)), Trial)


def test_replay_on_a_job_that_does_not_repeat_itself_is_followed_by_calm_ones() -> None:
    s = situation(calm_steps=6)
    control = TrialResult(name="as it was", held=True, loss=3.0, expected_loss=3.0, steps=48)
    exact = dataclasses.replace(control, bitwise=True)
    assert isinstance(next_step(dataclasses.replace(s, trials=(exact,))), Commit)
    s = dataclasses.replace(s, trials=(dataclasses.replace(control, bitwise=False),))
    step = next_step(s)
    assert isinstance(step, Trial)
    assert step.calm_steps == 6
    assert isinstance(next_step(dataclasses.replace(s, calm_steps=0)), Commit)


@pytest.mark.covers("S78")
def test_the_order_is_the_users_and_what_is_left_out_is_never_tried() -> None:
    order = ("adam-beta2", "lower-clip", "replay", "other-data")
    tried, _ = play(situation(policy=Policy(mode="act", arms=order)), lambda t: False)
    assert tried == ["adam-beta2", "lower-clip", "replay", "other-data"]
    with pytest.raises(ConfigError, match="did you mean 'lower-clip'"):
        Policy(arms=("lower-clp",))
    assert DEFAULT_ORDER.index("other-data") < DEFAULT_ORDER.index("fp32")
    assert DEFAULT_ORDER.index("fp32") < DEFAULT_ORDER.index("adam-beta2")


def test_always_asks_all_questions_before_it_keeps_the_cheapest_that_held() -> None:
    policy = Policy(mode="act", bisect="always")
    tried, step = play(situation(policy=policy, low_precision="bf16"), lambda t: not t.unchanged)
    assert tried == ["replay", "other-data", "fp32", "other-state"]
    assert kept(step) == "other-data"
    tried, step = play(situation(policy=policy), lambda t: True)
    assert tried == ["replay"]  # it does not come back: nothing is left to ask
    assert kept(step) == "replay"


def test_fp16_is_asked_first_where_values_overflow_and_bf16_is_cheaper_than_fp32() -> None:
    s = situation(nonfinite=True, kind="non-finite", low_precision="fp16")
    tried, step = play(s, lambda t: bool(t.precision))
    assert tried == ["replay", "fp32", "bf16"]
    assert kept(step) == "bf16"
    tried, step = play(s, lambda t: t.precision == "fp32")
    assert kept(step) == "fp32"
    tried, _ = play(s, lambda t: False)
    assert "bf16" not in tried  # fp32 failed, so bf16 is not asked


def test_another_state_is_asked_and_never_kept() -> None:
    tried, step = play(situation(), lambda t: t.older_state)
    assert "other-state" in tried
    assert isinstance(step, GoBack)


def test_steps_of_trials_are_bounded() -> None:
    policy = Policy(mode="act", trial_budget_steps=100)
    tried, step = play(situation(policy=policy), lambda t: False)
    assert len(tried) == 3
    assert isinstance(step, GiveUp)
    assert "in 144 steps of trials, the policy allows 100" in step.reason


def test_failures_in_a_row_end_it() -> None:
    step = next_step(situation(failures=4))
    assert isinstance(step, GiveUp)
    assert step.reason == "4 recoveries in a row did not hold, the policy allows 4"


@pytest.mark.covers("S118")
def test_no_arm_raises_a_rate_or_loosens_a_clip() -> None:
    with pytest.raises(PlanError):
        Trial(name="x", clip_factor=2.0)
    with pytest.raises(PlanError):
        Trial(name="x", lr_factor=2.0)


def test_leaving_out_twice_as_much_when_it_comes_back() -> None:
    def skipped(recurrences: int) -> tuple[int, int] | None:
        s = situation(recurrences=recurrences, policy=Policy(mode="act", bisect="never"))
        step = next_step(s)
        assert isinstance(step, Trial)
        return step.skip

    assert [skipped(n) for n in range(3)] == [(640, 703), (640, 767), (640, 895)]


@pytest.mark.covers("S266")
def test_what_worked_in_an_incident_of_the_kind_is_tried_and_proposed_first() -> None:
    told: list[tuple[str, dict[str, Any]]] = [
        ("incident", {"kind": "spike", "state": "open"}),
        ("action", {"remedy": "roll-back+lower-lr"}),
        ("outcome", {"remedy": "trial: LR x 0.5", "verdict": "worked", "trial": True}),
        ("outcome", {"remedy": "roll-back+lower-lr", "verdict": "worked"}),
        ("incident", {"kind": "divergence"}),
        ("action", {"remedy": "roll-back"}),
        ("outcome", {"remedy": "roll-back", "verdict": "worked"}),
    ]
    worked = what_worked(told)
    assert worked == {"spike": ("lower-lr",), "divergence": ("replay",)}
    assert play(situation(worked=worked["spike"]), lambda t: t.lr_factor < 1)[0][0] == "lower-lr"
    failed_since = [*told, told[0], told[1], ("outcome", {**told[3][1], "verdict": "did not"})]
    assert "spike" not in what_worked(failed_since)
    plan = Plan(
        remedies=tuple(REMEDY_BY_ID[r].planned("x") for r in ("roll-back", "skip-data", "lower-lr"))
    )
    first = prefer(plan, worked["spike"]).remedies
    assert [r.remedy for r in first] == ["lower-lr", "roll-back", "skip-data"]
    assert first[0].why == "worked in the last incident of this kind; x"


def test_every_arm_that_can_be_kept_has_a_remedy_and_a_way_back() -> None:
    for arm in ARMS:
        assert arm.question
        assert 0 < arm.prior <= 1 or arm.id == "no-update"  # it only separates causes
    assert remedy_of(Trial(name="x", precision="bf16")) == "roll-back+bf16"
    assert remedy_of(Trial(name="x", settings=(("eps", 1e-6),))) == "roll-back+adam-eps"


@pytest.mark.covers("S86")
def test_a_curriculum_is_marked_as_what_may_mask() -> None:
    planned = REMEDY_BY_ID["sequence-length-warm-up"].planned("x")
    assert planned.labels == ("may mask",)
    assert {r.id for r in REMEDIES if "may mask" in r.labels} == {"sequence-length-warm-up"}


@pytest.mark.covers("S120")
def test_a_tighter_clip_carries_how_little_is_known_of_it() -> None:
    assert REMEDY_BY_ID["lower-clip"].planned("x").labels == ("evidence: delays only?",)


@pytest.mark.covers("S77")
def test_an_effect_of_nothing_is_inconclusive_and_a_true_one_is_not() -> None:
    spans = finds = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        control, same, lower = (rng.normal(m, 0.1, 48) for m in (2.0, 2.0, 1.9))
        curve = {t: float(x) for t, x in enumerate(control)}
        spans += effect_of(dict(enumerate(same.tolist())), curve).label == "inconclusive"
        finds += effect_of(dict(enumerate(lower.tolist())), curve).label == "better"
    assert 180 <= spans <= 199  # a 95 % interval
    assert finds >= 190


def test_effects_of_broken_or_short_branches() -> None:
    broken = effect_of({1: math.nan, 2: math.nan}, {1: 2.0, 2: 2.0})
    assert (broken.label, broken.size) == ("worse", math.inf)
    assert effect_of({1: 2.0}, {1: math.inf}).label == "better"
    assert effect_of({}, {}).label == "inconclusive"
    assert effect_of({1: math.nan}, {1: math.nan}).label == "inconclusive"
    assert str(effect_of({1: 1.0, 2: 1.0}, {1: 2.0, 2: 2.0})) == "inconclusive: 2 steps to compare"


def row(arms: tuple[str, ...], *, held: bool) -> TrialRow:
    return TrialRow(name="+".join(arms), arms=arms, held=held, loss=2.0, expected=2.0, steps=48)


@pytest.mark.covers("S76")
@pytest.mark.parametrize(
    ("data", "state", "suspect"),
    [
        (True, True, "both together"),
        (True, False, "bad data"),
        (False, True, "state"),
        (False, False, "inconclusive"),
        (None, True, "inconclusive"),
        (True, None, "inconclusive"),
    ],
)
def test_data_and_state_make_four_cells(
    data: bool | None, state: bool | None, suspect: str
) -> None:
    recorded = row(("replay",), held=False)
    rows = [row(("replay",), held=False)]
    rows += [] if data is None else [row(("other-data",), held=data)]
    rows += [] if state is None else [row(("other-state",), held=state)]
    found = read_out(rows, recorded=recorded, repeat="bit-equal")
    assert (found.cells.same, found.cells.other_data, found.cells.other_state) == (
        False,
        data,
        state,
    )
    assert found.cells.suspect == suspect
    assert (suspect in found.verdict) or None in (data, state)
    well = read_out([row(("replay",), held=True)], recorded=recorded, repeat="different")
    assert well.cells.suspect == "transient"
    said = "hardware", "which says nothing"
    blurred = read_out([row(("replay",), held=True)], recorded=recorded, counts=False)
    assert blurred.cells.suspect == "inconclusive"
    assert [text in blurred.verdict for text in said] == [False, True]


def test_what_data_and_state_say_is_a_plain_sentence() -> None:
    found = read_out([row(("other-data",), held=True)], recorded=row(("replay",), held=False))
    assert "without this data it goes well" in found.verdict
    assert "bad data; whether the state matters" in found.verdict  # the part that is open
    assert found.as_json()["suspect"] == "inconclusive"


@pytest.mark.covers("S258")
def test_the_row_without_a_change_is_there_even_where_nothing_was_replayed() -> None:
    recorded = dataclasses.replace(row(("replay",), held=False), name="no change", recorded=True)
    found = read_out([row(("other-data",), held=True)], recorded=recorded)
    assert [r.name for r in found.rows] == ["no change", "other-data"]
    assert found.as_json()["table"][0]["recorded"]
    assert "no change (as recorded): failed" in found.rows[0].text()


def test_rows_that_held_are_ranked_by_cost() -> None:
    recorded = row(("replay",), held=False)
    rows = [
        row((a,), held=h)
        for a, h in (("fp32", True), ("adam-eps", False), ("lower-lr", True), ("other-data", True))
    ]
    names = [r.name for r in read_out(rows, recorded=recorded).rows]
    assert names == ["replay", "other-data", "lower-lr", "fp32", "adam-eps"]


def test_where_attention_saturates_an_fp16_overflow_is_not_asked_about_first() -> None:
    s = situation(nonfinite=True, kind="shift", low_precision="fp16", saturating=True)
    tried, _ = play(s, lambda t: t.lr_factor < 1)
    assert tried == ["lower-lr"]


def test_accused_data_of_another_scale_is_left_out_before_it_is_trained_on_rescaled() -> None:
    back = SettingPutBack(
        name="batch[0]", step=301, values=(0.0, 1.0), shown="batch[0] brought back"
    )
    found = dataclasses.replace(CLEAN, num_outliers=20, first_sample=9600, last_sample=10239)
    s = situation(probe=found, changed=(back,), planned_samples=10**6)

    def first(s: Situation) -> str:
        return play(s, lambda _: False)[0][0]

    assert first(s) == "other-data"
    # what is more than may be left out is brought back, and so is any other setting
    assert first(dataclasses.replace(s, planned_samples=2000)) == "put-back"
    decay = dataclasses.replace(back, name="weight_decay")
    assert first(dataclasses.replace(s, changed=(decay,))) == "put-back"
