"""Faults at known rows: all detectors together, with delays, on evaluation seeds."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, median, state_from_json, state_to_json
from trimtab.detectors.judge import Judge, judge_record
from trimtab.detectors.level import LevelDetector
from trimtab.detectors.lr_change import LrChangeDetector
from trimtab.detectors.scale_collapse import ScaleCollapseDetector
from trimtab.detectors.spike import SpikeDetector
from trimtab.errors import ConfigError, ReadError
from trimtab.record import RecordBuilder
from trimtab.testing.contract import find_all
from trimtab.testing.curves import lm_curve, make_noise, record_of

AT = 4000
Floats = NDArray[np.float64]


def alarms(values: Floats) -> list[Finding]:
    found = judge_record(record_of(np.arange(1.0, len(values) + 1), {"loss": values}))
    return [f for f in found if f.severity != "info"]


def quiet(seed: int, num_rows: int = 6000) -> Floats:
    noise = make_noise(num_rows, "gaussian", np.random.default_rng(seed))
    return np.asarray(lm_curve(num_rows) + 0.02 * noise)


def marin(loss: Floats) -> None:
    loss[AT : AT + 150] += 0.06
    loss[AT + 150 :] += 0.03


def drift(loss: Floats) -> None:
    loss[AT:] += 0.0005 * np.arange(len(loss) - AT)


def broad_spike(loss: Floats) -> None:
    loss[AT : AT + 65] *= 1 + np.concatenate([np.linspace(0.2, 1, 5), np.linspace(1, 0, 60)])


def one_batch(loss: Floats) -> None:
    loss[AT] *= 1.5


@pytest.mark.parametrize("seed", range(100, 105))
@pytest.mark.parametrize(
    ("plant", "delay"),
    [(marin, 200), (drift, 400), (broad_spike, 3), (one_batch, 0)],
    ids=lambda p: getattr(p, "__name__", None),
)
def test_a_planted_fault_is_found_in_time(
    seed: int, plant: Callable[[Floats], None], delay: int
) -> None:
    loss = quiet(seed)
    plant(loss)
    found = alarms(loss)
    assert found, "missed"
    assert AT <= found[0].row <= AT + delay
    assert abs(found[0].onset_row - AT) <= max(64, delay // 2)


@pytest.mark.parametrize(("far", "told"), [((9.5, 7.0, 6.5), True), ((9.5, 7.0, 2.0), False)])
def test_a_row_far_out_and_two_half_as_far_are_a_spike(far: tuple[float, ...], told: bool) -> None:
    noise = make_noise(400, "gaussian", np.random.default_rng(0))
    loss = 2.4 + 0.17 * np.asarray(noise)
    spread = 1.4826 * float(np.median(np.abs(loss[:200] - 2.4)))
    after = [5.0] * 17 if told else [0.0] * 17
    loss[200:220] = 2.4 + spread * np.array([*far, *after])
    found = [f for f in alarms(loss) if f.kind == "spike"]
    assert [(f.onset_row, f.row) for f in found] == ([(200, 202)] if told else [])


@pytest.mark.parametrize(("rows", "told"), [(2, False), (3, True), (6, True)])
@pytest.mark.parametrize("whole", [False, True])
def test_rows_on_end_that_are_all_nearly_far_enough_are_a_spike(
    rows: int, told: bool, whole: bool
) -> None:
    noise = make_noise(400, "gaussian", np.random.default_rng(0))
    loss = 2.4 + 0.17 * np.asarray(noise)
    spread = 1.4826 * float(np.median(np.abs(loss[:200] - 2.4)))
    loss[200 : 200 + rows] = 2.4 + 9 * spread  # 7.6 times what the detector takes as noise
    if whole:
        found = judge_record(record_of(np.arange(1.0, 401), {"loss": loss}))
    else:
        found = find_all(SpikeDetector(), {"loss": loss})
    spikes = [f for f in found if f.detector == "spike"]
    opened = [(f.onset_row, f.row) for f in spikes if not f.closed]
    assert opened == ([(200, 202)] if told else [])
    assert not told or f"back after {rows} rows" in spikes[-1].text


@pytest.mark.parametrize("seed", range(100, 105))
def test_the_same_runs_without_the_fault_are_quiet(seed: int) -> None:
    assert alarms(quiet(seed)) == []


@pytest.mark.covers("S44")
@pytest.mark.parametrize("word", [np.nan, np.inf])
def test_nan_at_a_step_is_critical_at_that_step(word: float) -> None:
    loss = quiet(100, 500)
    loss[321] = word
    first = alarms(loss)[0]
    assert (first.kind, first.severity, first.step) == ("non-finite", "critical", 322.0)


@pytest.mark.covers("S52")
@pytest.mark.parametrize("stable", [0.2, 7.0])
def test_the_robust_z_is_taken_against_the_runs_own_median(stable: float) -> None:
    rng = np.random.default_rng(100)
    norm = stable * np.exp(0.1 * rng.standard_normal(1200))
    norm[800:] *= 2.5
    found = [f for f in find_all(LevelDetector(), {"grad_norm": norm}) if f.onset_row >= 784]
    own = float(np.median(norm[:800]))
    assert found[0].expected == pytest.approx(own, rel=0.06)  # the median of its last 64 rows
    same = [f for f in find_all(LevelDetector(), {"grad_norm": norm / stable}) if f.row >= 800]
    assert found[0].score == pytest.approx(same[0].score, rel=1e-9)
    assert found[0].score > LevelDetector().thresholds[0]


def test_a_level_on_its_way_back_is_not_accepted_as_the_new_one() -> None:
    loss = 2.0 + 0.01 * np.random.default_rng(0).standard_normal(1200)
    loss[800:864] += np.linspace(2.0, 0.3, 64)
    loss[864:880] += 0.15
    last = {f.key: f for f in find_all(LevelDetector(), {"loss": loss})}.values()
    assert [(f.closed, f.end_row is not None) for f in last] == [(True, True)]


def scale_of(*stretches: tuple[float, int]) -> Floats:
    return np.concatenate([np.full(n, scale) for scale, n in stretches])


@pytest.mark.covers("S50")
def test_a_scale_that_falls_from_2_to_a_32nd_within_10_rows_alarms() -> None:
    fall = [(2.0**-k, 2) for k in range(5)]
    found = find_all(
        ScaleCollapseDetector(), {"loss_scale": scale_of((2.0, 300), *fall, (2**-5, 20))}
    )
    assert found[0].onset_row == 300
    assert found[-1].severity == "critical"
    assert found[-1].row <= 310


@pytest.mark.covers("S49")
@pytest.mark.parametrize("pace", [1, 60])  # a crash, and a slow descent that is no collapse
def test_a_scale_on_its_floor_for_50_rows_is_critical(pace: int) -> None:
    stairs = [(2.0**k, pace) for k in range(15, 0, -1)]
    scale = scale_of((65536.0, 300), *stairs, (1.0, 80), (4.0, 5))
    floor = 300 + 15 * pace
    found = [
        f for f in find_all(ScaleCollapseDetector(), {"loss_scale": scale}) if "floor" in f.text
    ]
    assert [(f.row, f.severity) for f in found] == [
        (floor + 49, "critical"),
        (floor + 80, "critical"),
    ]
    assert found[0].onset_row == floor
    assert "no learning" in found[0].text
    assert found[1].closed


def test_a_scale_of_one_from_the_start_is_bf16_and_a_lower_scale_that_holds_is_accepted() -> None:
    assert find_all(ScaleCollapseDetector(), {"loss_scale": np.ones(500)}) == ()
    found = find_all(
        ScaleCollapseDetector(), {"loss_scale": scale_of((65536.0, 200), (4096.0, 900))}
    )
    assert [(f.closed, f.end_row, f.severity) for f in found] == [
        (False, None, "warning"),
        (True, None, "warning"),
    ]


def test_a_learning_rate_that_jumps_is_noted_and_a_cut_is_not() -> None:
    lr = np.concatenate([np.linspace(0, 3e-4, 50), np.full(50, 3e-4), np.full(50, 6e-3)])
    found = find_all(LrChangeDetector(), {"lr": lr})
    assert [(f.row, f.severity) for f in found] == [(100, "warning")]
    assert find_all(LrChangeDetector(), {"lr": np.where(np.arange(99) < 50, 3e-4, 3e-5)}) == ()


def test_an_attempt_goes_on_from_the_judge_at_the_row_it_resumed_from() -> None:
    loss = 2.0 + 0.01 * np.random.default_rng(3).standard_normal(800)
    builder = RecordBuilder("forks", "simulated")
    builder.start_attempt(number="1.0")
    for i in range(400):
        builder.add(i + 1.0, {"loss": float(loss[i])})
    builder.start_attempt(number="1.1", parent="1.0", parent_step=390.0)
    for i in range(390, 420):
        builder.add(i + 1.0, {"loss": float(loss[i]) + 3.0})
    # before the first row of its parent: the judge of the grandparent holds
    builder.start_attempt(number="1.2", parent="1.1", parent_step=300.0)
    for i in range(300, 340):
        builder.add(i + 1.0, {"loss": float(loss[i]) + (3.0 if i >= 304 else 0.0)})
    # nothing says where: after the last row below its first step, on any axis
    builder.start_attempt(number="1.3", parent="1.0")
    builder.add(200.5, {"loss": 6.0})
    builder.add(200.75, {"loss": 6.0})
    found = {(f.onset_row, f.kind) for f in judge_record(builder.build())}
    assert {(400, "spike"), (434, "spike"), (470, "spike")} <= found


def test_an_attempt_of_unknown_parents_is_judged_from_the_start() -> None:
    builder = RecordBuilder("orphan", "simulated")
    builder.start_attempt(number="7.0", parent="6.9", parent_step=3.0)
    builder.add(4.0, {"loss": 2.0})
    builder.start_attempt(number="8.0", parent="8.0", parent_step=3.0)
    builder.add(4.0, {"loss": 9.0})
    assert judge_record(builder.build()) == ()


def test_a_circle_of_parents_is_judged_from_the_start() -> None:
    builder = RecordBuilder("circle", "simulated")
    for number, parent, step in (("1.0", "1.1", 3.0), ("1.1", "1.0", 2.0)):
        builder.start_attempt(number=number, parent=parent, parent_step=step)
        builder.add(4.0, {"loss": 2.0})
    assert judge_record(builder.build()) == ()


@pytest.mark.slow
def test_ten_thousand_attempts_are_judged_in_seconds() -> None:
    builder = RecordBuilder("restarts", "simulated")
    for i in range(10_000):  # each begins before all the others: no ancestor fits
        builder.add(10_000.0 - i, {"loss": 2.0})
    record = builder.build()
    assert len(record.attempts) == 10_000
    started = time.process_time()
    assert judge_record(record) == ()
    assert time.process_time() - started < 60.0  # quadratic, it was minutes


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_rows=4"):
        SpikeDetector(min_rows=4)
    with pytest.raises(ConfigError, match="one threshold per scale"):
        LevelDetector(thresholds=(9.0,))


def test_a_state_of_another_version_is_refused() -> None:
    judge = Judge()
    saved = judge.start().to_json(judge)
    del saved["level"]
    with pytest.raises(ReadError, match="no state of detector 'level'"):
        judge.state_from_json(saved)
    state = SpikeDetector().start()
    with pytest.raises(ReadError, match="another version"):
        state_from_json(state, {**state_to_json(state), "more": 1})


@pytest.mark.parametrize("n", [1, 2, 5, 16, 127, 128])
def test_the_median_is_numpys(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    assert median(values) == float(np.median(values))
