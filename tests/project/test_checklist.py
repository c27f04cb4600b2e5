"""The requirements table is whole, and the tool that reads it can say no."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.checklist import ROOT, as_json, as_text, compact, read_table

COMMAND = [sys.executable, str(ROOT / "tools" / "checklist.py")]


def run_tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A test file with a claim on S31, a repeated one, an expected failure and a plain test."""
    path = tmp_path / "test_claims.py"
    path.write_text(
        "import pytest\n"
        "@pytest.mark.covers('S31', 'S32')\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_lines(n): ...\n"
        "@pytest.mark.covers('S33')\n"
        "@pytest.mark.xfail\n"
        "def test_not_yet(): ...\n"
        "def test_plain(): ...\n"
    )
    return path


def test_table_has_every_id_once_and_in_order() -> None:
    assert [item.id for item in read_table()] == [f"S{n}" for n in range(1, 270)]


def test_table_rows_differ_and_name_known_sources() -> None:
    items = read_table()
    assert len({item.what for item in items}) == len(items)
    assert len({item.accepted_when for item in items}) == len(items)
    sources = {source for item in items for source in item.source.split()}
    assert sources == {"000", "001", "002", "003", "004"}
    assert [len(section) > 3 for section in {item.section for item in items}] == [True] * 11


@pytest.mark.parametrize(
    "row", ["| S1 | what | when |", "| S1 | what || 000 |", "| S1 | a | b | c | d |"]
)
def test_a_malformed_row_is_named(tmp_path: Path, row: str) -> None:
    table = tmp_path / "table.md"
    table.write_text(f"## Section\n\n{row}\n")
    with pytest.raises(ValueError, match=r"table\.md:3: S1 has"):
        read_table(table)


def test_an_escaped_bar_stays_in_its_cell(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    table.write_text("## Section\n| S1 | norm | equals \\|v\\| | 000 |\n")
    assert read_table(table)[0].accepted_when == "equals |v|"


@pytest.mark.slow
def test_claims_are_found_by_collection(claim: Path) -> None:
    done = run_tool(claim, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    tests = {item["id"]: item["tests"] for item in document["items"] if item["tests"]}
    assert document["schema"] == 1
    assert (document["total"], document["covered"]) == (269, 2)
    assert list(tests) == ["S31", "S32"]  # S33 is claimed by an expected failure only
    assert len(tests["S31"]) == 1  # two cases of one test
    assert tests["S31"][0].endswith("test_claims.py::test_lines")


@pytest.mark.slow
def test_an_unknown_id_is_an_error_and_named(claim: Path) -> None:
    claim.write_text(claim.read_text().replace("'S32'", "'S270'"))
    done = run_tool(claim)
    assert done.returncode == 1
    assert done.stdout.startswith("covered 1 / 269\n")
    assert "unknown id 'S270', claimed by " in done.stdout
    assert "test_lines" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_claim_without_an_id_is_an_error(claim: Path) -> None:
    claim.write_text(claim.read_text().replace("'S31', 'S32'", ""))
    assert run_tool(claim).returncode == 1


def test_tests_that_cannot_be_collected_are_not_called_open(claim: Path) -> None:
    claim.write_text("import no_such_module\n")
    done = run_tool(claim)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no_such_module" in done.stderr


def test_text_and_json_agree_when_nothing_is_claimed() -> None:
    items = read_table()
    assert as_text(items, {}, []).splitlines() == ["covered 0 / 269", "", "", "open 269: S1-S269"]
    assert json.loads(as_json(items, {}, []))["covered"] == 0


def test_open_ids_are_drawn_together() -> None:
    assert compact([]) == ""
    assert compact(["S10", "S2", "S3"]) == "S2 S3 S10"
    assert compact(["S9", "S10", "S11"]) == "S9-S11"
