"""`trimtab journal check`: what is there, what would be lost, and mended."""

import json
from pathlib import Path

import pytest

from tests.chronicle.test_journal_check import flip, lines_of, lost, number_of, write_story, zeros
from trimtab.chronicle.journal import Journal, read_journal
from trimtab.chronicle.journal_check import check_journal
from trimtab.chronicle.run_lock import RunLock
from trimtab.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose second place was copied before its last three lines."""
    root = tmp_path / "run"
    place = tmp_path / "copies" / "run"
    for folder in (root, place):
        folder.mkdir(parents=True)
    journal = Journal(root / "journal.jsonl")
    policy = {"copy_to": str(tmp_path / "copies")}
    journal.append("start", attempt="1.0", step=0, settings={"policy": policy})
    journal.close()
    write_story(root / "journal.jsonl")
    lines = lines_of(root / "journal.jsonl")
    (place / "journal.jsonl").write_bytes(b"".join(lines[:-3]))
    return root


def damage(run: Path, event: str, how: object, *, last: bool = False) -> list[bytes]:
    """Damage one line; return the lines as they were."""
    journal = run / "journal.jsonl"
    lines = lines_of(journal)
    at = number_of(journal, event, last=last)
    assert callable(how)
    journal.write_bytes(b"".join([*lines[:at], how(lines[at]), *lines[at + 1 :]]))
    return lines


def test_a_whole_journal_is_no_damage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "check", str(run)]) == 0
    assert "no damage" in capsys.readouterr().out
    assert main(["journal", "check", str(run.parent)]) == 2


@pytest.mark.parametrize("how", [flip, zeros, lost])
def test_a_lost_decision_comes_back_from_the_second_place(
    run: Path, how: object, capsys: pytest.CaptureFixture[str]
) -> None:
    before = damage(run, "action", how)
    assert main(["journal", "check", str(run)]) == 1
    assert "--repair brings back from" in capsys.readouterr().out
    assert main(["journal", "check", str(run), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["brought_back"] == ["action"]
    assert told["problems"][0]["may_hide_a_decision"] is True
    assert main(["journal", "check", str(run), "--repair"]) == 0
    lines = lines_of(run / "journal.jsonl")
    assert lines[:-1] == before
    assert read_journal(run / "journal.jsonl")[0][-1].event == "repair"
    assert check_journal(run / "journal.jsonl").problems == ()
    assert (run / "journal.jsonl.damaged-1").exists()
    copy = (run.parent / "copies" / "run" / "journal.jsonl").read_bytes()
    assert (run / "journal.jsonl").read_bytes().startswith(copy)
    assert main(["journal", "check", str(run)]) == 0


@pytest.mark.parametrize("how", [flip, zeros, lost])
def test_what_no_second_place_has_is_marked_as_lost(
    run: Path, how: object, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run, "end", how)
    assert main(["journal", "check", str(run), "--repair"]) == 0
    out = capsys.readouterr().out
    assert "lost: " in out
    assert "the run can be started" in out
    event = read_journal(run / "journal.jsonl")[0][-1]
    assert (event.event, bool(event.data["accepted"])) == ("repair", True)
    assert check_journal(run / "journal.jsonl").refuses == ""
    journal = Journal(run / "journal.jsonl")
    journal.append("resume", attempt="1.0", step=9)
    journal.close()
    assert check_journal(run / "journal.jsonl").problems == ()
    damage(run, "repair", lost)
    assert check_journal(run / "journal.jsonl").refuses


def test_a_file_cut_in_mid_line_comes_back_to_its_end(run: Path) -> None:
    journal = run / "journal.jsonl"
    before = journal.read_bytes()
    (run.parent / "copies" / "run" / "journal.jsonl").write_bytes(before)
    journal.write_bytes(before[:-200])
    assert main(["journal", "check", str(run), "--repair"]) == 0
    assert journal.read_bytes().startswith(before)
    assert check_journal(journal).problems == ()


def test_a_run_that_trains_is_not_repaired(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run, "action", flip)
    lock = RunLock(run)
    before = (run / "journal.jsonl").read_bytes()
    assert main(["journal", "check", str(run), "--repair"]) == 2
    assert "another guard is writing" in capsys.readouterr().err
    assert (run / "journal.jsonl").read_bytes() == before
    lock.release()


def test_a_copy_of_another_run_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    write_story(tmp_path / "other" / "journal.jsonl")
    damage(run, "action", flip)
    command = ["journal", "check", str(run), "--repair", "--from", str(tmp_path / "other")]
    assert main(command) == 2
    assert "is the journal of another run" in capsys.readouterr().err
