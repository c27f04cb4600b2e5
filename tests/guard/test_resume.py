"""Killed at any moment and resumed, a run goes on bit for bit; what is broken is not resumed from."""

import json
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from tests.guard import jobs
from tests.guard.tiny import (
    SCHEDULES,
    copy_of_run,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.checkpoints.manifest import set_grade
from trimtab.chronicle.journal import read_journal
from trimtab.detectors.judge import judge_record
from trimtab.errors import ActError, ChronicleError, ConfigError, ReadError
from trimtab.guard.state import checkpoint_store
from trimtab.guard.state.checkpoint_io import save_state
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory

pytestmark = pytest.mark.torch

STEPS = 60
HARD: dict[str, Any] = {"shuffle": True, "schedule": "onecycle", "dropout": 0.2}
PRECISIONS = {"fp32": {"precision": "fp32", **HARD}, "fp16": {"precision": "fp16", **HARD}}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of each precision that nobody disturbs."""
    folders = {}
    for name, settings in PRECISIONS.items():
        folders[name] = tmp_path_factory.mktemp(f"unbroken-{name}")
        assert jobs.run(folders[name], settings=settings, steps=STEPS, log="losses") == 0
    return folders


def assert_goes_on(folder: Path, reference: Path, settings: dict[str, Any]) -> int:
    """Resume in `folder`; return the step it resumed from."""
    assert jobs.run(folder, settings=settings, steps=STEPS, log="resumed") == 0
    expected, resumed = jobs.losses_of(reference, "losses"), jobs.losses_of(folder, "resumed")
    first, last = min(resumed), max(resumed)
    assert last == STEPS
    assert last - first + 1 >= 20
    assert resumed == {step: expected[step] for step in range(first, last + 1)}
    end, theirs = (torch.load(p) for p in (reference / "losses.pt", folder / "resumed.pt"))
    assert differences(end, theirs) == []
    assert events_of(folder / "run", "fault") == []
    return first - 1


@pytest.mark.covers("S212")
@pytest.mark.parametrize(
    "kill_step", [11, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 10, 26, 40))]
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_killed_after_a_step_it_goes_on_bit_for_bit(
    tmp_path: Path, unbroken: dict[str, Path], precision: str, kill_step: int
) -> None:
    settings = PRECISIONS[precision]
    code = jobs.run(tmp_path, settings=settings, steps=STEPS, log="first", kill_step=kill_step)
    assert code == -9
    resumed_from = assert_goes_on(tmp_path, unbroken[precision], settings)
    assert resumed_from == kill_step // 10 * 10


@pytest.mark.slow
@pytest.mark.parametrize("kill_step", [11, 26, 40])
def test_what_is_saved_in_the_background_is_whole_or_not_there(
    tmp_path: Path, unbroken: dict[str, Path], kill_step: int
) -> None:
    settings = PRECISIONS["fp32"]
    code = jobs.run(
        tmp_path, settings=settings, steps=STEPS, log="first", kill_step=kill_step, background=True
    )
    assert code == -9
    assert_goes_on(tmp_path, unbroken["fp32"], settings)


def test_a_save_in_the_background_is_told_once_it_is_whole(tmp_path: Path) -> None:
    s, policy = make(), Policy(checkpoint_every_steps=5)
    started = Event()

    def slow(*args: Any, **more: Any) -> None:
        started.wait(30)
        save_state(*args, **more)

    guard = guard_of(s, tmp_path / "run", steps=12, policy=policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_store, "save_state", slow)
        train_guarded(s, guard, until=8)
        assert events_of(tmp_path / "run", "checkpoint") == []  # training went on meanwhile
        started.set()
        train_guarded(s, guard)
    told = [(e.data["path"], e.step) for e in events_of(tmp_path / "run", "checkpoint")]
    assert told == [("step-00000005", 5), ("step-00000010", 10), ("step-00000012", 12)]
    again = make()
    restored = guard_of(again, tmp_path / "run", steps=12)
    assert restored.step_number == 12
    assert differences(state_of(s)["model"], state_of(again)["model"]) == []


@pytest.mark.slow
@pytest.mark.covers("S236")
@pytest.mark.parametrize("point", jobs.KILL_POINTS)
def test_killed_within_a_save_the_newest_whole_checkpoint_is_used(
    tmp_path: Path, unbroken: dict[str, Path], point: str
) -> None:
    settings = PRECISIONS["fp16"]
    code = jobs.run(tmp_path, settings=settings, steps=STEPS, log="first", kill_save=(30, point))
    assert code == -9
    left = [p.name for p in (tmp_path / "run" / "checkpoints").glob("*.partial")]
    assert left == ([] if point == "after-rename" else ["step-00000030.partial"])
    resumed_from = assert_goes_on(tmp_path, unbroken["fp16"], settings)
    assert resumed_from == (30 if point == "after-rename" else 20)
    assert list((tmp_path / "run" / "checkpoints").glob("*.partial")) == []


@pytest.mark.slow
@pytest.mark.parametrize("told", [0, 1])
def test_killed_between_a_row_and_its_findings_they_are_told_at_the_resume(
    tmp_path: Path, told: int
) -> None:
    settings = PRECISIONS["fp16"]
    assert jobs.run(tmp_path, settings=settings, steps=STEPS, log="first", kill_step=19) == -9
    run = tmp_path / "run"
    before = events_of(run, "finding")
    row = max(e.data["row"] for e in before)
    assert sum(e.data["row"] == row for e in before) > 1
    signals = run / "signals" / "1.0.jsonl"
    signals.write_bytes(b"".join(signals.read_bytes().splitlines(keepends=True)[: row + 1]))
    first = next(e for e in before if e.data["row"] == row)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    at = next(i for i, e in enumerate(read_journal(run / "journal.jsonl")[0]) if e == first)
    (run / "journal.jsonl").write_bytes(b"".join(lines[: at + told]))
    assert jobs.run(tmp_path, settings=settings, steps=STEPS, log="again") == 0
    live = [(e.data["kind"], e.data["row"], e.data["text"]) for e in events_of(run, "finding")]
    offline = judge_record(read_run_directory(run))
    assert live == [(f.kind, f.row, f.text) for f in offline]
    assert next(e for e in events_of(run, "finding") if e.data["row"] == row).attempt == "1.0"


@pytest.mark.parametrize(
    ("schedule", "shuffle", "generator"),
    [*((name, True, True) for name in SCHEDULES), ("none", True, False), ("none", False, True)],
)
def test_every_schedule_and_order_resumes_bit_for_bit(
    tmp_path: Path, schedule: str, shuffle: bool, generator: bool
) -> None:
    settings: dict[str, Any] = {"schedule": schedule, "shuffle": shuffle, "generator": generator}
    expected = train_plain(make(**settings), 30)
    s = make(**settings)
    guard = guard_of(s, tmp_path / "run", steps=30)
    train_guarded(s, guard, until=14)  # in the second epoch of 11 batches
    guard.checkpoint()
    guard.close()
    s = make(**settings)
    assert train_guarded(s, guard_of(s, tmp_path / "run", steps=30)) == expected[14:]


def broken_run(tmp_path: Path) -> Path:
    """A run of 27 steps with checkpoints at 10 and 20, closed; its signals go on to step 27."""

    def stop_at_27(run: Path) -> None:
        s = make()
        policy = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)
        guard = guard_of(s, run, steps=60, policy=policy)
        train_guarded(s, guard, until=27)
        guard.close()

    return copy_of_run("stopped-at-27", tmp_path / "run", stop_at_27)


def resumed_from(run: Path) -> int:
    s = make()
    guard = guard_of(s, run, steps=60)
    step = guard.step_number
    guard.close()
    return step


def test_a_torn_last_line_is_left_out_and_the_journal_goes_on(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    journal, rows = run / "journal.jsonl", run / "signals" / "1.0.jsonl"
    journal.write_bytes(journal.read_bytes() + journal.read_bytes()[:60])
    rows.write_bytes(rows.read_bytes()[:-9])
    num_events = len(read_journal(run / "journal.jsonl")[0])
    assert resumed_from(run) == 20
    events, num_torn = read_journal(run / "journal.jsonl")
    assert num_torn == 1
    new = [e.event for e in events[num_events:]]
    new = [e for e in new if e != "finding"]  # a stall of a busy machine
    assert new == ["resume", "attempt", "owner"]
    record = read_run_directory(run)
    assert record.num_rows == 26
    assert any("torn" in note for note in record.notes)


def test_a_partial_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    newest = run / "checkpoints" / "step-00000020"
    newest.rename(newest.with_name("step-00000020.partial"))
    assert resumed_from(run) == 10


@pytest.mark.covers("S232")
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no-manifest", "bad-manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    run = broken_run(tmp_path)
    folder = run / "checkpoints" / "step-00000020"
    data = next((folder / "tensors").glob("*.distcp"))
    raw = bytearray(data.read_bytes())
    if damage == "truncate":
        data.write_bytes(raw[:-1])
    elif damage == "flip":
        raw[len(raw) // 2] ^= 1
        data.write_bytes(raw)
    elif damage == "remove":
        data.unlink()
    elif damage == "no-manifest":
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text("{", encoding="utf-8")
    assert resumed_from(run) == 10
    events = read_journal(run / "journal.jsonl")[0]
    saved = [e.data for e in events if e.event == "checkpoint" and e.data["grade"] == "healthy"]
    assert all(0 < data["save_s"] < 60 for data in saved)
    told = next(e.data for e in events if e.event == "resume")
    assert told["load_s"] > 0
    assert (told["checkpoint"], told["hashes"]) == ("step-00000010", "agree")
    if damage in ("truncate", "flip"):
        assert "step-00000020" in told["passed_over"][0]


def test_a_poisoned_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    set_grade(run / "checkpoints" / "step-00000020", "poisoned", "a test")
    assert resumed_from(run) == 10


def test_without_a_healthy_checkpoint_step_0_is_not_begun_unasked(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    for path in run.glob("checkpoints/*"):
        set_grade(path, "suspect", "a test")
    with pytest.raises(ReadError, match=r"step-00000020 is suspect \(a test\).*write healthy into"):
        resumed_from(run)
    set_grade(run / "checkpoints" / "step-00000010", "healthy", "looked at")
    assert resumed_from(run) == 10


def test_without_a_healthy_checkpoint_it_starts_over_by_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken_run(tmp_path)
    for path in run.glob("checkpoints/*"):
        set_grade(path, "suspect", "a test")
    guard = guard_of(make(shuffle=True), run, steps=STEPS, start_over=True)
    assert guard.step_number == 0
    guard.close()
    assert "none of this run's checkpoints is healthy" in capsys.readouterr().err
    attempts = [e.data["number"] for e in events_of(run, "attempt")]
    assert attempts == ["1.0", "2.0"]


def test_attempts_are_numbered_with_their_parents(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    assert [resumed_from(run), resumed_from(run)] == [20, 20]
    told = [
        (e.data["number"], e.data["parent"], e.data["parent_step"])
        for e in events_of(run, "attempt")
    ]
    assert told == [("1.0", None, None), ("1.1", "1.0", 20), ("1.2", "1.0", 20)]


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=13))
    final = state_of(s)
    again = make()
    assert train_guarded(again, guard_of(again, tmp_path / "run", steps=13)) == []
    assert differences(final, state_of(again)) == []
    longer = make()
    assert len(train_guarded(longer, guard_of(longer, tmp_path / "run", steps=15))) == 2


def test_a_second_guard_on_one_run_directory_is_refused(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=12)
    with pytest.raises(ChronicleError, match=r"another guard is writing .*process \d+ on"):
        guard_of(make(), tmp_path / "run", steps=12)
    train_guarded(s, guard)  # the first one is not harmed
    guard_of(make(), tmp_path / "run", steps=13).close()


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    job: dict[str, Any] = {"settings": {}, "log": "first", "mode": "observe"}
    process = jobs.start(tmp_path, steps=10**6, **job)
    deadline = time.monotonic() + 60
    while not (tmp_path / "first").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    holder = json.loads((tmp_path / "run" / ".lock").read_text(encoding="utf-8"))
    assert holder["pid"] == process.pid
    with pytest.raises(ChronicleError, match=rf"process {process.pid} on"):
        guard_of(make(), tmp_path / "run", steps=60)
    process.kill()
    process.join()
    assert resumed_from(tmp_path / "run") >= 0


def test_an_existing_run_is_refused_without_resume(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    before = (run / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        guard_of(make(), run, steps=60, resume=False)
    assert (run / "journal.jsonl").read_bytes() == before


def test_other_settings_are_refused_because_loading_would_undo_them(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    with pytest.raises(ActError, match=r"launched with .*lr=.*now with"):
        guard_of(make(lr=1e-3), run, steps=60)
    s = make()
    s.optimizer.param_groups[0]["weight_decay"] = 0.3
    with pytest.raises(
        ActError, match=r"group 0 was launched with weight_decay=0\.1, now with 0\.3"
    ):
        guard_of(s, run, steps=60)
    assert resumed_from(run) == 20  # the lock was given back


def test_another_model_is_refused(tmp_path: Path) -> None:
    run = broken_run(tmp_path)
    s = make()
    s.model.output = torch.nn.Linear(24, 20)
    parameters = list(s.model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    s.optimizer = torch.optim.AdamW(groups, lr=3e-3, foreach=True)
    s.scheduler = SCHEDULES["lambda"](s.optimizer)
    with pytest.raises(ActError, match="does not fit this model"):
        guard_of(s, run, steps=60)


def test_the_lr_factor_clip_and_skips_survive_a_kill_without_a_later_checkpoint(
    tmp_path: Path,
) -> None:
    s = make(schedule="cosine")
    guard = guard_of(
        s,
        tmp_path / "run",
        steps=60,
        policy=Policy(checkpoint_every_steps=10, checkpoint_in_background=False),
    )
    train_guarded(s, guard, until=12)
    guard.scale_lr(0.25, why="a test")
    guard.tighten_clip(0.5, why="a test")
    guard.skip_samples(60, 67, why="a test")
    train_guarded(s, guard, until=14)
    guard.close()  # nothing is saved here: as a kill
    s = make(schedule="cosine")
    guard = guard_of(s, tmp_path / "run", steps=60)
    assert guard.step_number == 10
    assert guard.lr_factor == 0.25
    assert guard.skipped_samples == ((60, 67),)
    planned = s.optimizer.param_groups[0]["lr"]
    train_guarded(s, guard, until=11)
    guard.close()
    row = rows_of(tmp_path / "run", "1.1")[0]
    assert row["lr"] == 0.25 * planned
    assert row["clipped"] == float(row["grad_norm"] > 0.5)


def test_what_is_done_while_a_checkpoint_is_written_outlives_a_restart(tmp_path: Path) -> None:
    s, policy = make(), Policy(checkpoint_every_steps=5)
    acted = Event()

    def slow(*args: Any, **more: Any) -> None:
        acted.wait(30)
        save_state(*args, **more)

    guard = guard_of(s, tmp_path / "run", steps=12, policy=policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_store, "save_state", slow)
        train_guarded(s, guard, until=5)
        guard.scale_lr(0.5, why="while step 5 is being written")
        guard.skip_samples(100, 103, why="the same")
        acted.set()
        guard.close()
    again = make()
    restored = guard_of(again, tmp_path / "run", steps=12)
    assert (restored.step_number, restored.lr_factor) == (5, 0.5)
    assert restored.skipped_samples == ((100, 103),)
    restored.close()


@pytest.mark.parametrize("left", ["done", "given-up", "running", ""])
def test_a_finished_run_that_is_started_again_is_done_and_asks_for_no_restart(
    tmp_path: Path, left: str
) -> None:
    path, known = (
        tmp_path / "verdict.json",
        {"state": left, "restart": left == "running", "reason": "as told"},
    )
    for again in (False, True):
        s = make()
        train_guarded(s, guard_of(s, tmp_path, steps=4))
        if not again:
            assert json.loads(path.read_text("utf-8"))["state"] == "done"
            path.write_text(json.dumps(known) if left else "{half", encoding="utf-8")
    verdict = json.loads(path.read_text("utf-8"))
    if left in ("done", "given-up"):
        assert verdict == known
    else:
        assert (verdict["state"], verdict["restart"]) == ("done", False)
        assert verdict["reason"] == "all steps done"
