"""The clock that lines of a text begin with: a pace that is lost, hangs that grow, and sound logs."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.readers import read_run

Floats = NDArray[np.float64]
N = 600
BEGIN = datetime(2026, 3, 1, 9, 14, 9, tzinfo=UTC)

FORMS = {
    "ISO": "%Y-%m-%d %H:%M:%S",
    "logging": "[%Y-%m-%d %H:%M:%S,000][INFO]",
    "zone": "%Y-%m-%dT%H:%M:%S+02:00",
    "rank in front": "[rank0]: %Y-%m-%d %H:%M:%S",
    "twelve hours": "%m/%d %I:%M:%S %p |",
    "time of day": "[%H:%M:%S]",
    "glog": "I%m%d %H:%M:%S.000",
    "glog with a year": "I%Y%m%d %H:%M:%S.000",
    "syslog": "%b %e %H:%M:%S node7 train[811]:",
    "ctime": "%a %b %e %H:%M:%S %Y:",
    "ctime in brackets": "[%a %b %e %H:%M:%S %Y]",
    "seconds since 1970": "%s.000",
    "seconds since 1970 in brackets": "[%s]",
    "compact": "%Y%m%d-%H%M%S",
    "compact with a zone": "[%Y%m%dT%H%M%SZ]",
}
WITH_YEAR = (
    "ISO",
    "logging",
    "zone",
    "rank in front",
    "glog with a year",
    "ctime",
    "ctime in brackets",
    "compact",
    "compact with a zone",
)


def gaps(usual: float = 6.3, num: int = N) -> Floats:
    """Seconds between rows, with a tenth of noise."""
    return usual * np.exp(np.random.default_rng(1).normal(0, 0.03, num - 1))


def write(
    tmp_path: Path,
    seconds: Floats,
    form: str = "ISO",
    begin: datetime = BEGIN,
    *,
    between: Mapping[int, Sequence[str]] | None = None,
    steps: Sequence[int] | None = None,
) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.02, len(seconds) + 1)
    at = [0.0, *np.cumsum(seconds).tolist()]
    lines: list[str] = []
    for i, s in enumerate(at):
        written = begin + timedelta(seconds=s)
        # `%s` of C takes the time for one of this machine's zone.
        stamp = written.strftime(FORMS[form].replace("%s", str(int(written.timestamp()))))
        lines += [f"{stamp} {text}" for text in (between or {}).get(i, ())]
        step = 10 * i if steps is None else steps[i]
        loss = 2 + 3 / (1 + 0.05 * i) + float(noise[i])
        lines.append(f"{stamp} step={step}/20000 loss={loss:.4f}")
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def told(path: Path) -> list[tuple[str, str]]:
    """Return kind and severity of what is said of times."""
    kinds = ("hang", "slowdown", "stall")
    return [(i.kind, i.severity) for i in trimtab.analyze(path).incidents if i.kind in kinds]


@pytest.mark.parametrize("form", FORMS)
def test_the_clock_of_a_line_is_when_its_row_was_written(tmp_path: Path, form: str) -> None:
    seconds = np.floor(gaps()) + 300.0  # over midnight
    column = read_run(write(tmp_path, seconds, form)).columns["wall_time_s"]
    assert column.present.all()
    assert np.diff(column.values).tolist() == seconds.tolist()
    if form in WITH_YEAR:
        begun = BEGIN - timedelta(hours=2 * (form == "zone"))
        assert column.values[0] == begun.timestamp()


@pytest.mark.parametrize("form", FORMS)
def test_a_hang_that_grows_at_the_end_is_told(tmp_path: Path, form: str) -> None:
    seconds = gaps()
    seconds[-4:] = [40.0, 189.0, 649.0, 1572.0]
    (hang,) = trimtab.analyze(write(tmp_path, seconds, form)).incidents
    assert (hang.kind, hang.severity, hang.onset) == ("hang", "warning", 10 * (N - 5))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("usual", [1.4, 6.3])
def test_a_pace_that_halves_for_good_is_told(tmp_path: Path, form: str, usual: float) -> None:
    seconds = gaps(usual, 1500)
    seconds[800:] *= 2.0
    (slow,) = trimtab.analyze(write(tmp_path, seconds, form)).incidents
    assert (slow.kind, slow.severity) == ("slowdown", "warning")
    assert abs(slow.onset - 8000) <= 160


def test_a_silence_of_hours_is_told(tmp_path: Path) -> None:
    seconds = gaps()
    seconds[300] = 7 * 3600.0
    assert told(write(tmp_path, seconds)) == [("hang", "warning")]


def test_what_the_rows_print_goes_before(tmp_path: Path) -> None:
    path = write(tmp_path, gaps())
    lines = [f"{line} step_time: 0.25" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    assert "wall_time_s" not in read_run(path).columns


@pytest.mark.parametrize("usual", [0.3, 1.0, 1.49, 1.7, 2.5, 3.4, 6.0])
def test_a_clock_of_whole_seconds_is_no_trouble(tmp_path: Path, usual: float) -> None:
    assert told(write(tmp_path, gaps(usual, 3000))) == []


@pytest.mark.parametrize("every", [10, 50, 100])
@pytest.mark.parametrize("pause", [60.0, 900.0, 3600.0])
def test_pauses_each_so_many_rows_are_the_runs_way(
    tmp_path: Path, every: int, pause: float
) -> None:
    seconds = gaps()
    seconds[every - 1 :: every] += pause
    assert told(write(tmp_path, seconds)) == []


def test_a_few_long_evaluations_are_no_alarm(tmp_path: Path) -> None:
    seconds = gaps()
    seconds[[199, 399]] += 2700.0
    evals = {200: ["validation loss 2.9"], 400: ["validation loss 2.7"]}
    assert ("hang", "warning") not in told(write(tmp_path, seconds, between=evals))
    assert ("hang", "warning") not in told(write(tmp_path, seconds))


def test_one_pause_that_is_over_is_no_alarm(tmp_path: Path) -> None:
    for long in (120.0, 600.0, 1500.0):
        seconds = gaps()
        seconds[300] = long
        assert ("hang", "warning") not in told(write(tmp_path, seconds))


def test_a_pause_that_takes_more_than_half_of_the_run_is_told(tmp_path: Path) -> None:
    seconds = gaps()
    seconds[300] = 1.2 * seconds.sum()
    assert ("hang", "warning") in told(write(tmp_path, seconds))


def test_a_last_row_behind_an_evaluation_is_no_alarm(tmp_path: Path) -> None:
    seconds = gaps()
    seconds[-1] = 1500.0
    assert told(write(tmp_path, seconds)) == []
    seconds[-3:] = [300.0, 400.0, 500.0]
    seconds[99::100] = 350.0
    assert told(write(tmp_path, seconds)) == []


@pytest.mark.parametrize("form", ["time of day", "twelve hours", "glog"])
def test_days_and_years_that_end_are_no_gap(tmp_path: Path, form: str) -> None:
    begin = datetime(2025, 12, 31, 23, 30, tzinfo=UTC)
    assert told(write(tmp_path, gaps(), form, begin)) == []
    path = write(tmp_path, gaps(1.4), form, begin + timedelta(seconds=1200))
    # two writers: some lines come a little late, at midnight too
    lines = path.read_text().splitlines()
    clocks = [line.split(" step=")[0] for line in lines]
    clocks[5:-5:7] = clocks[0:-10:7][: len(clocks[5:-5:7])]
    mixed = [f"{c} step={x.split(' step=')[1]}" for c, x in zip(clocks, lines, strict=True)]
    path.write_text("\n".join(mixed) + "\n")
    assert told(path) == []


def test_a_resume_after_hours_is_no_hang(tmp_path: Path) -> None:
    seconds = gaps()
    seconds[299] = 9 * 3600.0
    steps = [10 * i if i < 300 else 10 * (i - 20) for i in range(N)]
    assert told(write(tmp_path, seconds, steps=steps)) == []
    resumed = {300: ["Resuming from checkpoint step 2990"]}
    assert told(write(tmp_path, seconds, between=resumed)) == []


@pytest.mark.parametrize("block", [4, 32, 90])
def test_a_writer_with_a_buffer_is_no_trouble(tmp_path: Path, block: int) -> None:
    at = np.concatenate([[0.0], np.cumsum(gaps(num=3000))])
    flushed = at[np.minimum((np.arange(3000) // block + 1) * block, 2999)]
    assert told(write(tmp_path, np.diff(flushed))) == []


def test_one_line_out_of_time_is_no_trouble(tmp_path: Path) -> None:
    for moved in (-9000.0, 9000.0):
        seconds = gaps()
        seconds[299] += moved
        seconds[300] -= moved
        assert told(write(tmp_path, seconds)) == []


@pytest.mark.parametrize("moved", [3600.0, -3600.0])
def test_summer_time_is_no_gap(tmp_path: Path, moved: float) -> None:
    seconds = gaps()
    hour = int(np.searchsorted(np.cumsum(seconds), 1800.0))
    seconds[hour] += moved
    day = datetime(2026, 3, 29 if moved > 0 else 22, 1 if moved > 0 else 2, 30, tzinfo=UTC)
    assert told(write(tmp_path, seconds, begin=day)) == []


def test_steps_logged_ever_further_apart_are_no_hang(tmp_path: Path) -> None:
    steps = [*range(100), *(100 + 2**i for i in range(3, 16))]
    seconds = np.diff(np.array(steps, dtype=np.float64)) * 0.4
    assert told(write(tmp_path, seconds, steps=steps)) == []
