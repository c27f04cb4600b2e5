"""Rows that are appended to a log: read alone where they read like what stands before them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.serve.test_library import until
from trimtab.readers import read_run
from trimtab.serve.appended import ReadMark, read_appended
from trimtab.serve.library import Library

Row = Callable[[int], str]


def csv_row(step: int) -> str:
    return f"{step},{3 - step / 1000},0.5\n"


def json_row(step: int) -> str:
    return json.dumps({"step": step, "loss": 3 - step / 1000}) + "\n"


def text_row(step: int) -> str:
    return f"[2024-05-01 10:00:00] step {step} | loss {3 - step / 1000:.4f}\n"


LOGS = [("step,loss,grad_norm\n", csv_row), ("", json_row), ("hello\n", text_row)]


def marked(path: Path) -> ReadMark:
    mark = ReadMark.before(str(path))
    assert mark is not None
    found = mark.after(read_run(path))
    assert found is not None
    return found


@pytest.mark.parametrize(("head", "row"), LOGS)
def test_read_appended_gives_the_rows_that_came_and_no_others(
    tmp_path: Path, head: str, row: Row
) -> None:
    path = tmp_path / "log"
    path.write_text(head + "".join(map(row, range(1, 301))))
    begun = ReadMark.before(str(path))
    with path.open("a") as file:  # it grows while it is read
        file.write(row(301))
    assert begun is not None
    mark = begun.after(read_run(path))
    assert mark is not None
    with path.open("a") as file:
        file.write(row(302) + row(303) + row(304)[:-3])  # the last line is not whole
    found = read_appended(mark)
    assert found is not None
    assert (found.num_rows, found.step) == (2, 303)
    x, y = found.rows["loss"]
    assert x.tolist() == [301, 302, 303]  # the one before them, so that a line joins them
    assert y == pytest.approx([3 - s / 1000 for s in x], abs=1e-4)


@pytest.mark.parametrize(
    "then",
    [csv_row(250), "a,b\n" + "1,2\n" * 40],  # a restart, another table
)
def test_read_appended_leaves_what_reads_otherwise_to_a_whole_reading(
    tmp_path: Path, then: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,grad_norm\n" + "".join(map(csv_row, range(1, 301))))
    mark = marked(path)
    with path.open("a") as file:
        file.write(then)
    assert read_appended(mark) is None


def test_read_appended_sees_a_log_that_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,grad_norm\n" + "".join(map(csv_row, range(1, 301))))
    mark = marked(path)
    path.write_text("step,loss,grad_norm\n" + "".join(map(csv_row, range(101, 501))))
    assert read_appended(mark) is None


@pytest.mark.slow
def test_library_reads_a_growing_log_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "runs", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    path = folder / "a.csv"
    path.write_text("step,loss,grad_norm\n" + "".join(map(csv_row, range(1, 301))))
    monkeypatch.setattr("trimtab.serve.library._WHOLE_SHARE", 1e-6)

    async def grown() -> tuple[int, object, list[float], tuple[float, float] | None]:
        library = Library([folder], cache=cache)
        await library.start()
        try:
            (run,) = library.runs.values()
            await until(lambda: run.read is not None)
            for step in range(301, 304):
                with path.open("a") as file:
                    file.write(csv_row(step))
                await until(lambda step=step: run.listed()["step"] == step)  # type: ignore[misc]
            curves = library.curves(run)
            assert curves is not None
            rows = np.concatenate([p.x for p in curves.parts("loss")]).tolist()
            return run.source.version, run.listed()["rows"], rows, curves.limits("loss", "step")
        finally:
            await library.stop()

    version, rows, steps, limits = asyncio.run(grown())
    assert (version, rows, limits) == (1, 303, (1, 303))
    assert sorted(set(steps)) == list(range(1, 304))
