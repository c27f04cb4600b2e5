"""Plateaus: a loss that stands still although it should fall, and look-alikes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.api.analysis import analyze
from trimtab.detectors.contract import Finding
from trimtab.detectors.plateau import plateau_findings
from trimtab.incidents import Incident, group_findings
from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.report.wording import info_sentence
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise, record_of

Floats = NDArray[np.float64]
NUM = 4000


def noise(num_rows: int, seed: int, kind: NoiseKind = "gaussian") -> Floats:
    return 0.02 * make_noise(num_rows, kind, np.random.default_rng(seed))


def run(loss: Floats, **columns: Floats) -> RunRecord:
    return record_of(np.arange(1.0, len(loss) + 1), {"loss": loss, **columns})


def knee() -> Floats:
    t = np.arange(NUM, dtype=np.float64)
    flat = 4 + 6 * np.exp(-t / 60)
    return np.asarray(flat - 1.5 * np.clip((t - 2400) / 1600, 0, 1))


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("kind", ["gaussian", "ar1", "t3"])
def test_a_loss_that_falls_again_after_a_flat_stretch_stood_on_a_plateau(
    seed: int, kind: NoiseKind
) -> None:
    (found,) = plateau_findings(run(knee() + noise(NUM, seed, kind)))
    assert found.kind == "plateau"
    assert 100 <= found.onset_row <= 400
    assert found.end_row is not None
    assert 2200 <= found.end_row <= 2800
    assert "in hindsight" in found.text


@pytest.mark.parametrize("seed", range(100, 104))
def test_the_span_of_a_plateau_leaves_out_its_sloping_ends(seed: int) -> None:
    t = np.arange(4800, dtype=np.float64)
    loss = np.interp(
        t, [0, 150, 500, 800, 2400, 3100, 4800], [10, 4.9, 4.05, 3.86, 3.84, 3.68, 2.7]
    )
    (found,) = plateau_findings(run(loss + 2 * noise(4800, seed)))
    assert found.end_row is not None
    assert found.end_row - found.onset_row >= 1400
    inside = loss[found.onset_row : found.end_row + 1]
    assert float(np.ptp(inside)) < 0.15, f"{inside.max()} → {inside.min()} is no level"


def stretch(first: int, last: int, seed: int = 100) -> RunRecord:
    """A fall to 4 nats, flat between two rows, then a slide by 1.5 nats to the end."""
    t = np.arange(NUM, dtype=np.float64)
    loss = np.interp(t, [0, first, last, NUM], [6.0 if first else 4.0, 4.0, 4.0, 2.5])
    return run(loss + noise(NUM, seed), lr=np.full(NUM, 3e-4))


@pytest.mark.parametrize(
    ("first", "last", "severity"),
    [
        (0, 900, "info"),  # a wait at the start
        (200, 2400, "info"),  # a long one
        (1200, 2000, "info"),  # a fifth of the run, and learning came out of it
        (600, 2600, "warning"),  # half of it
    ],
)
@pytest.mark.parametrize("seed", range(100, 103))
def test_a_plateau_that_is_over_is_an_alarm_where_it_was_long_and_no_wait_before_learning(
    first: int, last: int, severity: str, seed: int
) -> None:
    (found,) = plateau_findings(stretch(first, last, seed))
    assert (found.severity, found.end_row is None) == (severity, False)
    assert ("by itself" in found.text) == (severity == "info")


def test_a_wait_that_is_over_does_not_hide_a_stall_at_the_end() -> None:
    t = np.arange(NUM, dtype=np.float64)
    loss = np.interp(t, [0, 900, 3700, NUM], [7.0, 7.0, 3.0, 3.0])
    found = plateau_findings(run(loss + noise(NUM, 100) / 4, lr=np.full(NUM, 3e-4)))
    assert [(f.severity, f.end_row is None) for f in found] == [("info", False), ("warning", True)]


def test_a_wait_that_is_over_leaves_a_run_healthy_and_is_told_from_when_to_when() -> None:
    analyzed = analyze({"step": np.arange(NUM) + 1, "loss": _of(stretch(0, 900))}).runs[0]
    assert analyzed.verdict == "healthy"
    (told,) = [i.incident for i in analyzed.incidents if i.kind == "plateau"]
    assert told.end is not None
    assert f"{told.onset:g} to {told.end:g}" in info_sentence(analyzed)


def _of(record: RunRecord) -> Floats:
    return record.columns["loss"].values


def test_a_validation_loss_that_falls_meanwhile_speaks_against_a_plateau() -> None:
    loss = knee() + noise(NUM, 100)
    learning = np.where(np.arange(NUM) % 100 == 0, np.linspace(4.0, 2.0, NUM), np.nan)
    columns = {"loss": Column(loss, np.ones(NUM, np.bool_))}
    assert len(_found(columns)) == 1
    columns["val_loss"] = Column(learning, np.isfinite(learning))
    assert not _found(columns)


def _found(columns: dict[str, Column]) -> tuple[Finding, ...]:
    builder = RecordBuilder("simulated", "simulated")
    builder.extend(np.arange(1.0, NUM + 1), columns)
    return plateau_findings(builder.build())


def test_a_fall_within_a_few_rows_is_no_end_of_a_plateau() -> None:
    t = np.arange(NUM)
    loss = 4 + 6 * np.exp(-t / 60) - 1.5 * (t > 2400) + noise(NUM, 100)
    assert not plateau_findings(run(loss))


@pytest.mark.parametrize("kind", ["gaussian", "ar1", "t3"])
def test_healthy_runs_have_none(kind: NoiseKind) -> None:
    for seed in range(100, 110):
        lr = np.linspace(3e-4, 1e-4, NUM)
        assert not plateau_findings(run(lm_curve(NUM) + noise(NUM, seed, kind), lr=lr))
        assert not plateau_findings(run(np.full(NUM, 2.5) + noise(NUM, seed, kind), lr=lr))


def stalled() -> Floats:
    """Falls by a nat per e-fold of steps, and stands still over the last 5 %."""
    fall = 10 - np.log(np.arange(NUM) + 1.0)
    fall[-NUM // 20 :] = fall[-NUM // 20]
    return np.asarray(fall)


@pytest.mark.covers("S263")
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_loss_that_stalls_late_while_the_learning_rate_is_up_is_a_warning(seed: int) -> None:
    up, down = np.linspace(3e-4, 6e-5, NUM), np.linspace(3e-4, 1e-6, NUM)
    (found,) = plateau_findings(run(stalled() + noise(NUM, seed) / 4, lr=up))
    assert (found.kind, found.severity, found.end_row) == ("plateau", "warning", None)
    assert found.onset_row == NUM - NUM // 20
    assert not plateau_findings(run(stalled() + noise(NUM, seed) / 4, lr=down))
    assert not plateau_findings(run(stalled() + noise(NUM, seed) / 4))
    going = 10 - np.log(np.arange(NUM) + 1.0) + noise(NUM, seed) / 4
    assert not plateau_findings(run(going, lr=up))


def changed(decay: str, tail: Floats) -> RunRecord:
    head = 10 - np.log(np.arange(1000) + 1.0) + noise(1000, 100) / 4
    builder = RecordBuilder("simulated", "simulated")
    builder.start_attempt(number="1.0", settings={"weight_decay": "0.01"})
    for i, loss in enumerate(head):
        builder.add(i + 1.0, {"loss": float(loss), "lr": 1e-4})
    builder.start_attempt(
        number="2.0", parent="1.0", parent_step=1000.0, settings={"weight_decay": decay}
    )
    for i, loss in enumerate(tail):
        builder.add(i + 1001.0, {"loss": float(loss), "lr": 1e-4})
    return builder.build()


@pytest.mark.covers("S43")
def test_a_plateau_after_a_change_of_settings_names_the_change() -> None:
    flat = np.full(400, 10 - np.log(1000.0)) + noise(400, 101) / 4
    record = changed("0.1", flat)
    (found,) = plateau_findings(record)
    assert found.onset == 1001.0
    assert "weight_decay 0.01 → 0.1" in found.text
    (incident,) = group_findings(record, [found])
    assert "since weight_decay 0.01 → 0.1" in incident.headline
    going = 10 - np.log(np.arange(1000, 1400) + 1.0) + noise(400, 101) / 4
    assert not plateau_findings(changed("0.1", going))
    assert not plateau_findings(changed("0.01", flat))


@pytest.mark.covers("S43")
def test_a_plateau_is_linked_to_a_logged_weight_decay_that_changed_before_it() -> None:
    loss = 10 - np.log(np.minimum(np.arange(1600), 1000) + 1.0) + noise(1600, 101) / 4
    decay = np.where(np.arange(1600) < 1000, 0.01, 0.1)
    log = {"step": np.arange(1600) + 1, "loss": loss, "lr": np.full(1600, 1e-4)}
    (told,) = alarms({**log, "weight_decay": decay})
    assert ((told.kind, *told.also), told.onset) == (("setting-jump", "plateau"), 1001.0)
    assert any("since weight_decay 0.01 → 0.1" in f.text for f in told.findings)
    (told,) = alarms({**log, "weight_decay": np.full(1600, 0.1)})
    assert told.kind == "plateau"


def alarms(log: dict[str, Floats]) -> list[Incident]:
    found = [i.incident for i in analyze(log).runs[0].incidents]
    return [i for i in found if i.severity != "info"]


def test_a_spike_on_a_plateau_is_an_episode_of_its_own() -> None:
    record = run(knee() + noise(NUM, 100))
    (plateau,) = plateau_findings(record)
    spike = Finding(
        detector="spike",
        kind="spike",
        signal="loss",
        severity="warning",
        row=1510,
        step=1511.0,
        onset_row=1500,
        onset=1501.0,
        peak_row=1501,
        peak=1502.0,
        end_row=1505,
        end=1506.0,
        value=9.0,
        expected=4.0,
        score=20.0,
        closed=True,
        text="loss 4 → 9",
    )
    told = group_findings(record, [plateau, spike])
    assert [(i.kind, i.onset_row) for i in told] == [
        ("plateau", plateau.onset_row),
        ("spike", 1500),
    ]


def test_a_spike_before_the_last_rows_promises_no_fall() -> None:
    loss = np.full(NUM, 2.5) + noise(NUM, 100)
    loss[NUM - 1000 : NUM - 900] += 2.0
    assert not plateau_findings(run(loss, lr=np.full(NUM, 3e-4)))
