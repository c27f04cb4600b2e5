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
