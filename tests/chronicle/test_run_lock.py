"""One run directory, one trainer: also where locks do not work, or are removed by hand."""

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trimtab.chronicle import run_lock
from trimtab.chronicle.journal import Journal
from trimtab.chronicle.run_lock import RunLock
from trimtab.errors import ChronicleError, OwnerLost


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_S", 0.02)


@pytest.fixture(params=[True, False], ids=["flock", "no flock"])
def flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        without_locks(monkeypatch)
    return bool(request.param)


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        del fd, how
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def begin(root: Path) -> tuple[RunLock, Journal]:
    """Take a run and sign its journal, as a guard does."""
    lock = RunLock(root)
    journal = Journal(root / "journal.jsonl")
    lock.hold_journal()
    journal.append("attempt", attempt="1.0", step=0)
    journal.append("owner", attempt="1.0", step=0, **lock.identity)
    return lock, journal


@pytest.fixture
def held(tmp_path: Path, flock: bool) -> Iterator[tuple[RunLock, Journal]]:
    del flock
    lock, journal = begin(tmp_path / "run")
    yield lock, journal
    lock.release()
    journal.close()


def test_a_second_trainer_is_refused_and_told_by_whom(
    tmp_path: Path, held: tuple[RunLock, Journal]
) -> None:
    who = f"process {os.getpid()} on {platform.node()}"
    with pytest.raises(ChronicleError, match=rf"another guard is writing .*\({who}\)"):
        RunLock(tmp_path / "run")
    held[0].check()
    held[0].release()
    RunLock(tmp_path / "run").release()


def test_a_second_trainer_is_refused_where_the_lock_was_removed_by_hand(
    tmp_path: Path, held: tuple[RunLock, Journal]
) -> None:
    (tmp_path / "run" / ".lock").unlink()
    with pytest.raises(ChronicleError, match=f"another guard is writing.*process {os.getpid()}"):
        RunLock(tmp_path / "run")
    assert not (tmp_path / "run" / ".lock").exists()
    held[0].check()  # takes it again
    assert "removed by hand, and is taken again" in held[0].take_notes()[0]
    held[0].check()
    assert held[0].take_notes() == []
    with pytest.raises(ChronicleError, match="another guard is writing"):
        RunLock(tmp_path / "run")


def foreign(path: Path, **more: Any) -> None:
    """Write the lock file of a trainer on another machine, as it stands there after a kill."""
    record = {"pid": 1, "host": "node-b", "owner": "ab" * 8, "since": "x", "started": "5", **more}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record) + "\n")


def test_a_lock_that_another_process_replaced_is_lost_for_good(
    tmp_path: Path, held: tuple[RunLock, Journal]
) -> None:
    path = tmp_path / "run" / ".lock"
    own = path.read_bytes()
    path.unlink()
    foreign(path)
    with pytest.raises(OwnerLost, match="process 1 on node-b took this run directory"):
        held[0].check()
    path.write_bytes(own)
    with pytest.raises(OwnerLost):
        held[0].check()


def test_a_lock_that_another_machine_signed_in_place_is_lost(
    tmp_path: Path, held: tuple[RunLock, Journal]
) -> None:
    foreign(tmp_path / "run" / ".lock")
    with pytest.raises(OwnerLost, match="process 1 on node-b"):
        held[0].check()


def test_a_trainer_on_another_machine_that_is_silent_is_taken_over(
    tmp_path: Path, flock: bool
) -> None:
    del flock
    path = tmp_path / "run" / ".lock"
    foreign(path)
    before = path.stat().st_ino
    lock = RunLock(tmp_path / "run")
    assert "taken over from process 1 on node-b" in lock.take_notes()[0]
    lock.check()
    lock.release()
    assert json.loads(path.read_text())["released"] is True
    assert RunLock(tmp_path / "run").notes == []
    foreign(path, released=True)
    assert RunLock(tmp_path / "run").notes == []
    assert before > 0


def test_a_trainer_on_another_machine_that_shows_life_is_not(
    tmp_path: Path, flock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    del flock
    path = tmp_path / "run" / ".lock"
    foreign(path)

    def beat(_seconds: float) -> None:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns + 1_000_000))

    monkeypatch.setattr(time, "sleep", beat)
    with pytest.raises(ChronicleError, match=r"another guard is writing .*process 1 on node-b"):
        RunLock(tmp_path / "run")


def test_the_holder_shows_life(tmp_path: Path, flock: bool) -> None:
    del flock
    lock = RunLock(tmp_path / "run")
    before = lock.path.stat().st_mtime_ns
    for _ in range(3000):  # a busy machine may be slow to run its thread
        time.sleep(0.01)
        if lock.path.stat().st_mtime_ns != before:
            break
    assert lock.path.stat().st_mtime_ns != before
    lock.release()


def test_a_dead_process_of_this_machine_holds_nothing(tmp_path: Path, flock: bool) -> None:
    del flock
    path = tmp_path / "run" / ".lock"
    foreign(path, host=platform.node(), pid=os.getpid(), started="1")  # an id used again
    lock = RunLock(tmp_path / "run")
    assert lock.notes == []
    lock.check()
    lock.release()


def test_without_its_lock_a_run_of_another_machine_is_taken_with_a_warning(
    tmp_path: Path, flock: bool
) -> None:
    del flock
    lock, journal = begin(tmp_path / "run")
    journal.append("owner", attempt="1.0", step=1, pid=1, host="node-b", token="x", started="5")
    lock.release()
    journal.close()
    lock.path.unlink()
    second = RunLock(tmp_path / "run")
    assert (
        "its .lock was removed, and process 1 on node-b has not closed the run" in second.notes[0]
    )
    second.release()


def test_a_run_directory_that_is_gone_is_one_sentence(tmp_path: Path, flock: bool) -> None:
    del flock
    lock = RunLock(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(ChronicleError, match="the run directory is gone"):
        lock.check()
    (tmp_path / "moved").rename(tmp_path / "run")
    lock.check()
    lock.release()


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://b/r", "az://b/r", "hdfs://n/r"])
def test_an_object_store_is_refused_with_words(url: str) -> None:
    with pytest.raises(ChronicleError, match=f"is a URL .{url[:2]}.*a local or a network folder"):
        RunLock(Path(url))


def test_a_check_is_cheap(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "run")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        lock.check()
        times.append(time.perf_counter() - start)
    assert sorted(times)[100] < 2e-4
    lock.release()
