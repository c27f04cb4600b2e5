"""Signs while the loss is calm, first signs and chance, and incidents inside a condition."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.offline import all_findings
from trimtab.incidents import Incident, group_findings
from trimtab.signals import derive
from trimtab.testing.curves import record_of
from trimtab.testing.scaler import simulate_scaler

Floats = NDArray[np.float64]


def alarms_of(**signals: Floats) -> list[Incident]:
    rows = np.arange(1.0, len(signals["loss"]) + 1)
    record = derive(record_of(rows, signals))
    return [i for i in group_findings(record, all_findings(record)) if i.severity != "info"]


def calm(n: int, seed: int) -> Floats:
    return np.asarray(2.5 + 0.02 * np.random.default_rng(seed).standard_normal(n))


@pytest.mark.parametrize(
    ("signal", "factor"),
    [("update_norm", 4.0), ("attention_logit_max", 10.0), ("attention_entropy", 0.4)],
)
def test_a_signal_that_changes_for_good_is_an_alarm_while_the_loss_is_calm(
    signal: str, factor: float
) -> None:
    noise = 20 * np.exp(0.1 * np.random.default_rng(101).standard_normal(3000))
    assert alarms_of(loss=calm(3000, 100), **{signal: noise}) == []
    noise[2000:] *= factor
    (found,) = alarms_of(loss=calm(3000, 100), **{signal: noise})
    assert (found.kind, found.severity) == ("signal-abnormal", "warning")
    assert found.onset_row == pytest.approx(2000, abs=16)


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_healthy_scaler_is_no_first_sign_of_a_sudden_spike(seed: int) -> None:
    loss = calm(8000, seed)
    loss[7000:7030] += np.linspace(2, 0, 30)
    scale, _ = simulate_scaler(np.full(8000, 15.5), seed)
    found = [i for i in alarms_of(loss=loss, loss_scale=scale) if "loss" in i.signals]
    assert [(i.onset_row, i.precursor_row) for i in found] == [(7000, None)]


def test_a_spike_names_the_norm_and_the_scale_with_rows_of_their_own() -> None:
    rng = np.random.default_rng(100)
    loss, norm = calm(1200, 100), np.exp(0.1 * rng.standard_normal(1200))
    scale = np.full(1200, 65536.0)
    norm[898:910] *= 40.0
    loss[900:910] += np.linspace(2, 0.2, 10)
    scale[904:] = 4096.0
    (found,) = alarms_of(loss=loss, grad_norm=norm, loss_scale=scale)
    places = {k.signal: k for k in found.kinds}
    assert places["grad_norm"].kind == "grad-explosion"
    assert places["grad_norm"].onset_row == pytest.approx(898, abs=1)
    assert places["loss_scale"].onset_row == pytest.approx(904, abs=1)
    assert places["loss"].onset_row == pytest.approx(900, abs=1)


def test_spikes_inside_a_condition_are_incidents_of_their_own() -> None:
    loss, scale = calm(2000, 102), np.full(2000, 65536.0)
    scale[1000:] = 1024.0
    for at in (1004, 1150, 1330, 1440):
        loss[at : at + 6] += np.linspace(1, 0.3, 6)
    found = alarms_of(loss=loss, loss_scale=scale)
    assert [i.onset_row for i in found if "loss" in i.signals][1:] == [1150, 1330, 1440]


def test_a_shift_that_came_back_has_its_end() -> None:
    loss = calm(3000, 103)
    loss[1500:1900] += 0.3
    (found,) = alarms_of(loss=loss)
    assert found.end_row == pytest.approx(1900, abs=32)


def warmed_up(*, falls: float, at: int = 30) -> dict[str, Floats]:
    """Norm of the last hidden state that rises sixfold behind `at`; the rate rises for 100 rows."""
    rng, t = np.random.default_rng(104), np.arange(600.0)
    norm = 0.04 * np.exp(1.8 * np.clip((t - at) / 20, 0, 1) + 0.03 * rng.standard_normal(600))
    loss = 1.0 - falls * np.minimum(t, 200) / 200 + 0.05 * rng.standard_normal(600)
    return {"loss": loss, "activation_norm": norm, "lr": 1e-3 * np.minimum((t + 1) / 100, 1)}


def test_a_norm_that_rises_with_the_rate_as_the_loss_falls_is_a_note() -> None:
    assert alarms_of(**warmed_up(falls=0.6)) == []


@pytest.mark.parametrize(("falls", "at"), [(0.0, 30), (0.6, 300)])
def test_a_norm_that_rises_alone_or_behind_the_warm_up_is_an_alarm(falls: float, at: int) -> None:
    found = alarms_of(**warmed_up(falls=falls, at=at))
    assert [i.kind for i in found] == ["signal-abnormal"]


def test_a_logit_that_rises_with_the_rate_is_an_alarm() -> None:
    made = warmed_up(falls=0.6)
    made["attention_logit_max"] = 100 * made.pop("activation_norm")
    assert [i.kind for i in alarms_of(**made)] == ["signal-abnormal"]
