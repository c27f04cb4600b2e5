"""What commands print cannot steer a terminal, whatever file it is from."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.cli import main
from trimtab.cli.output import SafeConsole, print_json

BAD = "\x1b[31m\x9b2J\u202e\u2066\u200b"
SHOWN = r"\x1b[31m\x9b2J\u202e\u2066\u200b"


def test_a_console_writes_out_what_would_steer_however_deep_it_lies() -> None:
    table = Table.grid()
    table.add_row(Text(BAD))
    for printed in (BAD, Text(BAD, style="bold"), Group(Text("a"), Padding(Text(BAD), 1)), table):
        out = io.StringIO()
        SafeConsole(file=out, width=120, markup=False).print(printed)
        assert SHOWN in out.getvalue() or printed is table  # a cell is as wide as rich takes it for
        assert not set(BAD) - set("[31m2J") & set(out.getvalue())


def test_colours_of_our_own_and_lines_stay() -> None:
    out = io.StringIO()
    SafeConsole(file=out, width=120, force_terminal=True, color_system="standard").print(
        Text("one\ntwo é 漢", style="red")
    )
    assert "\x1b[31mone\x1b[0m\n\x1b[31mtwo é 漢\x1b[0m" in out.getvalue()


def test_a_document_says_the_same_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": BAD + "é 漢"})
    out = capsys.readouterr().out
    assert not set(BAD) - set("[31m2J") & set(out)
    assert "é 漢" in out
    assert json.loads(out) == {"text": BAD + "é 漢"}


def test_preflight_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # a long path would be cut at the width of the terminal
    path = tmp_path / f"a{BAD}.json"
    path.write_text(
        json.dumps(
            {
                "model_type": BAD,
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "lr": 3e-4,
                "name": BAD,
            }
        )
    )
    for given in (path, tmp_path / f"none{BAD}.json"):
        main(["preflight", str(given), "--all"])
        told = capsys.readouterr()
        assert not set(BAD) - set("[31m2J") & set(told.out + told.err)
        assert r"\u202e" in told.out + told.err
