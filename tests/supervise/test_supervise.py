"""`trimtab supervise` around a real process: what it does is what the files say afterwards."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.plan.policy import Policy
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.processes import is_alive, start_ticks
from trimtab.supervise.resume import not_known
from trimtab.supervise.settings import read_policy, read_settings

JOB = Path(__file__).with_name("job.py")


class Run:
    """One supervised job in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.job, self.folder = root, root / "job", root / "run"

    def argv(self, *options: str, command: tuple[str, ...] = ()) -> list[str]:
        command = command or (sys.executable, str(JOB), str(self.job))
        given = [str(o) for o in options if not o.startswith("+")]
        more = [o[1:] for o in options if o.startswith("+")]
        own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(self.folder)]
        return [*own, *given, "--", *command, *more]

    def __call__(
        self, *options: str, command: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it; an option that begins with + is the job's."""
        return subprocess.run(
            self.argv(*options, command=command), capture_output=True, timeout=60, check=False
        )

    def events(self, *names: str) -> list[dict[str, object]]:
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [e for e in found if not names or e["event"] in names]

    @property
    def starts(self) -> list[list[str]]:
        """The process, the first step and the attempt of each start of the job."""
        return [line.split() for line in (self.job / "starts").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run in a folder of its own."""
    policy = tmp_path / "p.toml"
    policy.write_text("[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\n")
    run = Run(tmp_path)
    argv = run.argv
    run.argv = lambda *o, command=(): argv("--policy", str(policy), *o, command=command)  # type: ignore[method-assign]
    return run


def trimtab(*words: str) -> str:
    """Return what a command prints."""
    argv = [sys.executable, "-m", "trimtab", *words]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_what_a_command_prints_passes_byte_for_byte_with_its_exit_status(run: Run) -> None:
    program = (
        "import sys; sys.stdout.buffer.write(bytes(range(256)) * 400);"
        " sys.stderr.buffer.write(b'\\x1b[31m\\xff\\r'); sys.stdout.flush(); sys.exit(0)"
    )
    done = run(command=(sys.executable, "-c", program))
    assert (done.returncode, done.stdout) == (0, bytes(range(256)) * 400)
    assert done.stderr == b"\x1b[31m\xff\r"


@pytest.mark.parametrize("fault", ["kill@35", pytest.param("network@35", marks=pytest.mark.slow)])
def test_a_crash_that_a_restart_heals_goes_on_from_the_newest_checkpoint(
    run: Run, fault: str
) -> None:
    done = run("+--fault", f"+{fault}")
    assert done.returncode == 0
    assert (run.job / "done").read_text() == "60"
    assert [start[1:] for start in run.starts] == [["0", "1"], ["30", "2"]]
    (restart,) = run.events("restart")
    wanted = {"kill@35": "killed", "network@35": "network"}[fault]
    assert (restart["class"], restart["who"], restart["step"]) == (wanted, "transient", 35)
    assert restart["checkpoint"] == str(run.job / "checkpoint-30.pt")


@pytest.mark.slow
@pytest.mark.covers("S63")
@pytest.mark.parametrize("fault", [pytest.param("stop@35", marks=pytest.mark.slow), "wait@35"])
def test_a_hang_is_found_by_the_steps_and_the_stack_is_written_down(run: Run, fault: str) -> None:
    done = run("--hang-after", "2", "+--fault", f"+{fault}", "+--stacks")
    assert done.returncode == 0
    assert [e["class"] for e in run.events("restart")] == ["hang"]
    (note,) = [e for e in run.events("note") if "stacks" in e]
    stacks = note["stacks"]
    assert isinstance(stacks, list)
    (stack,) = stacks
    if fault == "wait@35":
        assert stack["frames"][0].startswith("happen (job.py:")
    else:
        assert (stack["state"], stack["odd"]) == ("T", True)


@pytest.mark.slow
def test_a_silent_end_that_works_is_no_hang_and_one_that_waits_is(run: Run) -> None:
    limits = ("--hang-after", "2", "+--lr", "+1e-3", "+--steps", "+60", "+--fault")
    work = run(*limits, "+work@60")
    assert (work.returncode, run.events("hang")) == (0, [])
    shutil.rmtree(run.job)
    waits = run(*limits, "+wait@60")
    assert "none of its processes here works" in str(run.events("hang")[0]["why"])
    # Its last step is saved: a trainer that loads it may train one more.
    assert (waits.returncode, len(run.starts), run.events("restart")) == (3, 1, [])
    assert b"checkpoint-60.pt holds: it is not trained on" in waits.stderr


@pytest.mark.parametrize(
    ("fault", "line"),
    [pytest.param("code@35", "KeyError", marks=pytest.mark.slow), ("oom@35", "OutOfMemory")],
)
def test_what_would_fail_again_is_not_restarted_and_the_line_is_said(
    run: Run, fault: str, line: str
) -> None:
    done = run("+--fault", f"+{fault}")
    assert done.returncode == 1
    assert len(run.starts) == 1
    (end,) = run.events("gave-up")
    assert line in str(end["line"])
    assert f"line: {end['line']}".encode() in done.stderr


@pytest.mark.slow
@pytest.mark.covers("S131")
def test_restarts_without_a_new_step_come_to_an_end(run: Run) -> None:
    done = run("+--fault", "+always-killed@35")
    assert done.returncode == 128 + signal.SIGKILL
    assert len(run.starts) == 4
    assert len(run.events("restart")) == 3
    (end,) = run.events("gave-up")
    assert "4 ends in a row without a new step" in str(end["why"])
    assert "the supervisor gave up" in trimtab("inspect", str(run.folder))


@pytest.mark.slow
@pytest.mark.covers("S225")
def test_a_checkpoint_that_cannot_be_loaded_is_passed_over_for_the_one_before(run: Run) -> None:
    done = run("+--fault", "+damaged@40")
    assert done.returncode == 0
    assert (run.job / "done").read_text() == "60"
    assert [start[1] for start in run.starts] == ["0", "30"]
    loads = [str(e["checkpoint"]) for e in run.events("restart")]
    assert [Path(p).name for p in loads] == ["checkpoint-40.pt", "checkpoint-30.pt"]


@pytest.mark.slow
def test_a_signal_reaches_the_command_and_nothing_is_restarted(run: Run) -> None:
    program = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(5)));"
        "signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True));"
        "print('ready', flush=True);"
        "[time.sleep(0.05) for _ in range(400)]"
    )
    argv = run.argv(command=(sys.executable, "-c", program))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"told\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"saved\n"
        assert process.wait(20) == 5
    assert not run.events("restart", "gave-up")


@pytest.mark.parametrize("orphan", ["adopt", pytest.param("terminate", marks=pytest.mark.slow)])
def test_a_killed_supervisor_started_again_leaves_exactly_one_command(
    run: Run, orphan: str
) -> None:
    options = ("--orphan", orphan, "+--fault", "+pause@35")
    first = subprocess.Popen(run.argv(*options), stdout=subprocess.DEVNULL)
    wait_for(lambda: (run.job / "happened").exists())
    first.kill()
    first.wait()
    wanted = {"adopt": "goes on under this one", "terminate": "is ended and restarted"}[orphan]
    said = run.root / "said"
    with (
        said.open("wb") as file,
        subprocess.Popen(run.argv(*options), stdout=subprocess.PIPE, stderr=file) as second,
    ):
        wait_for(lambda: wanted in said.read_text())
        (run.job / "go").touch()
        out, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said.read_text()
    assert (run.job / "done").read_text() == "60"
    if orphan == "adopt":
        assert len(run.starts) == 1
        assert out.splitlines()[-2].startswith(b"step 60 ")
    else:
        assert len(run.starts) == 2
        assert not is_alive(int(run.starts[0][0]), start_ticks(int(run.starts[0][0])))


@pytest.mark.slow
def test_a_command_that_hangs_when_it_is_taken_over_is_found(run: Run) -> None:
    options = ("+--fault", "+wait@25")
    first = subprocess.Popen(run.argv(*options), stdout=subprocess.DEVNULL)
    wait_for(lambda: (run.job / "happened").exists())
    first.kill()
    first.wait()
    done = run(*options)
    assert b"goes on under this one" in done.stderr
    assert (done.returncode, len(run.starts)) == (0, 2)
    assert [e["class"] for e in run.events("restart")] == ["hang"]


@pytest.mark.slow
def test_another_command_does_not_take_over_what_a_killed_supervisor_left(run: Run) -> None:
    secret = ("env", "API_KEY=0123456789abcdef", sys.executable, str(JOB), str(run.job))
    argv = run.argv("+--fault", "+pause@5", command=secret)
    first = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    wait_for(lambda: (run.job / "happened").exists())
    left = (run.folder / "supervise.json").read_text()
    assert "0123456789abcdef" not in left
    assert len(json.loads(left)["child"]["token"]) == 16
    first.kill()
    first.wait()
    (pid,) = (start[0] for start in run.starts)
    done = run(command=("echo", "another"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"its command still runs (process {pid})".encode() in done.stderr
    assert b"--fault pause@5" in done.stderr
    done = run("--orphan", "terminate", command=("echo", "another"))
    assert (done.returncode, done.stdout) == (0, b"another\n")
    assert not is_alive(int(pid), start_ticks(int(pid)))


@pytest.mark.slow
def test_an_argument_that_is_no_text_is_journaled_with_its_bytes_escaped(run: Run) -> None:
    done = run(command=("echo", b"\xff.txt"))  # type: ignore[arg-type]
    assert (done.returncode, done.stdout) == (0, b"\xff.txt\n")
    (start,) = run.events("start")
    assert start["argv"] == ["echo", "\\udcff.txt"]


@pytest.mark.slow
def test_a_launcher_that_was_stopped_is_no_evaluation_at_the_end(run: Run) -> None:
    """SIGSTOP to torchrun's agent: its workers go on to their end, and nobody waits for them."""
    policy = run.root / "stopped.toml"
    policy.write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\nhang_after_s = 1.0\n"
        "sections = { evaluation = 30 }\n"
    )
    job = f"{sys.executable} {JOB} {run.job}"
    agent = f"{job} & [ -e {run.root}/once ] || {{ touch {run.root}/once; kill -STOP $$; }}; wait"
    done = run("--policy", str(policy), command=("sh", "-c", agent))
    assert done.returncode == 0
    assert b"(stopped by a signal)" in done.stderr
    (hang,) = run.events("hang")
    assert float(str(hang["silent_s"])) < 10


@pytest.mark.slow
def test_killed_at_any_point_of_a_start_there_is_exactly_one_command(run: Run) -> None:
    """Points before the intent, in each step of the start, and after it; the job tells of two."""
    options = ("+--steps", "+120", "+--sleep", "+0.002", "+--every", "+120")
    killer = [sys.executable, "-m", "benchmarks.drill.killed"]
    whole = subprocess.run(
        [*killer, "0", *run.argv(*options)[3:]], capture_output=True, timeout=60, check=False
    )
    num_lines = int(whole.stderr.rpartition(b"lines: ")[2].split()[0])
    assert num_lines > 40
    for part in (0.0, 0.5, 0.7, 0.85, 1.0):
        shutil.rmtree(run.job)
        # A folder that is there takes a few lines less than the first start.
        at = str(max(round((num_lines - 10) * part), 1))
        first = [*killer, at, *run.argv(*options)[3:]]
        ended = subprocess.run(first, stdout=subprocess.DEVNULL, timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert run(*options).returncode == 0
        assert (run.job / "done").read_text() == "120"
        assert not (run.job / "twice").exists()
        # A job that came to its end while nobody looked is asked once more, and is at its end.
        assert [start[1] for start in run.starts] in (["0"], ["0", "120"])


@pytest.mark.slow
def test_processes_without_their_environment_are_ended_and_what_stays_is_told(run: Run) -> None:
    marks = [f"{700 + os.getpid() / 1e6 + i:.6f}" for i in range(4)]
    left = (
        f"env -i sleep {marks[0]} & env -i setsid sleep {marks[1]} &"
        f" (env -i setsid sleep {marks[2]} &) ; sleep 0.2; echo out of memory? no: KeyError; exit 9"
    )
    policy = run.root / "once.toml"
    policy.write_text("[supervise]\nrestarts_without_progress = 0\nstop_grace_s = 1.0\n")
    done = run("--policy", str(policy), command=("sh", "-c", left))
    assert done.returncode == 9
    assert not any(sleeping(mark) for mark in marks)
    stays = f"sleep {marks[3]} >&- 2>&- & echo training finished"
    done = run(command=("sh", "-c", stays))
    (pid,) = sleeping(marks[3])
    os.kill(pid, signal.SIGKILL)
    assert done.returncode == 0
    assert f"still run: {pid} (sleep); they are left alone".encode() in done.stderr


def sleeping(mark: str) -> list[int]:
    """Return the processes whose command names a number."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return found


@pytest.mark.slow
def test_a_command_that_ignores_the_end_is_killed_after_the_grace(run: Run) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True);"
    policy = run.root / "grace.toml"
    policy.write_text("[supervise]\nlook_every_s = 0.05\nstop_grace_s = 0.3\n")
    command = (sys.executable, "-c", f"{deaf} time.sleep(60)")
    argv = run.argv("--policy", str(policy), command=command)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGKILL
        assert process.stderr is not None
        assert b"after signal 15; it is killed" in process.stderr.read()


@pytest.mark.slow
def test_a_second_supervisor_in_the_same_folder_is_refused(run: Run) -> None:
    first = subprocess.Popen(
        run.argv("+--steps", "+100000"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: (run.job / "starts").exists())
        done = run()
        assert done.returncode == 2
        assert b"another supervisor" in done.stderr
        assert str(first.pid).encode() in done.stderr
        assert len(run.starts) == 1
    finally:
        first.terminate()
        first.wait()


@pytest.mark.slow
def test_a_missing_command_and_a_bad_policy_are_one_clear_error(run: Run, tmp_path: Path) -> None:
    done = run(command=("./no-such-program",))
    assert done.returncode == 127
    assert b"./no-such-program: there is no such command" in done.stderr
    bad = tmp_path / "bad.toml"
    bad.write_text("[supervise]\nhang_afer_s = 3\n")
    done = run("--policy", str(bad))
    assert done.returncode == 2
    assert b"did you mean 'hang_after_s'?" in done.stderr
    assert not run.job.exists()
    done = run(command=("",))
    assert (done.returncode, b"the command is empty" in done.stderr) == (2, True)


def test_a_policy_with_the_mark_of_windows_editors_is_read(tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("[supervise]\nhang_after_s = 3\n", encoding="utf-8-sig")
    assert read_settings(policy).hang_after_s == 3
    assert read_policy(policy) == Policy()


def test_a_file_in_place_of_the_folder_is_said_in_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        SupervisorNotes(folder, None).close()
        told = capfd.readouterr().err
        assert f"{folder}: no folder can be made (a file stands there), give another" in told


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_does_not_stop_training(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run.folder = tmp_path / "file" / "below"
    done = run("+--fault", "+kill@35")
    assert done.returncode == 0
    assert b"nothing is written down, the command runs all the same" in done.stderr
    assert (run.job / "done").read_text() == "60"


@pytest.mark.slow
def test_a_full_disk_takes_the_copy_and_not_the_command(run: Run) -> None:
    """No file of the supervisor may grow past 64 KiB here: the command prints far more."""
    job = f"{sys.executable} {JOB} {run.job} --fault kill@35"
    noisy = ("sh", "-c", f"yes | head -c 200000; exec {job}")
    limited = ["bash", "-c", 'ulimit -f 64; exec "$@"', "bash", *run.argv(command=noisy)]
    done = subprocess.run(limited, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b"the copy of the output cannot be written" in done.stderr
    assert (run.job / "done").read_text() == "60"
    assert done.stdout.endswith(b"lr 0.001\ntraining finished\n")


def numeric(run: Run, mode: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run a job whose loss is NaN from step 150 on, unless its rate is lowered."""
    policy = run.root / "numeric.toml"
    policy.write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\njudge_every_s = 0.3\n"
        f'[policy]\nmode = "{mode}"\n'
    )
    job = ("+--fault", "+nan@150", "+--steps", "+1200", "+--sleep", "+0.006", "+--lr", "+1e-3")
    return run("--policy", str(policy), *job, *options)


@pytest.mark.slow
@pytest.mark.parametrize("blamed", ["data", "state"])
def test_four_evaluations_choose_between_other_data_and_a_lower_rate(run: Run, blamed: str) -> None:
    """Weights that broke, or the batches from step 150 on, cost 3 nats each."""
    program = (
        "import json, sys; weights = json.load(open(sys.argv[1]))['weights'];"
        f" print('loss', 2 + weights[1] + 3 * ({blamed!r} == 'data' and sys.argv[2] != 'fixed'))"
    )
    script = run.root / "evaluate.py"
    script.write_text(program)
    (run.root / "numeric.toml").write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\njudge_every_s = 0.3\n"
        f"evaluate = '{sys.executable} {script} {{checkpoint}} {{data}}'\n"
        'fixed_data = "fixed"\n[policy]\nmode = "act"\n'
    )
    done = run(
        *("--policy", str(run.root / "numeric.toml"), "+--fault", f"+bad-{blamed}@150"),
        *("+--steps", "+1500", "+--sleep", "+0.006", "+--lr", "+1e-3", "+--seed", "+1"),
    )
    assert done.returncode == 0
    (note,) = (e for e in run.events("note") if "blames" in e)
    (decision,) = run.events("decision")
    assert note["blames"] == blamed
    assert (decision["other_data"], decision["rate_factor"]) == (
        (True, 1.0) if blamed == "data" else (False, 0.5)
    )
    assert run.events("outcome")[-1]["verdict"] == "worked"


