"""The session of the README is what the command prints."""

import re
from pathlib import Path

import pytest

from trimtab.cli import main

ROOT = Path(__file__).parents[2]


def test_the_preflight_session_of_the_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(
        r"```\n\$ trimtab preflight pretrain_104b.sh\n(.*?)```",
        (ROOT / "README.md").read_text("utf-8"),
        re.S,
    )
    monkeypatch.chdir(ROOT / "tests" / "configs" / "data")
    monkeypatch.setenv("COLUMNS", "118")
    assert main(["preflight", "pretrain_104b.sh"]) == 1
    printed = [line.rstrip() for line in capsys.readouterr().out.strip("\n").split("\n")]
    assert printed == shown.strip("\n").split("\n")
