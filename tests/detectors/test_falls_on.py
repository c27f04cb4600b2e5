"""What grows while the loss falls on, and what vanishes with the loss, is no trouble."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.judge import judge_record
from trimtab.detectors.learned_by_heart import as_text
from trimtab.detectors.spike import SpikeDetector
from trimtab.incidents import Incident, group_findings
from trimtab.record import RecordBuilder, RunRecord
from trimtab.signals.derived import derive
from trimtab.testing.contract import find_all
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]


def alarms(columns: dict[str, Floats]) -> list[Incident]:
    n = len(next(iter(columns.values())))
    record = derive(record_of(1.0 + np.arange(float(n)), columns))
    return [i for i in group_findings(record, judge_record(record)) if i.severity != "info"]


def noise(n: int, sigma: float, seed: int = 0) -> Floats:
    return np.asarray(sigma * np.random.default_rng(seed).standard_normal(n))


def density(falls: float) -> dict[str, Floats]:
    """A loss of a density, whose norm grows fivefold meanwhile; clipped at 5."""
    t = np.arange(900.0)
    loss = -2.6 - falls * np.log1p(t / 20) + noise(900, 0.04)
    norm = 4.0 * np.exp(np.clip(t - 300, 0, 300) / 190 + noise(900, 0.15, 1))
    return {"loss": loss, "grad_norm": norm, "clipped": (norm > 5.0).astype(np.float64)}


def test_a_norm_that_grows_while_the_loss_falls_on_is_no_alarm() -> None:
    assert alarms(density(falls=0.25)) == []


def test_a_norm_that_grows_while_the_loss_stands_still_is_one() -> None:
    assert {s for i in alarms(density(falls=0.0)) for s in i.signals} >= {"grad_norm"}


def converging(end: float) -> dict[str, Floats]:
    """A loss that falls to `end` while the updates of Adam fall 20 times, the rate standing."""
    t = np.arange(600.0)
    share = 1 / (1 + np.clip(t - 60, 0, None) / 25)
    return {
        "loss": (5.0 * share**2 + end) * np.exp(noise(600, 0.1)),
        "grad_norm": 2.0 * share * np.exp(noise(600, 0.1, 1)),
        "update_ratio": 0.016 * share * np.exp(noise(600, 0.05, 2)),
        "lr": np.full(600, 3e-3),
    }


def test_updates_that_shrink_with_a_loss_that_comes_to_nothing_do_not_vanish() -> None:
    assert alarms(converging(end=0.0)) == []


def test_updates_that_shrink_while_much_is_left_to_learn_vanish() -> None:
    assert "precision-underflow" in {i.kind for i in alarms(converging(end=2.0))}


def guarded(epochs: Floats | None) -> RunRecord:
    """A loss that comes to nearly nothing, as the guard writes it down."""
    fall = 5.0 * np.exp(-np.arange(400.0) / 40) + 0.005
    columns = {"loss": fall, "perplexity": np.exp(fall), "lr": np.full(400, 1e-3)}
    if epochs is not None:
        columns["epochs_seen"] = epochs
    return record_of(1.0 + np.arange(400.0), columns)


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        (np.zeros(400), []),  # every sample was seen once
        (np.arange(400.0) // 100, ["warning"]),
        (None, ["info"]),
    ],
)
def test_nothing_is_learned_by_heart_within_the_first_pass(
    epochs: Floats | None, told: list[str]
) -> None:
    record = guarded(epochs)
    found = as_text(record, judge_record(record))
    assert [f.severity for f in found if f.kind == "memorised"] == told


def test_three_low_rows_of_a_loss_that_stays_up_do_not_end_a_spike() -> None:
    loss = 0.54 + noise(700, 0.04)
    loss[400:] += 0.2 + 0.9 * np.exp(-np.arange(300.0) / 20)
    loss[430:433] = 0.5
    opened, accepted = find_all(SpikeDetector(), {"loss": loss})
    assert (opened.onset_row, opened.closed) == (400, False)
    assert (accepted.kind, accepted.end_row) == ("unrecovered-spike", None)


def test_a_spike_that_is_learned_back_ends() -> None:
    loss = 0.54 + noise(700, 0.04)
    loss[400:] += 1.2 * np.exp(-np.arange(300.0) / 20)
    (one,) = alarms({"loss": loss})
    assert one.kind == "spike"
    assert one.end_row is not None
    assert one.end_row < 470


@pytest.mark.parametrize(("at", "kind"), [(30, "spike"), (300, "unrecovered-spike")])
def test_a_rise_at_the_start_is_over_at_the_level_the_run_began_at(at: int, kind: str) -> None:
    """Learning of values: the loss rises as their targets begin to move, and comes down late."""
    t = np.arange(1500.0)
    loss = 1.0 + 1.1 * np.exp(-t / 6) + np.where(t >= at, 0.7, 0.0)
    loss += np.where(t >= at, 30 * np.exp(-np.clip(t - at, 0, None) / 90), 0.0)
    worst = [i for i in alarms({"loss": loss * np.exp(noise(1500, 0.05))}) if i.onset_row < at + 5]
    assert [i.kind for i in worst] == [kind]
    assert (worst[0].end_row is None) is (kind != "spike")


@pytest.mark.parametrize(
    ("rises", "left", "told"),
    [
        (0.0, 0.7, []),  # most of what was learned holds, and goes on holding
        (1.5, 0.7, ["warning"]),
        (0.0, 2.0, ["warning"]),  # little of it ever held
    ],
)
def test_what_holds_on_unseen_data_is_not_learned_by_heart(
    rises: float, left: float, told: list[str]
) -> None:
    t = np.arange(600.0)
    held_out = left + 2.0 * np.exp(-t / 40) + rises * np.clip(t - 150, 0, None) / 450
    held_out *= np.exp(noise(600, 0.02, 1))
    loss = (4.0 * np.exp(-t / 60) + 0.006) * np.exp(noise(600, 0.08))
    builder = RecordBuilder("classifier", "simulated")
    for i in range(600):
        row = {"loss": float(loss[i])}
        builder.add(i + 1.0, {**row, "val_loss": float(held_out[i])} if i % 10 == 9 else row)
    record = builder.build()
    found = [f for f in judge_record(record) if f.detector == "by-heart"]
    assert [f.severity for f in found] == told


@pytest.mark.parametrize(("left", "told"), [(0.015, False), (0.6, True)])
def test_an_odd_batch_of_a_loss_that_came_to_nothing_is_no_spike(left: float, told: bool) -> None:
    """Six times the level in one row: of a four-hundredth of the start, or of a tenth."""
    loss = (6.0 * np.exp(-np.arange(600.0) / 30) + left) * np.exp(noise(600, 0.1))
    loss[450] = 6 * left
    record = record_of(1.0 + np.arange(600.0), {"loss": loss})
    assert bool([f for f in hindsight_findings(record) if f.onset_row == 450]) is told


@pytest.mark.parametrize(("times", "told"), [(1000.0, True), (4.0, False)])
def test_a_norm_that_leaps_at_once_is_an_alarm_though_the_loss_falls_on(
    times: float, told: bool
) -> None:
    columns = density(falls=0.25)
    norm = 0.3 * np.exp(noise(900, 0.15, 1))
    norm[600:] *= times
    found = alarms({"loss": columns["loss"], "grad_norm": norm})
    assert bool({s for i in found for s in i.signals} & {"grad_norm"}) == told
