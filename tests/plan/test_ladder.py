"""The guard's next step, as a function of what is known."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.chronicle.journal import Journal, read_journal
from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.errors import PlanError
from trimtab.plan.ladder import (
    Commit,
    GiveUp,
    GoBack,
    NextStep,
    Situation,
    Trial,
    Wait,
    next_step,
)
from trimtab.plan.policy import Policy

ACT = Policy(mode="act", bisect="never")
"""The cheap path alone; test_trials.py has the rest."""
BAD = DataProbe(
    num_batches=40,
    num_outliers=5,
    first_sample=1000,
    last_sample=1039,
    median_loss=3.0,
    worst_loss=9.0,
)
CLEAN = DataProbe(num_batches=40, num_outliers=0, median_loss=3.0, worst_loss=3.2)


def situation(**changes: object) -> Situation:
    base = Situation(
        kind="divergence",
        nonfinite=False,
        lr_now=1e-3,
        lr_restore=1e-3,
        policy=ACT,
        window=(640, 703),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def outcome(trial: Trial, *, held: bool, loss: float = 3.0) -> TrialResult:
    return TrialResult(
        name=trial.name,
        held=held,
        loss=loss,
        expected_loss=3.0,
        steps=48,
        skipped=trial.skip is not None,
        lr_factor=trial.lr_factor,
        lr_limit=trial.lr_limit,
        only_asks=trial.only_asks,
    )


def play(
    s: Situation, judge: Callable[[Trial], tuple[bool, float]]
) -> tuple[list[Trial], NextStep]:
    """Run trials until something else is decided; `judge` says (held, loss) of a trial."""
    tried: list[Trial] = []
    while True:
        step = next_step(s)
        if not isinstance(step, Trial):
            return tried, step
        assert len(tried) < 20
        tried.append(step)
        held, loss = judge(step)
        s = dataclasses.replace(s, trials=(*s.trials, outcome(step, held=held, loss=loss)))


def test_data_that_stood_out_is_left_out_first_and_kept_out() -> None:
    tried, step = play(situation(probe=BAD), lambda t: (t.skip is not None, 3.0))
    assert [t.skip for t in tried] == [(1000, 1039)]
    assert isinstance(step, Commit)
    assert step.trial.lr_factor == 1.0
    assert "without samples 1000-1039 held for 48 steps" in step.reason


def test_leaving_data_out_is_tried_before_any_cut_even_when_nothing_stood_out() -> None:
    tried, _ = play(situation(probe=CLEAN), lambda t: (t.lr_factor <= 0.25, 3.0))
    assert tried[0] == Trial(name="without samples 640-703", skip=(640, 703))
    assert [t.lr_factor for t in tried[1:]] == [0.5, 0.25, 0.1]
    assert all(t.skip is None for t in tried[1:])  # that data is not to blame, so it is fed


def test_the_mildest_cut_that_holds_wins() -> None:
    _, step = play(situation(), lambda t: (t.lr_factor <= 0.25, 3.0))
    assert isinstance(step, Commit)
    assert step.trial.lr_factor == 0.25
    assert "failed: without samples 640-703, LR x 0.5" in step.reason


def test_where_attention_saturated_deep_cuts_come_first_and_mild_ones_never() -> None:
    s = situation(probe=CLEAN, saturating=True, policy=Policy(mode="act", lr_factor_saturating=0.1))
    tried, step = play(s, lambda t: (t.lr_factor < 0.1, 3.0))
    assert [t.lr_factor for t in tried] == [0.1, 1 / 30]
    assert isinstance(step, Commit)
    tried, _ = play(s, lambda t: (t.lr_factor < 1, 3.0))
    assert [t.lr_factor for t in tried] == [0.1]  # a short branch misleads: none is compared
    _, step = play(s, lambda t: (t.lr_factor == 1, 3.0))
    assert isinstance(step, Commit)
    assert step.trial.skip == (640, 703)  # no rate helped; then the data may have


def test_spikes_that_return_speak_for_the_rate_first() -> None:
    tried, _ = play(situation(probe=CLEAN, returning=True), lambda t: (t.lr_factor < 0.5, 3.0))
    assert [t.lr_factor for t in tried] == [0.1]  # a short branch misleads: none is compared


def test_a_stronger_cut_that_is_clearly_better_is_taken() -> None:
    losses = {0.5: 3.4, 0.25: 3.2, 0.1: 3.197, 1 / 30: 2.0}
    tried, step = play(situation(), lambda t: (t.lr_factor < 1, losses.get(t.lr_factor, 9.0)))
    assert isinstance(step, Commit)
    assert step.trial.lr_factor == 0.25  # 0.1 is not better by 0.2 %, so 1/30 is not even tried
    assert [t.lr_factor for t in tried] == [1.0, 0.5, 0.25, 0.1]


def test_a_rate_that_jumped_goes_back_to_that_of_the_restore_point_first() -> None:
    s = situation(lr_now=9e-3, lr_restore=3e-4, lr_jump_step=100)
    tried, step = play(s, lambda t: (t.lr_limit is not None, 3.0))
    assert [(t.lr_limit, t.lr_factor, t.lr_share) for t in tried] == [(3e-4, 1.0, 1.0)]
    assert isinstance(step, Commit)
    assert step.trial.name.startswith("LR back to 0.0003")
    # Below a schedule the value is an upper bound, and the schedule keeps its shape.
    scheduled = dataclasses.replace(s, lr_scheduled=True)
    (trial,), _ = play(scheduled, lambda t: (t.lr_limit is not None, 3.0))
    assert trial.lr_limit == 3e-4
    assert trial.lr_share == pytest.approx(1 / 30)


def test_where_that_is_not_enough_cuts_count_from_the_sound_rate() -> None:
    s = situation(lr_now=4e-3, lr_restore=1e-3, lr_jump_step=100)
    tried, _ = play(s, lambda t: ((t.lr_limit or 1.0) <= 3e-4, 3.0))
    assert [t.lr_limit for t in tried[:3]] == pytest.approx([1e-3, 5e-4, 2.5e-4])
    assert all(t.lr_factor == 1.0 and t.lr_sound == 1e-3 for t in tried[:3])


def test_a_rate_that_warmed_up_is_limited_and_its_own_low_start_ends_nothing() -> None:
    s = situation(lr_now=4e-3, lr_restore=1e-3, lr_scheduled=True)
    tried, _ = play(s, lambda t: ((t.lr_limit or 1.0) <= 3e-4, 3.0))
    limited = [t for t in tried if t.lr_limit is not None]
    assert limited
    assert all((t.lr_sound, t.lr_share, t.lr_factor) == (None, 1.0, 1.0) for t in limited)


def test_a_schedule_that_moves_a_little_is_no_jump() -> None:
    tried, _ = play(situation(lr_now=1.4e-3), lambda t: (False, 9.0))
    assert [t.lr_factor for t in tried] == [1.0, *ACT.lr_factors]


def test_cuts_keep_bad_data_out() -> None:
    tried, step = play(situation(probe=BAD), lambda t: (t.lr_factor <= 0.5, 3.0))
    assert all(t.skip == (1000, 1039) for t in tried)
    assert isinstance(step, Commit)
    assert step.trial.skip == (1000, 1039)


def test_a_value_out_of_nothing_is_replayed_unchanged_first() -> None:
    tried, step = play(situation(nonfinite=True, kind="non-finite"), lambda t: (True, 3.0))
    assert tried == [Trial(name="as it was")]
    assert isinstance(step, Commit)
    tried, _ = play(situation(nonfinite=True, probe=BAD), lambda t: (True, 3.0))
    assert tried[0].skip == (1000, 1039)


def test_after_all_fail_further_back_twice_as_far_each_time_then_give_up() -> None:
    times = []
    for depth in range(10):
        _, step = play(situation(depth=depth), lambda t: (False, 9.0))
        if isinstance(step, GiveUp):
            assert "the policy allows 6 rollbacks" in step.reason
            break
        assert isinstance(step, GoBack)
        times.append(step.times)
    assert times == [2, 4, 8, 16, 32, 64]
    _, step = play(situation(older_restore_point=False), lambda t: (False, 9.0))
    assert isinstance(step, GiveUp)
    assert "nothing lies further back" in step.reason
    _, step = play(situation(recurrences=1), lambda t: (False, 9.0))
    assert isinstance(step, GoBack)
    assert step.times == 4


def test_limits_are_kept() -> None:
    assert isinstance(next_step(situation(rollbacks=6)), GiveUp)
    assert isinstance(next_step(situation(wasted_share=0.6)), GiveUp)
    small = situation(planned_samples=500)  # 64 samples would be 12.8 %
    first = next_step(small)
    assert isinstance(first, Trial)
    assert first.skip is None
    assert next_step(situation(planned_samples=6400)) == Trial(
        name="without samples 640-703", skip=(640, 703)
    )


def test_a_raise_cannot_be_written_down() -> None:
    with pytest.raises(PlanError, match="never raised"):
        Trial(name="x", lr_factor=1.5)
    with pytest.raises(PlanError):
        Trial(name="x", lr_factor=0.0)


def test_the_rate_is_cut_once_with_its_reason_in_the_journal_and_a_cool_down(
    tmp_path: Path,
) -> None:
    policy = Policy(mode="act", cooldown_steps=64, bisect="never")
    journal = Journal(tmp_path / "journal.jsonl")
    factor, last_action = 1.0, None
    for step in range(1000, 1060, 4):  # the loss goes on looking ill all the while
        s = situation(policy=policy, step=step, last_action_step=last_action)
        _, decided = play(s, lambda t: (t.lr_factor <= 0.5, 3.0))
        if isinstance(decided, Commit):
            factor *= decided.trial.lr_factor
            last_action = step
            journal.append("decision", attempt="1.1", step=step, reason=decided.reason)
        else:
            assert isinstance(decided, Wait)
            assert decided.until_step == 1064
    journal.close()
    assert factor == 0.5
    events, _ = read_journal(journal.path)
    assert len(events) == 1
    assert "LR x 0.5 held" in events[0].data["reason"]


def test_a_nan_does_not_wait_for_the_cool_down() -> None:
    assert isinstance(next_step(situation(step=10, last_action_step=5)), Wait)
    assert isinstance(next_step(situation(step=10, last_action_step=5, nonfinite=True)), Trial)


@given(
    lr_now=st.floats(min_value=1e-8, max_value=1.0),
    lr_restore=st.floats(min_value=0, max_value=1.0),
    probe=st.sampled_from([None, BAD, CLEAN]),
    window=st.none() | st.just((640, 703)),
    nonfinite=st.booleans(),
    held=st.lists(st.booleans(), min_size=8, max_size=8),
    losses=st.lists(st.floats(allow_nan=True), min_size=8, max_size=8),
)
def test_in_any_situation_it_ends_and_never_raises_a_rate(
    lr_now: float,
    lr_restore: float,
    probe: DataProbe | None,
    window: tuple[int, int] | None,
    nonfinite: bool,
    held: list[bool],
    losses: list[float],
) -> None:
    verdicts = iter(zip(held, losses, strict=True))
    s = situation(
        lr_now=lr_now, lr_restore=lr_restore, probe=probe, window=window, nonfinite=nonfinite
    )
    tried, step = play(s, lambda t: next(verdicts))
    assert len(tried) <= 7
    assert len({t.name for t in tried}) == len(tried)
    factors = [t.lr_factor for t in tried]
    assert factors == sorted(factors, reverse=True)
    assert all(0 < f <= 1 for f in factors)
    if isinstance(step, Commit):
        assert step.trial in tried
        assert held[tried.index(step.trial)]
    else:
        assert not any(held[: len(tried)])
    skip_alone = [i for i, t in enumerate(tried) if t.skip and t.lr_factor == 1.0]
    cuts = [i for i, t in enumerate(tried) if t.lr_factor < 1.0]
    if cuts and (window or probe is BAD):
        assert skip_alone
        assert skip_alone[0] < cuts[0]


def test_a_rate_that_was_still_rising_is_held_and_not_only_scaled() -> None:
    tried, step = play(
        situation(lr_rising=True, probe=CLEAN), lambda t: (t.lr_limit == 2.5e-4, 3.0)
    )
    cuts = [t for t in tried if t.lr_limit is not None]
    assert [t.lr_limit for t in cuts] == [5e-4, 2.5e-4, 1e-4]
    assert all(t.lr_factor == 1.0 and t.arms == ("lower-lr",) for t in cuts)
    assert isinstance(step, Commit)
    assert step.trial.name == "LR held at 0.00025"
    assert (
        step.reason.endswith("LR held at 0.0001 was not better by 0.2% (3)")
        or "failed" in step.reason
    )


def test_a_rising_rate_is_held_at_first_where_it_rose_from() -> None:
    s = situation(lr_rising=True, lr_now=9e-3, lr_restore=3e-4, probe=CLEAN)
    tried, step = play(s, lambda t: (t.lr_limit is not None, 3.0))
    assert next(t.lr_limit for t in tried if t.lr_limit is not None) == pytest.approx(3e-4)
    assert isinstance(step, Commit)
    assert step.trial.name == "LR held at 0.0003"


@pytest.mark.parametrize("saturating", [False, True])
def test_a_rate_that_rose_with_the_run_is_held_at_a_tenth_and_no_further(saturating: bool) -> None:
    tried, step = play(
        situation(lr_rising=True, lr_proven=False, saturating=saturating, probe=CLEAN),
        lambda t: (t.lr_limit is not None, 3.0),
    )
    assert [t.lr_limit for t in tried if t.lr_limit is not None] == [1e-4]
    assert isinstance(step, Commit)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_no_rate_is_refused(limit: float) -> None:
    with pytest.raises(PlanError, match="learning-rate limit"):
        Trial(name="x", lr_limit=limit)


def test_next_step_asks_the_other_arms_where_too_much_data_stands_out_and_then_says_so() -> None:
    tried, step = play(situation(probe=BAD, planned_samples=300), lambda _: (False, 9.0))
    assert {a for t in tried for a in t.arms} == {"lower-lr"}
    assert not [t for t in tried if t.skip is not None]
    assert isinstance(step, GiveUp)
    assert "samples 1000-1039 stand out" in step.reason
    assert "13% of the planned data, the policy allows max_skip_share = 0.1" in step.reason
    assert "guard.skip_samples(1000, 1039, why=...)" in step.reason
    _, kept = play(situation(probe=BAD, planned_samples=300), lambda t: (t.lr_factor < 0.3, 2.0))
    assert isinstance(kept, Commit)
    first = next_step(situation(probe=BAD, planned_samples=4000))
    assert isinstance(first, Trial)
    assert first.skip is not None


def test_where_the_run_holds_without_data_over_the_limit_the_limit_is_said_to_stand_in_the_way() -> (
    None
):
    s = situation(probe=BAD, planned_samples=300, policy=Policy(mode="act"), clip=1.0)
    tried, step = play(s, lambda t: (t.skip is not None, 3.0))
    assert [t.over_limit for t in tried] == [True, False, False]
    assert [t.arms for t in tried[1:]] == [("lower-lr",), ("lower-clip",)]
    assert isinstance(step, GiveUp)
    assert step.reason.startswith(
        "no other trial held (tried: LR x 0.5, clip at 0.5); the limit on"
    )
    assert "without samples 1000-1039 the run holds" in step.reason
    assert "13% of the planned data, the policy allows max_skip_share = 0.1" in step.reason
    assert "raise it to 0.134, or call guard.skip_samples(1000, 1039, why=...)" in step.reason


def test_what_holds_beside_a_branch_over_the_limit_is_kept_and_that_branch_never_is() -> None:
    s = situation(probe=BAD, planned_samples=300, policy=Policy(mode="act"), clip=1.0)
    _, step = play(s, lambda t: (t.skip is not None or t.lr_factor < 1, 3.0))
    assert isinstance(step, Commit)
    assert step.trial.name == "LR x 0.5"
    assert "better than" not in step.reason


def test_where_the_run_fails_without_that_data_the_limit_is_no_obstacle_and_all_arms_are_asked() -> (
    None
):
    s = situation(probe=BAD, planned_samples=300, policy=Policy(mode="act"), clip=1.0)
    tried, step = play(s, lambda _: (False, 9.0))
    assert sum("lower-lr" in t.arms for t in tried) > 1
    assert isinstance(step, GiveUp)
    assert "stands in the way" not in step.reason
