"""What later rows say of a claim: shifts that they contradict, stalls that are an arrival."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.borne_out import as_borne_out
from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import judge_record
from trimtab.detectors.loss_shapes import late_stall_findings
from trimtab.detectors.lost_validation import LostValidationDetector
from trimtab.detectors.never_learns import NeverLearnsDetector
from trimtab.detectors.offline import all_findings
from trimtab.detectors.plateau import plateau_findings
from trimtab.detectors.scale_collapse import ScaleCollapseDetector
from trimtab.incidents import group_findings
from trimtab.record import RecordBuilder, RunRecord
from trimtab.signals import derive
from trimtab.testing.contract import find_all
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]


def run(loss: Floats, **columns: Floats) -> RunRecord:
    return record_of(np.arange(1.0, len(loss) + 1), {"loss": loss, **columns})


def wandering(seed: int, num_rows: int = 6000) -> Floats:
    """A loss whose level moves a little every hundred rows, as data of another kind passes."""
    rng = np.random.default_rng(seed)
    levels = 0.02 * rng.standard_normal(num_rows // 100 + 1)
    smooth = np.interp(np.arange(num_rows), 100 * np.arange(len(levels)), levels)
    return np.asarray(3.0 + smooth + 0.05 * rng.standard_normal(num_rows))


def shift(loss: Floats, at: int) -> Finding:
    """A claim as the level rule makes it, 100 rows after a shift."""
    found = [f for f in judge_record(run(lifted(loss, at))) if f.kind == "shift"]
    return min(found, key=lambda f: abs(f.onset_row - at))


def lifted(loss: Floats, at: int, by: float = 0.5) -> Floats:
    return np.where(np.arange(len(loss)) < at, loss, loss + by)


@pytest.mark.parametrize("seed", [100, 101])
def test_a_shift_that_later_rows_contradict_is_a_note(seed: int) -> None:
    loss = wandering(seed)
    claim = shift(loss, 3000)
    (real,) = as_borne_out(run(lifted(loss, 3000)), [claim])
    assert real.severity == claim.severity == "warning"
    (false,) = as_borne_out(run(loss), [claim])
    assert false.severity == "info"
    assert "do not bear it out" in false.text


def test_a_rise_by_a_fifth_that_stands_to_the_end_of_a_short_log_is_told() -> None:
    t = np.arange(600.0)
    noise = 0.22 * np.random.default_rng(3).normal(size=600)
    loss = 2.4 + 2 * np.exp(-t / 40) + noise + 0.5 * np.clip((t - 325) / 100, 0, 1)
    found = as_borne_out(run(loss), judge_record(run(loss)))
    assert any(f.kind == "shift" and f.severity != "info" for f in found)


def test_a_shift_with_too_few_rows_after_it_stays() -> None:
    loss = wandering(100)
    claim = shift(loss, 3000)
    assert as_borne_out(run(loss[:3020]), [claim]) == (claim,)


def stalls(loss: Floats) -> list[tuple[str, str]]:
    lr = np.full(len(loss), 1e-3)
    return [(f.detector, f.severity) for f in late_stall_findings(run(loss, lr=lr))]


@pytest.mark.parametrize("seed", [100, 101, 102])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_an_exponential_fall_to_a_floor_has_converged(seed: int, noise: float) -> None:
    t = np.arange(1200)
    white = np.random.default_rng(seed).standard_normal(len(t))
    loss = np.round(2 + 6 * np.exp(-t / 150) + noise * white, 4)
    assert stalls(loss) == [("converged", "info")]
    falling = 2 + 6 * (1 + t / 100) ** -0.5
    stopped = np.maximum(falling, falling[600]) + 0.02 * white
    assert stalls(stopped) == [("late-stall", "warning")]


def staircase(cut: int, steep: float) -> Floats:
    """A loss that is flat, falls within `steep` rows by a fifth, and goes on falling slowly."""
    t = np.arange(480.0)
    before = 0.73 + 0.6 * np.exp(-t / 25) - 0.00008 * t
    after = 0.1 * (1 - np.exp(-np.clip(t - cut, 0, None) / steep))
    slow = 0.05 * np.clip(t - cut, 0, None) / 150
    return np.asarray(before - after - slow + 0.01 * np.random.default_rng(1).standard_normal(480))


def test_the_fall_at_a_cut_of_the_rate_ends_no_plateau() -> None:
    assert plateau_findings(run(staircase(325, 8.0))) == ()
    assert len(plateau_findings(run(staircase(300, 90.0)))) == 1


def falls(scales: list[float]) -> list[tuple[int, str]]:
    found = find_all(ScaleCollapseDetector(), {"loss_scale": 2.0 ** np.array(scales)})
    return [(f.onset_row, f.severity) for f in found if f.closed]


def test_a_scale_that_swings_in_every_window_falls_when_it_falls_further() -> None:
    steady = [16.0] * 400
    swinging = ([6.0] * 8 + [5.0] * 8 + [4.0] * 8 + [5.0] * 8) * 12
    dip = [4.0] * 8 + [3.0] * 8 + [5.0] * 16
    assert falls([*swinging, *dip, *swinging]) == []
    assert len(falls([*swinging, *([1.0] * 12), *swinging])) == 1
    assert len(falls([*steady, *([13.0] * 12), *steady])) == 1


def learns(loss: Floats, **columns: Floats) -> list[str]:
    # Thresholds as built; the rule reads three signals and takes what is there.
    found = find_all(NeverLearnsDetector(), {"loss": loss, **columns})
    return [f.detector for f in found if f.kind == "never-learns"]


def test_few_rows_are_enough_where_the_sign_is_exact() -> None:
    rng = np.random.default_rng(100)
    start = np.array([0.7185, 0.698, 0.6951, 0.6941])
    exact = np.concatenate((start, np.log(2) + 5e-5 * rng.standard_normal(24)))
    assert learns(exact) == ["never-learns-chance"]
    assert learns(exact + 0.02) == []
    flat = 2.41 + 0.005 * rng.standard_normal(24)
    assert learns(flat, grad_norm=np.zeros(24)) == ["never-learns-gradient"]
    assert learns(flat, grad_norm=np.ones(24)) == []


def test_a_guess_between_two_is_told_from_noisy_rows() -> None:
    noise = [np.random.default_rng(seed).standard_normal(1000) for seed in range(100, 108)]
    told = ["never-learns-chance" in learns(0.697 + 0.14 * n) for n in noise]
    assert sum(told) >= 6
    assert not any(learns(0.75 + 0.14 * n) for n in noise)


def test_a_validation_that_is_nan_is_told_where_other_rows_leave_it_out() -> None:
    def nan_rows(how: str) -> list[tuple[int, str, str]]:
        builder = RecordBuilder("run", "simulated")
        for i in range(60):
            cell = {"val_loss": float("nan")} if how == "table" else {}
            builder.add(i + 1.0, {"loss": 2.0 + 0.01 * (i % 7), **cell})
            if i % 10 == 9:
                loss = {} if how == "own row" else {"loss": 2.0}
                builder.add(i + 1.5, {"val_loss": float("nan"), **loss})
        found = judge_record(builder.build())
        return [(f.onset_row, f.severity, f.text) for f in found if f.kind == "non-finite"]

    first = (10, "warning", "val_loss is nan from the first one on")
    assert nan_rows("own row") == [first]
    assert nan_rows("beside") == [first]
    assert nan_rows("table") == []
    rows = {"val_loss": np.array([1.0, np.nan, np.nan, 1.0])}
    assert [f.closed for f in find_all(LostValidationDetector(), rows)] == [False, True]


@pytest.mark.parametrize("name", ["val_loss", "val_loss/web"])
@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_validation_that_turns_nan_beside_the_training_loss_is_told(
    name: str, every: int
) -> None:
    steps = np.arange(60.0)
    loss = 2.0 - 0.01 * steps + 0.01 * np.random.default_rng(every).standard_normal(60)
    val = np.where(steps % every == 0, 1.1 * loss, np.nan)

    def told(val: Floats) -> set[int]:
        found = all_findings(record_of(steps, {"loss": loss, name: val}))
        assert {f.signal for f in found if f.kind == "non-finite"} <= {name}
        return {f.onset_row for f in found if f.kind == "non-finite"}

    assert told(val) == set()
    assert told(np.where(steps >= 35, np.nan, val)) == {-(-35 // every) * every}
    val[36] = np.inf
    assert told(val) == {36}


@pytest.mark.parametrize("key", ["G_A", "train/loss_critic", "loss"])
def test_the_loss_of_an_agent_or_an_adversary_raises_no_alarm(key: str) -> None:
    rng = np.random.default_rng(100)
    loss = 2.0 + 0.02 * rng.standard_normal(400)
    loss[200:212] += 3.0
    plain = run(loss)
    agent = {"reward": loss, "value_loss": loss} if key == "loss" else {}
    builder = RecordBuilder("run", "simulated")
    for i in range(400):
        others = {name: float(v[i]) for name, v in agent.items()}
        builder.add(i + 1.0, {"loss": float(loss[i]), **others})
    builder.keys["loss"] = key
    named = builder.build()
    assert alarms(plain) == {"spike"}
    assert not [f for f in all_findings(derive(named)) if f.signal == "loss" and _alarms(f)]


def _alarms(f: Finding) -> bool:
    return f.severity != "info"


def alarms(record: RunRecord) -> set[str]:
    record = derive(record)
    found = group_findings(record, all_findings(record))
    return {place.kind for i in found if i.severity != "info" for place in (i.kinds or ())}


def test_a_lone_row_beside_trouble_of_the_scale_is_a_spike_of_the_loss() -> None:
    rng = np.random.default_rng(100)
    loss = 2.5 + 0.01 * rng.standard_normal(600)
    loss[420] += 0.2
    scale = np.full(600, 2.0**16)
    assert "spike" not in alarms(run(loss, loss_scale=scale))
    scale[415:440] = 2.0**9
    assert alarms(run(loss, loss_scale=scale)) >= {"scale-collapse", "spike"}


@pytest.mark.parametrize("stands", [True, False])
def test_a_climb_that_then_stands_says_so(*, stands: bool) -> None:
    rng, rows = np.random.default_rng(0), np.arange(2000)
    climb = np.clip((rows - 1009) / 120, 0, 1 if stands else None)
    loss = 2.8 + 3 * climb + 0.03 * rng.standard_normal(2000)
    found = all_findings(derive(run(loss)))
    told = " ".join(f.text for f in found if f.kind == "divergence" and f.closed)
    assert ("still moving" in told) is not stands
    assert ("stands at 5." in told) is stands
