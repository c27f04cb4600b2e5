"""A loss on another scale, and rises at equal distances: one event each, and their twins."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.detectors.offline import all_findings
from trimtab.detectors.one_scale import at_one_scale
from trimtab.monitor.follower import first_rows
from trimtab.signals import derive
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
NUM, AT = 600, 300


def logs(seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    fall = 0.3 + 2 * np.exp(-np.arange(NUM) / 60)
    noise = rng.standard_normal((2, NUM))
    return {"loss": fall * np.exp(0.03 * noise[0]), "grad_norm": np.exp(0.1 * noise[1])}


def first_causes(columns: dict[str, Floats]) -> list[str]:
    found = trimtab.analyze(record_of(np.arange(float(len(columns["loss"]))), columns))
    return [i.causes[0].cause for i in found.incidents if i.severity != "info" and i.causes]


@pytest.mark.parametrize("factor", [32.0, 64.0])
def test_a_summed_loss_is_another_scale_and_its_noise_no_alarm(factor: float) -> None:
    columns = logs(100)
    for values in columns.values():
        values[AT:] *= factor
    assert first_causes(columns) == ["loss-rescaled"]


def alarms_at(columns: dict[str, Floats], rows: int) -> set[str]:
    """Return the alarms of a log that has grown to so many rows."""
    record = record_of(np.arange(float(NUM)), columns)
    found = all_findings(derive(first_rows(record, rows)), grows=True)
    return {f.detector if f.severity == "warning" else f.severity for f in found} - {"info"}


def test_another_scale_is_told_while_the_log_grows() -> None:
    columns = logs(100)
    for values in columns.values():
        values[AT:] *= 32
    assert "spike" in alarms_at(columns, AT + 4)
    assert alarms_at(columns, AT + 12) == {"loss-rescaled"}


def test_the_newest_rise_of_each_pass_is_one_of_them() -> None:
    columns = logs(100)
    for at in range(100, NUM, 80):
        columns["loss"][at : at + 8] *= np.linspace(6, 2, 8)
    # and no fall from the top of a spike
    assert alarms_at(columns, 178) == {"spike", "hindsight", "swell"}
    assert alarms_at(columns, 342) == {"equal-distances"}


@pytest.mark.parametrize("how", ["norm apart", "no norm", "ends", "noisier"])
def test_what_is_no_change_of_scale(how: str) -> None:
    columns = logs(101)
    columns["loss"][AT:] *= 32
    columns["grad_norm"][AT:] *= 6 if how == "norm apart" else 32
    if how == "no norm":
        del columns["grad_norm"]
    elif how == "ends":
        for values in columns.values():
            values[AT + 100 :] /= 32
    elif how == "noisier":
        columns["loss"][AT:] *= np.exp(0.3 * np.random.default_rng(1).standard_normal(NUM - AT))
    record = record_of(np.arange(float(NUM)), columns)
    assert at_one_scale(record) == (record, ())
    assert "loss-rescaled" not in first_causes(columns)


def test_a_spike_on_the_new_scale_is_still_an_alarm() -> None:
    columns = logs(102)
    for values in columns.values():
        values[AT:] *= 32
        values[500:512] *= 8
    assert len(first_causes(columns)) == 2


@pytest.mark.parametrize("equal", [True, False])
def test_spikes_at_equal_distances_are_the_order_of_the_data(*, equal: bool) -> None:
    columns = logs(103)
    places = [100, 180, 260, 340, 420, 500] if equal else [100, 130, 247, 290, 431, 544]
    for at in places:
        columns["loss"][at : at + 8] *= np.linspace(6, 2, 8)
    causes = first_causes(columns)
    assert (causes == ["data-order"]) is equal
    assert ("data-order" in causes) is equal


def test_a_fall_at_each_pass_is_no_leak_but_one_elsewhere_is() -> None:
    rng = np.random.default_rng(104)
    loss = np.concatenate([np.full(500, v) for v in (3.0, 2.4, 1.9, 1.4, 1.0)])
    loss *= np.exp(0.01 * rng.standard_normal(len(loss)))
    assert set(first_causes({"loss": loss})) == {"memorised-data"}
    alone = (
        np.where(np.arange(2500) < 1200, 3.0, 0.5)
        * loss
        / np.repeat([3.0, 2.4, 1.9, 1.4, 1.0], 500)
    )
    assert "memorised-data" not in first_causes({"loss": alone})


def test_a_plan_goes_back_before_the_gradients_were_not_finite() -> None:
    num, at = 1200, 600
    rng = np.random.default_rng(105)
    loss = 3 + 0.05 * rng.standard_normal(num)
    norm = np.exp(0.1 * rng.standard_normal(num))
    norm[at:] = np.inf
    scale = np.full(num, 65536.0)
    scale[at:] = 65536.0 / 2.0 ** np.minimum(np.arange(num - at) // 5, 40)
    columns = {"loss": loss, "grad_norm": norm, "loss_scale": scale}
    found = trimtab.analyze(record_of(np.arange(float(num)), columns))
    back = [
        a.values["before_step"]
        for i in found.incidents
        if i.severity == "critical"
        for a in i.plan.remedies
        if "before_step" in a.values
    ]
    assert back
    assert set(back) == {float(at)}
