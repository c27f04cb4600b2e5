import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.chronicle.journal import Journal
from trimtab.cli import build_parser, main
from trimtab.cli.output import print_json

Run = Callable[..., tuple[int, str, str]]

BLOCK_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Blocker())
from trimtab.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_base_install_reads_logs(tr8_log: Path) -> None:
    done = without_torch("inspect", str(tr8_log), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["rows"] == 8


def test_base_install_lists_scenarios_and_names_the_extra() -> None:
    listed = without_torch("lab", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    document = json.loads(listed.stdout)
    names = {s["name"] for s in document["scenarios"]}
    assert {"healthy", "bad-data-late", "lr-after-warmup"} <= names
    assert all(
        set(s) == {"name", "title", "expected_minutes", "expect"} for s in document["scenarios"]
    )
    refused = without_torch("lab", "run", "healthy")
    assert refused.returncode == 2
    assert ".[torch]" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "nowhere"], "nowhere"),
        (["chronicle", "nowhere"], "journal.jsonl"),
        (["lab", "run", "no-such-scenario"], "bad-data-late"),
        (["lab", "run", "healthy", "--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0] == "lab":
        pytest.importorskip("torch")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert says in err


def test_chronicle_of_a_journal(run: Run, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(
        "attempt",
        attempt="1.0",
        step=0,
        number="1.0",
        parent=None,
        parent_step=None,
        why="start",
        trial=False,
    )
    journal.append(
        "action", attempt="1.0", step=7, remedy="lower-lr", values={"lr_factor": 0.5}, why="asked"
    )
    journal.close()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"t": "torn')
    code, out, _ = run("chronicle", tmp_path)
    assert code == 0
    assert "1.0" in out
    assert "asked" in out
    code, out, _ = run("chronicle", tmp_path, "--json")
    document = json.loads(out)
    assert (document["schema"], document["torn_lines"], len(document["events"])) == (1, 1, 2)


def test_report_of_a_log(run: Run, tr8_log: Path) -> None:
    code, out, _ = run("report", tr8_log, "--json")
    assert code == 0
    document = json.loads(out)
    page = Path(document["report"])
    assert page.stat().st_size == document["size_bytes"]
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_every_command_is_documented() -> None:
    readme = (
        Path(__file__).parents[2].joinpath("README.md").read_text()
        + Path(__file__).parents[2].joinpath("docs/formats.md").read_text()
    )
    usage = build_parser().format_help()
    for command in ("inspect", "chronicle", "report", "lab"):
        assert command in usage
        assert f"trimtab {command}" in readme


def test_one_json_document_whatever_it_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    document = {"a": [float("nan"), {"b": (float("inf"), 1.5)}], "c\ud800": "\udcff", "d": deep}
    print_json(document)
    told = json.loads(capsys.readouterr().out)
    assert told["a"] == [None, {"b": [None, 1.5]}]
    assert told["c\ufffd"] == "\ufffd"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_json({"a": "ä\udcff"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == {"a": "ä\ufffd"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["inspect", "--json"], ["inspect"]])
def test_a_full_disk_behind_stdout_is_one_line(arguments: list[str], healthy_log: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", BLOCK_TORCH, *arguments, str(healthy_log)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "trimtab: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", ["inspect", "report", "chronicle"])
def test_an_empty_path_is_not_the_current_directory(run: Run, command: str) -> None:
    assert run(command, "") == (2, "", "trimtab: an argument is empty; give a path\n")
