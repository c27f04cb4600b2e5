"""`trimtab scan` as a command.

Exit codes, one JSON document, the skip list, names that cannot steer a terminal.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data_scan.data import CLEAN, tokens, write_jsonl
from trimtab.cli import main
from trimtab.plan.skiplist import read_skip_list

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["scan", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    texts = ["\\" * 9000 if i % 100 == 50 else t for i, t in enumerate(CLEAN)]
    return write_jsonl(tmp_path / "planted.jsonl", texts)


def test_backslash_windows_in_one_percent_exit_1_and_make_a_skip_list(
    call: Run, planted: Path
) -> None:
    skip = planted.with_name("skip.json")
    code, out, _ = call(planted, "--write-skip", skip)
    assert code == 1
    assert "✗ backslashes dominate: 3 documents of 300 (1.00%)" in out
    assert "3 of 300 to leave out" in out
    assert read_skip_list(skip).ranges == ((50, 50), (150, 150), (250, 250))


def test_clean_text_exits_0_and_says_so(call: Run, tmp_path: Path) -> None:
    code, out, err = call(write_jsonl(tmp_path / "d.jsonl", CLEAN))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "nothing found"


def test_json_is_one_document_of_the_documented_form(call: Run, planted: Path) -> None:
    code, out, _ = call(planted, "--json", "--plan-tokens", "10M", "--tokens-per-step", "50k")
    document = json.loads(out)
    assert code == 1
    assert list(document) == [
        "schema",
        "sources",
        "findings",
        "corpus",
        "epochs",
        "notes",
        "errors",
    ]
    keys = [
        "rule",
        "severity",
        "message",
        "values",
        "why",
        "source",
        "instead",
        "where",
        "count",
        "examples",
    ]
    assert {tuple(f) for f in document["findings"]} == {tuple(keys)}
    (escapes,) = [f for f in document["findings"] if f["rule"] == "escapes"]
    assert (escapes["where"], escapes["count"], len(escapes["examples"])) == (str(planted), 3, 3)
    assert document["epochs"]["epochs"] > 1
    assert [f["severity"] for f in document["findings"] if f["rule"] == "epochs"] == ["warning"]


def test_a_path_that_cannot_be_read_exits_2_and_the_others_are_told(
    call: Run, planted: Path
) -> None:
    code, out, err = call(planted.with_name("none"), planted, "--json")
    assert code == 2
    assert "none: does not exist" in err
    document = json.loads(out)
    assert len(document["errors"]) == len(document["sources"]) == 1


def test_before_and_after_show_what_was_inserted(call: Run, tmp_path: Path) -> None:
    before = write_jsonl(tmp_path / "before.jsonl", [f'"{t}"' for t in CLEAN])
    after = write_jsonl(tmp_path / "after.jsonl", [f'\\"{t}\\"' for t in CLEAN[50:]])
    code, out, _ = call("--before", before, "--after", after)
    assert code == 1
    assert "250 documents rewritten; 500 bytes longer, 500 backslashes" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to scan"),
        (["--before", "x"], "--before and --after go together"),
        (["d.jsonl", "--resume"], "no note to go on from"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(call: Run, arguments: list[str], message: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_what_is_asked_wrongly_is_a_document_with_json(call: Run) -> None:
    code, out, _ = call("--json")
    assert code == 2
    assert "nothing to scan" in json.loads(out)["errors"][0]["error"]


@pytest.mark.parametrize("given", ["0", "-3", "x", "nan", "1e400"])
def test_numbers_that_are_none_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["scan", "d", f"--context={given}"])
    assert "expected a positive number" in capsys.readouterr().err


def test_text_and_names_cannot_steer_the_terminal(call: Run, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb.jsonl"
    write_jsonl(path, ["\x1b[31m[bold]" * 300, *CLEAN[:30]])
    code, out, _ = call(path, tmp_path)
    assert code == 1
    assert "\x1b" not in out
    assert "\\x1b[31m[bold]" in out


def test_raw_tokens_with_a_dtype(call: Run, tmp_path: Path) -> None:
    tokens(50_000).astype("<u2").tofile(tmp_path / "d.bin")
    assert call(tmp_path / "d.bin")[0] == 2
    assert call(tmp_path / "d.bin", "--dtype", "uint16", "--vocab", 50_000)[0] == 0
    assert call(tmp_path / "d.bin", "--dtype", "uint16", "--vocab", 40_000)[0] == 1


def test_progress_is_a_bar_in_a_terminal_and_leaves_stdout_alone(
    call: Run, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("trimtab.cli.scan._Bar._EVERY_S", 0.0)
    code, out, err = call(planted, "--json", "--quick")
    assert code == 1
    assert json.loads(out)["schema"] == 1
    assert "━" in err
    assert "planted.jsonl" in err
    assert err.endswith("\r\x1b[K")


def test_what_reorders_or_hides_text_is_escaped_in_the_document_and_on_stderr(
    call: Run, tmp_path: Path
) -> None:
    name = "a\u202eb\x9b\u2066.jsonl"
    write_jsonl(tmp_path / name, CLEAN[:30])
    for arguments in ((tmp_path / name,), (tmp_path / name, "--json"), (tmp_path / ("no" + name),)):
        _, out, err = call(*arguments)
        assert not set(out + err) & set("\u202e\x9b\u2066")
        assert "\\u202eb" in out + err
    assert json.loads(call(tmp_path / name, "--json")[1])["sources"][0]["path"] == str(
        tmp_path / name
    )
