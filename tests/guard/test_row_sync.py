"""When rows are brought to disk, and that no event speaks of a row that a power cut could take."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.guard.tiny import guard_of, make, train_guarded
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.row_sync import RowSync
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Name and size of each file and folder that is synced."""
    found: list[tuple[str, int]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        found.append((name, os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def rows_at_syncs(run: Path, synced: list[tuple[str, int]], name: str = "1.0.jsonl") -> list[int]:
    data = (run / "signals" / name).read_bytes()
    return [data[:size].count(b"\n") for file, size in synced if file == name]


def opened(run: Path, **settings: Any) -> Recorder:
    recorder = Recorder(RunDirectory(run), row_sync=RowSync(**settings))
    recorder.start_attempt("1.0", step=0, parent=None, parent_step=None, why="start", trial=False)
    return recorder


def test_rows_are_synced_by_number_before_events_and_at_the_end(
    tmp_path: Path, synced: list[tuple[str, int]]
) -> None:
    recorder = opened(tmp_path, every_steps=4, every_s=1e6)
    for step in range(1, 7):
        recorder.sample(step, {"loss": 1.0}, {})
        recorder.write_rows()
    recorder.event("note", step=6, author="a", text="b")
    recorder.event("note", step=6, author="a", text="nothing is waiting")
    recorder.sample(7, {"loss": 1.0}, {})
    recorder.write_rows()
    recorder.close()
    assert rows_at_syncs(tmp_path, synced) == [4, 6, 7]


def test_rows_are_synced_by_age(tmp_path: Path, synced: list[tuple[str, int]]) -> None:
    now = [0.0]
    recorder = opened(tmp_path, every_steps=1000, every_s=5.0, clock=lambda: now[0])
    for step in range(1, 8):
        recorder.sample(step, {"loss": 1.0}, {})
        recorder.write_rows()
        now[0] += 2.0
    assert rows_at_syncs(tmp_path, synced) == [4]
    recorder.close()


def test_the_policy_says_how_often(tmp_path: Path, synced: list[tuple[str, int]]) -> None:
    policy = Policy(sync_rows_every_steps=2, sync_rows_every_s=1e6)
    guard = guard_of(make(), tmp_path / "run", steps=7, policy=policy)
    train_guarded(make(), guard, until=7)
    guard.close()
    assert [n for n in rows_at_syncs(tmp_path / "run", synced) if n % 2 == 0] == [2, 4, 6]
    with pytest.raises(ConfigError, match="sync_rows_every_steps"):
        Policy(sync_rows_every_steps=0)
    with pytest.raises(ConfigError, match="sync_rows_every_s"):
        Policy(sync_rows_every_s=0.0)


def test_names_and_files_that_a_promise_rests_on_are_synced(
    tmp_path: Path, synced: list[tuple[str, int]]
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=3)
    train_guarded(s, guard)
    guard.close()
    names = [name for name, _ in synced]
    assert {"signals", "run", "run.toml.partial", "verdict.json.partial"} <= set(names)


def test_a_setting_that_is_known_late_leaves_the_settings_whole(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("mine = 1\n# a comment\nlast = 2")  # no newline at its end
    recorder = opened(tmp_path)
    recorder.settings({"clip": 1.0})
    recorder.add_setting("data_order", 12)
    recorder.add_setting("data_order", 13)
    recorder.close()
    text = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert text == "mine = 1\n# a comment\nlast = 2\ndata_order = 12\n"
