"""The progress bar: what it shows at a terminal, and nothing anywhere else."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.cli import main
from trimtab.cli.bar import Bar
from trimtab.readers import read_run, watching


def log(tmp_path: Path, num: int = 20_000) -> Path:
    path = tmp_path / "train[1].jsonl"
    path.write_text("".join(f'{{"step": {i}, "loss": 2.0}}\n' for i in range(num)))
    return path


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_is_read_is_seen_to_its_end(tmp_path: Path) -> None:
    path, seen = log(tmp_path), list[tuple[str, int]]()
    with watching(lambda name, position: seen.append((name, position))):
        read_run(path)
    read_run(path)
    assert {name for name, _ in seen} == {str(path)}
    assert max(position for _, position in seen) == path.stat().st_size


def test_a_terminal_sees_what_is_done(tmp_path: Path) -> None:
    console = terminal()
    with Bar(console, delay_s=0.0) as bar:
        read_run(log(tmp_path))
        bar._progress.refresh()
        bar.say("judging [red]it")
        bar._progress.refresh()
    shown = text_of(console)
    assert "reading train[1].jsonl" in shown
    assert re.search(r"[1-9]\d?%", shown)
    assert "judging [red]it" in shown


def test_short_work_shows_nothing(tmp_path: Path) -> None:
    console = terminal()
    with Bar(console, delay_s=60.0) as bar:
        read_run(log(tmp_path, 10))
        bar.say("judging")
    assert text_of(console) == ""


def test_nothing_is_shown_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with Bar(console, delay_s=0.0) as bar:
        read_run(log(tmp_path))
        bar.say("judging")
    assert text_of(console) == ""
    assert main(["inspect", str(log(tmp_path, 50)), "--json"]) == 0
    assert capsys.readouterr().err == ""
