"""Slow steps: a lasting slowdown, single stalls, silences; and healthy paces stay quiet."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.api.analysis import analyze
from trimtab.detectors.contract import Finding
from trimtab.detectors.pace import PaceDetector
from trimtab.detectors.silence import growing_hang_findings, silence_findings, stall_findings
from trimtab.detectors.written_pace import written_pace_findings
from trimtab.errors import ConfigError
from trimtab.record import Column, RunRecord
from trimtab.testing.contract import find_all
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
SEEDS = range(100, 105)


def pace(num_rows: int, seed: int, *, usual: float = 1.4, noise: float = 0.03) -> Floats:
    return np.asarray(usual * np.exp(noise * np.random.default_rng(seed).standard_normal(num_rows)))


def tell(times: Floats, signal: str = "step_time_s") -> tuple[Finding, ...]:
    return find_all(PaceDetector(), {signal: times})


def alarms(found: tuple[Finding, ...]) -> list[Finding]:
    last = {f.key: f for f in found}
    return [f for f in last.values() if f.severity != "info"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("usual", [1.4e-3, 1.4, 1400.0])
def test_a_lasting_slowdown_is_a_warning_in_any_unit(seed: int, usual: float) -> None:
    times = pace(1000, seed, usual=usual)
    times[600:] *= 1.25
    (one,) = alarms(tell(times))
    assert (one.kind, one.end_row) == ("slowdown", None)
    assert abs(one.onset_row - 600) <= 16
    assert one.value / one.expected == pytest.approx(1.25, rel=0.03)
    assert "lasting" in one.text
    assert next(f for f in tell(times) if f.kind == "slowdown").row <= 600 + 48


@pytest.mark.parametrize("seed", SEEDS)
def test_a_throughput_that_falls_is_the_same(seed: int) -> None:
    rate = 7e4 / pace(1000, seed)
    rate[600:] /= 1.3
    (one,) = alarms(tell(rate, "throughput"))
    assert (one.kind, one.signal, one.direction) == ("slowdown", "throughput", "down")


@pytest.mark.parametrize("seed", SEEDS)
def test_slower_by_a_few_per_cent_or_for_a_while_is_no_alarm(seed: int) -> None:
    times = pace(1500, seed)
    times[400:] *= 1.06
    times[900:1000] *= 1.5
    assert not alarms(tell(times))
    notes = [f for f in tell(times) if f.kind == "slowdown" and f.closed]
    assert [f.end_row is not None for f in notes] == [True]


@pytest.mark.covers("S22")
@pytest.mark.parametrize("first", range(600, 616, 3))
def test_20_steps_that_take_a_quarter_longer_are_noted_and_one_slow_step_is_not(first: int) -> None:
    times = pace(900, first, noise=0.05)
    one = times.copy()
    one[first] *= 1.25
    times[first : first + 20] *= 1.25
    alone, told = (analyze({"step_time_s": t}).runs[0].incidents for t in (one, times))
    assert [(i.incident.kind, i.incident.severity) for i in told] == [("slowdown", "info")]
    assert told[0].incident.onset_row == first
    assert told[0].incident.end_row is not None
    assert 0 <= told[0].incident.end_row - first - 20 <= 16
    assert not alone


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pace_that_swings_between_two_values_is_healthy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.where(rng.random(20_000) < 0.35, 17.5, 12.0) * pace(20_000, seed, usual=1.0)
    assert not [f for f in tell(times) if f.kind == "slowdown"]


def test_a_first_step_and_saves_are_notes_told_only_when_they_grow() -> None:
    times = pace(4000, 100)
    times[0] *= 20
    times[250::250] *= 8
    times[3100] *= 60
    found = tell(times)
    assert [(f.kind, f.severity, f.onset_row) for f in found] == [
        ("stall", "info", 0),
        ("stall", "info", 250),
        ("stall", "info", 3100),
    ]
    assert "the first one" in found[0].text


def test_hours_without_a_row_are_a_hang_and_a_long_save_is_not() -> None:
    times = pace(600, 100)
    times[300] = 600.0  # a save of ten minutes
    times[500] = 6 * 3600.0
    found = tell(times)
    assert [(f.kind, f.severity) for f in found] == [("stall", "info"), ("hang", "warning")]
    assert found[1].onset_row == 500
    assert found[1].value == pytest.approx(6 * 3600.0)


def test_warm_up_times_of_nan_and_zero_are_passed_over() -> None:
    times = pace(800, 100)
    shifted = np.concatenate([np.full(12, np.nan), np.zeros(3), times])
    shifted[515:] *= 1.4
    (one,) = alarms(tell(shifted))
    assert abs(one.onset_row - 515) <= 16


def test_a_batch_that_grows_is_no_slowdown() -> None:
    batch = np.repeat([64.0, 128.0, 256.0, 512.0], 300)
    times = pace(1200, 100) * batch / 64.0
    assert alarms(tell(times)), "the ramp would alarm if the batch size were not known"
    assert not alarms(find_all(PaceDetector(), {"step_time_s": times, "batch_size": batch}))


def written(gaps: Floats) -> RunRecord:
    at = 1.7e9 + np.concatenate([[0.0], np.cumsum(gaps)])
    return record_of(
        np.arange(1.0, len(at) + 1), {"loss": np.full(len(at), 2.0), "wall_time_s": at}
    )


def test_a_silence_between_rows_is_a_hang_and_long_saves_are_the_runs_way() -> None:
    gaps = pace(400, 100, usual=20.0)
    gaps[250] = 7 * 3600.0
    (one,) = silence_findings(written(gaps))
    assert (one.kind, one.severity, one.onset_row, one.end_row) == ("hang", "warning", 250, 251)
    gaps[[50, 150, 350]] = 6 * 3600.0
    assert silence_findings(written(gaps)) == ()
    gaps[[50, 150, 250, 350]] = [20.0, 20.0, 900.0, 20.0]
    assert silence_findings(written(gaps)) == ()
    assert silence_findings(written(np.zeros(400))) == ()


def timed(seconds: Floats) -> RunRecord:
    return record_of(
        np.arange(1.0, len(seconds) + 1),
        {"loss": np.full(len(seconds), 2.0), "step_time_s": seconds},
    )


GROWN = [40.0, 189.0, 649.0, 1572.0]


@pytest.mark.parametrize("make", [written, timed])
def test_last_rows_that_take_ever_longer_are_a_hang(make: Callable[[Floats], RunRecord]) -> None:
    seconds = pace(400, 100, usual=6.0)
    seconds[-4:] = GROWN
    (one,) = growing_hang_findings(make(seconds))
    assert (one.kind, one.severity, one.closed) == ("hang", "warning", False)
    # over before the end, or as long as saves take, or no longer than a row of its own: nothing
    for calm in (seconds[:-2], np.append(seconds, 6.0)):
        assert growing_hang_findings(make(calm)) == ()
    saves = seconds.copy()
    saves[49::50] = 1000.0
    assert growing_hang_findings(make(saves)) == ()
    assert growing_hang_findings(make(pace(400, 100, usual=6.0))) == ()
    assert growing_hang_findings(make(seconds[-20:])) == ()


def test_a_gap_at_an_evaluation_is_a_note() -> None:
    gaps = pace(400, 100, usual=20.0)
    gaps[250] = 7 * 3600.0
    record = written(gaps)
    column = Column(np.full(401, np.nan), np.zeros(401, dtype=np.bool_))
    column.values[[51, 251]], column.present[[51, 251]] = 2.0, True
    record = replace(record, columns={**record.columns, "val_loss": column})
    assert [f.severity for f in silence_findings(record)] == ["info"]
    gaps[[99, 199, 250, 299]] = [7 * 3600.0, 7 * 3600.0, 20.0, 7 * 3600.0]
    gaps[[299]] = 20.0
    assert [f.severity for f in silence_findings(written(gaps))] == ["info"]


def test_times_of_writing_tell_a_slowdown_where_no_time_is_logged() -> None:
    gaps = pace(1200, 100)
    gaps[800:] *= 2.0
    (*_, last) = written_pace_findings(written(gaps))
    assert (last.kind, last.severity, last.signal) == ("slowdown", "warning", "wall_time_s")
    assert abs(last.onset_row - 800) <= 16
    assert written_pace_findings(written(pace(1200, 100))) == ()
    record = written(gaps)
    logged = Column(np.ones(1201), np.ones(1201, dtype=np.bool_))
    assert (
        written_pace_findings(replace(record, columns={**record.columns, "throughput": logged}))
        == ()
    )


def test_blocks_without_quartiles_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_rows=2"):
        PaceDetector(block_rows=2)


@pytest.mark.parametrize("seed", range(8))
def test_step_times_with_a_heavy_tail_are_no_stalls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert stall_findings(timed(0.1 * (1 + rng.pareto(1.3, 600)))) == ()
    rare = np.where(rng.random(600) < 0.05, 1.0, 0.1)
    assert stall_findings(timed(rare)) == ()
    burst = np.full(600, 0.1)
    burst[100:112] = 5.0
    assert stall_findings(timed(burst)) == ()
    stalls = np.full(600, 0.1)
    stalls[200::6] = 5.0
    (told,) = stall_findings(timed(stalls))
    assert 190 <= told.onset_row <= 210