@pytest.mark.slow
def test_a_trainer_that_ends_at_nan_without_a_row_of_it_goes_back(run: Run) -> None:
    done = numeric(run, "act", "+--fault", "+raise@55", "+--steps", "+200")
    assert done.returncode == 0
    assert [start[1] for start in run.starts] == ["0", "50"]
    assert done.stdout.splitlines()[-2].endswith(b"lr 0.0005")


@pytest.mark.slow
def test_broken_numbers_are_answered_by_the_rate_before_the_first_sign(run: Run) -> None:
    done = numeric(run, "act")
    assert done.returncode == 0
    assert [start[1] for start in run.starts] == ["0", "140"]
    assert done.stdout.splitlines()[-2].endswith(b"lr 0.0005")
    assert b"nan" not in done.stdout.splitlines()[-2]
    (restart,), (proof, held) = run.events("restart"), run.events("outcome")
    assert held["what"] == "held"
    assert (restart["class"], restart["checkpoint"]) == (
        "numeric",
        str(run.job / "checkpoint-140.pt"),
    )
    assert (proof["what"], proof["rate"]) == ("change in force", 0.0005)
    told = json.loads(trimtab("chronicle", str(run.folder), "--json"))["lineage"]
    first, second = told["attempts"]
    assert told["failures"] == {"numeric": 1}
    assert (first["outcome"], first["ended_by"]) == ("did not", "numeric")
    assert (second["parent"], second["parent_step"], second["first_step"]) == ("1.0", 140, 141)
    assert (second["kind"], second["checkpoint"]) == ("rollback", restart["checkpoint"])
    assert second["differs"] == [{"name": "lr", "before": "1e-3", "after": "0.0005"}]
    assert (second["outcome"], second["outcome_by"]) == ("worked", "supervisor")
    assert second["why"].startswith("numeric: non-finite values")
    assert "report.html" in trimtab("report", str(run.folder))


