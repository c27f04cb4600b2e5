"""The fuzz harnesses: a sample of each, and that they find, save and resume."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from benchmarks.cli import main
from benchmarks.fuzz import TRIALS, engine, fuzz


@pytest.mark.parametrize("what", ["configs", "scan"])
def test_a_sample_of_inputs_is_read_or_refused(what: str) -> None:
    totals = fuzz(what, TRIALS[what], num=150, seed=10)
    assert totals.failures == {}
    assert totals.num_run == totals.num_read + totals.num_refused == 150
    assert 0 < totals.num_read < 150


@pytest.mark.slow
@pytest.mark.parametrize("what", TRIALS)
def test_many_inputs_are_read_or_refused(what: str) -> None:
    num = {"page": 80, "analysis": 60}.get(what, 600)
    totals = fuzz(what, TRIALS[what], num=num, seed=11)
    assert totals.failures == {}
    assert totals.num_run == num
    assert totals.num_read


class Planted:
    """Inputs of which some do what must not happen."""

    def __init__(self, seeds: Path) -> None:
        self.seeds = seeds

    def input(self, rng: random.Random, folder: Path) -> None:
        (folder / "x").write_text(str(rng.randrange(50)))

    def examine(self, folder: Path) -> bool:
        number = int((folder / "x").read_text())
        if number == 1:
            raise KeyError(number)
        if number == 2:
            os.kill(os.getpid(), 9)
        if number == 3:
            bytearray(200 << 20)[::4096] = b"x" * (200 << 8)
        return number > 10


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIMIT_BYTES", 100 << 20)
    monkeypatch.setattr(engine, "CHUNK", 100)


@pytest.mark.usefixtures("limits")
def test_every_failure_is_found_counted_and_saved(tmp_path: Path) -> None:
    out = tmp_path / "totals.json"
    totals = fuzz("planted", Planted, num=200, jobs=2, out=out)
    kinds = {f.what for f in totals.failures.values()}
    assert kinds == {"exception", "died", "memory"}
    expected = [random.Random(f"planted/0/{number}").randrange(50) for number in range(200)]
    assert totals.num_failed == sum(1 <= n <= 3 for n in expected)
    assert totals.num_read == sum(n > 10 for n in expected)
    assert totals.num_run == 200
    for failure in totals.failures.values():
        saved = (Path(failure.saved) / "x").read_text()
        assert int(saved) == expected[failure.first]
    assert json.loads(out.read_text())["planted/0"]["num_run"] == 200


@pytest.mark.slow
@pytest.mark.usefixtures("limits")
def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "totals.json"
    fuzz("planted", Planted, num=100, out=out)
    lines: list[str] = []
    totals = fuzz("planted", Planted, num=300, out=out, say=lines.append)
    assert totals.num_run == 300
    assert sorted(totals.chunks) == [0, 1, 2]
    assert totals == fuzz("planted", Planted, num=300, out=out)


class Slow(Planted):
    def examine(self, folder: Path) -> bool:
        while int((folder / "x").read_text()) == 4:
            pass
        return True


def test_an_input_that_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIMIT_S", 0.1)
    monkeypatch.setattr(engine, "_LEAST_CPU_S", 0.05)
    began = time.monotonic()
    totals = fuzz("planted", Slow, num=60)
    assert {f.what for f in totals.failures.values()} == {"time"}
    assert totals.num_run == 60
    assert time.monotonic() - began < 30


def test_the_command_prints_totals_and_repeats_one_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", "configs", "--num", "20", "--seed", "3", "--json"]) == 0
    (totals,) = json.loads(capsys.readouterr().out)["totals"]
    assert (totals["what"], totals["seed"], totals["num_run"]) == ("configs", 3, 20)
    assert main(["fuzz", "configs", "--seed", "3", "--only", "7"]) == 0
    assert "configs" in capsys.readouterr().out
