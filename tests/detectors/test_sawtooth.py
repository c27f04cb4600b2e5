"""Data in one order in each pass: a loss that climbs within passes and steps down between them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.api.analysis import analyze
from trimtab.detectors.epochs import staircase_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
NUM, PASS = 3000, 500


def saw(seed: int, *, height: float = 0.3, noise: float = 0.03) -> Floats:
    rng = np.random.default_rng(seed)
    t = np.arange(NUM)
    fall = 3.3 + 6.5 * (1 + t / 40) ** -0.55
    return np.asarray(fall + height * (t % PASS / PASS - 0.5) + noise * rng.standard_normal(NUM))


def log(loss: Floats, *, epochs: bool = True) -> dict[str, Floats]:
    t = np.arange(NUM, dtype=np.float64)
    return {"step": t + 1, "loss": loss} | ({"epoch": t / PASS} if epochs else {})


@pytest.mark.parametrize("seed", range(100, 105))
def test_sorted_data_is_a_note_where_epochs_are_counted(seed: int) -> None:
    run = analyze(log(saw(seed))).runs[0]
    assert run.verdict == "healthy", [i.headline for i in run.incidents if i.is_open_alarm]
    (told,) = [i for i in run.incidents if i.kind == "repeated-data"]
    assert "one order" in told.headline
    assert f"{PASS} rows" in told.headline


def test_sorted_data_without_epochs_is_no_learning_by_heart() -> None:
    for seed in range(100, 103):
        alarms = {i.kind for i in analyze(log(saw(seed), epochs=False)).runs[0].incidents}
        assert "memorised" not in alarms


def test_a_staircase_whose_flats_rise_a_little_is_learned_by_heart() -> None:
    t = np.arange(NUM, dtype=np.float64)
    noise = 0.02 * np.random.default_rng(100).standard_normal(NUM)
    stairs = 3.0 - 0.4 * (t // PASS) + 0.1 * (t % PASS / PASS) + noise
    record = record_of(t + 1.0, {"loss": stairs, "epochs_seen": t / PASS})
    assert [f.kind for f in staircase_findings(record)] == ["memorised"]
    told = [i for i in analyze(log(stairs)).runs[0].incidents if i.kind == "memorised"]
    assert told
    says = [s for i in told for c in i.causes for s in c.evidence]
    assert not [s for s in says if "unseen data" in s]


@pytest.mark.parametrize(
    "fault", ["spike", "shift", "leak", "divergence"], ids=lambda name: str(name)
)
def test_a_fault_on_a_sawtooth_stays_an_alarm(fault: str) -> None:
    loss = saw(100)
    if fault == "spike":
        loss[1700:1720] += 2.0
    elif fault == "shift":
        loss[1700:] += 0.6
    elif fault == "leak":
        loss[2300:] = 0.3 * loss[2300:]
    else:
        loss[2600:] += np.linspace(0, 3, 400)
    assert analyze(log(loss)).runs[0].verdict == "incident"


def test_a_window_of_bad_data_at_the_end_of_each_pass_is_no_order() -> None:
    t = np.arange(NUM)
    loss = saw(100, height=0.0) + 0.6 * (t % PASS >= PASS - 60)
    kinds = {i.kind for i in analyze(log(loss)).runs[0].incidents}
    assert "repeated-data" not in kinds