@pytest.mark.slow
def test_a_run_that_is_done_before_anyone_looked_goes_back_from_nan(run: Run) -> None:
    done = numeric(run, "act", "+--steps", "+170")
    assert done.returncode == 0
    assert [start[1] for start in run.starts] == ["0", "140"]
    assert b"nan" not in done.stdout.splitlines()[-2]


@pytest.mark.slow
def test_a_change_that_the_first_rows_do_not_show_stops_the_run(run: Run) -> None:
    done = numeric(run, "act", "+--deaf", "+--steps", "+6000")
    assert done.returncode == 3
    assert len(run.starts) == 2
    assert b"the change is not in force: its rate is 0.001" in done.stderr


@pytest.mark.slow
def test_without_the_permission_broken_numbers_are_told_and_training_goes_on(run: Run) -> None:
    done = numeric(run, "observe")
    assert done.returncode == 3  # the training went to its end, in NaN
    assert len(run.starts) == 1
    assert b"training finished" in done.stdout
    assert b"not answered: mode is observe" in done.stderr


@pytest.mark.slow
def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    command = "head -c 600000 /dev/zero | tr '\\0' x; echo; echo END-OF-TRAINING"
    supervise = [sys.executable, "-m", "trimtab", "supervise", "--run", str(tmp_path / "s")]
    with subprocess.Popen([*supervise, "--", "sh", "-c", command], stdout=subprocess.PIPE) as job:
        time.sleep(6)
        assert job.stdout is not None
        read = job.stdout.read()
    assert job.returncode == 0
    assert read.endswith(b"x\nEND-OF-TRAINING\n")
    assert len(read) == 600_000 + len("\nEND-OF-TRAINING\n")
    assert (tmp_path / "s" / "output.log").read_bytes() == read


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["approve", "deny", "deadline"])
def test_what_the_policy_asks_for_waits_for_a_person(run: Run, answer: str) -> None:
    policy = run.root / "ask.toml"
    policy.write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\n"
        f"[policy]\nask_deadline_s = {1.0 if answer == 'deadline' else 30.0}\n"
        'at_deadline = "act"\n[policy.authority]\nrestart = "ask"\n'
    )
    argv = run.argv("--policy", str(policy), "+--fault", "+kill@35")
    journal = run.folder / "journal.jsonl"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        if answer != "deadline":
            wait_for(lambda: bool(journal.exists() and run.events("staged")))
            assert len(run.starts) == 1
            (staged,) = run.events("staged")
            own = [sys.executable, "-m", "trimtab", "approve", str(run.folder), str(staged["id"])]
            own += ["--reason", "seen", *(["--deny"] if answer == "deny" else [])]
            reply = subprocess.run(own, check=True, capture_output=True, timeout=60).stdout
            assert b"the supervisor acts on it" in reply
        assert process.stderr is not None
        said = process.stderr.read()
        status = process.wait(60)
    assert b"waits for approval (ask-1-1): start the command again after killed" in said
    (told,) = run.events("answered")
    wanted = {"approve": "approved", "deny": "denied"}.get(answer, answer)
    assert (told["answer"], told["done"]) == (wanted, answer != "deny")
    assert len(run.starts) == 1 + (answer != "deny")
    assert status == (128 + signal.SIGKILL if answer == "deny" else 0)


