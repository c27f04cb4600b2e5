"""Mutated logs of every format: a record or one clear error, and a record that can be judged."""

import random
import resource
import traceback
from pathlib import Path

import numpy as np
import pytest

from benchmarks.logs.fuzzing import HungError, examine, mutated, seed_logs
from trimtab.detectors.judge import judge_record
from trimtab.errors import ReadError
from trimtab.readers import read_each
from trimtab.signals import derive

QUICK = 500
BLOCK = 2_500
"""Of each block in the slow suite; `make fuzz` reads a million."""
MEMORY_KIB = 400 << 10


def fuzz(folder: Path, first: int, num: int) -> int:
    """Read `num` mutated logs; fail at the first that breaks a rule, return how many were read."""
    done = 0
    seeds = seed_logs(folder)
    others, names = tuple(seeds.values()), tuple(seeds)
    path = folder / "log"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, first + num):
        name = names[number % len(names)]
        path.write_bytes(mutated(seeds[name], random.Random(number), others))
        try:
            for record in examine(path):
                with np.errstate(all="ignore"):
                    judge_record(derive(record))
            done += 1
        except (Exception, HungError):  # noqa: BLE001 - whatever it is, it is told with its input
            data = path.read_bytes()
            pytest.fail(f"input {number}, from {name!r}, {data!r}: {traceback.format_exc()}")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KIB, f"memory grew by {grown >> 10} MiB within {num} inputs from {first}"
    return done


def test_every_sound_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for name, data in seed_logs(tmp_path).items():
        path.write_bytes(data)
        records = list(examine(path))
        # a run for each cell that printed one: a table of steps, and lines of text
        assert len(records) == 1 + (name == "notebook"), name
        for record in records:
            assert record.num_loss_rows == 12 + (name == "events"), name


@pytest.mark.slow
def test_mutated_logs_give_records_or_one_clear_error(tmp_path: Path) -> None:
    assert fuzz(tmp_path, 0, QUICK) == QUICK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 5))
def test_more_mutated_logs_give_records_or_one_clear_error(tmp_path: Path, block: int) -> None:
    assert fuzz(tmp_path, block * BLOCK, BLOCK) == BLOCK


def test_an_error_of_sqlite_that_quotes_the_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    data = seed_logs(tmp_path)["sqlite"]
    path.write_bytes(data.replace(b"CREATE TABLE metrics", b"CREATE TABL\nmetrics  "))
    ((_, error),) = read_each(path)
    assert isinstance(error, ReadError)
    assert "\n" not in str(error)


def test_an_error_cuts_names_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"step,{'9' * 5000},lr\n")
    ((_, error),) = read_each(path)
    assert isinstance(error, ReadError)
    assert len(str(error)) < 500


@pytest.mark.parametrize("name", ["step", "loss"])
@pytest.mark.parametrize("value", [f'"{"9" * 16_000}"', f"[{'1, ' * 5000}1]", "9" * 4000 + "0.5x"])
def test_an_error_of_a_run_directory_cuts_values_that_are_none(
    tmp_path: Path, name: str, value: str
) -> None:
    (tmp_path / "signals").mkdir()
    other = "loss" if name == "step" else "step"
    line = f'{{"{name}": {value}, "{other}": 1}}\n'
    good = '{"step": 0, "loss": 2.0}\n'
    (tmp_path / "signals" / "0.0.jsonl").write_text(good + line + good)
    for _, outcome in read_each(tmp_path):
        assert not isinstance(outcome, ReadError) or len(str(outcome)) < 500


def test_keys_are_named_from_the_beginning_of_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    line = "gap 0.5 " + "e" * 50_000 + " drift 0.25\n"
    path.write_text("".join(f"tick {i} {line}" for i in range(40)))
    ((_, error),) = read_each(path)
    assert isinstance(error, ReadError)
    # What stands behind thousands of letters costs their square to find.
    assert "gap" in str(error)
    assert "drift" not in str(error)
