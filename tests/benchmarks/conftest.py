"""Runs a command in this process; leaves out what tests of whole tables of faults do not need."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.analysis.self_test import SelfTester
from trimtab.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def incidents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inject no faults: they say what silence is worth, and cost twice what judging does."""
    monkeypatch.setattr(SelfTester, "run", lambda *_: None)
