"""Frozen signals, sensors that miss samples, skipped steps, a scale that sinks."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.detectors.frozen import FrozenDetector
from trimtab.detectors.judge import judge_record
from trimtab.detectors.scale_drift import ScaleDriftDetector
from trimtab.detectors.sensors import sensor_findings, share_missing
from trimtab.detectors.skipped import SkippedDetector
from trimtab.record import RecordBuilder
from trimtab.testing.contract import find_all
from trimtab.testing.curves import record_of
from trimtab.testing.scaler import simulate_scaler, tr8_104b_twin

Floats = NDArray[np.float64]


def level(num_rows: int, at: float = 2.5, digits: int = 4, seed: int = 100) -> Floats:
    noise = 0.02 * np.random.default_rng(seed).standard_normal(num_rows)
    return np.round(at + noise, digits)


def frozen(values: Floats, signal: str = "loss") -> list[tuple[int, int, str]]:
    found = find_all(FrozenDetector(), {signal: values})
    return [(f.onset_row, f.row, f.severity) for f in found if not f.closed]


def test_a_loss_that_repeats_digit_for_digit_is_a_warning_after_50_rows() -> None:
    loss = level(400)
    loss[200:] = 4.7274
    assert frozen(loss) == [(200, 249, "warning")]
    loss[300:] = level(100)
    closed = [f for f in find_all(FrozenDetector(), {"loss": loss}) if f.closed]
    assert [(f.onset_row, f.end_row) for f in closed] == [(200, 300)]


def test_a_sentinel_from_the_first_row_on_is_no_loss() -> None:
    assert frozen(np.full(100, -1.0)) == [(0, 49, "warning")]
    assert frozen(np.zeros(100)) == [(0, 49, "info")]  # GRPO prints a loss of 0 for good reasons


def test_a_norm_that_is_not_wired_is_a_note_after_200_rows() -> None:
    assert frozen(np.zeros(199), "grad_norm") == []
    assert frozen(np.zeros(900), "grad_norm") == [(0, 199, "info")]


def test_a_loss_learnt_down_to_its_last_digit_is_a_note_and_a_fall_to_zero_a_warning() -> None:
    learnt = np.round(2.0 * np.exp(-np.arange(600) / 40), 4)
    (one,) = frozen(learnt)
    assert one[2] == "info"
    broken = level(600)
    broken[300:] = 0.0
    assert frozen(broken) == [(300, 315, "warning")]


def test_values_filled_forward_by_a_tracker_are_no_frozen_loss() -> None:
    assert frozen(np.repeat(level(60), 40)) == []
    wide = find_all(FrozenDetector(), {"loss": np.repeat(level(60), 80)})
    assert [(f.onset_row, f.closed, f.severity) for f in wide] == [
        (0, False, "warning"),
        (0, True, "info"),  # it moves on, in steps of 80 rows, and is not asked about again
    ]


def test_nan_between_equal_values_does_not_unfreeze_them() -> None:
    loss = level(400)
    loss[200:] = 1.25
    loss[210:240:3] = np.nan
    assert [f[0] for f in frozen(loss)] == [200]


@pytest.mark.covers("S96")
def test_a_sensor_that_misses_samples_is_flagged_and_one_of_a_steady_rhythm_is_not() -> None:
    rng = np.random.default_rng(100)
    builder = RecordBuilder("a run", "simulated")
    for i in range(2000):
        row = {"loss": 2.0 + 0.01 * rng.standard_normal()}
        if rng.random() > 0.25:
            row["step_time_s"] = 1.0
        if i % 20 == 0:
            row["throughput"] = 7e4
        if rng.random() > 0.03:
            row["update_norm"] = 0.1
        if rng.random() > 0.6:
            row["val_loss"] = 2.1
        builder.add(float(i), row)
    (one,) = sensor_findings(builder.build())
    assert (one.signal, one.severity) == ("step_time_s", "info")
    assert one.value == pytest.approx(0.25, abs=0.03)
    assert "unreliable" in one.text
    assert share_missing(np.arange(0, 100, 10), 100) == 0.0


def test_what_a_guard_reads_more_often_early_is_no_sensor_that_misses_samples() -> None:
    builder = RecordBuilder("a run", "trimtab")
    for step in range(1, 421):
        row = {"loss": 2.0}
        if step % 10 == 0 or (step <= 300 and step % 4 == 0):
            row["attention_entropy"] = 3.0
        builder.add(float(step), row)
    record = builder.build()
    assert share_missing(np.flatnonzero(record.columns["attention_entropy"].present), 420) > 0.1
    assert sensor_findings(record) == ()


def skips(*runs: tuple[int, int]) -> Floats:
    """Return flags of 1000 rows; runs are (first row, number of skipped rows)."""
    flags = np.zeros(1000)
    for first, num in runs:
        flags[first : first + num] = 1.0
    return flags


def told(flags: Floats) -> list[tuple[int, str]]:
    found = find_all(SkippedDetector(), {"skipped": flags})
    last = {f.onset_row: f.severity for f in found}
    return sorted(last.items())


def test_calibration_is_a_note_rare_skips_are_nothing_a_run_of_them_is_a_warning() -> None:
    assert told(skips((0, 14))) == [(0, "info")]
    rare = np.zeros(20_000)
    rare[np.random.default_rng(100).integers(200, 20_000, 100)] = 1.0  # 0.5 per cent
    assert told(rare) == []
    assert told(skips((500, 8))) == [(500, "warning")]
    assert told(skips((500, 7))) == []


def test_a_large_share_of_skipped_steps_is_a_warning_and_nothing_else_for_50_rows_critical() -> (
    None
):
    often = np.zeros(1000)
    often[400:800:4] = 1.0
    assert told(often) == [(400, "warning")]
    assert told(skips((500, 200))) == [(500, "critical")]
    assert told(skips((0, 200))) == [(0, "critical")]
    found = find_all(SkippedDetector(), {"skipped": skips((500, 60))})
    assert [(f.severity, f.row, f.closed) for f in found][:2] == [
        ("warning", 507, False),
        ("critical", 549, False),
    ]
    assert (found[-1].closed, found[-1].end_row) == (True, 559)


@pytest.mark.covers("S48")
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_sinking_scale_warns_a_thousand_steps_before_the_spike(seed: int) -> None:
    twin = tr8_104b_twin(seed)
    record = record_of(np.arange(len(twin["loss"]), dtype=np.float64), twin)
    drifts = [f for f in judge_record(record) if f.detector == "scale-drift" and f.step > 4700]
    assert drifts[0].severity == "warning"
    assert drifts[0].step <= 7000 - 1000
    assert drifts[0].onset >= 4700


@pytest.mark.slow
def test_healthy_scalers_hardly_ever_seem_to_sink() -> None:
    runs = [
        simulate_scaler(np.full(20_000, 16.3), 100 + i, window_steps=window, spread=spread)[0]
        for i, (window, spread) in enumerate([(200, 0.2), (200, 0.8), (1000, 0.4), (2000, 0.4)])
    ]
    found = [find_all(ScaleDriftDetector(), {"loss_scale": run}) for run in runs]
    assert sum(len({f.key for f in some}) for some in found) <= len(runs)


def test_a_scale_that_falls_at_one_blow_is_left_to_the_rule_for_collapses() -> None:
    scale = np.full(4000, 65536.0)
    scale[2000:] = 8192.0
    assert find_all(ScaleDriftDetector(), {"loss_scale": scale}) == ()


def test_what_trimtab_derives_is_not_said_to_miss_samples(tmp_path: Path) -> None:
    rows = ["step,loss,load"]
    rows += [f"{i},{'nan' if i > 220 else level(1, seed=i)[0]},1" for i in range(300)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(rows))
    told = [f for a in trimtab.analyze(log).incidents for f in a.incident.findings]
    assert not [f.text for f in told if f.signal == "loss_step_std"]


def test_a_gradient_norm_that_becomes_exactly_0_is_an_alarm() -> None:
    rng = np.random.default_rng(0)
    norm = np.exp(0.3 * rng.standard_normal(300))
    norm[200:] = 0.0
    columns = {"step": np.arange(300.0), "loss": 2 + 0.1 * rng.standard_normal(300)}
    analysis = trimtab.analyze({**columns, "grad_norm": norm, "lr": np.full(300, 1e-3)})
    assert [(i.onset, i.severity) for i in analysis.incidents] == [(200.0, "warning")]
    assert analysis.incidents[0].causes[0].cause == "no-gradient"


@pytest.mark.parametrize(("gamma", "told"), [(0.3, True), (0.8, False)])
def test_a_rate_that_decays_to_next_to_nothing_is_an_alarm(gamma: float, *, told: bool) -> None:
    rows = np.arange(900)
    loss = 0.7 + np.exp(-rows / 60) + 0.1 * np.random.default_rng(0).standard_normal(900)
    analysis = trimtab.analyze({"step": rows, "loss": loss, "lr": 3e-3 * gamma ** (rows // 30)})
    assert ("rate-at-zero" in {i.causes[0].cause for i in analysis.incidents if i.causes}) is told
