"""A run whose journal lost a decision is refused; a guard that lost its run writes nothing more."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chronicle.test_journal_check import flip, lines_of, lost, number_of, zeros
from tests.guard.tiny import events_of, guard_of, make, train_guarded, train_plain
from trimtab.chronicle.journal import Journal, append_once
from trimtab.cli import main
from trimtab.errors import ChronicleError
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def skipped_run(tmp_path: Path) -> Path:
    """A run that was killed after data was left out by hand, copied to a second place."""
    run = tmp_path / "run"
    policy = Policy(checkpoint_in_background=False, copy_to=str(tmp_path / "copies"))
    s = make(shuffle=True)
    guard = guard_of(s, run, steps=30, mode="act", policy=policy)
    train_guarded(s, guard, until=5)
    guard.checkpoint()
    guard.skip_samples(3, 6, why="a test")
    guard.close()
    return run


def resumed(run: Path, tmp_path: Path) -> tuple[object, ...]:
    """What the run leaves out when it is gone on with, in a place without its copy."""
    policy = Policy(checkpoint_in_background=False, copy_to=str(tmp_path / "elsewhere"))
    guard = guard_of(make(shuffle=True), run, steps=30, mode="act", policy=policy)
    found = tuple(guard.skipped_samples)
    guard.close()
    return found


@pytest.mark.parametrize("how", [flip, zeros, lost])
def test_a_damaged_skip_is_never_fed_again_in_silence(
    tmp_path: Path, how: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    run = skipped_run(tmp_path)
    journal = run / "journal.jsonl"
    lines = lines_of(journal)
    at = number_of(journal, "action", last=True)
    journal.write_bytes(b"".join([*lines[:at], how(lines[at]), *lines[at + 1 :]]))
    with pytest.raises(ChronicleError, match="a decision of the run may be lost"):
        resumed(run, tmp_path)
    assert main(["journal", "check", str(run)]) == 1
    assert main(["journal", "check", str(run), "--repair"]) == 0
    assert "brought back" in capsys.readouterr().out
    assert resumed(run, tmp_path) == ((3, 6),)


def test_cut_off_after_any_line_a_run_keeps_its_skips_or_is_refused(tmp_path: Path) -> None:
    run = skipped_run(tmp_path)
    lines = lines_of(run / "journal.jsonl")
    at = number_of(run / "journal.jsonl", "action", last=True)
    for kept in range(1, len(lines)):
        copy = tmp_path / f"cut-{kept}" / "run"
        shutil.copytree(run, copy)
        (copy / "journal.jsonl").write_bytes(b"".join(lines[:kept]))
        if kept > at:
            assert resumed(copy, copy.parent) == ((3, 6),)
            continue
        with pytest.raises(ChronicleError, match="the end of the file is lost"):
            resumed(copy, copy.parent)


def test_a_journal_that_was_deleted_after_a_skip_refuses_the_start(tmp_path: Path) -> None:
    run = skipped_run(tmp_path)
    (run / "journal.jsonl").unlink()
    for _ in range(2):  # the first try must not make a journal that the second one trusts
        with pytest.raises(ChronicleError, match=r"is gone or empty"):
            resumed(run, tmp_path)


def test_settings_that_cannot_be_read_at_the_start_are_one_sentence(tmp_path: Path) -> None:
    run = skipped_run(tmp_path)
    (run / "run.toml").unlink()
    (run / "run.toml").mkdir()
    with pytest.raises(ChronicleError, match=r"run\.toml: cannot be read"):
        resumed(run, tmp_path)


def test_a_guard_that_lost_its_run_trains_on_and_writes_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = tmp_path / "run", list[str]()
    expected = train_plain(make(), 30)
    s = make()
    policy = Policy(checkpoint_in_background=False, checkpoint_every_steps=10)
    guard = guard_of(s, run, steps=30, policy=policy, say=said.append, mode="act")
    losses = train_guarded(s, guard, until=14)
    (run / ".lock").unlink()
    (run / ".lock").write_text(json.dumps({"pid": 1, "host": "node-b", "owner": "x"}))
    losses += train_guarded(s, guard, until=25)
    after_loss = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    losses += train_guarded(s, guard)
    assert losses == expected
    assert capsys.readouterr().err.count("process 1 on node-b took this run directory") == 1
    assert "took this run directory" in said[-1]
    assert not (run / "checkpoints" / "step-00000020").exists()
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == after_loss
    assert events_of(run, "end") == []


def test_no_row_is_written_from_the_step_on_at_which_the_run_was_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(s, run, steps=30, policy=Policy(checkpoint_every_steps=1000), mode="observe")
    train_guarded(s, guard, until=14)
    (run / ".lock").unlink()
    (run / ".lock").write_text(json.dumps({"pid": 1, "host": "node-b", "owner": "x"}))
    before = (run / "signals" / "1.0.jsonl").read_bytes()
    train_guarded(s, guard)
    assert (run / "signals" / "1.0.jsonl").read_bytes() == before


def test_a_second_guard_is_refused_after_the_lock_was_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(s, run, steps=20)
    train_guarded(s, guard, until=5)
    (run / ".lock").unlink()
    before = (run / "journal.jsonl").read_bytes()
    with pytest.raises(ChronicleError, match="another guard is writing"):
        guard_of(make(), run, steps=20)
    assert (run / "journal.jsonl").read_bytes() == before
    train_guarded(s, guard)
    assert events_of(run, "end")
    assert any("removed by hand" in str(e.data) for e in events_of(run, "note"))


def test_the_journal_names_the_process_that_took_the_run(tmp_path: Path) -> None:
    import os

    run = tmp_path / "run"
    guard = guard_of(make(), run, steps=20)
    owner = events_of(run, "owner")[0]
    assert owner.data["pid"] == os.getpid()
    assert owner.data["owner"] == json.loads((run / ".lock").read_text())["owner"]
    guard.close()


def test_a_trainer_that_meets_another_ones_events_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    guard = guard_of(make(), run, steps=20, mode="act")
    other = Journal(run / "journal.jsonl")
    other.append("action", attempt="1.0", step=0, remedy="x", values={})
    other.close()
    append_once(run / "journal.jsonl", "dismiss", attempt="1.0", step=0)
    for factor in (0.5, 0.9):
        guard.scale_lr(factor, why="a test")
    guard.close()
    said = capsys.readouterr().err
    assert said.count(f"another trainer (writer {other.writer}) wrote 'action'") == 1
    with pytest.raises(ChronicleError, match="two trainers wrote at the same time"):
        guard_of(make(), run, steps=20)
