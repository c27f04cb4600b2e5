"""Rollbacks killed with SIGKILL: a sample of `python -m benchmarks surgery`."""

import pytest

from benchmarks.cli import main
from benchmarks.surgery_kills import measure_kills


@pytest.mark.slow
def test_nothing_is_lost_wherever_a_rollback_is_killed() -> None:
    figures = measure_kills(40, seed=1)
    assert figures.kills >= 40
    assert set(figures.by_action) == {"apply", "undo"}
    assert figures.finished
    assert figures.taken_back
    assert figures.failures == []


@pytest.mark.slow
def test_the_command_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["surgery", "--kills", "2", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "failures: 0" in out
    assert "megatron-deepspeed apply: killed at one of" in out
