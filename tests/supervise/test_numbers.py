"""What becomes of a run whose numbers broke: by which loss an answer is judged, and when it ends."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.report.parts import plain_record
from trimtab.analysis.account import RunAccount
from trimtab.analysis.source import account_or_fault
from trimtab.monitor import notifier
from trimtab.plan.policy import Policy
from trimtab.readers import read_newest
from trimtab.record import Attempt
from trimtab.supervise.checkpoint_choice import CheckpointChoice, Way
from trimtab.supervise.ending import ending_of
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.numeric import raised_start
from trimtab.supervise.progress import LogProgress
from trimtab.supervise.responder import Responder
from trimtab.supervise.resume import find_framework
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.state import Ended, Finish, JobState
from trimtab.supervise.trend import course_before, newest_level
from trimtab.supervise.update import update

STATE = JobState(phase="running", attempt=1, step=260.0, position=260.0)


class Told:
    """A run as its log grows, attempt by attempt, and who answers it."""

    def __init__(self, folder: Path, *command: str, mode: str = "act") -> None:
        self.path, self.argv = folder / "log.jsonl", ("python", "t.py", *command)
        framework = find_framework(self.argv)
        way = Way(argv=self.argv, framework=framework, folder=None)
        self.notes = SupervisorNotes(folder / "run", None)
        self.responder = Responder(
            Policy(mode=mode),  # type: ignore[arg-type]
            self.argv,
            framework,
            CheckpointChoice(way, folder / "run"),
            self.notes,
        )

    def add(self, losses: np.ndarray, *, anew: bool = False) -> RunAccount:
        """Log one more attempt from step 1 on; `anew`: in place of those before."""
        with self.path.open("w" if anew else "a") as file:
            for step, loss in enumerate(losses.tolist(), 1):
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")
        account = account_or_fault(read_newest(self.path), str(self.path), hindsight=False)
        assert isinstance(account, RunAccount)
        return account


def curve(num: int, seed: int, noise: float, nan_from: int | None = None) -> np.ndarray:
    """Return a loss that falls from 3 to 2."""
    steps = np.arange(1, num + 1)
    loss = 2 + np.exp(-steps / 50) + np.random.default_rng(seed).normal(0, noise, num)
    return loss if nan_from is None else np.where(steps >= nan_from, np.nan, loss)


@pytest.mark.parametrize("anew", [False, True])
def test_a_healthy_start_from_further_back_is_compared_with_its_own_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anew: bool
) -> None:
    run = Told(tmp_path)
    first = run.responder.answer(run.add(curve(230, 1, 0.02, 200)), STATE)
    assert first is not None
    assert not first.gives_up
    assert "by the same command, nothing changed" in capsys.readouterr().err
    again = replace(STATE, attempt=2, before=0, numeric_restarts=1)
    assert run.responder.answer(run.add(curve(110, 2, 0.02), anew=anew), again) is None
    assert "did not hold" not in capsys.readouterr().err
    if anew:
        return
    # The same from a state that learnt nothing is told; the same command would do it again.
    later = replace(again, attempt=3)
    assert run.responder.answer(run.add(curve(110, 3, 0.02) + 1), later) is None
    told = capsys.readouterr().err
    assert "the answer did not hold" in told
    assert "nothing was changed" in told


@pytest.mark.parametrize(("first", "found"), [(2.5, True), (3.0, False)])
def test_raised_start_from_weights_is_compared_with_the_attempt_before(
    first: float, found: bool
) -> None:
    # Steps that begin anew leave no lineage: what the log holds before is where the weights are of.
    rows, after = 120, 96
    loss = np.concatenate([curve(rows, 1, 0.02), np.full(after, 3.0)])
    loss[rows] = first
    record = plain_record(
        {"loss": loss, "lr": np.repeat([1e-3, 1e-1], [rows, after])},
        step=np.concatenate([np.arange(1.0, rows + 1), np.arange(1.0, after + 1)]),
        attempt=np.repeat(np.array([0, 1], dtype=np.int32), [rows, after]),
        attempts=(
            Attempt(number="1.0", first_row=0, end_row=rows),
            Attempt(number="1.1", parent="1.0", first_row=rows, end_row=rows + after),
        ),
    )
    assert (raised_start(record, Policy()) is not None) == found


def test_nan_that_comes_again_after_the_same_command_ends_the_run(tmp_path: Path) -> None:
    run = Told(tmp_path)
    assert run.responder.answer(run.add(curve(180, 1, 0.02, 150)), STATE) is not None
    again = replace(STATE, attempt=2, before=0, numeric_restarts=1)
    # At another place it may have been chance: it goes back once more.
    moved = run.responder.answer(run.add(curve(130, 2, 0.02, 100), anew=True), again)
    assert moved is not None
    assert not moved.gives_up
    again = replace(again, attempt=3, numeric_restarts=2)
    given = run.responder.answer(run.add(curve(130, 3, 0.02, 103), anew=True), again)
    assert given is not None
    assert "nothing was changed" in given.gives_up
    assert "lower the rate" in given.ending.do
    stopping, _ = update(SuperviseSettings(), again, given)
    _, commands = update(SuperviseSettings(), stopping, Ended(at=9.0, ending=ending_of((), -15)))
    assert commands[-1] == Finish(status=3)
    done = Ended(at=9.0, ending=ending_of((), 0), numeric=given)
    assert update(SuperviseSettings(), again, done)[1][-1] == Finish(status=3)


def test_a_command_that_ends_in_nan_is_no_success() -> None:
    event = Ended(at=9.0, ending=ending_of((), 0), broken="loss is nan")
    assert update(SuperviseSettings(), STATE, event)[1][-1] == Finish(status=3)


@pytest.mark.parametrize("linked", [0.0, 0.9])
def test_healthy_runs_stay_within_the_limit_whatever_their_noise(linked: float) -> None:
    beyond = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        noise = random.normal(0, 0.05, (2, 400))
        for at in range(1, 400):
            noise[:, at] += linked * noise[:, at - 1]
        trend = 2 + np.exp(-np.arange(400) / (50 + 3 * seed))
        course = course_before(plain_record({"loss": trend + noise[0]}), 400)
        rows = int(random.integers(64, 399))
        level = newest_level(plain_record({"loss": (trend + noise[1])[:rows]}), rows=64)
        before = course.at(float(rows), 0.01)
        assert before is not None
        assert level is not None
        beyond += level > before.limit
        assert before.limit < before.level + (0.1 if linked == 0 else 0.8)
    assert beyond <= 3


def test_rows_of_the_attempt_before_are_no_progress_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n')
    log = LogProgress(path)
    with path.open("a") as file:
        file.write('{"step": 399, "loss": 2.0}\n')
    log.begin()
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n')
    seen = log.look(1e9)
    assert seen is not None
    assert seen.step == 2


def test_a_command_that_hangs_at_the_end_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notifier, "COMMAND_TIMEOUT_S", 0.3)
    alarm = notifier.Alarm(command=("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"))
    alarm.raise_for({"incident": {}})
    alarm.raise_for({"incident": {}})
    alarm.close()
    told = "trimtab: --exec sh: stopped after 0.3 s, and 1 more alarms not handed to it\n"
    assert capfd.readouterr().err == told
    pid = (tmp_path / "pid").read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, check=False)
    assert state.stdout[:1] in (b"", b"Z")
