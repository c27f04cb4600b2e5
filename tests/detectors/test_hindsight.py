"""Bursts and starts seen in hindsight: what alarms, and what must not."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.excerpt import excerpt_findings
from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.nonfinite import NonFiniteDetector
from trimtab.record import RecordBuilder
from trimtab.testing.contract import find_all
from trimtab.testing.curves import CurveKind, NoiseKind, make_quiet, record_of

Floats = NDArray[np.float64]


def found(**signals: Floats) -> list[tuple[str, str, int]]:
    rows = np.arange(1.0, len(next(iter(signals.values()))) + 1)
    findings = hindsight_findings(record_of(rows, signals))
    assert all("in hindsight" in f.text for f in findings)
    return [(f.kind, f.signal, f.onset_row) for f in findings]


@pytest.mark.parametrize("noise", ["gaussian", "ar1", "t3"])
@pytest.mark.parametrize("curve", ["flat", "lm"])
def test_quiet_runs_raise_no_alarm(noise: NoiseKind, curve: CurveKind) -> None:
    signals = {
        name: make_quiet(name, 20_000, 100, noise=noise, curve=curve)
        for name in ("loss", "grad_norm")
    }
    assert len(found(**signals)) <= 1


def test_a_lasting_burst_on_a_falling_loss_is_a_spike() -> None:
    loss = np.linspace(4.0, 2.0, 400) + 0.004 * np.random.default_rng(100).standard_normal(400)
    loss[200:206] += [0.1, 0.2, 0.3, 0.2, 0.15, 0.1]
    assert found(loss=loss) == [("spike", "loss", 200)]


def test_a_shift_is_no_burst() -> None:
    loss = 2.0 + 0.01 * np.random.default_rng(100).standard_normal(800)
    loss[400:] += 0.5
    assert found(loss=loss) == []


def test_a_tower_is_priced_by_what_the_run_does_otherwise() -> None:
    loss = 0.3 + 0.02 * np.random.default_rng(100).standard_normal(900)
    loss[500] = 2.0
    assert found(loss=loss) == [("spike", "loss", 500)]
    loss[[100, 220, 330, 640, 770]] = 1.9
    assert found(loss=loss) == []


def test_a_norm_that_explodes_is_told_and_one_clipped_row_is_not() -> None:
    norm = make_quiet("grad_norm", 800, 101)
    norm[300] *= 5.0
    norm[500:504] *= 12.0
    assert found(grad_norm=norm) == [("grad-explosion", "grad_norm", 500)]


def test_the_fall_of_a_norm_from_initialisation_is_none_and_a_tower_in_the_first_row_is() -> None:
    norm = make_quiet("grad_norm", 300, 102) * (1 + 40 * np.exp(-np.arange(300) / 4))
    assert found(grad_norm=norm) == []
    norm[0] *= 1e5
    assert found(grad_norm=norm) == [("grad-spike", "grad_norm", 0)]


def test_a_stub_that_was_begun_anew_is_judged_with_what_follows() -> None:
    norm = make_quiet("grad_norm", 100, 103)
    builder = RecordBuilder("stub", "simulated")
    builder.start_attempt(number="1.0")
    builder.add(1.0, {"grad_norm": 1e6})
    builder.start_attempt(number="1.1", parent="1.0", parent_step=0.0)
    for i, value in enumerate(norm):
        builder.add(i + 1.0, {"grad_norm": float(value)})
    assert [f.onset_row for f in hindsight_findings(builder.build())] == [0]


def test_loss_and_norm_together_need_less() -> None:
    loss, norm = make_quiet("loss", 800, 104), make_quiet("grad_norm", 800, 104)
    sigma = 1.4826 * float(np.median(np.abs(loss[380:420] - np.median(loss[380:420]))))
    loss[400:402] = np.median(loss[380:420]) + 9 * sigma
    assert found(loss=loss) == []
    norm[400:402] *= 15.0
    assert ("spike", "loss", 400) in found(loss=loss, grad_norm=norm)


def test_a_tiny_loss_may_do_what_it_likes() -> None:
    loss = 2.0 * np.exp(-np.arange(600) / 10) + 1e-6
    loss[400:410] = 1e-5
    assert found(loss=loss) == []


def start_findings(loss: Floats) -> list[Finding]:
    return list(excerpt_findings(record_of(np.arange(1.0, len(loss) + 1), {"loss": loss})))


def test_a_blow_up_in_warm_up_and_the_divergence_after_it_are_told() -> None:
    rises = [np.full(2, 12.4), np.full(4, 48.0), np.linspace(45.0, 11.0, 26)]
    loss = np.concatenate([*rises, np.linspace(11.0, 20.0, 30)])
    told = [(f.kind, f.severity, f.onset_row) for f in start_findings(loss)]
    assert told[0] == ("spike", "warning", 2)
    assert [kind for kind, _, _ in told] == ["spike", "divergence"]
    assert told[1][2] in range(31, 36)


def test_noise_and_a_few_bad_batches_at_the_start_are_not() -> None:
    loss = 3.0 * np.exp(0.3 * np.random.default_rng(100).standard_normal(200))
    assert start_findings(loss) == []
    smooth = np.linspace(9.0, 5.0, 120)
    smooth[50:53] *= 1.5
    assert start_findings(smooth) == []


@pytest.mark.parametrize(("climb", "told"), [(0.2, True), (0.04, False)])
def test_a_climb_that_goes_on_needs_no_third(climb: float, *, told: bool) -> None:
    rng, rows = np.random.default_rng(100), np.arange(80)
    loss = 4.0 + 2.0 * np.exp(-rows / 8) + 4 * climb * np.maximum(rows - 55, 0) / 24
    found = start_findings(loss + 0.02 * rng.standard_normal(80))
    assert [(f.kind, f.severity) for f in found] == [("divergence", "warning")] * told


def test_a_norm_that_is_nan_now_and_then_is_an_alarm_once() -> None:
    norm = make_quiet("grad_norm", 300, 105)
    norm[[50, 90, 130]] = np.nan
    norm[200:204] = np.nan
    told = find_all(NonFiniteDetector(), {"grad_norm": norm})
    by_onset = {f.onset_row: f.severity for f in told}
    assert by_onset == {50: "warning", 90: "info", 130: "info", 200: "warning"}
    assert [f.row for f in told if f.onset_row == 200] == [200, 202, 204]


def test_two_rows_of_four_times_the_loss_are_a_spike_in_a_short_log() -> None:
    for seed, at in ((0, 8), (1, 14), (2, 20), (3, 30)):
        noise = 1 + 0.03 * np.random.default_rng(seed).standard_normal(40)
        loss = (0.3 + 2.0 * np.exp(-np.arange(40) / 10)) * noise
        assert found(loss=loss) == []
        loss[at] *= 4
        assert found(loss=loss) == []
        loss[at + 1] *= 4
        assert found(loss=loss) == [("spike", "loss", at)]


def test_a_stub_that_starts_where_the_next_attempt_starts_is_no_level_before_it() -> None:
    fall = 2.0 + 11.6 * np.exp(-np.arange(60) / 1.1)
    builder = RecordBuilder("run", "simulated", axis="step")
    for k in range(3):
        builder.add(50.0 * (k + 1), {"loss": float(fall[k])})
    for k in range(60):
        builder.add(50.0 * (k + 1), {"loss": float(fall[k]) + 0.001})
    record = builder.build()
    assert len(record.attempts) == 2
    assert not hindsight_findings(record)
