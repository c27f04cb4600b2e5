import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main
from trimtab.testing.tr8_104b import as_markdown, print_log

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands remember for the user goes into a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command in this process: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tr8_log(tmp_path: Path) -> Path:
    path = tmp_path / "tr8-104b.log"
    path.write_text(print_log(), encoding="utf-8")
    return path


@pytest.fixture
def tr8_chronicle(tmp_path: Path) -> Path:
    path = tmp_path / "chronicles.md"
    path.write_text(as_markdown(), encoding="utf-8")
    return path


@pytest.fixture
def healthy_log(tmp_path: Path) -> Path:
    """A falling loss with a little noise, as JSON lines."""
    path = tmp_path / "healthy.jsonl"
    rows = [
        {"step": s, "loss": 2 + 3 / (1 + s / 40) + 0.01 * ((s * 7919) % 13 - 6)}
        for s in range(1, 401)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def parse(text: str) -> dict[str, Any]:
    """Parse one JSON document that holds neither NaN nor Inf."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document
