"""Why a person does something, and who it is: needed for what changes a run, and written down."""

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.surgery.cluster import age, save, tree
from trimtab.chronicle.approvals import mailbox_of
from trimtab.chronicle.journal import Event, Journal, read_journal


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIMTAB_REASON", "TRIMTAB_AUTHOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Three checkpoints, an incident, and an action that waits."""
    root = tmp_path / "run"
    for step in (3000, 6210, 7000):
        save(root, step)
    age(root)
    return root


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    root = tmp_path / "staged"
    journal = Journal(root / "journal.jsonl")
    journal.append("start", attempt="1.0", step=0)
    told = {"id": "ask-1", "classes": ["restore"], "kind": "spike", "what": "go back"}
    journal.append("staged", attempt="1.0", step=90, **told, cost_steps=9, undo="aside",
                   deadline_s=60.0, at_deadline="wait")  # fmt: skip
    journal.close()
    return root


def last(root: Path) -> Event:
    return read_journal(root / "journal.jsonl")[0][-1]


@pytest.mark.covers("S147")
def test_reason_and_author_are_needed_for_what_a_person_does_and_stand_in_the_logbook(
    saved: Path, staged: Path, tr8_log: Path, run: Run
) -> None:
    who = ["--author", "I. Beltagy"]
    by_hand = {
        "rollback": ["rollback", saved, "--to", "6210", "--apply"],
        "undo": ["rollback", saved, "--undo"],
        "approve": ["approve", staged, "ask-1"],
        "dismiss": ["dismiss", tr8_log, "A"],
    }
    for name, command in by_hand.items():
        before = tree(saved), mailbox_of(staged).exists()
        code, _, err = run(*command, *who)
        assert code == 2, name
        assert "no reason given" in err, name
        assert (tree(saved), mailbox_of(staged).exists()) == before, name
        assert run(*command, *who, "--reason", f"because of {name}")[0] == 0, name
    told = [e.data for e in read_journal(saved / "journal.jsonl")[0]]
    assert [(d["why"], d["by"]) for d in told] == [
        ("because of rollback", "I. Beltagy"),
        ("because of undo", "I. Beltagy"),
    ]
    answer = json.loads(mailbox_of(staged).read_text())
    assert (answer["why"], answer["author"]) == ("because of approve", "I. Beltagy")
    assert "no text given" in run("note", staged, " ", *who)[2]
    assert run("note", staged, "the loss is back", *who)[0] == 0
    for root, quoted in ((saved, "by I. Beltagy — because of undo"), (staged, "I. Beltagy")):
        assert quoted in run("chronicle", root)[1]


def test_reason_is_asked_for_on_a_terminal(
    saved: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("the loss  is 14\n"))
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert run("rollback", saved, "--to", "6210", "--apply", "--author", "x")[0] == 0
    assert last(saved).data["why"] == "the loss is 14"


def test_reason_of_a_script_comes_from_its_environment_and_its_author_from_git(
    saved: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\n\tname = S. Bekman\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_REASON", "the nightly script")
    assert run("rollback", saved, "--to", "6210", "--apply")[0] == 0
    assert (last(saved).data["why"], last(saved).data["by"]) == ("the nightly script", "S. Bekman")


def test_reason_is_not_asked_where_nothing_is_done(saved: Path, run: Run) -> None:
    assert run("rollback", saved, "--to", "6210")[0] == 0
    assert run("rollback", saved, "--to", "7000", "--apply")[0] == 0  # is there already
    assert "there are" in run("rollback", saved, "--to", "5", "--apply")[2]


def test_author_that_nobody_knows_is_asked_for(
    saved: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        raise KeyError

    monkeypatch.setattr("trimtab.cli.reason._git_name", lambda: "")
    monkeypatch.setattr("getpass.getuser", unknown)
    command = ["rollback", saved, "--to", "6210", "--apply", "--reason", "x"]
    assert "--author NAME" in run(*command)[2]
