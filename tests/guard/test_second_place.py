"""A second place for checkpoints: kept up beside the run, resumed from, and never in its way."""

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.guard.tiny import (
    differences,
    events_of,
    guard_of,
    make,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.checkpoints import mirror
from trimtab.checkpoints.manifest import list_checkpoints, newest_healthy, set_grade, verify
from trimtab.chronicle.journal_check import check_journal
from trimtab.chronicle.journal_head import read_head
from trimtab.errors import ChronicleError, ConfigError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 40


def policy_for(copies: Path, **settings: Any) -> Policy:
    return Policy(
        checkpoint_every_steps=10, checkpoint_in_background=False, copy_to=str(copies), **settings
    )


def run_until(tmp_path: Path, step: int, **settings: Any) -> Path:
    """Train to a step and close: as a kill right after the last checkpoint that was copied."""
    s = make(shuffle=True)
    policy = policy_for(tmp_path / "copies", **settings)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=policy)
    train_guarded(s, guard, until=step)
    guard.close()
    return tmp_path / "copies" / "run"


def resume(tmp_path: Path, **settings: Any) -> tuple[Guard, Any]:
    s = make(shuffle=True)
    policy = policy_for(tmp_path / "copies", **settings)
    return guard_of(s, tmp_path / "run", steps=STEPS, policy=policy), s


def test_copies_are_whole_and_as_many_as_are_kept(tmp_path: Path) -> None:
    place = run_until(tmp_path, 35, checkpoints_kept=2)
    copies = list_checkpoints(place / "checkpoints", hashes=True)
    assert [c.step for c in copies] == [20, 30]
    assert all(verify(c.path) == "" for c in copies)
    assert list((place / "checkpoints").glob("*.partial")) == []


@pytest.mark.covers("S156")
def test_checkpoints_and_log_have_the_same_checksums_at_the_second_place(tmp_path: Path) -> None:
    place, run = run_until(tmp_path, 35), tmp_path / "run"
    known = {p.relative_to(run): sha256(p.read_bytes()).digest() for p in files_of(run)}
    copied = {p.relative_to(place): sha256(p.read_bytes()).digest() for p in files_of(place)}
    assert {c.step for c in list_checkpoints(place / "checkpoints")} == {10, 20, 30}
    assert copied == known


def files_of(root: Path) -> list[Path]:
    kept = [root / "journal.jsonl", *(root / "signals").glob("*.jsonl")]
    return kept + [p for p in (root / "checkpoints").rglob("*") if p.is_file()]


@pytest.mark.parametrize("lost", ["all", "checkpoints", "newest-damaged"])
def test_what_is_lost_in_the_first_place_is_resumed_from_the_second_bit_for_bit(
    tmp_path: Path, lost: str
) -> None:
    plain = make(shuffle=True)
    expected = train_plain(plain, STEPS)
    run_until(tmp_path, 35)
    run = tmp_path / "run"
    if lost == "all":
        shutil.rmtree(run)
    elif lost == "checkpoints":
        shutil.rmtree(run / "checkpoints")
    else:
        data = next((run / "checkpoints" / "step-00000030" / "tensors").glob("*.distcp"))
        data.write_bytes(data.read_bytes()[:-1])
    guard, s = resume(tmp_path)
    assert guard.step_number == 30
    assert train_guarded(s, guard) == expected[30:]
    assert differences(state_of(plain), state_of(s)) == []
    told = [e.data["text"] for e in events_of(run, "note")]
    assert any("brought back from" in t for t in told)
    newest = newest_healthy(run / "checkpoints")
    assert newest is not None
    assert newest.step == STEPS


