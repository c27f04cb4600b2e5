"""`trimtab rollback` on every layout, what it refuses, and what it says."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.logs.wandb_logs import encode_wandb_log
from tests.surgery.cluster import (
    OURS,
    age,
    log_events,
    megatron_rows,
    put,
    save,
    steps_of,
    tree,
)
from tests.surgery.test_layouts import MAKERS, huggingface, lightning, own, pickled, torchtitan
from trimtab.checkpoints.choice import choose
from trimtab.checkpoints.stated_step import step_in_checkpoint
from trimtab.chronicle.journal import Journal, read_journal
from trimtab.chronicle.run_lock import RunLock
from trimtab.cli import main
from trimtab.errors import ActError
from trimtab.readers import read_run
from trimtab.surgery import apply_rollback, find_layout, plan_rollback, undo_rollback

if TYPE_CHECKING:
    from pathlib import Path

Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `trimtab rollback ... --json`: exit code and document."""

    def run(*arguments: object) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["rollback", *map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def refusal(found: tuple[int, Any]) -> str:
    code, document = found
    assert code == 2
    return str(document["errors"][0]["error"])


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for step in (3000, 6210, 7000):
        save(run, step)
    age(run)
    return run


@pytest.mark.parametrize(("framework", "make"), MAKERS, ids=lambda x: getattr(x, "__name__", x))
def test_every_layout_goes_back_and_forth(
    framework: str, make: Callable[[Path], None], tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    make(run)
    age(run)
    before = tree(run)
    code, plan = call(run, "--to", 3000)
    assert code == 0
    assert plan["framework"] == framework
    assert not plan["applied"]
    assert tree(run) == before
    code, done = call(run, "--to", 3000, "--apply")
    assert code == 0
    found = find_layout(run)
    assert found is not None
    assert (found.steps, found.current_step) == ((3000,), 3000)
    moved = {m["to"] for m in done["moves"]}
    assert all((run / place).exists() for place in moved)
    assert call(run, "--undo")[0] == 0
    assert tree(run, without=OURS) == before


def test_last_ckpt_and_trainer_state_go_back_too(tmp_path: Path, call: Call) -> None:
    lightning(tmp_path / "l")
    folder = tmp_path / "l" / "lightning_logs" / "version_0" / "checkpoints"
    pickled(3000, folder / "epoch=0-step=3000.ckpt")
    huggingface(tmp_path / "h")
    put(tmp_path / "h" / "trainer_state.json", '{"global_step": 6900}')
    age(tmp_path)
    for run in ("l", "h"):
        assert call(tmp_path / run, "--to", 3000, "--apply")[0] == 0
    assert step_in_checkpoint(folder / "last.ckpt") == 3000
    assert (tmp_path / "h" / "trainer_state.json").read_text() == '{"global_step": 3000}'


@pytest.mark.slow
def test_a_link_leads_to_the_target_whatever_it_is_called(tmp_path: Path, call: Call) -> None:
    for epoch, step in enumerate((3000, 6210)):
        pickled(step, tmp_path / f"epoch={epoch}-step={step}.ckpt")
    (tmp_path / "last.ckpt").symlink_to("epoch=1-step=6210.ckpt")
    age(tmp_path)
    assert call(tmp_path, "--to", 3000, "--apply")[0] == 0
    assert str((tmp_path / "last.ckpt").readlink()) == "epoch=0-step=3000.ckpt"
    assert call(tmp_path, "--undo")[0] == 0
    assert str((tmp_path / "last.ckpt").readlink()) == "epoch=1-step=6210.ckpt"


def test_a_guarded_run_goes_on_from_the_target(tmp_path: Path, call: Call) -> None:
    own(tmp_path)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("attempt", attempt="1.0", step=0, number="1.0")
    for step in (3000, 6210, 6900):
        path = f"checkpoints/step-{step:08d}"
        journal.append("checkpoint", attempt="1.0", step=step, path=path, grade="healthy")
    journal.close()
    age(tmp_path)
    code, done = call(tmp_path / "checkpoints", "--to", 3000, "--apply")  # its folder will do
    assert code == 0
    assert done["root"] == str(tmp_path)
    assert (done["grade"], done["verified"]) == ("healthy", True)
    assert not any("not graded" in w for w in done["warnings"])
    choice = choose(tmp_path / "checkpoints", read_journal(tmp_path / "journal.jsonl")[0])
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 3000
    assert choice.passed_over == choice.lost == ()  # the journal does not look for what is aside
    assert call(tmp_path, "--undo")[0] == 0
    choice = choose(tmp_path / "checkpoints", read_journal(tmp_path / "journal.jsonl")[0])
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 6900


def test_the_folder_of_checkpoints_is_a_run_of_its_own(cluster: Path, call: Call) -> None:
    folder = cluster / "checkpoints"
    assert call(folder, "--to", 3000, "--apply")[0] == 0
    assert {p.name for p in (folder / "aside").glob("global*")} == {
        "global_step6210",
        "global_step7000",
    }
    assert (folder / "journal.jsonl").exists()
    assert call(cluster, "--undo")[0] == 0  # found from the run, too
    assert (folder / "latest").read_text() == "global_step7000"


# -- logs -----------------------------------------------------------------------------------


def test_events_are_cut_by_the_steps_in_them(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    for step in (100, 200, 300):
        save(run, step)
    board = run / "tensorboard"
    log_events(board, megatron_rows(10, 150, blow_up=9999), suffix=".1")
    # a second writer went back to 120, and says so to TensorBoard
    log_events(board, megatron_rows(120, 300, blow_up=9999), suffix=".2", purge_step=120)
    last = log_events(board, megatron_rows(250, 300, blow_up=9999), suffix=".3", purge_step=250)
    log_events(board / "validation", [(50, {"loss": 3.0}), (250, {"loss": 2.0})], suffix=".v")
    age(run)
    before = tree(run)
    code, done = call(run, "--to", 200, "--apply")
    assert code == 0
    assert steps_of(board) == list(range(10, 201, 10))
    assert steps_of(board, "lm-loss-training/lm loss vs samples")[-1] == 30 * 200
    assert steps_of(board / "validation", "loss") == [50]
    assert done["archive"] == "tensorboard/tb-300-before-rollback-to-200"
    archive = tree(run / done["archive"])
    assert {k: v for k, v in archive.items() if v[0] == "file"} == {
        k.removeprefix("tensorboard/"): v for k, v in before.items() if "events" in k
    }
    assert not last.exists()  # nothing of it was left
    assert call(run, "--undo")[0] == 0
    assert tree(run, without=OURS) == before


@pytest.mark.slow
def test_what_has_no_step_stays_and_damage_is_left_alone(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    for step in (100, 200):
        save(run, step)
    rows = [(0, {"hparams": 1.0}), *megatron_rows(10, 200, blow_up=9999)]
    made = log_events(run / "tb", rows, suffix=".1")
    raw = made.read_bytes()
    made.write_bytes(raw + raw[:30])  # the writer was killed in the middle of a record
    (run / "tb" / "events.out.tfevents.1.empty").touch()
    outside = log_events(tmp_path / "elsewhere", megatron_rows(10, 200, blow_up=9999), suffix=".x")
    (run / "tb" / "events.out.tfevents.1.link").symlink_to(outside)
    kept = outside.read_bytes()
    age(run)
    code, done = call(run, "--to", 100, "--apply")
    assert code == 0
    assert outside.read_bytes() == kept
    assert any("is a link, left as it is" in n for n in done["notes"])
    (run / "tb" / "events.out.tfevents.1.link").unlink()
    assert steps_of(run / "tb")[-1] == 100
    assert steps_of(run / "tb", "hparams") == [0]


def test_a_wandb_run_gets_a_clean_copy_beside_it(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    for step in (100, 200):
        save(run, step)
    rows = [
        {"_step": k, "train/global_step": 10 * k, "train/loss": 5 - k / 20, "text": "x" * 3000}
        for k in range(1, 21)
    ]
    log = put(
        run / "wandb" / "offline-run-20260102_030405-a1" / "run-a1.wandb", encode_wandb_log(rows)
    )
    age(run)
    before = tree(run)
    code, done = call(run, "--to", 100, "--apply")
    assert code == 0
    (copy,) = (run / c["to"] for c in done["copies"])
    assert log.read_bytes() == encode_wandb_log(rows)
    kept = read_run(copy)
    assert kept.num_rows == 10
    assert kept.step.tolist() == read_run(log).step[:10].tolist()
    assert call(run, "--undo")[0] == 0
    assert tree(run, without=OURS) == before


@pytest.mark.covers("S110")
def test_the_archive_alone_is_committed(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "run"
    for step in (100, 200):
        save(run, step)
    log_events(run / "tb", megatron_rows(10, 200, blow_up=9999), suffix=".1")
    git = ["git", "-C", str(run), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for name in ("name", "email"):
        subprocess.run([*git, "config", f"user.{name}", "a@example.org"], check=True)
    put(run / "staged.txt")
    subprocess.run([*git, "add", "staged.txt"], check=True)
    age(run)
    code, done = call(run, "--to", 100, "--apply", "--git-commit", "--archive", "tb-glitch")
    assert code == 0
    shown = ["show", "--name-only", "--format=", done["commit"]]
    names = subprocess.run([*git, *shown], check=True, capture_output=True, text=True).stdout
    assert [n.rpartition("/")[0] for n in names.split()] == ["tb/tb-glitch"]
    status = ["status", "--porcelain", "staged.txt"]
    left = subprocess.run([*git, *status], check=True, capture_output=True, text=True).stdout
    assert left.startswith("A ")


# -- refused --------------------------------------------------------------------------------


def test_a_missing_step_says_which_there_are(cluster: Path, call: Call) -> None:
    before = tree(cluster)
    assert "no checkpoint of step 6000; there are 3000, 6210, 7000" in refusal(
        call(cluster, "--to", 6000, "--apply")
    )
    assert "holds no checkpoints" in refusal(call(cluster / "checkpoints" / "global_step3000"))
    assert "--archive '../x'" in refusal(
        call(with_events(cluster), "--to", 3000, "--archive", "../x")
    )
    assert {k: v for k, v in tree(cluster).items() if "tb" not in k} == before


def with_events(run: Path) -> Path:
    log_events(run / "tb", megatron_rows(10, 7000, blow_up=9999), suffix=".1")
    age(run)
    return run


def test_links_that_lead_out_are_refused(cluster: Path, tmp_path: Path, call: Call) -> None:
    outside = tmp_path / "outside"
    put(outside / "precious")
    link = cluster / "checkpoints" / "global_step9000"
    link.symlink_to(outside)
    assert "is a link" in refusal(call(cluster, "--to", 3000, "--apply"))
    link.unlink()
    (cluster / "aside").symlink_to(outside)
    assert "is a link" in refusal(call(cluster, "--to", 3000, "--apply"))
    (cluster / "aside").unlink()
    (cluster / "journal.jsonl").symlink_to(outside / "journal.jsonl")
    assert "is a link" in refusal(call(cluster, "--to", 3000, "--apply"))
    (cluster / "journal.jsonl").unlink()
    (cluster / "checkpoints").rename(outside / "checkpoints")
    (cluster / "checkpoints").symlink_to(outside / "checkpoints")
    assert f"give {outside / 'checkpoints'}" in refusal(call(cluster, "--to", 3000, "--apply"))
    assert sorted(p.name for p in outside.iterdir()) == ["checkpoints", "precious"]


def test_a_record_that_leads_out_moves_nothing(cluster: Path, tmp_path: Path) -> None:
    put(tmp_path / "precious")
    apply_rollback(plan_rollback(cluster, 3000))
    path = cluster / "aside" / "rollback-0001" / "record.json"
    record = json.loads(path.read_bytes())
    record["operations"].append(
        {"do": "move", "role": "checkpoint", "path": "stolen", "to": "../precious"}
    )
    path.write_text(json.dumps(record))
    with pytest.raises(ActError, match="its own hash"):
        undo_rollback(cluster)
    record.pop("sha256")
    import hashlib

    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**record, "sha256": digest}))
    with pytest.raises(ActError, match="did not write"):
        undo_rollback(cluster)
    assert (tmp_path / "precious").exists()


@pytest.mark.slow
def test_a_running_job_is_left_alone(cluster: Path, call: Call) -> None:
    lock = RunLock(cluster)
    told = refusal(call(cluster, "--to", 3000, "--apply"))
    assert f"another guard is writing to this run directory (process {os.getpid()}" in told
    code = "import sys; from trimtab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "rollback", str(cluster), "--to", "3000", "--json"]
    other = subprocess.run(command, capture_output=True, check=True)
    (blocked,) = json.loads(other.stdout)["blocked_by"]
    assert blocked == f"process {os.getpid()} holds the run; stop it first"
    done = apply_rollback(plan_rollback(cluster, 3000), locked=True)  # for who holds it
    assert done.number == 1
    with pytest.raises(ActError, match="rollback 2 is not the newest, which is 1"):
        undo_rollback(cluster, number=2, locked=True)
    assert undo_rollback(cluster, number=1, locked=True).state == "undone"
    lock.release()
    log = cluster / "train.log"
    code = f"import time; f = open({str(log)!r}, 'a'); print('on', flush=True); time.sleep(60)"
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        told = refusal(call(cluster, "--to", 3000, "--apply"))
        assert f"train.log is open for writing in process {job.pid}" in told
    finally:
        job.kill()
        job.communicate()
    assert call(cluster, "--to", 3000, "--apply")[0] == 0


def test_files_that_grow_stop_it(cluster: Path) -> None:
    plan = plan_rollback(cluster, 3000)
    code = (
        "import time\nfor k in range(200):\n"
        f"    f = open({str(cluster / 'x.log')!r}, 'a'); f.write('row'); f.close(); time.sleep(0.02)"
    )
    job = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (cluster / "x.log").exists():
            pass
        with pytest.raises(ActError, match=r"a job is running: x\.log"):
            apply_rollback(plan, watch_s=0.2)
    finally:
        job.kill()
        job.communicate()
    assert (cluster / "checkpoints" / "latest").read_text() == "global_step7000"


def test_of_two_rollbacks_one_refuses(cluster: Path) -> None:
    plan = plan_rollback(cluster, 3000)
    descriptor = os.open(cluster / "checkpoints", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ActError, match="another rollback is at work"):
        apply_rollback(plan)
    os.close(descriptor)
    apply_rollback(plan)
    with pytest.raises(ActError, match="another rollback was done since"):
        apply_rollback(plan)  # planned before the other one was done
    assert (cluster / "checkpoints" / "latest").read_text() == "global_step3000"


@pytest.mark.slow
def test_two_processes_at_once(cluster: Path) -> None:
    log_events(cluster / "tb", megatron_rows(10, 7000, blow_up=9999), suffix=".1")
    age(cluster)
    command = [sys.executable, "-m", "trimtab", "rollback", str(cluster), "--to", "3000", "--apply"]
    jobs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    told = [job.communicate(timeout=120)[0] for job in jobs]
    codes = [job.returncode for job in jobs]
    # either one met the other, or it came after it and had nothing left to do
    assert 0 in codes, told
    found = find_layout(cluster)
    assert found is not None
    assert (found.steps, found.current_step) == ((3000,), 3000)
    assert undo_rollback(cluster).state == "undone"


def test_a_half_done_rollback_is_finished_or_taken_back(cluster: Path, call: Call) -> None:
    before = tree(cluster)
    blocker = put(cluster / "aside" / "global_step6210" / "in the way")
    plan = plan_rollback(cluster, 3000)
    assert plan.operations[-1].to == "aside/global_step6210.2"
    put(cluster / "aside" / "global_step6210.2" / "came later")
    with pytest.raises(ActError, match="half done"):
        apply_rollback(plan)
    assert "was not finished; finish it with --to 3000" in refusal(call(cluster, "--to", 6210))
    (cluster / "aside" / "global_step6210.2" / "came later").unlink()
    (cluster / "aside" / "global_step6210.2").rmdir()
    assert call(cluster, "--to", 3000, "--apply")[0] == 0
    assert call(cluster, "--undo")[0] == 0
    assert tree(cluster, without=OURS) == before
    assert blocker.exists()


@pytest.mark.slow
def test_a_disk_that_refuses_leaves_something_to_finish(cluster: Path, call: Call) -> None:
    log_events(cluster / "tb", megatron_rows(10, 7000, blow_up=9999), suffix=".1")
    age(cluster)
    before = tree(cluster)
    command = f"{sys.executable} -m trimtab rollback {cluster} --to 3000 --apply"
    limited = ["bash", "-c", f"ulimit -f 40; exec {command}"]  # no file above 40 KiB
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "half done: run the same command again" in done.stderr
    assert (cluster / "checkpoints" / "latest").read_text() == "global_step7000"
    assert call(cluster, "--undo")[0] == 0
    assert tree(cluster, without=OURS) == before


def test_the_same_command_again_does_nothing_more(cluster: Path, call: Call) -> None:
    before = tree(cluster)
    assert call(cluster, "--to", "global_step3000", "--apply")[1]["number"] == 1
    after = tree(cluster)
    code, again = call(cluster, "--to", 3000, "--apply")
    assert (code, again["number"], again["moves"], again["applied"]) == (0, 1, [], True)
    assert tree(cluster) == after
    code, undone = call(cluster, "--undo")
    assert (code, undone["undone"]) == (0, True)
    assert undone["moves"][-1]["from"] == "aside/global_step7000"
    assert tree(cluster, without=OURS) == before


def test_undo_refuses_where_the_run_went_on(cluster: Path, call: Call) -> None:
    assert call(cluster, "--to", 3000, "--apply")[0] == 0
    save(cluster, 3300)
    assert "global_step3300 was made since" in refusal(call(cluster, "--undo"))
    assert (cluster / "checkpoints" / "latest").read_text() == "global_step3300"


# -- said -----------------------------------------------------------------------------------


def test_warnings_name_what_speaks_against_a_target(tmp_path: Path, call: Call) -> None:
    torchtitan(tmp_path)
    (tmp_path / "checkpoint" / "step-3000" / ".metadata").unlink()
    put(tmp_path / "checkpoint" / "step-3000" / "x.pt", b"PK\x03\x04 and then nothing")
    age(tmp_path)
    warnings = call(tmp_path, "--to", 3000)[1]["warnings"]
    assert "step-3000 does not look whole: has no .metadata" in warnings[0]
    assert "step-3000 is not graded" in warnings[1]
    assert warnings[2] == "step-3000 is damaged: x.pt is cut off"
    assert "cannot be verified" in call(tmp_path, "--to", 6210)[1]["warnings"][1]


def test_hostile_names_are_moved_whole_and_shown_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "r\x1b[31mun \udcff"
    for step in (100, 200):
        put(run / f"a\x1b]0;x\x07\n\udcffstep={step}.ckpt")
    (run / "global_step\N{DEVANAGARI DIGIT TWO}").mkdir()
    age(run)
    before = tree(run)
    assert main(["rollback", str(run), "--to", "100", "--apply"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("r\\x1b[31mun")
    assert not any(ord(c) < 32 and c != "\n" for c in out)
    assert main(["rollback", str(run), "--undo"]) == 0
    assert tree(run, without=OURS) == before


def test_text_says_what_then_what_to_do(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollback", str(cluster), "--to", "6210"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "run (megatron-deepspeed): would go back from step 7000 to 6210 (not graded, not verified);"
        " dry run, nothing was touched"
    )
    assert lines[1] == f"  do it: trimtab rollback {cluster} --to 6210 --apply"
    assert "  aside  checkpoints/global_step7000 -> aside/global_step7000" in lines
    assert "  point  checkpoints/latest (global_step7000 becomes global_step6210)" in lines


def test_a_pointer_that_cannot_be_read_is_a_warning(cluster: Path) -> None:
    (cluster / "checkpoints" / "latest").write_bytes(b"\xff\xfe\x00")
    age(cluster)
    plan = plan_rollback(cluster, 3000)
    assert any(text.startswith("latest names no step that can be read") for text in plan.warnings)