@pytest.mark.slow
def test_what_was_asked_waits_behind_the_end_in_broken_numbers(run: Run) -> None:
    policy = run.root / "ask.toml"
    policy.write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\njudge_every_s = 0.3\n"
        '[policy]\nmode = "act"\n[policy.authority]\ncut-rate = "ask"\n'
    )
    job = ("+--fault", "+nan@150", "+--steps", "+170", "+--sleep", "+0.006", "+--lr", "+1e-3")
    argv, journal = run.argv("--policy", str(policy), *job), run.folder / "journal.jsonl"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_for(lambda: journal.exists() and "in broken numbers" in journal.read_text())
        wait_for(lambda: bool(run.events("staged")))
        own = f"trimtab approve {run.folder} ask-1-1 --reason"
        told = trimtab("watch", str(run.folder), "--digest")
        assert f"answer by {own} WHY, or --deny: go back to step 140, rate x 0.5" in told
        trimtab(*own.split()[1:], "seen")
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert (process.wait(60), own in said) == (0, True)
    assert [start[1] for start in run.starts] == ["0", "140"]


@pytest.mark.slow
def test_a_dead_webhook_a_failing_command_and_an_unreadable_log_leave_training_alone(
    run: Run,
) -> None:
    log = run.root / "log"
    log.mkdir()
    (log / "events.out.tfevents.1").write_bytes(b"\x00" * 64)
    dead = ("--webhook", "http://127.0.0.1:9/none", "--exec", "false", "--log", str(log))
    done = run(*dead, "+--fault", "+oom@35", "+--steps", "+60")
    assert done.returncode == 1
    assert (run.job / "starts").read_text().count("\n") == 1
    assert b"--webhook" in done.stderr
    shutil.rmtree(run.job)
    done = run(*dead, "+--fault", "+kill@35")
    assert done.returncode == 0, done.stderr
    assert (run.job / "done").read_text() == "60"
    assert len(run.starts) == 2
    assert not (run.job / "twice").exists()


