"""Each rule against a behaviour that its authors, or others who measured it, have stated."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.peers.contract import GRAD, LOSS, RESUME, Floats, LogColumns, Marks, Peer
from benchmarks.peers.norm_rules import AxLearn, Cosmos, MindFormers, StabilityGuard, ZClip
from benchmarks.peers.ratio_rules import (
    Entrenar,
    FlagScale,
    InternEvo,
    KillLossSpike,
    Lightning,
    MegatronLarge,
    Metaseq,
)
from benchmarks.peers.recovery_rules import Continuity, FiniteCheck, LadderSpike, Soup
from benchmarks.peers.sigma_rules import (
    LevanterSkip,
    LevanterUpdateClip,
    SkipStep,
    StabilityMonitor,
)
from benchmarks.peers.table import PEERS
from benchmarks.peers.trainscope import (
    Crossing,
    Cusum,
    Explosion,
    FrozenCusum,
    Percentile,
    ZScore,
)
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise

ROWS = 6000
ONSET = 4000
NOISES: tuple[NoiseKind, ...] = ("gaussian", "ar1", "t3")


def fed(loss: Floats | None = None, norm: Floats | None = None) -> LogColumns:
    values: dict[str, Floats] = {}
    if loss is not None:
        values["loss"] = np.asarray(loss, dtype=np.float64)
    if norm is not None:
        values["grad_norm"] = np.asarray(norm, dtype=np.float64)
    (n,) = {len(v) for v in values.values()}
    return LogColumns(values, np.zeros(n, np.int32))


def noisy(num_rows: int = 400, level: float = 2.0, seed: int = 0) -> Floats:
    return level + 0.02 * np.random.default_rng(seed).standard_normal(num_rows)


def marked(marks: Marks) -> list[int]:
    return np.flatnonzero(marks).tolist()


def curve(seed: int, event: str = "none", noise: NoiseKind = "gaussian") -> Floats:
    """The falling curve on which others measured these rules: 6000 rows, noise .02."""
    rng = np.random.default_rng(seed)
    loss = lm_curve(ROWS) + 0.02 * make_noise(ROWS, noise, rng)
    after = np.arange(ROWS) - ONSET
    events: dict[str, Floats] = {
        "none": loss,
        "one row": np.where(after == 0, 1.5 * loss, loss),
        "spike": loss * (1 + np.interp(after, [0, 4, 64], [0, 1, 0], left=0, right=0)),
        "shift": loss + np.select([after >= 150, after >= 0], [0.03, 0.06]),
        "drift": loss + 0.0005 * np.clip(after, 0, None),
        "too good": np.where(after >= 0, 0.7 * loss, loss),
    }
    return events[event]


def norms(seed: int) -> Floats:
    return np.exp(0.5 * np.random.default_rng([seed, 1]).standard_normal(ROWS))


def hits(rule: Peer, event: str) -> tuple[int, float]:
    """How many of five seeds it marks within 1000 rows, and the median delay."""
    delays = []
    for seed in range(5):
        late = rule.mark(fed(curve(seed, event)))[ONSET : ONSET + 1001]
        delays += marked(late)[:1]
    return len(delays), float(np.median(delays)) if delays else math.nan


def marks_per_clean_run(rule: Peer, *, noise: NoiseKind = "gaussian", norm: bool = False) -> float:
    counts = [
        np.count_nonzero(rule.mark(fed(curve(s, noise=noise), norms(s) if norm else None)))
        for s in range(5)
    ]
    return float(np.mean(counts))


EVERY_EVENT = ("one row", "spike", "shift", "drift", "too good")


@pytest.mark.parametrize(
    ("rule", "caught"),
    [
        # seeds of five hit within 1000 rows, for the events in the order of EVERY_EVENT
        (Cusum(), (5, 5, 5, 5, 5)),
        (Cusum(upward_only=True), (5, 5, 5, 5, 0)),
        (ZScore(), (5, 5, 5, 2, 5)),
        (KillLossSpike(), (0, 0, 0, 0, 0)),
        (SkipStep(), (5, 5, 0, 0, 0)),
        (MegatronLarge(), (0, 0, 0, 0, 0)),
        (Lightning(), (0, 0, 0, 0, 0)),
        (LadderSpike(), (5, 5, 0, 0, 0)),
        (FlagScale(), (5, 5, 0, 0, 0)),
        (Metaseq(), (2, 5, 0, 0, 0)),
        (InternEvo(), (2, 0, 0, 0, 0)),
        (FrozenCusum(upward_only=True), (0, 0, 0, 0, 0)),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "",
)
def test_what_a_rule_catches_on_a_falling_curve(rule: Peer, caught: tuple[int, ...]) -> None:
    assert tuple(hits(rule, event)[0] for event in EVERY_EVENT) == caught


@pytest.mark.parametrize(
    ("rule", "event", "delay"),
    [
        (Cusum(), "spike", 1),
        (Cusum(), "shift", 3),
        (Cusum(), "drift", 78),
        (ZScore(), "shift", 6),
        (ZScore(), "drift", 513),
        (SkipStep(), "spike", 1),
        (LadderSpike(), "spike", 1),
        (Metaseq(), "spike", 3),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else str(x),
)
def test_how_late_a_rule_is(rule: Peer, event: str, delay: int) -> None:
    assert hits(rule, event)[1] == pytest.approx(delay, abs=1)


@pytest.mark.parametrize(
    ("rule", "count", "share"),
    [
        (Cusum(), 20.6, 0.02),
        (ZScore(), 3.2, 0.02),
        (FrozenCusum(), 5939, 0.01),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "",
)
def test_false_marks_on_the_clean_curve(rule: Peer, count: float, share: float) -> None:
    assert marks_per_clean_run(rule) == pytest.approx(count, rel=share)


@pytest.mark.parametrize(
    "rule",
    [
        Cusum(upward_only=True),
        SkipStep(),
        KillLossSpike(),
        Lightning(),
        LadderSpike(),
        Metaseq(),
        FlagScale(),
        InternEvo(),
        MegatronLarge(),
        FrozenCusum(upward_only=True),
    ],
    ids=lambda x: x.name,
)
def test_silent_on_the_clean_curve(rule: Peer) -> None:
    assert marks_per_clean_run(rule) == 0


def test_norms_with_a_log_normal_tail_set_off_what_looks_at_them() -> None:
    assert marks_per_clean_run(SkipStep(), norm=True) == pytest.approx(7.2, abs=2)
    clips = np.mean([np.count_nonzero(ZClip().mark(fed(norm=norms(s)))) for s in range(5)])
    assert 0.03 * ROWS <= clips <= 0.06 * ROWS
    for quiet in (AxLearn(), StabilityGuard()):
        assert not any(quiet.mark(fed(norm=norms(s))).any() for s in range(5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "per_1k"),
    [
        # marks per 1000 clean rows of the late phase: independent, autocorrelated, heavy-tailed
        (Cusum(), (0.07, 18.8, 7.1)),
        (Cusum(upward_only=True), (0.0, 6.5, 2.1)),
        (ZScore(), (0.73, 1.7, 11.0)),
        (SkipStep(), (0.0, 0.0, 1.1)),
        (LadderSpike(), (0.0, 0.0, 0.03)),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "",
)
def test_noise_that_is_not_independent_sets_rules_off(
    rule: Peer, per_1k: tuple[float, ...]
) -> None:
    """The stated shares lie within four standard errors of the mean over twenty seeds."""
    for noise, stated in zip(NOISES, per_1k, strict=True):
        counts = np.array(
            [np.count_nonzero(rule.mark(fed(curve(s, noise=noise)))[2000:]) / 4 for s in range(20)]
        )
        error = max(float(counts.std()) / math.sqrt(20), 0.02)
        assert abs(float(counts.mean()) - stated) <= 4 * error, (noise, counts.mean())


def test_skip_step_skips_129_rows_after_one_nan() -> None:
    loss = noisy(600)
    loss[300] = np.nan
    assert marked(SkipStep().mark(fed(loss))) == list(range(300, 429))


def test_skip_step_is_unarmed_for_63_rows_and_skips_any_rise_out_of_a_constant() -> None:
    flat = np.full(100, 2.0)
    flat[62] = 9.0
    assert marked(SkipStep().mark(fed(flat))) == []
    flat = np.full(100, 2.0)
    flat[63] = 2.000001
    assert marked(SkipStep().mark(fed(flat))) == [63]


def test_skip_step_takes_four_rows_to_accept_a_new_level() -> None:
    loss = noisy(1000, 2.2) * np.where(np.arange(1000) >= 500, 1.27, 1.0)
    assert marked(SkipStep().mark(fed(loss))) == [500, 501, 502, 503]


def test_skip_step_names_the_loss_before_the_norm() -> None:
    loss, norm = noisy(200), noisy(200, 1.0, seed=1)
    loss[150], norm[150], norm[170] = 4.0, 9.0, 9.0
    marks = SkipStep().mark(fed(loss, norm))
    assert {t: int(marks[t]) for t in marked(marks)} == {150: LOSS, 170: GRAD}


def test_maxtext_says_nothing_after_the_loss_was_not_finite() -> None:
    loss = noisy(600)
    loss[300], loss[500] = np.inf, 9.0
    assert marked(replace(SkipStep(), aborts=True).mark(fed(loss))) == [300]


def test_spike_score_is_the_share_of_rows() -> None:
    loss = noisy(1000)
    loss[[300, 700]] = 9.0
    assert StabilityMonitor().score(fed(loss)) == pytest.approx(2 / 1000)
    loss[100] = 9.0  # the window is not full yet
    assert marked(StabilityMonitor().mark(fed(loss)))[0] > 128


def test_levanter_marks_a_nan_once_and_is_blind_while_its_ring_holds_it() -> None:
    loss = noisy(600)
    loss[300], loss[350], loss[500] = np.nan, 9.0, 9.0
    assert marked(LevanterSkip().mark(fed(loss))) == [300, 500]


def test_levanter_clips_an_update_beyond_three_deviations() -> None:
    norm = noisy(300, 1.0)
    norm[200] = 1.2
    stream = LogColumns({"update_norm": norm}, np.zeros(300, np.int32))
    assert 200 in marked(LevanterUpdateClip().mark(stream))


def test_kill_loss_spike_wants_five_rows_at_twice_the_level() -> None:
    loss = noisy(1000)
    loss[500:504] = 4.2
    assert marked(KillLossSpike().mark(fed(loss))) == []
    loss[504:506] = 4.4  # the outliers join: the bar is at 4.2 by now
    assert marked(KillLossSpike().mark(fed(loss))) == [504, 505]
    loss[500:506] = 3.9  # an LM at 2.0 must reach 4.0
    assert marked(KillLossSpike().mark(fed(loss))) == []


def test_kill_loss_spike_is_blind_for_a_window_after_a_nan() -> None:
    loss = noisy(1000)
    loss[500] = np.nan
    loss[520:530] = 9.0
    assert marked(KillLossSpike().mark(fed(loss))) == []
    loss[640:650] = 9.0
    assert marked(KillLossSpike().mark(fed(loss)))[0] == 644


def test_kill_loss_spike_calls_half_a_window_above_ten_a_high_loss() -> None:
    high = KillLossSpike().mark(fed(np.full(1000, 11.0)))
    assert marked(high)[0] == 200  # after twice the window; five in a row it never was


def test_megatron_cannot_fire_once_the_first_rows_were_high() -> None:
    loss = np.concatenate([[11.0], noisy(999)])
    loss[500] = 100.0
    assert marked(MegatronLarge().mark(fed(loss))) == []
    loss[500] = 110.0
    assert marked(MegatronLarge().mark(fed(loss))) == [500]
    loss[600] = np.nan
    assert marked(MegatronLarge().mark(fed(loss))) == [500, 600]


def test_lightning_wants_three_times_the_mean_and_lets_the_second_row_of_a_fall_pass() -> None:
    loss = np.full(30, 2.0)
    loss[20], loss[21] = 5.9, 6.1
    assert marked(Lightning().mark(fed(loss))) == []  # 5.9 joined and lifted the mean
    loss[20], loss[21] = 6.0, np.inf
    assert marked(Lightning().mark(fed(loss))) == [20, 21]
    assert marked(Lightning().mark(fed([np.nan, 2.0, 2.0]))) == []  # type: ignore[arg-type]


def test_zclip_is_dead_after_one_nan() -> None:
    norm = np.exp(0.1 * np.random.default_rng(0).standard_normal(500))
    norm[400] = 50.0
    assert 400 in marked(ZClip().mark(fed(norm=norm)))
    norm[100] = np.nan
    assert max(marked(ZClip().mark(fed(norm=norm))), default=0) < 100


def test_zclip_learns_the_clipped_value() -> None:
    norm = np.concatenate([np.tile([0.9, 1.1], 50), [50.0], np.tile([0.9, 1.1], 5), [50.0]])
    assert marked(ZClip().mark(fed(norm=norm))) == [100, 111]


def test_trainscope_does_not_see_a_nan_and_a_falling_loss_is_an_anomaly() -> None:
    loss = noisy()
    loss[200] = np.nan
    for rule in (Cusum(), ZScore(), ZScore(robust=True), Percentile()):
        assert not rule.mark(fed(loss))[200]
    falling = noisy() - 0.3 * (np.arange(400) >= 200)
    assert Cusum().mark(fed(falling))[200:210].any()
    assert not Cusum(upward_only=True).mark(fed(falling))[200:210].any()


def test_percentile_marks_about_two_per_cent_of_any_noise() -> None:
    share = np.mean(Percentile().mark(fed(noisy(5000))) != 0)
    assert 0.015 < share < 0.04


def test_first_crossing_is_the_first_of_three_rows_and_said_once() -> None:
    norm = noisy(300, 1.0)
    norm[100:102], norm[150:160], norm[200:210] = 3.0, 3.0, 3.0
    assert marked(Crossing().mark(fed(norm=norm))) == [150]
    assert marked(Crossing().mark(fed(norm=np.r_[norm[:40], np.full(9, 3.0)]))) == []


def test_explosion_is_ten_times_the_first_forty_or_not_finite() -> None:
    loss = noisy(100)
    loss[[30, 50, 60]] = 19.0, 28.0, np.nan
    assert marked(Explosion().mark(fed(loss))) == [50, 60]


def test_flagscale_locks_up_after_one_low_batch_and_after_a_lasting_rise() -> None:
    lucky = noisy()
    lucky[100] = 1.6
    assert marked(FlagScale().mark(fed(lucky))) == list(range(101, 400))
    risen = noisy() * np.where(np.arange(400) >= 200, 1.27, 1.0)
    assert marked(FlagScale().mark(fed(risen))) == list(range(200, 400))
    broken = noisy()
    broken[100], broken[200] = np.nan, np.inf
    assert marked(FlagScale().mark(fed(broken))) == [200]


def test_metaseq_at_a_low_ratio_locks_up_too() -> None:
    risen = noisy() * np.where(np.arange(400) >= 200, 1.27, 1.0)
    assert marked(Metaseq(ratio=1.2).mark(fed(risen))) == list(range(200, 400))


def test_internevo_looks_one_row_back() -> None:
    assert marked(InternEvo().mark(fed([2.0, 3.1, 3.1, 2.0, 3.0]))) == [1]  # type: ignore[arg-type]


def test_axlearn_does_not_learn_what_it_skips() -> None:
    norm = np.ones(200)
    norm[100:110], norm[150] = 21.0, np.nan
    assert marked(AxLearn().mark(fed(norm=norm))) == [*range(100, 110), 150]
    assert marked(AxLearn().mark(fed(norm=np.where(norm > 20, 19.0, 1.0)))) == []


def test_stabilityguard_is_slower_than_it_says_since_the_spike_joins_first() -> None:
    norm = np.ones(100)
    norm[50] = 11.0  # 11 / (0.99 + 0.11) = 10.0
    assert marked(StabilityGuard().mark(fed(norm=norm))) == []
    norm[50] = 11.5
    assert marked(StabilityGuard().mark(fed(norm=norm))) == [50]
    norm[60] = np.inf
    assert marked(StabilityGuard().mark(fed(norm=norm))) == [50, 60]


def test_absolute_limits_depend_on_the_run() -> None:
    assert marked(MindFormers().mark(fed(norm=np.full(12, 1.0)))) == [9, 10, 11]
    assert marked(MindFormers(limit=3.0).mark(fed(norm=np.full(12, 1.0)))) == []
    assert marked(Soup().mark(fed(np.full(6, 3.1)))) == [4, 5]
    assert marked(Soup().mark(fed(np.full(6, 3.0)))) == []


def test_entrenar_stops_counting_after_three() -> None:
    loss = np.full(100, 1.0)
    loss[[20, 40, 60, 80]] = 5.0
    assert marked(Entrenar().mark(fed(loss))) == [20, 40, 60]


def test_the_ladder_cannot_climb_on_a_plateau_of_twice_the_level() -> None:
    """1000 rows at twice the level count as one spike: within its rest the level is accepted."""
    loss = noisy(2500) * np.where((np.arange(2500) >= 800) & (np.arange(2500) < 1800), 2.0, 1.0)
    assert marked(LadderSpike().mark(fed(loss))) == [800]


def test_the_ladder_takes_a_norm_above_a_hundred() -> None:
    norm = np.ones(300)
    norm[200] = 101.0
    marks = LadderSpike().mark(fed(noisy(300), norm))
    assert marked(marks) == [200]
    assert marks[200] == GRAD


@pytest.mark.parametrize(("jump", "fits"), [(1.19, True), (1.25, False), (0.75, False)])
def test_a_jump_of_a_fifth_passes_the_continuity_guard(jump: float, fits: bool) -> None:
    loss = noisy(300) * np.where(np.arange(300) >= 100, jump, 1.0)
    attempt = (np.arange(300) >= 100).astype(np.int32)
    marks = Continuity().mark(LogColumns({"loss": loss}, attempt))
    assert marked(marks) == ([] if fits else [100])
    assert fits or marks[100] == RESUME


def test_cosmos_does_not_let_a_divergence_carry_its_bar_along() -> None:
    norm = np.exp(np.linspace(0, math.log(200), 2000))  # grows 200-fold, slowly
    assert marked(Cosmos().mark(fed(norm=norm)))[0] == pytest.approx(
        int(np.searchsorted(norm, 40.0)), abs=15
    )
    assert marked(replace(Cosmos(), chase=math.inf).mark(fed(norm=norm))) == []


def test_cosmos_waits_for_twelve_norms_but_not_for_a_nan() -> None:
    norm = np.ones(40)
    norm[5], norm[8], norm[30] = 99.0, np.nan, 11.0
    assert marked(Cosmos().mark(fed(norm=norm))) == [8, 30]


def test_finite_check_names_what_broke() -> None:
    loss, norm = noisy(50), noisy(50)
    loss[20], norm[30] = np.inf, np.nan
    marks = FiniteCheck().mark(fed(loss, norm))
    assert {t: int(marks[t]) for t in marked(marks)} == {20: LOSS, 30: GRAD}


HINDSIGHT = {"llm-foundry kill-loss-spike", "trainscope first-crossing", "school-of-ai continuity"}
"""The first knows the length of the run, the others look a few rows on."""


@pytest.mark.parametrize("rule", PEERS, ids=lambda p: p.name)
def test_no_rule_looks_ahead(rule: Peer) -> None:
    rng = np.random.default_rng(3)
    values = {
        "loss": lm_curve(900) + 0.05 * make_noise(900, "t3", rng),
        "grad_norm": np.exp(make_noise(900, "t3", rng)),
        "update_norm": np.exp(make_noise(900, "gaussian", rng)),
    }
    values["loss"][500], values["grad_norm"][600] = np.nan, np.inf
    whole = LogColumns(values, np.zeros(900, np.int32))
    marks = rule.mark(whole)
    assert marks.shape == (900,)
    assert marks.dtype == np.int8
    if rule.name in HINDSIGHT:
        return
    for end in (0, 1, 25, 64, 129, 470, 620):
        part = LogColumns({k: v[:end] for k, v in values.items()}, whole.attempt[:end])
        assert rule.mark(part).tolist() == marks[:end].tolist()


def test_names_are_unique() -> None:
    names = [p.name for p in PEERS]
    assert len(names) == len(set(names))
