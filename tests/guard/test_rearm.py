"""A protection that is off says so, and comes back: faults of the disk, of memory, of callbacks."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guard import small_lab
from tests.guard.crowd import Crew, Job, outcome, run_crowd
from tests.guard.inner import acting, inner, note, replace_write, write_of_files
from tests.guard.small_lab import STEPS, bad_data, guarded
from tests.guard.tiny import Setup, events_of, guard_of, make, rows_of, train_guarded
from trimtab import analyze
from trimtab.checkpoints.manifest import list_checkpoints, regrade
from trimtab.chronicle.journal import read_journal
from trimtab.detectors.contract import Finding, Row, state_to_json
from trimtab.errors import ReadError
from trimtab.guard import Guard
from trimtab.guard.loop.exit_status import asks_for_restart, read_verdict
from trimtab.guard.recording import row_writer
from trimtab.guard.recording.fault_barrier import Edge
from trimtab.guard.state.serialization import clone
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

POLICY = Policy(
    checkpoint_every_steps=10,
    snapshot_every_steps=5,
    checkpoint_in_background=False,
    verify_steps=12,
)


class BadDisk:
    """Refuses writes to files whose path has a word in it, while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *words: str, code: int) -> None:
        self.on = False
        self.words, self.code = words, code
        self.short = False
        """Take half of the bytes before the next write is refused."""
        write, sync = os.write, os.fsync

        def bad_write(descriptor: int, data: Any) -> int:
            if self._refuses(descriptor):
                if self.short and len(data) > 1:
                    self.short = False
                    return write(descriptor, bytes(data)[: len(data) // 2])
                raise OSError(self.code, os.strerror(self.code))
            return write(descriptor, data)

        def bad_sync(descriptor: int) -> None:
            if self._refuses(descriptor) and self.code != errno.ENOSPC:
                raise OSError(self.code, os.strerror(self.code))
            sync(descriptor)

        monkeypatch.setattr(os, "write", bad_write)
        monkeypatch.setattr(os, "fsync", bad_sync)

    def _refuses(self, descriptor: int) -> bool:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        return self.on and any(word in path for word in self.words)


def verdict_of(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    return told


def steps_of(run: Path) -> list[int]:
    return [row["step"] for row in rows_of(run)]


def train(s: Setup, guard: Guard, at: Callable[[int], None]) -> None:
    train_guarded(s, guard, on_batch=lambda g, _: at(g.step_number + 1))


# -- a run that meets several of them, and then trouble --------------------------------------------


@pytest.mark.slow
def test_after_faults_that_pass_the_incident_is_found_and_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, disk = tmp_path / "run", BadDisk(monkeypatch, "/signals/", code=errno.ENOSPC)
    broken = iter([OSError(errno.EIO, "Input/output error")])
    save = write_of_files()

    def write(*given: Any) -> None:
        for error in broken:
            raise error
        save(*given)

    def plant(guard: Guard, loss: Tensor) -> Tensor:
        disk.on = guard.step_number + 1 == 52
        if guard.step_number + 1 == 60:
            replace_write(monkeypatch, write)
        return loss

    o = guarded(bad_data(240, 12), small_lab.make_text(), run, spoil=plant)
    assert [a["remedy"] for a in o.guard.actions] == ["roll-back+skip-data"]
    faults = [(e.data["where"], e.step, e.data["why"]) for e in events_of(run, "fault")]
    assert faults == [("rows", 52, "disk full"), ("checkpoint", 60, "disk I/O error")]
    back = [(e.data["where"], e.data["steps_not_judged"]) for e in events_of(run, "rearmed")]
    assert back == [("rows", 0), ("checkpoint", 0)]
    assert steps_of(run)[:240] == list(range(1, 241))
    told = verdict_of(run)
    assert (told["verdict"], told["degraded"]) == (analyze(run).verdict, "")
    assert told["verdict"] != "incident"
    assert "not judged" not in analyze(run).judgement.why  # no step was missed
    assert told["judged"] == {"steps": STEPS, "of": STEPS, "not_judged": []}


# -- the disk ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("short", [False, True])
def test_a_disk_that_is_full_for_a_while_loses_no_row_and_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    run = tmp_path / "run"
    s, said = make(), list[str]()
    guard = guard_of(s, run, steps=60, mode="act", policy=POLICY, say=said.append)
    disk = BadDisk(monkeypatch, "/signals/", "journal.jsonl", code=errno.ENOSPC)
    disk.short = short

    def at(step: int) -> None:
        disk.on = 22 <= step < 41
        if step == 33:
            assert not acting(guard)  # nothing is done that cannot be journalled
            assert "disk full" in guard.coverage.degraded
            assert "rows since step 22 (disk full)" in verdict_of(run)["degraded"]
            assert verdict_of(run)["verdict"] == "not-judged"
            note(guard, "a line")
            assert "disk full" in said[-1]

    train(s, guard, at)
    assert acting(guard)
    assert steps_of(run) == list(range(1, 61))  # in order, whole, each once
    names = [(e.event, e.data.get("where")) for e in events_of(run, "fault", "rearmed")]
    assert sorted(names[:2]) == [("fault", "journal"), ("fault", "rows")]
    assert sorted(names[2:]) == [("rearmed", "journal"), ("rearmed", "rows")]
    assert guard.coverage.gaps == ()
    assert verdict_of(run)["verdict"] == analyze(run).verdict != "incident"
    assert "not judged" not in analyze(run).judgement.why
    assert "degraded: " not in said[-1]
    # all was judged, and nothing could be acted on meanwhile
    (off,) = verdict_of(run)["faults"]
    assert (off["part"], off["from"], off["why"]) == ("journal", 22, "disk full")
    assert f"degraded for a time: journal 22-{off['to']} (disk full)" in said[-1]
    account = analyze(run).runs[0]
    assert account.coverage is not None
    assert account.coverage.faults == (("journal", 22, off["to"], "disk full"),)


@pytest.mark.slow
def test_a_disk_that_stays_full_is_told_in_the_last_line_and_no_row_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    s, said = make(), list[str]()
    guard = guard_of(s, run, steps=80, mode="act", policy=POLICY, say=said.append)
    disk = BadDisk(monkeypatch, "/signals/", "journal.jsonl", code=errno.ENOSPC)
    disk.short = True

    def at(step: int) -> None:
        disk.on = step >= 52

    train(s, guard, at)
    assert steps_of(run) == list(range(1, 52))
    assert (run / "signals" / "1.0.jsonl").read_bytes().endswith(b"}\n")
    assert "judged 51 of 80 steps; not judged: 52-80 (rows lost: disk full)" in said[-1]
    told = verdict_of(run)
    assert told["verdict"] == "not-judged"
    assert "rows since step 52 (disk full)" in told["degraded"]
    assert told["judged"]["not_judged"] == [{"from": 52, "to": 80, "why": "rows lost: disk full"}]


def test_an_event_whose_sync_fails_is_in_the_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(s, run, steps=30, mode="act", policy=POLICY)
    sync, bad = os.fsync, [False]

    def bad_sync(descriptor: int) -> None:
        if bad[0] and "journal.jsonl" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", bad_sync)

    def at(step: int) -> None:
        bad[0] = step == 11  # the checkpoint of step 10 was told; that of 20 is not touched
        if step == 11:
            note(guard, "once")

    train(s, guard, at)
    notes = [e.data["text"] for e in events_of(run, "note")]
    assert notes.count("once") == 1
    assert [e.event for e in events_of(run, "fault", "rearmed")] == ["fault", "rearmed"]
    assert read_journal(run / "journal.jsonl")[1] == 0


def test_a_failed_save_is_tried_again_soon_and_judging_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(s, run, steps=40, mode="act", policy=POLICY)
    save, calls = write_of_files(), list[int]()

    def write(*given: Any) -> None:
        calls.append(guard.step_number)
        if calls[-1] in (20, 21):
            raise OSError(errno.EIO, "Input/output error")
        save(*given)

    replace_write(monkeypatch, write)
    train_guarded(s, guard)
    assert calls == [10, 20, 21, 23, 30, 40]
    assert [e.event for e in events_of(run, "fault", "rearmed")] == ["fault", "rearmed"]
    assert {str(c.grade) for c in list_checkpoints(run / "checkpoints")} == {"healthy"}
    assert guard.coverage.whole


# -- memory -----------------------------------------------------------------------------------


def test_a_snapshot_that_does_not_fit_means_fewer_and_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    s, said = make(), list[str]()
    guard = guard_of(s, run, steps=40, mode="act", policy=POLICY, say=said.append)
    room, ring = [99], inner(guard).parts.points.ring

    def tight(state: Any, copies: Any = None) -> Any:
        if len(ring.items) >= room[0]:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return clone(state, copies)

    monkeypatch.setattr("trimtab.guard.state.state_copy.clone", tight)
    kept = dict[int, int]()

    def at(step: int) -> None:
        room[0] = 0 if 26 <= step < 32 else 3
        kept[step] = len(ring.items)

    train(s, guard, at)
    # 3 fit: the fourth one takes the place of the older ones, and no more than fit are kept
    assert max(kept.values()) == 3
    assert min(kept[step] for step in range(12, 26)) >= 2
    assert any("out of memory in a snapshot" in line for line in said)
    where = [(e.event, e.data["where"], e.data["why"]) for e in events_of(run, "fault", "rearmed")]
    assert where == [
        ("fault", "snapshot", "out of memory"),
        ("rearmed", "snapshot", "out of memory"),
    ]
    assert acting(guard)
    assert ring.items


# -- callbacks of the user's ------------------------------------------------------------------


class Picky:
    """A user's detector that raises at one row."""

    name = "picky"
    signals = ("loss",)

    def start(self) -> int:
        return 0

    def update(self, state: int, row: Row) -> tuple[int, tuple[Finding, ...]]:
        if row.index == 20:
            raise KeyError("no such thing")
        return state + 1, ()


def test_a_detector_that_raises_is_named_and_the_others_judge_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    s = make()
    guard = guard_of(s, run, steps=40, mode="act", policy=POLICY, detectors=[Picky()])
    train_guarded(s, guard)
    (fault,) = events_of(run, "fault")
    assert "the detector 'picky' raised KeyError" in fault.data["error"]
    assert "picky" in capsys.readouterr().err
    assert acting(guard)
    assert guard.coverage.whole
    assert verdict_of(run)["verdict"] == analyze(run).verdict


def test_a_detector_that_is_new_on_resume_leaves_the_others_their_states(tmp_path: Path) -> None:
    s, said = make(), list[str]()
    guard = guard_of(s, tmp_path / "run", steps=30, policy=POLICY)
    train_guarded(s, guard, until=20)
    state = inner(guard).parts.judgement.state
    guard.close()
    again = guard_of(
        make(), tmp_path / "run", steps=30, policy=POLICY, detectors=[Picky()], say=said.append
    )
    found = inner(again).parts.judgement.state
    assert found.states[-1] == 0
    for before, now in zip(state.states, found.states[:-1], strict=True):
        assert state_to_json(now) == state_to_json(before)
    assert not [line for line in said if "start anew" in line]
    again.close()


def test_an_on_restore_that_raises_is_told_and_protection_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    s, heard = make(), list[int]()
    guard = guard_of(s, run, steps=30, mode="act", policy=POLICY)

    def put_back(_step: int) -> None:
        raise ValueError("no such buffer")

    guard.on_restore(put_back)
    guard.on_restore(heard.append)
    train_guarded(s, guard, until=20)
    guard.roll_back(12, why="a test", confirm=True)
    train_guarded(s, guard)
    (fault,) = events_of(run, "fault")
    assert (fault.data["where"], heard) == ("callback", [10])
    assert "put_back raised ValueError: no such buffer" in fault.data["error"]
    assert "put_back" in capsys.readouterr().err
    assert acting(guard)
    assert guard.coverage.whole


def test_a_say_and_a_counter_that_raise_are_told_once(tmp_path: Path) -> None:
    def bad(_: object) -> int:
        raise OSError("gone")

    s = make()
    guard = guard_of(s, tmp_path / "run", steps=5, mode="act", say=bad, count_tokens=bad)
    train_guarded(s, guard)
    told = [e.data["error"] for e in events_of(tmp_path / "run", "fault")]
    assert [text.partition(" ")[0] for text in sorted(told)] == ["count_tokens", "say"]
    assert acting(guard)


# -- what was not judged ----------------------------------------------------------------------


def test_steps_that_were_not_judged_are_told_everywhere_and_make_a_checkpoint_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    s, said = make(), list[str]()
    guard = guard_of(s, run, steps=50, mode="act", policy=POLICY, say=said.append)
    judge = type(inner(guard).parts.judgement.judge)
    update, bad = judge.update, iter([True])

    def once(*given: Any, **more: Any) -> Any:
        if guard.step_number == 18 and next(bad, False):
            raise MemoryError
        return update(*given, **more)

    monkeypatch.setattr(judge, "update", once)
    train_guarded(s, guard)
    told = "judged 49 of 50 steps; not judged: 18 (out of memory)"
    assert guard.coverage.text() == told
    assert told in said[-1]
    assert acting(guard)
    assert verdict_of(run)["verdict"] == "not-judged"
    assert verdict_of(run)["judged"]["not_judged"] == [
        {"from": 18, "to": 18, "why": "out of memory"}
    ]
    grades = {c.step: str(c.grade) for c in list_checkpoints(run / "checkpoints")}
    # it counts until as many steps were judged as verify a remedy; the healthy ones stay
    assert grades == {10: "healthy", 20: "suspect", 30: "healthy", 40: "healthy", 50: "healthy"}
    (account,) = analyze(run).runs
    assert account.verdict == "not-judged"
    assert account.coverage is not None
    assert account.coverage.text() == told


def test_a_step_that_is_done_again_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=40, mode="act", policy=POLICY)
    judge = type(inner(guard).parts.judgement.judge)
    with monkeypatch.context() as patch:
        train_guarded(s, guard, until=17)
        patch.setattr(judge, "update", lambda *_, **__: 1 / 0)
        train_guarded(s, guard, until=19)
    assert guard.coverage.gaps == ((18, 19, "ZeroDivisionError: division by zero"),)
    guard.roll_back(15, why="a test", confirm=True)
    train_guarded(s, guard)
    assert guard.coverage.whole
    assert analyze(tmp_path / "run").verdict != "incident"
    assert "not judged" not in analyze(tmp_path / "run").judgement.why


# -- a fault in the midst of a case -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["probe", "trial"])
def test_a_fault_inside_a_case_ends_it_and_the_next_incident_is_acted_on(
    tmp_path: Path, phase: str
) -> None:
    run = tmp_path / "run"
    planted = iter([True])

    def plant(guard: Guard, loss: Tensor) -> Tensor:
        if guard.phase == phase and next(planted, False):
            inner(guard).edge.note("recovery", RuntimeError("planted"))
        return loss

    o = guarded(bad_data(240, 12), small_lab.make_text(), run, spoil=plant)
    assert [e.event for e in events_of(run, "fault", "rearmed")] == ["fault", "rearmed"]
    assert [a["remedy"] for a in o.guard.actions] == ["roll-back+skip-data"]
    assert o.guard.step_number == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 2])