@pytest.mark.slow
@pytest.mark.covers("S255")
def test_memory_that_grows_by_a_mebibyte_a_step_is_told_within_200_steps(run: Run) -> None:
    options = ("+--steps", "+200", "+--sleep", "+0.03", "+--every", "+1000")
    done = run(*options, "+--fault", "+leak@0")
    assert done.returncode == 0
    (note,) = [e for e in run.events("note") if "host memory grows" in str(e["text"])]
    assert int(str(note["step"])) <= 200
    assert 0.9 < float(str(note["text"]).split("grows by ")[1].split()[0]) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("mails", ["hang", "refuse"])
def test_a_mail_server_that_is_dead_holds_no_restart_up(run: Run, mails: str) -> None:
    policy = run.root / "ask.toml"
    policy.write_text(
        "[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\n[policy]\nask_deadline_s = 0.5\n"
        'at_deadline = "act"\n[policy.authority]\nrestart = "ask"\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if mails == "refuse":
            server.close()
        send = run.root / "send.py"
        send.write_text(
            f"import smtplib; smtplib.SMTP('127.0.0.1', {port}).sendmail('a@b', 'c@d', 'alarm')"
        )
        mail = f"{sys.executable} {send}"
        person = f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com"
        told = ("--exec", mail, "--notify", person)
        argv = run.argv("--policy", str(policy), *told, "+--fault", "+kill@35")
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_for(lambda: (run.job / "done").exists(), 20)  # the mail hangs for 60 s
            server.close()
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"--exec" in said
    assert b"--notify mailto://127.0.0.1" in said
    assert (run.job / "done").read_text() == "60"
    assert len(run.starts) == 2
    assert not (run.job / "twice").exists()


@pytest.mark.slow
def test_a_path_that_never_appeared_and_a_damaged_checkpoint_are_told(run: Run) -> None:
    missing = ("--log", f"{run.root}/nolog", "--checkpoints", f"{run.root}/none")
    done = run(*missing, "+--steps", "+20")
    assert (done.returncode, done.stderr.count(b"nolog: nothing appeared there")) == (0, 1)
    assert done.stderr.count(b"none: never appeared") == 1
    run.job.mkdir(exist_ok=True)
    torn = run.job / "checkpoint-45.pt"
    torn.write_bytes(b"PK\x03\x04torn")
    done = run("+--fault", "+kill@35")
    said = f"{torn} is not whole and is passed over for {run.job}/checkpoint-30.pt"
    assert done.stderr.decode().count(said) == 1
    assert said in str(run.events("note"))


def test_a_folder_whose_files_are_no_checkpoints_is_named(tmp_path: Path) -> None:
    assert not_known(tmp_path) == ""
    (tmp_path / "step-10.json").write_text("{}")
    assert "step-10.json, 1 in all" in not_known(tmp_path)
    (tmp_path / "step_10.pt").write_bytes(b"1")
    assert not_known(tmp_path) == ""


@pytest.mark.slow
def test_a_restart_that_began_anew_is_told_with_its_true_start_and_loss(run: Run) -> None:
    deaf = (sys.executable, "-c", ANEW, str(run.root / "c"), "35")
    done = run("--checkpoints", str(run.root / "c"), command=deaf)
    assert b"it began at step 1; the command did not go on from the checkpoint" in done.stderr
    told = json.loads(trimtab("chronicle", str(run.folder), "--json"))["lineage"]
    first, second = told["attempts"]
    assert (second["parent_step"], second["first_step"], second["checkpoint"]) == (0, 1, None)
    assert first["lost_steps"] == 35


@pytest.mark.slow
def test_a_command_that_is_done_after_a_blow_up_did_not_work(run: Run) -> None:
    done = run(command=(sys.executable, "-c", ANEW, str(run.root / "c"), "0"))
    assert done.returncode == 3
    (incident,) = run.events("incident")
    assert (incident["severity"], incident["state"]) == ("critical", "open")
    (attempt,) = json.loads(trimtab("chronicle", str(run.folder), "--json"))["lineage"]["attempts"]
    assert (attempt["outcome"], attempt["state"]) == ("did not", "stopped")


ANEW = """
import math, os, pathlib, signal, sys, time
folder, fault = pathlib.Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(exist_ok=True)
for s in range(1, 301 if not fault else 61):
    time.sleep(0.003)
    bad = 100 * math.exp((200 - s) / 200) if s > 200 else 0
    print(f"step {s} loss {2 + math.exp(-s / 50) + 0.01 * math.sin(7.0 * s) + bad:.5f}", flush=True)
    if s % 10 == 0 and fault:
        (folder / f"checkpoint-{s}.pt").write_text("x")
    if s == fault and os.environ["TRIMTAB_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
