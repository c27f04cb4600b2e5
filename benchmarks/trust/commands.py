"""The commands that only read a run or data, in a child whose calls fail."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.trust.calls import Layer
    from benchmarks.trust.forks import Result

__all__ = ["COMMANDS", "Command", "run_command"]


@dataclass(frozen=True)
class Command:
    """One command."""

    arguments: tuple[str, ...]
    writes: str = ""
    """File that it makes."""
    prepare: Callable[[Path], None] = lambda _folder: None


def _texts(folder: Path) -> None:
    """Write data to scan: lines of JSON, some of them twice."""
    (folder / "data").mkdir()
    for shard in range(3):
        lines = [
            json.dumps({"text": f"document {i % 37} of shard {shard}, with some words in it " * 4})
            for i in range(60)
        ]
        (folder / "data" / f"shard-{shard}.jsonl").write_text("\n".join(lines) + "\n")


COMMANDS: dict[str, Command] = {
    "inspect": Command(("inspect", "run")),
    "watch": Command(("watch", "run", "--interval", "0.01", "--until-idle", "0.02", "--hang", "0")),
    "report": Command(("report", "run", "--out", "page.html"), writes="page.html"),
    "chronicle": Command(("chronicle", "run")),
    "scan": Command(("scan", "data"), prepare=_texts),
}


def run_command(name: str, folder: Path, layer: Layer) -> Result:
    """Run a command in a folder; return its exit status and what it wrote."""
    command = COMMANDS[name]
    os.chdir(folder)
    truth: Result = {"ended": "done", "error": "", "code": None}
    layer.install()
    try:
        truth["code"] = main(list(command.arguments))
    except SystemExit as error:
        truth["code"] = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - what it raised is the result
        truth |= {"ended": "raised", "error": f"{type(error).__name__}: {error}"}
    layer.paused = True
    return truth | {
        "written": _written(folder / command.writes) if command.writes else "",
        "fired_at": layer.fired_at,
        "hit": sorted(layer.hit),
        "calls": [[c.site, c.kind, c.ordinal, c.step] for c in layer.calls],
    }


def _written(path: Path) -> str:
    """Return what tells a whole page from a part of one."""
    try:
        data = path.read_bytes()
    except OSError:
        return "nothing"
    return f"{len(data) // 1000} KB, {hashlib.sha256(data[-200:]).hexdigest()[:8]}"
