"""`trimtab lab accept`: what it prints, and what it refuses."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cli_guard import parse_seeds
from trimtab.cli import main

pytestmark = pytest.mark.torch

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (3,)), ("0-2", (0, 1, 2)), ("100-102", (100, 101, 102))]
)
def test_seeds_are_one_or_a_range(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "2-0", "-1", "a", "0-5000", "1-2-3"])
def test_impossible_seeds_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_seeds(text)


def test_unknown_scenario_names_those_there_are(run: Run) -> None:
    code, _, err = run("lab", "accept", "healthy")
    assert code == 2
    assert "bitflip-weight" in err


def test_table_and_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import accept as table

    def rows(scenarios: Any, seeds: Any, out: Path, *, say: Any, **_: Any) -> list[Any]:
        found = [
            table.AcceptanceRow(
                scenario=s.name,
                expect=s.expect,
                seed=seed,
                reference_loss=2.0,
                off_loss=math.nan,
                act_loss=2.0 + seed,
                wasted_steps=0.1,
                actions=({"step": 7, "remedy": "roll-back"},),
                verdict="falls short" if seed else "ok",
            )
            for s in scenarios
            for seed in seeds
        ]
        for row in found:
            say(row)
        return found

    monkeypatch.setattr(table, "accept", rows)
    assert main(["lab", "accept", "data-random", "--seeds", "0"]) == 0
    out = capsys.readouterr().out
    assert (
        "data-random             0         —   1.0000    100%   10.0%  ok             7: roll-back"
        in out
    )
    assert "recovered 1 of 1" in out
    assert main(["lab", "accept", "data-random", "--seeds", "0-1", "--json"]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert [r["verdict"] for r in document["rows"]] == ["ok", "falls short"]
    assert document["summary"]["recovered"] == 1
    assert "falls short" in printed.err
