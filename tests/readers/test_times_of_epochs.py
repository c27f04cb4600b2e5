"""Seconds per epoch from the times on the lines, where the rows print none."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

N, SLOW_FROM = 200, 120
BEGIN = datetime(2023, 5, 1, 22, 30, tzinfo=UTC)

FORMS = {
    "iso": ("%Y-%m-%d %H:%M:%S,250 INFO", "{at} Epoch {e}/200 loss {loss:.4f}"),
    "time of day, over midnight": ("[%H:%M:%S]", "{at} Epoch {e}/200 loss {loss:.4f}"),
    "a line above": ("%Y-%m-%dT%H:%M:%S", "{at} Epoch {e}/200\nloss {loss:.4f}"),
}


def write(tmp_path: Path, form: str, seconds: list[float]) -> Path:
    shape, line = FORMS[form]
    at, lines = BEGIN, []
    noise = np.random.default_rng(0).normal(0, 0.02, len(seconds))
    for i, s in enumerate(seconds):
        at += timedelta(seconds=s)
        loss = 3 / (1 + 0.05 * i) + float(noise[i])
        lines.append(line.format(at=at.strftime(shape), e=i + 1, loss=loss))
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def seconds() -> list[float]:
    jitter = np.random.default_rng(1).integers(-2, 3, N)
    return [float(60 + j + 35 * (i >= SLOW_FROM)) for i, j in enumerate(jitter)]


@pytest.mark.parametrize("form", FORMS)
def test_epochs_that_become_slow_are_told(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, seconds())
    times = read_run(path).columns["step_time_s"]
    # The first epoch has nothing before it: its time is missing, and not NaN.
    assert times.present.tolist() == [False] + [True] * (N - 1)
    assert times.logged().tolist() == seconds()[1:]
    slow = [i for i in trimtab.analyze(path).incidents if i.kind == "slowdown"]
    assert [i.onset for i in slow] == [pytest.approx(SLOW_FROM + 1, abs=1)]


def test_a_clock_that_is_too_coarse_tells_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "time of day, over midnight", [2.0, 3.0] * 50)
    assert "step_time_s" not in read_run(path).columns


def test_what_the_rows_print_goes_before(tmp_path: Path) -> None:
    path = write(tmp_path, "iso", seconds())
    lines = [f"{line} step_time: 0.25" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    assert set(read_run(path).columns["step_time_s"].logged().tolist()) == {0.25}


def test_batches_have_no_time_of_an_epoch(tmp_path: Path) -> None:
    at = BEGIN
    lines = []
    for i in range(N):
        at += timedelta(seconds=60)
        lines.append(
            f"{at:%Y-%m-%d %H:%M:%S} epoch {i // 20} batch {i % 20} loss {3 / (1 + i):.4f}"
        )
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    assert "step_time_s" not in read_run(path).columns
