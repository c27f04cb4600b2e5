"""Causes that public sources state, and the levels of a first cause."""

import tomllib
from importlib.resources import files

import pytest

from benchmarks.causes.command import level_rows
from benchmarks.causes.generated import FAULTS, guesses
from benchmarks.causes.stated import read_stated, score_stated, summary
from benchmarks.cli import main
from trimtab.diagnosis.cause_levels import CAUSE_LEVELS, cause_level


def test_sixty_causes_with_sources_none_of_them_copied() -> None:
    events = read_stated()
    assert len(events) >= 60
    assert len({e.run for e in events}) == len(events)
    for event in events:
        assert event.source.startswith("https://")
        assert event.saw
        assert event.said
        assert len(event.said) < 120  # facts, not passages
        assert set(event.assumed) <= set(event.signature)


def test_what_is_stated_is_found_more_often_than_base_rates_would() -> None:
    found = summary(score_stated(read_stated()))
    assert found["first"] > 0.8
    assert found["in_three"] > 0.85
    assert found["log_loss"] < 0.5 * found["log_loss_base"]


def test_sure_is_said_of_a_cause_only_where_the_lower_bound_supports_it() -> None:
    low, likely, sure = CAUSE_LEVELS
    assert sure.stated.low >= 0.9
    assert sure.made_up.low >= 0.9
    assert likely.stated.low >= 0.75
    assert low.stated.hit_rate < likely.stated.hit_rate < sure.stated.hit_rate
    assert cause_level(float("nan")).name == "low"


def test_the_table_says_what_the_command_measures() -> None:
    rows = level_rows(score_stated(read_stated()), ())
    for row, level in zip(rows, CAUSE_LEVELS, strict=True):
        part = row["stated"]
        assert isinstance(part, dict)
        assert part["number"] == level.stated.number
        assert part["hit_rate"] == pytest.approx(level.stated.hit_rate, abs=0.01)


@pytest.mark.slow
def test_made_up_faults_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    made_up = [g for g in guesses([100]) if g.seen]
    assert len(made_up) >= len(FAULTS) - 2
    assert sum(g.right for g in made_up) >= len(made_up) - 1
    assert main(["causes", "--seeds", "0", "--all"]) == 0
    out = capsys.readouterr().out
    assert "log loss" in out
    text = (files("benchmarks.causes") / "stated.toml").read_text("utf-8")
    assert tomllib.loads(text)["stated"][0]["run"] in out
