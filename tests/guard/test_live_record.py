"""The record in memory is the record in the files: rows, attempts, and what is made of them."""

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.judge import judge_record
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ReadError
from trimtab.guard.recording.live_record import LiveRecord
from trimtab.guard.recording.recorder import Recorder
from trimtab.incidents import Incident, group_findings
from trimtab.plan.planner import make_plan
from trimtab.readers.rundir import read_run_directory
from trimtab.record import RunRecord
from trimtab.signals import spans

NAMES = ("loss", "grad_norm", "lr", "loss_scale", "samples_seen", "step_time_s", "my_own", "reward")
ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-310, 1e300)


@dataclass
class Script:
    """A run that is written down: what each attempt begins from, and how long it is."""

    seed: int
    attempts: Sequence[tuple[int, float, bool, bool]]
    """Rows; share of the steps of the attempt before it that are kept; a trial; a new process."""
    spike_every: int
    odd_share: float
    missing_share: float
    names: Sequence[str] = field(default_factory=lambda: NAMES)


scripts = st.builds(
    Script,
    seed=st.integers(0, 2**31),
    attempts=st.lists(
        st.tuples(st.integers(0, 260), st.floats(0, 1), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    spike_every=st.integers(40, 400),
    odd_share=st.sampled_from([0.0, 0.0, 0.002, 0.05]),
    missing_share=st.sampled_from([0.0, 0.1, 0.6]),
)


def write(script: Script, root: Path) -> Recorder:
    """Write a run down, reopening the directory where a new process takes over."""
    rng = np.random.default_rng(script.seed)
    recorder = open_recorder(root)
    step, parent, begins = 0, None, 0
    for number, (num_rows, kept, trial, restart) in enumerate(script.attempts):
        if restart and number:
            recorder.close()
            recorder = open_recorder(root)
        step = begins + int(kept * (step - begins))
        begins, name = step, f"1.{number}"
        recorder.start_attempt(
            name,
            step=step,
            parent=parent,
            parent_step=None if parent is None else step,
            why="because",
            trial=trial,
            settings={"world_size": 1, "seed": number, "nested": {"a": (1, 2)}, "on": True},
        )
        parent = name
        for _ in range(num_rows):
            step += 1
            recorder.sample(step, row_of(script, rng, step), {"nonfinite_at": "a.weight"})
            recorder.write_rows()
        recorder.event("action", step=step, remedy="lower-lr", values={"factor": 0.5, "at": (1, 2)})
        recorder.event("incident", step=step, kind="spike", headline="x", causes=[])
        recorder.event("outcome", step=step, remedy="roll-back", figures={"loss": math.nan})
    return recorder


def open_recorder(root: Path) -> Recorder:
    recorder = Recorder(RunDirectory(root))
    recorder.settings({"clip": 1.0, "steps": 500, "seed": 3, "torch": "2.9", "mode": "act"})
    recorder.add_setting("data_order", 12345)
    return recorder


def row_of(script: Script, rng: np.random.Generator, step: int) -> dict[str, float]:
    up = script.spike_every - step % script.spike_every
    loss = 3 + 0.02 * rng.standard_normal() + (2.0 if up < 6 else 0.0)
    values = {
        "loss": loss,
        "grad_norm": abs(1 + 0.1 * rng.standard_normal()) * (5 if up < 7 else 1),
        "lr": min(step / 50, 1.0) * 1e-3,
        "loss_scale": 2.0 ** (16 - step // 200),
        "samples_seen": 8.0 * step,
        "step_time_s": 0.5,
        "my_own": rng.standard_normal(),
        "reward": rng.standard_normal(),
    }
    for name in script.names:
        if rng.random() < script.missing_share and name != "samples_seen":
            del values[name]
        elif rng.random() < script.odd_share:
            values[name] = ODD[rng.integers(len(ODD))]
    return values


def told(record: RunRecord) -> list[object]:
    """Incidents, causes and plans of a record."""
    incidents = group_findings(record, judge_record(record))
    found: list[object] = [incidents]
    for i, incident in enumerate(incidents):
        diagnosis = diagnose(record, incident, earlier=incidents[:i])
        found += [diagnosis, make_plan(record, incident, diagnosis, earlier=incidents[:i])]
    return found


def same_record(a: RunRecord, b: RunRecord) -> None:
    for name in ("source", "format", "axis", "attempts", "keys", "facts", "num_rows"):
        assert getattr(a, name) == getattr(b, name), name
    np.testing.assert_array_equal(np.asarray(a.step), np.asarray(b.step))
    np.testing.assert_array_equal(np.asarray(a.attempt), np.asarray(b.attempt))
    np.testing.assert_array_equal(a.lineage_rows(), b.lineage_rows())
    assert list(a.columns) == list(b.columns)
    for name, column in a.columns.items():
        other = b.columns[name]
        np.testing.assert_array_equal(np.asarray(column.present), np.asarray(other.present))
        one, two = np.asarray(column.values), np.asarray(other.values)
        assert one.tobytes() == two.tobytes() or np.array_equal(one, two, equal_nan=True), name


# Values near the largest float overflow in a figure here and there; commands ignore that warning,
# too. No shrinking: one example builds whole runs, and to shrink it takes many minutes.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=scripts)
def test_live_record_is_the_record_in_the_files(
    tmp_path_factory: pytest.TempPathFactory, script: Script
) -> None:
    root = tmp_path_factory.mktemp("run")
    recorder = write(script, root)
    recorder.close()
    if not any(num for num, *_ in script.attempts):
        with pytest.raises(ReadError):
            recorder.live.record()
        return
    here, there = recorder.live.record(), read_run_directory(root)
    same_record(here, there)
    assert repr(told(here)) == repr(told(there))
    assert repr(told(pickle.loads(pickle.dumps(here)))) == repr(told(there))
    again = LiveRecord(RunDirectory(root))
    again.fill()
    same_record(again.record(), there)
    mine = [(e.event, e.attempt, e.step, e.data) for e in recorder.live.events()]
    assert repr(mine) == repr([(e.event, e.attempt, e.step, e.data) for e in again.events()])


def test_live_record_stays_as_it_was_given_while_the_run_goes_on(tmp_path: Path) -> None:
    script = Script(1, [(150, 1.0, False, False)], 60, 0.0, 0.1)
    recorder = write(script, tmp_path)
    before = recorder.live.record()
    expected = repr(told(before))
    recorder.start_attempt("1.1", step=100, parent="1.0", parent_step=100, why="back", trial=True)
    for step in range(101, 200):
        recorder.sample(step, {"loss": 9.0, "new": 1.0}, {})
        recorder.write_rows()
    recorder.close()
    assert before.num_rows == 150
    assert repr(told(before)) == expected
    assert recorder.live.record().num_rows == 249


def long_run(num_rows: int, **limits: int) -> tuple[LiveRecord, list[Mapping[str, float]]]:
    """A run of one attempt, recorded in memory alone; and its rows."""
    script = Script(5, [], 977, 0.0, 0.0)
    rng = np.random.default_rng(5)
    live = LiveRecord(RunDirectory(Path("nowhere")), **limits)
    live.start_attempt("1.0", parent=None, parent_step=None, why="", trial=False)
    rows: list[Mapping[str, float]] = []
    for step in range(1, num_rows + 1):
        row = row_of(script, rng, step)
        if step % 977 == 970:
            live.mark((step - 1,))
        live.add(step, row)
        rows.append(row)
    return live, rows


@pytest.fixture(scope="module")
def thinned() -> tuple[LiveRecord, list[Mapping[str, float]]]:
    return long_run(12 * spans.BLOCK_ROWS, window_rows=2 * spans.BLOCK_ROWS, thinned_rows=3000)


def test_live_record_thins_out_old_rows_and_keeps_the_others(
    thinned: tuple[LiveRecord, list[Mapping[str, float]]],
) -> None:
    live, rows = thinned
    record = live.record()
    loss = record.columns["loss"]
    present = np.asarray(loss.present)
    values = np.array([row["loss"] for row in rows])
    np.testing.assert_array_equal(np.asarray(loss.values)[present], values[present])
    assert np.isnan(np.asarray(loss.values)[~present]).all()
    np.testing.assert_array_equal(np.asarray(record.step), np.arange(1.0, len(rows) + 1))
    assert present[-2 * spans.BLOCK_ROWS :].all()
    assert present[: spans.BLOCK_ROWS].all()
    old = present[spans.BLOCK_ROWS : -3 * spans.BLOCK_ROWS]
    assert 50 < old.sum() <= 3000


@pytest.mark.slow
def test_live_record_judges_the_newest_rows_alike_once_old_ones_are_thinned_out(
    thinned: tuple[LiveRecord, list[Mapping[str, float]]],
) -> None:
    live, rows = thinned
    whole, _ = long_run(len(rows), window_rows=len(rows))
    one, two = live.record(), whole.record()
    findings = judge_record(two)
    recent = [f for f in findings if f.onset_row > two.num_rows - 5000]
    assert len(recent) >= 4

    def latest(record: RunRecord) -> list[object]:
        incidents = group_findings(record, recent)
        found = list[object](incidents)
        for incident in incidents:
            diagnosis = diagnose(record, incident)
            found += [diagnosis, make_plan(record, incident, diagnosis)]
        return found

    assert any(isinstance(x, Incident) and x.kind == "spike" for x in latest(one))
    assert repr(latest(one)) == repr(latest(two))


@pytest.fixture(scope="module")
def longer() -> RunRecord:
    return long_run(12000)[0].record()


@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(0, 12000), num=st.integers(0, 9000), pick=st.lists(st.integers(-12000, 11999))
)
def test_live_array_reads_as_a_numpy_array_does(
    longer: RunRecord, first: int, num: int, pick: list[int]
) -> None:
    record = longer
    for array in (record.step, record.attempt, record.columns["loss"].values):
        whole = np.asarray(array)
        np.testing.assert_array_equal(array[first : first + num], whole[first : first + num])
        np.testing.assert_array_equal(array[pick], whole[np.array(pick, dtype=int)])
        np.testing.assert_array_equal(array[::-3], whole[::-3])
        mask = whole > np.median(whole.astype(np.float64))
        np.testing.assert_array_equal(array[mask], whole[mask])
    assert float(record.step[-1]) == 12000
    assert record.num_loss_rows == 12000
    with pytest.raises(IndexError):
        record.step[12000]
