"""The effective curve: no overlap, dead branches on demand, every format read back."""

import csv
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.chronicle.adopt import adopt, write_run
from trimtab.chronicle.event_file import event_bytes
from trimtab.chronicle.stitched import StitchedCurve, stitched, write_curve
from trimtab.cli import main
from trimtab.errors import ConfigError
from trimtab.record import Column, RecordBuilder, RunRecord


def rows_of() -> RunRecord:
    """Steps 1-100, then again from 61 with another clip, then from 131; one NaN."""
    rng = np.random.default_rng(0)
    build = RecordBuilder("run", "trimtab")
    for number, parent, first, last, clip in (
        ("1.0", None, 1, 100, "1.0"),
        ("1.1", "1.0", 61, 150, "0.3"),
        ("1.2", "1.1", 131, 200, "0.3"),
    ):
        build.start_attempt(
            number=number,
            parent=parent,
            parent_step=first - 1 if parent else None,
            settings={"clip": clip},
        )
        for step in range(first, last + 1):
            values = {
                "loss": np.nan if step == 170 else 3.0 - step / 100,
                "grad_norm": 0.6 * np.exp(0.5 * rng.standard_normal()),
                "tokens_seen": step * 2048.0,
                "step_time_s": 2.0,
            }
            if step % 50 == 0:
                values["val_loss"] = 3.1 - step / 100
            build.add(step, values)
    return build.build()


@pytest.fixture
def curve() -> StitchedCurve:
    return stitched(rows_of())


def test_every_step_is_there_once_in_the_attempt_that_counts(curve: StitchedCurve) -> None:
    assert curve.step.tolist() == list(range(1, 201))
    assert [curve.attempt[i] for i in (59, 60, 129, 130)] == ["1.0", "1.1", "1.1", "1.2"]
    assert curve.live.all()


@pytest.mark.covers("S164")
def test_dead_branches_only_when_asked_for() -> None:
    both = stitched(rows_of(), dead=True)
    assert int(both.live.sum()) == 200
    dead = [
        (a, s) for a, s, live in zip(both.attempt, both.step, both.live, strict=True) if not live
    ]
    assert dead[0] == ("1.0", 61.0)
    assert len(dead) == 40 + 20


@pytest.mark.covers("S165")
@pytest.mark.parametrize(
    ("along", "first", "last", "expected"),
    [
        ("step", 40, 65, (40, 65)),
        ("tokens", 40 * 2048, 65 * 2048, (40, 65)),
        ("time", 80, 130, (40, 65)),
    ],
)
def test_from_and_to_on_every_axis(
    along: str, first: float, last: float, expected: tuple[int, int]
) -> None:
    part = stitched(rows_of(), along=along, first=first, last=last)  # type: ignore[arg-type]
    assert (part.step[0], part.step[-1]) == expected
    assert np.all(np.diff(part.axis) > 0)


def test_an_axis_that_is_not_logged_is_refused() -> None:
    build = RecordBuilder("bare", "csv")
    build.add(1, {"loss": 2.0})
    with pytest.raises(ConfigError, match="neither tokens nor samples"):
        stitched(build.build(), along="tokens")


@pytest.mark.covers("S169")
def test_the_last_cumulative_clip_share_is_the_mean_of_the_flags(curve: StitchedCurve) -> None:
    limit = np.where(np.array(curve.attempt) == "1.0", 1.0, 0.3)
    flags = curve.columns["grad_norm"].values > limit
    assert curve.columns["clip_share"].values[-1] == pytest.approx(flags.mean(), abs=1e-6)


def test_csv(curve: StitchedCurve, tmp_path: Path) -> None:
    write_curve(curve, tmp_path / "c.csv")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert len(rows) == 200
    assert rows[169]["loss"] == "nan"
    assert (rows[48]["val_loss"], rows[49]["val_loss"]) == ("", "2.6")  # missing is not NaN


def test_parquet(curve: StitchedCurve, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write_curve(curve, tmp_path / "c.parquet")
    table = pq.read_table(tmp_path / "c.parquet")
    assert table.column("step").to_pylist() == list(range(1, 201))
    assert table.column("val_loss").null_count == 196
    assert np.isnan(table.column("loss")[169].as_py())


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    write_curve(stitched(rows_of(), dead=True), tmp_path / "board")
    main_line = accumulator(str(tmp_path / "board"))
    main_line.Reload()
    loss = main_line.Scalars("loss")
    assert [e.step for e in loss] == list(range(1, 201))
    assert loss[0].value == pytest.approx(2.99)
    assert np.isnan(loss[169].value)
    assert [e.step for e in main_line.Scalars("val_loss")] == [50, 100, 150, 200]
    dead = accumulator(str(tmp_path / "board" / "dead-1.0"))
    dead.Reload()
    assert [e.step for e in dead.Scalars("loss")] == list(range(61, 101))


def test_large_steps_in_an_event_file_of_our_own_reader(tmp_path: Path) -> None:
    step = np.array([0, 1, 127, 128, 16_384, 2_097_152, 10_000_000_000], dtype=np.int64)
    loss = Column(np.arange(7.0), np.ones(7, dtype=np.bool_))
    file = tmp_path / "events.out.tfevents.1.x"
    file.write_bytes(event_bytes(step, 1.6e9 + np.arange(7.0), {"loss": loss}))
    found = trimtab.read(file)[0]
    assert found.step.tolist() == step.tolist()
    assert found.columns["loss"].values.tolist() == loss.values.tolist()


def test_nothing_is_overwritten(curve: StitchedCurve, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_curve(curve, tmp_path)
    with pytest.raises(ConfigError, match=r"expected \.csv"):
        write_curve(curve, tmp_path / "c.xlsx")


def test_the_same_from_python_and_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    text = ["step,loss"] + [f"{s},{3 - s / 100}" for s in (*range(1, 81), *range(51, 121))]
    log.write_text("\n".join(text))
    write_run(adopt([log]), (), tmp_path / "run")
    assert main(["chronicle", str(tmp_path / "run"), "--curve", str(tmp_path / "c.csv")]) == 0
    told = trimtab.analyze(tmp_path / "run").stitched()
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert [float(r["loss"]) for r in rows] == told.columns["loss"].values.tolist()
    assert told.step.tolist() == list(range(1, 121))