def test_a_disk_that_fails_as_a_recovery_begins_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    run, left = tmp_path / "run", [failures]

    def bad(*given: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return regrade(*given, **more)

    monkeypatch.setattr("trimtab.guard.state.checkpoint_store.regrade", bad)
    o = guarded(bad_data(240, 24), small_lab.make_text(), run)
    assert left == [0]
    assert [a["remedy"] for a in o.guard.actions] == ["roll-back+skip-data"]
    told = [e.event for e in events_of(run, "fault", "rearmed")]
    assert told == ([] if failures == 1 else ["fault", "rearmed"])
    incidents = [e.data["onset"] for e in events_of(run, "incident") if e.data["state"] == "open"]
    assert len(incidents) == len(set(incidents))


@pytest.mark.slow
def test_retention_keeps_the_last_one_before_trouble_though_none_was_saved_in_it(
    tmp_path: Path,
) -> None:
    policy = replace(POLICY, checkpoints_kept=2)
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=80, policy=policy)
    train_guarded(s, guard, until=25)
    inner(guard).parts.points.store.spare_before(22.0)
    train_guarded(s, guard)
    assert [c.step for c in list_checkpoints(tmp_path / "run" / "checkpoints")] == [20, 70, 80]


@pytest.mark.parametrize(("schema", "why"), [(2, "reads up to 1"), ("1", "ever wrote")])
def test_a_verdict_of_another_schema_is_refused(tmp_path: Path, schema: object, why: str) -> None:
    (tmp_path / "verdict.json").write_text(
        json.dumps({"schema": schema, "state": "done", "restart": False})
    )
    with pytest.raises(ReadError, match=why):
        read_verdict(tmp_path)
    assert asks_for_restart(tmp_path)


