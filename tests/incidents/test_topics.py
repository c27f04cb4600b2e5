"""Incidents of different topics, late recoveries, and the window of risk after the warm-up."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.analysis.assemble import make_account
from trimtab.detectors.judge import judge_record
from trimtab.incidents import Incident, group_findings
from trimtab.testing.curves import Fault, record_of, simulate_run

Floats = NDArray[np.float64]


def level(num_rows: int, at: float = 2.5, seed: int = 100) -> Floats:
    return np.asarray(at + 0.02 * np.random.default_rng(seed).standard_normal(num_rows))


def incidents(columns: dict[str, Floats], first_step: float = 1.0) -> tuple[Incident, ...]:
    steps = first_step + np.arange(len(columns["loss"]), dtype=np.float64)
    record = record_of(steps, columns)
    return group_findings(record, judge_record(record))


def test_a_slowdown_and_a_spike_within_it_are_two_incidents() -> None:
    loss, times = level(3000), np.ones(3000)
    loss[1500:1520] += 2.0
    times[800:] = 1.5
    found = incidents({"loss": loss, "step_time_s": times})
    assert [(i.kind, i.onset_row, i.recurrence_of) for i in found] == [
        ("slowdown", 800, None),
        ("spike", 1500, None),
    ]


def test_a_stall_is_a_note_of_its_own_and_no_first_sign() -> None:
    loss, times = level(2000), np.ones(2000)
    loss[1500:1520] += 2.0
    times[1499] = 30.0
    stall, spike = incidents({"loss": loss, "step_time_s": times})
    assert (stall.kind, stall.severity) == ("stall", "info")
    assert (spike.kind, spike.precursor, spike.also) == ("spike", None, ())
    assert ", over" not in stall.headline


def test_a_norm_that_is_not_wired_is_no_first_sign_of_a_spike() -> None:
    loss = level(2000) + np.exp(-np.arange(2000) / 50.0)  # it learns: there is a gradient
    loss[1500:1520] += 2.0
    frozen, spike = incidents({"loss": loss, "grad_norm": np.zeros(2000)})
    assert (frozen.kind, frozen.severity, frozen.onset_row) == ("frozen-signal", "info", 0)
    assert spike.precursor is None


@pytest.mark.covers("S46")
@pytest.mark.parametrize("seed", range(100, 104))
def test_recovery_from_a_huge_spike_is_told_with_its_phases_and_its_duration(seed: int) -> None:
    # 104B of BigScience: 3.11 to 7.71 in one step, some 2,000 steps back to its level
    loss = level(6000, 3.11, seed)
    since = np.arange(3000, dtype=np.float64)
    loss[3000:] += 4.6 * np.exp(-since / 350.0)
    (one,) = (i for i in incidents({"loss": loss}) if i.severity != "info")
    assert (one.kind, one.onset) == ("spike", 3001.0)
    assert one.end is not None
    assert 1300 <= one.end - one.onset <= 2300
    assert "recovering, recovered after" in one.headline
    loss[3000:] = level(3000, 3.6, seed)
    loss[3000:3100] += 4.0
    (never,) = (i for i in incidents({"loss": loss}) if i.severity != "info")
    assert (never.kind, never.end) == ("unrecovered-spike", None)


@pytest.mark.slow
@pytest.mark.covers("S66")
def test_spikes_are_told_within_ten_steps() -> None:
    delays: list[float] = []
    for seed in range(100, 120):
        rng = np.random.default_rng(seed)
        fault = Fault(
            kind="spike",
            step=int(rng.integers(500, 1500)),
            size=float(rng.uniform(0.3, 3.0)),
            duration_steps=int(rng.integers(3, 60)),
        )
        record = simulate_run(num_steps=2000, seed=seed, faults=[fault])
        told = [f.step for f in judge_record(record) if f.severity != "info" and f.signal == "loss"]
        delays.append(told[0] - fault.step if told else np.inf)
    assert np.median(delays) <= 10
    assert min(delays) >= 0


@pytest.mark.covers("S75")
@pytest.mark.parametrize(
    ("ratio", "label"), [(1.16, "warm-up end"), (1.21, "warm-up end"), (4.0, "")]
)
def test_the_end_of_the_warm_up_is_computed_from_the_schedule(ratio: float, label: str) -> None:
    warm_up, at = 500, int(500 * ratio)
    record = simulate_run(
        num_steps=2600,
        level=2.5,
        warmup_steps=warm_up,
        faults=[Fault(kind="spike", step=at, size=2.0, duration_steps=20)],
    )
    (one,) = (a.incident for a in make_account(record).incidents if a.incident.severity != "info")
    assert (one.onset, one.risk) == (at, label)
    assert (f"at {ratio:.2f} x the warm-up" in one.headline) == bool(label)


def test_a_scale_that_fell_to_its_floor_is_one_incident() -> None:
    scale = np.full(1500, 65536.0)
    fallen = 2.0 ** np.maximum(16.0 - np.arange(600) // 4, -13.0)
    scale[900:] = np.maximum(fallen, 1e-4)
    found = incidents({"loss": level(1500), "loss_scale": scale})
    assert [i.kind for i in found if i.severity != "info"] == ["scale-collapse"]