def test_the_second_place_knows_what_its_journal_must_hold(tmp_path: Path) -> None:
    place = run_until(tmp_path, 35)
    head, unclear = read_head(place / "journal.jsonl")
    assert unclear == ""
    assert len(head) == 1
    assert check_journal(place / "journal.jsonl").refuses == ""
    shutil.rmtree(tmp_path / "run")
    lines = (place / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (place / "journal.jsonl").write_bytes(b"".join(lines[:4]))
    with pytest.raises(ChronicleError, match="the end of the file is lost"):
        resume(tmp_path)


def test_without_a_second_place_a_lost_run_starts_anew(tmp_path: Path) -> None:
    run_until(tmp_path, 35)
    shutil.rmtree(tmp_path / "run")
    guard = guard_of(make(shuffle=True), tmp_path / "run", steps=STEPS)
    assert guard.step_number == 0
    guard.close()


def test_a_copy_that_the_run_no_longer_calls_healthy_is_not_resumed_from(tmp_path: Path) -> None:
    place = run_until(tmp_path, 35)
    run = tmp_path / "run"
    for checkpoint in list_checkpoints(run / "checkpoints"):
        if checkpoint.step >= 20:
            set_grade(checkpoint.path, "poisoned", "a test")
    guard, _ = resume(tmp_path)
    guard.close()
    assert guard.step_number == 10, "graded by hand"
    shutil.rmtree(run)
    for path in (place / "checkpoints" / f"step-{n:08d}" for n in (20, 30)):
        set_grade(path, "poisoned", "a test")
    guard, _ = resume(tmp_path)
    assert guard.step_number == 10
    guard.close()


@pytest.mark.parametrize("fault", ["a file is in its place", "full"])
def test_a_second_place_that_fails_stops_nothing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    expected = train_plain(make(shuffle=True), STEPS)
    if fault == "full":

        def refuse(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(mirror, "copy_checkpoint", refuse)
    else:
        (tmp_path / "copies").write_text("")
    said: list[str] = []
    s = make(shuffle=True)
    policy = policy_for(tmp_path / "copies")
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=policy, say=said.append)
    assert train_guarded(s, guard) == expected
    assert sum("second place" in line for line in said) == 1
    assert sum("second place" in e.data["text"] for e in events_of(tmp_path / "run", "note")) == 1
    assert events_of(tmp_path / "run", "fault") == []
    assert [c.step for c in list_checkpoints(tmp_path / "run" / "checkpoints")] == [10, 20, 30, 40]


@pytest.mark.covers("S226")
def test_a_copy_that_fails_once_is_tried_again_and_a_warning_goes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, failed = mirror.copy_checkpoint, []

    def upload(source: Path, folder: Path) -> Path:
        if source.name not in failed:
            failed.append(source.name)
            raise OSError(5, "Input/output error")
        return copy(source, folder)

    monkeypatch.setattr(mirror, "copy_checkpoint", upload)
    monkeypatch.setattr(mirror, "RETRY_S", (0.01, 0.01))
    place = run_until(tmp_path, 15)
    assert failed
    assert list_checkpoints(place / "checkpoints", hashes=True)[-1].path.name == failed[-1]
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].path.name == failed[-1]
    (note,) = [e for e in events_of(tmp_path / "run", "note") if "second" in e.data["text"]]
    assert "Input/output error" in note.data["text"]


def test_another_run_of_that_name_is_not_mixed_with(tmp_path: Path) -> None:
    place = run_until(tmp_path, 15)
    before = (place / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a copy of a run of that name"):
        guard_of(
            make(),
            tmp_path / "elsewhere" / "run",
            policy=policy_for(tmp_path / "copies"),
            resume=False,
        )
    said: list[str] = []
    s = make(shuffle=True)
    guard_of(s, tmp_path / "elsewhere" / "run", steps=15).close()  # a run without copies, as yet
    guard = guard_of(
        s,
        tmp_path / "elsewhere" / "run",
        steps=15,
        policy=policy_for(tmp_path / "copies"),
        say=said.append,
    )
    train_guarded(s, guard)
    assert any("holds another run of that name" in line for line in said)
    assert (place / "journal.jsonl").read_bytes() == before