# -- several ranks ----------------------------------------------------------------------------


def fail_once_on_rank_1(crew: Crew, guard: Guard) -> None:
    judgement = inner(guard).parts.judgement
    judge_row = judgement.judge_row

    def fail(row: int, step: int, values: Any) -> Any:
        if step == 6 and crew.rank == 1:
            raise MemoryError
        return judge_row(row, step, values)

    object.__setattr__(judgement, "judge_row", fail)


def spike(crew: Crew, step: int, loss: Tensor) -> Tensor:
    return loss * torch.nan if 30 <= step < 34 and not crew.guard.actions else loss  # type: ignore[union-attr]


@pytest.mark.slow
def test_ranks_stand_down_and_come_back_together(tmp_path: Path) -> None:
    job = Job("ddp", 60, mode="act", before=fail_once_on_rank_1, spoil_loss=spike)
    assert run_crowd(tmp_path, 2, job) == [0, 0]
    run = tmp_path / "run"
    names = [(e.event, e.step) for e in events_of(run, "fault", "rearmed")]
    assert names == [("fault", 7), ("rearmed", 8)]
    assert outcome(tmp_path, 0)["actions"] == outcome(tmp_path, 1)["actions"] != []


# -- the state machine ------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.lines = list[tuple[str, str]]()

    def fault(self, part: str, _error: str, *, why: str) -> None:
        assert why
        self.lines.append(("fault", part))

    def rearmed(self, part: str, *, since_step: int, why: str) -> None:
        assert why
        assert since_step
        self.lines.append(("rearmed", part))


def test_a_part_is_tried_again_after_1_2_4_steps_and_64_at_most() -> None:
    step, told = [0], Told()
    edge = Edge(told, alone=True, step=lambda: step[0])
    tried = list[int]()

    def work() -> None:
        tried.append(step[0])
        if step[0] < 250:
            raise OSError(errno.ENOSPC, "No space left on device")

    for n in range(1, 400):
        step[0] = n
        edge.hear(edge.begin_step())
        edge.run("rows", work, retried=True)
    assert tried[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    assert tried[9:11] == [256, 257]
    assert told.lines == [("fault", "rows"), ("rearmed", "rows")]


def test_rows_that_wait_too_long_are_thinned_from_the_old_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "MOST_HELD_ROWS", 100)
    rows = row_writer.RowWriter()
    for step in range(101):
        rows.add(tmp_path / "rows", step, b"%d\n" % step)
    assert rows.take_thinned() == tuple(range(1, 50, 2))
    rows.write()
    kept = [int(line) for line in (tmp_path / "rows").read_text().split()]
    assert kept == [s for s in range(101) if s >= 50 or s % 2 == 0]
    rows.close()
