"""The traps of real logs, each in lines of text, CSV, JSON lines and printed dicts."""

import bz2
import gzip
import json
import lzma
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

from trimtab.readers import read, read_run
from trimtab.record import RunRecord

Row = dict[str, object]
NUM = 40


def rows(num: int = NUM, first: int = 0, **more: object) -> list[Row]:
    return [
        {"step": i, "loss": round(5 - 0.05 * i, 4), "grad_norm": round(1 + 0.01 * i, 3), **more}
        for i in range(first, first + num)
    ]


def as_text(rows: Sequence[Row]) -> str:
    return "".join(
        " ".join(f"{k} {v}" for k, v in row.items() if v is not None) + "\n" for row in rows
    )


def as_csv(rows: Sequence[Row]) -> str:
    head = ",".join(rows[0]) + "\n"
    return head + "".join(
        ",".join("" if v is None else str(v) for v in row.values()) + "\n" for row in rows
    )


def as_jsonl(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_dicts(rows: Sequence[Row]) -> str:
    return "".join(f"{row!r}\n" for row in rows)


FORMS: dict[str, Callable[[Sequence[Row]], str]] = {
    "text": as_text,
    "csv": as_csv,
    "jsonl": as_jsonl,
    "dicts": as_dicts,
}


@pytest.fixture(params=FORMS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sequence[Row]], RunRecord]:
    def write_and_read(rows: Sequence[Row]) -> RunRecord:
        path = tmp_path / "log"
        path.write_text(FORMS[request.param](rows))
        return read_run(path)

    return write_and_read


Written = Callable[[Sequence[Row]], RunRecord]


@pytest.mark.parametrize("first", [0, 20])
def test_attempts_one_after_another_and_steps_that_rewind(written: Written, first: int) -> None:
    record = written(rows() + rows(30, first))
    assert record.num_loss_rows == NUM + 30
    assert [a.end_row - a.first_row for a in record.attempts] == [NUM, 30]


def test_the_same_line_of_several_ranks_is_read_once_and_said_so(written: Written) -> None:
    record = written([row for row in rows() for _ in range(4)])
    assert record.axis == "step"
    assert record.num_loss_rows == NUM
    assert any("left out" in n for n in record.notes)


def test_one_of_interleaved_ranks_is_kept(written: Written) -> None:
    record = written([{"rank": k, **row} for row in rows() for k in (2, 0, 1)])
    assert record.num_loss_rows == NUM
    assert any("rank 0 is judged" in n for n in record.notes)


def test_minus_one_where_another_rank_has_the_loss(written: Written) -> None:
    mixed = [{**row, "loss": row["loss"] if k == 3 else -1.0} for row in rows() for k in range(4)]
    record = written(mixed)
    assert record.columns["loss"].logged().tolist() == [r["loss"] for r in rows()]
    assert any("with -1 for a loss left out" in n for n in record.notes)


def test_minus_one_everywhere_is_said(written: Written) -> None:
    record = written([{**row, "loss": -1.0} for row in rows()])
    assert record.num_loss_rows == NUM
    assert any("this rank does not compute it" in n for n in record.notes)


def test_a_norm_of_zero_was_not_computed(written: Written) -> None:
    record = written([{**row, "grad_norm": 0.0} for row in rows()])
    assert "grad_norm" not in record.columns
    assert any("it was not computed" in n for n in record.notes)


@pytest.mark.parametrize("end", [25, NUM])
def test_a_loss_that_is_nan_is_a_row_with_nan(written: Written, end: int) -> None:
    record = written(
        [{**r, "loss": math.nan if 20 <= i < end else r["loss"]} for i, r in enumerate(rows())]
    )
    assert record.num_loss_rows == NUM
    assert np.isnan(record.columns["loss"].logged()).sum() == end - 20


def test_a_value_that_is_not_logged_is_missing(written: Written) -> None:
    record = written(
        [{**r, "grad_norm": 1.1 if i % 10 == 0 else None} for i, r in enumerate(rows())]
    )
    assert record.num_loss_rows == NUM
    assert record.columns["grad_norm"].logged().tolist() == [1.1] * 4


def test_step_times_that_are_nan_while_it_warms_up(written: Written) -> None:
    record = written([{**r, "step_time": math.nan if i < 5 else 0.5} for i, r in enumerate(rows())])
    times = record.columns["step_time_s"].logged()
    assert np.count_nonzero(np.isfinite(times)) == NUM - 5
    assert np.all(times[np.isfinite(times)] == 0.5)


def test_validation_on_rows_of_its_own(written: Written) -> None:
    mixed: list[Row] = []
    for i, row in enumerate(rows()):
        mixed.append({**row, "val_loss": None})
        if i % 10 == 9:
            mixed.append({"step": i, "loss": None, "grad_norm": None, "val_loss": 9.0})
    record = written(mixed)
    assert record.num_loss_rows == NUM
    assert record.columns["val_loss"].logged().tolist() == [9.0] * 4


def test_a_mean_beside_the_value_gives_way_and_alone_is_said_to_be_one(written: Written) -> None:
    both = written([{"step": r["step"], "avg_loss": 7.0, "loss": r["loss"]} for r in rows()])
    assert both.columns["loss"].logged().tolist() == [r["loss"] for r in rows()]
    assert not any("mean over records before" in n for n in both.notes)
    alone = written([{"step": r["step"], "avg_loss": r["loss"]} for r in rows()])
    assert alone.num_loss_rows == NUM
    assert any("mean over records before" in n for n in alone.notes)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packer", PACKERS)
def test_compressed(tmp_path: Path, form: str, packer: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(PACKERS[packer](FORMS[form](rows()).encode()))
    assert read_run(path).num_loss_rows == NUM


@pytest.mark.parametrize("form", FORMS)
def test_a_file_still_being_written(tmp_path: Path, form: str) -> None:
    whole = FORMS[form](rows())
    last = whole.rstrip("\n").rfind("\n") + 1
    for cut in (last + 3, last + (len(whole) - last) // 2):
        path = tmp_path / "log"
        path.write_text(whole[:cut])
        assert NUM - 1 <= read_run(path).num_loss_rows <= NUM


def test_a_tree_of_runs_in_every_form(tmp_path: Path) -> None:
    for i, form in enumerate(FORMS):
        place = tmp_path / f"run{i}" / "logs"
        place.mkdir(parents=True)
        (place / "log").write_text(FORMS[form](rows()))
        (place / "README.md").write_text("# Nothing to see\n")
    records = read(tmp_path)
    assert [r.num_loss_rows for r in records] == [NUM] * len(FORMS)
