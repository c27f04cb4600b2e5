"""The one place that carries out what `update` decides."""

import contextlib
import math
import os
import platform
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeVar

from trimtab.analysis.account import RunAccount
from trimtab.chronicle.approvals import Mailbox, Said, mailbox_of
from trimtab.chronicle.journal import as_written
from trimtab.chronicle.launch import write_launch
from trimtab.crash.lines import is_finish
from trimtab.durable import make_folder
from trimtab.errors import ChronicleError, ReadError
from trimtab.monitor.notifier import Alarm
from trimtab.plan.policy import Policy
from trimtab.readers import read_newest
from trimtab.supervise.attempts import AttemptBook
from trimtab.supervise.checkpoint_choice import CheckpointChoice, Way
from trimtab.supervise.ending import AttemptEnd, ending_of
from trimtab.supervise.holder import left_behind, orphan
from trimtab.supervise.kernel_log import kernel_lines
from trimtab.supervise.memory import HostMemory
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.numeric import Judged, NumberJudge, NumericAnswer, answer_numbers
from trimtab.supervise.pace import StepPace
from trimtab.supervise.processes import (
    FOLDER_NAME,
    become_subreaper,
    members,
    name_of,
    terminate,
)
from trimtab.supervise.progress import LogProgress, Seen, last_told, section_of
from trimtab.supervise.responder import Responder
from trimtab.supervise.resume import (
    Restore,
    find_framework,
    last_step_of,
    rate_of,
    resumed,
    with_data,
    with_flag,
    with_rate,
)
from trimtab.supervise.running import ENDING, RunningCommand
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.slurm import srun_status
from trimtab.supervise.stacks import odd_ones
from trimtab.supervise.state import (
    Alert,
    Answered,
    AnswerHeld,
    Asked,
    Begin,
    Begun,
    Command,
    Ended,
    Event,
    Finish,
    Forward,
    JobState,
    MoveAside,
    NewStep,
    Numeric,
    PutBack,
    Stop,
    Tick,
    TwinRan,
    WriteDown,
)
from trimtab.supervise.streams import Output
from trimtab.supervise.twin import Tried, try_beside, twin_command
from trimtab.supervise.two_by_two import TwoByTwo, evaluated, judged
from trimtab.supervise.update import GAVE_UP_STATUS, update
from trimtab.text import plain, words

__all__ = ["NOT_FOUND_STATUS", "NOT_RUNNABLE_STATUS", "Job", "supervise"]

NOT_FOUND_STATUS = 127
NOT_RUNNABLE_STATUS = 126
"""As a shell says that there is no such command, and that it may not be run."""
_T = TypeVar("_T")
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_FINISH_LINES = 20
_MOST_NAMED = 8
_END_BYTES = 1 << 16
"""How much of the end of the output is searched for a count that came to its whole."""
_LEFT_ALONE_S = 0.5
"""Silence from which on the section of a run is asked for."""
_QUIET_S = 2.0
"""Silence beyond a step from which on it is asked whether its processes work and write."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to supervise, and where."""

    argv: tuple[str, ...]
    folder: Path
    """The supervisor's own: journal, copy of the output, lock."""
    logs: tuple[Path, ...] = ()
    """Log files or TensorBoard folders that tell progress, beside the output."""
    checkpoints: Path | None = None
    """Folder of the checkpoints; None: as the command names it."""
    on_orphan: str = "adopt"
    """What to do with a command that a killed supervisor left: `adopt` or `terminate`."""


def supervise(
    job: Job,
    settings: SuperviseSettings,
    *,
    policy: Policy | None = None,
    alarm: Alarm | None = None,
) -> int:
    """Run a command until it is done, or no restart can help.

    Args:
        job: What to run.
        settings: Limits.
        policy: What may be done about broken numbers: with mode `act` the run is stopped, goes back
            to a checkpoint before the first sign and has its rate cut, as far as the authority
            allows; else a person is told.
        alarm: Where to send what a person must know; None: stderr alone.

    Returns:
        The exit status: the command's last one (128 + the signal where one ended it); 3 where the
        supervisor stopped the command itself and gave up; 126 and 127 where it could not be run.

    Raises:
        ChronicleError: Another supervisor holds the folder.
        ConfigError: The framework is not known.
    """
    return Supervisor(job, settings, policy or Policy(), alarm).run()


class Supervisor:
    """Carries out commands, and hands what happens to `update`."""

    def __init__(
        self, job: Job, settings: SuperviseSettings, policy: Policy, alarm: Alarm | None
    ) -> None:
        self._job, self._settings, self._policy = job, settings, policy
        self._framework = find_framework(job.argv, settings.framework)
        self._queue: SimpleQueue[Event] = SimpleQueue()
        self._status: int | None = None
        self._logs = tuple(LogProgress(path) for path in job.logs)
        self._launch: dict[str, str] = {}
        """What the command was last started with: machine, packages, code."""
        self.notes = SupervisorNotes(job.folder, alarm)
        self._book = AttemptBook(self.notes, self._framework)
        self._state = JobState(
            attempt=self._book.num_before,
            num_before=self._book.num_before,
            pace=StepPace(ending_s=self.notes.longest_ending_s()),
            excluded=settings.exclude_hosts,
            authority=policy.permissions,
            folder=shlex.quote(str(job.folder)),
        )
        copy = self.notes.output_copy
        self._output = Output(copy, size_bytes=settings.output_size_bytes)
        self._command = RunningCommand(
            job.argv, self.notes, self._output, self._on_end, grace_s=settings.stop_grace_s
        )
        way = Way(argv=job.argv, framework=self._framework, folder=job.checkpoints)
        self._checkpoints = CheckpointChoice(way, job.folder)
        self._responder = Responder(
            policy,
            job.argv,
            self._framework,
            self._checkpoints,
            self.notes,
            self.read_forward if settings.evaluate else None,
        )
        self._memory, self._leaks = HostMemory(), False
        self._told: set[str] = set()
        self._last_step = last_step_of(job.argv, self._framework)
        self._counted = False
        """Whether the newest step is a count of rows."""
        self._end: float | None = None
        """The last step, where the command stands there; None: it does not, or nobody tells."""
        self._tried: set[str] = set()
        """Flags that a twin showed to be taken."""
        self._mailbox = self._open_mailbox()
        self._judged: SimpleQueue[Judged] = SimpleQueue()
        self._judge = self._make_judge(copy)

    def _say_once(self, text: str) -> None:
        self.notes.say_once(text, text)

    # -- what happens -------------------------------------------------------------------------

    def _make_judge(self, copy: Path | None) -> NumberJudge | None:
        path = self._job.logs[0] if self._job.logs else copy
        if path is None or not self._settings.judge_every_s:
            return None
        return NumberJudge(path, self._settings.judge_every_s, self._judged.put)

    def read_forward(
        self, answer: NumericAnswer, before: Restore, after: Restore | None
    ) -> TwoByTwo | None:
        """Evaluate the suspect window and fixed batches under a state from before, and from after.

        Signals and the end of the command go first.
        """
        s = self._settings
        window = {"first": f"{answer.before:.0f}", "last": f"{answer.onset + answer.lasted:.0f}"}
        suspect = s.suspect_data
        for name, value in window.items():
            suspect = suspect.replace("{" + name + "}", value)
        read = self._shielded(
            "evaluate",
            lambda: evaluated(
                s.evaluate,
                {"before": before.path} | ({} if after is None else {"after": after.path}),
                {"fixed": s.fixed_data, "window": suspect},
                within_s=s.evaluate_within_s,
                aborted=lambda: not self._queue.empty(),
            ),
        )
        cells, missing = read or ({}, "")
        if missing:
            how_many = "not made" if not cells else "not made whole"
            self._tell_once(f"the forward reading was {how_many}: {missing}")
        return judged(cells) if cells else None

    def _shielded(self, what: str, do: Callable[[], _T]) -> _T | None:
        """Do what may fail in any way: the command runs, and must not lose its supervisor."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - a helper that fails is told, and done without
            fault = plain(f"{type(error).__name__}: {error}", limit=300)
            self._tell_once(f"{what} failed ({fault}); it is done without")
            return None

    def _tell_once(self, text: str) -> None:
        """Say and write down what was not told before."""
        if text not in self._told:
            self._told.add(text)
            self.notes.say(text)
            self.notes.write(self._state, "note", author="supervisor", text=text)

    def _hear_judge(self) -> None:
        """Tell alarms that are new, and answer what lasts, as far as the policy allows."""
        judged = self._tell_alarms()
        if judged is None or self._state.phase != "running" or self._state.step is None:
            return
        waiting = self._state.request
        if waiting is not None:
            if answer_numbers(judged.account, self._policy) is None:
                gone = "the numbers came back by themselves"
                at = time.monotonic()
                self._take(Answered(at=at, id=waiting.id, answer="withdrawn", why=gone))
            return
        account = judged.account
        numeric = self._shielded("the answer", lambda: self._responder.answer(account, self._state))
        if self._responder.held:
            self._responder.held = False
            self._take(AnswerHeld(at=time.monotonic()))
        if numeric is not None:
            self._take(numeric)

    def _tell_alarms(self) -> Judged | None:
        """Tell alarms that are new; return what was judged last."""
        judged: Judged | None = None
        with contextlib.suppress(Empty):
            while True:
                judged = self._judged.get_nowait()
                for told in judged.fresh:
                    self.notes.say(f"{told.severity} · {told.headline}")
                    self.notes.alarm(self._state, told.kind, told.severity, told.headline)
        return judged

    def _hear_answers(self) -> None:
        """Hand on what a person said to a request."""
        if self._mailbox is None:
            return
        for said in self._mailbox.read():
            answer: Said = "approved" if said.approved else "denied"
            now = time.monotonic()
            self._take(Answered(at=now, id=said.id, answer=answer, why=said.why, by=said.author))

    def _open_mailbox(self) -> Mailbox | None:
        """Return where answers come in; None where nothing may be asked, or no file can be made.

        What lies there already was said to nothing that waits now.
        """
        asks = "ask" in self._policy.permissions.allowed.values()
        if not asks or self.notes.lock is None:
            return None
        try:
            mailbox = Mailbox(mailbox_of(self._job.folder))
        except OSError as error:
            self.notes.say(f"{self._job.folder}: no answer can be heard ({error.strerror})")
            return None
        while mailbox.read():
            pass
        return mailbox

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> int:
        become_subreaper()
        before = {s: signal.signal(s, self._on_signal) for s in (*ENDING, *_PASSED_ON)}
        if self._judge is not None:
            self._judge.start()
        try:
            if not self._take_over():
                self._carry_out(Begin())
            while self._status is None:
                self._wait()
            return self._status
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
            if self._judge is not None:
                self._judge.stop()
            self._output.close()
            self._command.close()
            if self._mailbox is not None:
                self._mailbox.close()
            self.notes.close()

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._queue.put(Asked(at=time.monotonic(), signum=signum, ends=signum in ENDING))

    def _wait(self) -> None:
        try:
            self._take(self._queue.get(timeout=self._settings.look_every_s))
            return
        except Empty:
            pass
        now = time.monotonic()
        self._hear_judge()
        self._hear_answers()
        if self._command.runs:
            self._look(now)
            self._look_at_memory()
            if self._checkpoints.kept is not None:
                self._checkpoints.kept.look(self._state.step)
                self.notes.say_once("kept", self._checkpoints.kept.trouble)
        self.notes.say_once("copy", self._output.trouble)
        section, busy = self._section(now)
        self._take(Tick(at=now, heard=self._output.heard, section=section, busy=busy))

    def _take(self, event: Event) -> None:
        if isinstance(event, Ended):
            event = self._wound_up(event)
        self._state, commands = update(self._settings, self._state, event)
        for command in commands:
            self._carry_out(command)

    def _look(self, now: float) -> None:
        """Hand on the newest step, wherever it is told."""
        seen: list[Seen | None] = [self._command.look()]
        for log in self._logs:
            seen.append(log.look(now))
            self.notes.say_once(
                str(log.path), log.trouble and f"{log.trouble}; the command goes on"
            )
        for place in seen:
            if place is not None:
                self._counted, self._end = place.counted, None
                self._take(
                    NewStep(
                        at=now,
                        step=place.step,
                        position=place.position,
                        rate=place.rate,
                        counted=place.counted,
                        first=place.first,
                    )
                )

    def _look_at_memory(self) -> None:
        """Tell a person once of memory that grows: a restart only puts the end off."""
        if self._state.step is None or self._state.phase != "running":
            return
        text = self._memory.look(self._state.step, self._command.members)
        if text and not self._leaks:
            self._leaks = True
            self.notes.say(text)
            self.notes.write(self._state, "note", author="supervisor", text=text)
            self.notes.alarm(self._state, "host-memory", "warning", text)

    def _section(self, now: float) -> tuple[str, bool]:
        """Return the slow section that a silent command is in, as far as it shows, and its work."""
        pace = self._state.pace
        if self._state.phase != "running" or not self._command.runs:
            return "", False
        if now - max(pace.since, pace.started) < _LEFT_ALONE_S:
            return "", False
        if self._command.is_stopped:  # a launcher that never sees its workers end
            self._end = None
            return "", False
        section = section_of(self._output.tail(4096).decode("utf-8", "replace").splitlines())
        given = self._settings.hang_after_s
        quiet = _QUIET_S if given is None else min(_QUIET_S, given / 4)
        if now - pace.since < quiet + (pace.median_s or 0.0):
            return section, False
        busy = self._command.is_busy(now)
        saves = self._command.is_saving()
        self._end = self._last_step_reached(pace)
        asked = self._state.asked  # then it is its saving that gets time
        if self._end is not None and not asked and section not in self._settings.sections:
            section = "end"  # it evaluates, saves or ends: quietly, where that goes over a network
        return section or ("saving" if saves else ""), busy

    def _last_step_reached(self, pace: StepPace) -> float | None:
        """Return the last step where the newest row is its, by the command or by the log."""
        if pace.step is None:
            return None
        from_zero = pace.first_step == 0
        early = pace.last_stride + from_zero  # a loop from 0 ends one below what the flag says
        if self._last_step - early < pace.step < self._last_step + pace.last_stride:
            return min(self._last_step, pace.step) if from_zero else self._last_step
        lines = self._output.tail(_END_BYTES).replace(b"\r", b"\n").decode("utf-8", "replace")
        return last_told(lines.splitlines(), pace.step, counted=self._counted, from_zero=from_zero)

    # -- commands -----------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Begin():
                self._begin()
            case Stop():
                if command.stacks:
                    self._tell_stacks()
                self._command.end_all(warned=command.warned)
            case Forward():
                self._command.forward(command.signum)
            case WriteDown():
                self._write_down(command)
            case Alert():
                self.notes.say(command.text)
                severity = "critical" if command.critical else "warning"
                self.notes.alarm(self._state, command.kind, severity, command.text)
            case MoveAside():
                self._say_once(self._checkpoints.set_aside(self._state.same))
            case PutBack():
                self._say_once(self._checkpoints.put_back())
            case Finish():
                self._finish(command.status)

    def _begin(self) -> None:
        if not self._checkpoints.chosen:
            self._choose()
        restore = self._checkpoints.restore
        self._memory = HostMemory()
        self._say_once(self._checkpoints.take())
        argv = self._argv(restore)
        loaded = None if restore is None else (restore.step, restore.path)
        environment = self._environment(restore)
        if not self._try_beside(argv, restore, environment):
            return
        self._record_launch()
        try:
            self._command.start(argv, environment, secrets.token_hex(8), self._state, loaded)
        except OSError as error:
            self._not_started(argv[0], error)
            return
        for log in self._logs:  # nothing that may take long stands before the start
            log.begin()
        self._take(Begun(at=time.monotonic(), loaded=loaded))
        self._book.begun(self._state, argv, restore)

    def _try_beside(
        self, argv: tuple[str, ...], restore: Restore | None, environment: dict[str, str]
    ) -> bool:
        """Try a changed command for two rows; return whether the real one is to be started."""
        state, within = self._state, self._settings.twin_within_s
        flags = tuple(word for word in argv if word not in self._job.argv and word[:1] == "-")
        flags += ("rate",) * (state.rate_factor != 1)
        new = not set(flags) <= self._tried
        if state.proof is None or not flags or not new or not within:
            return True
        start_s = (state.pace.first_at or math.inf) - state.pace.started
        own = self._job.folder / "twin"
        shutil.rmtree(own, ignore_errors=True)
        tried = self._shielded(
            "the changed command tried beside",
            lambda: self._twin(argv, restore, environment, own, start_s),
        )
        shutil.rmtree(own, ignore_errors=True)
        if tried is None or tried.unseen or restore is None:
            if tried is not None:
                self._say_once(tried.unseen)
            return True
        self._tried |= set(flags)
        seen = tried.first
        step = None if seen is None or seen.counted else seen.step
        rate = None if seen is None else seen.rate
        self._take(
            TwinRan(
                at=time.monotonic(),
                restored=restore.step,
                step=step,
                rate=rate,
                refused=tried.refused,
            )
        )
        return self._state.phase != "done"

    def _twin(
        self,
        argv: tuple[str, ...],
        restore: Restore | None,
        environment: dict[str, str],
        own: Path,
        start_s: float,
    ) -> Tried:
        within = self._settings.twin_within_s
        make_folder(own)
        twin = twin_command(argv, self._framework, restore, own)
        if start_s > within:
            twin = f"a start took {start_s:.0f} s, more than twin_within_s = {within:g}"
        if isinstance(twin, str) or restore is None:
            return Tried(unseen=f"the changed command is not tried beside: {twin}")
        tried = try_beside(
            twin,
            own,
            parent=Path(restore.path),
            environment=environment,
            limit_s=max(3 * start_s, 10.0),
            grace_s=self._settings.stop_grace_s,
            aborted=lambda: not self._queue.empty(),
        )
        if not tried.unseen:
            return tried
        return Tried(unseen=f"the changed command was tried beside, and {tried.unseen}")

    def _record_launch(self) -> None:
        """Write down the command, the machine and the code; again where they changed since."""
        folder = self._job.folder
        name = f"supervise-{1 + sum(1 for _ in (folder / 'launch').glob('supervise-*'))}"
        told = write_launch(folder, name, argv=self._job.argv)
        if told == self._launch:
            shutil.rmtree(folder / "launch" / name, ignore_errors=True)
            return
        self._launch = told
        rate = rate_of(self._job.argv, self._framework)
        self.notes.write(
            self._state,
            "start",
            argv=list(self._job.argv),
            folder=str(folder),
            logs=[str(path.absolute()) for path in self._job.logs],
            launch=name,
            environment=told,
            rate=None if rate is None else rate[1],
        )

    def _choose(self) -> None:
        self.notes.say_once("checkpoints", self._checkpoints.choose(self._state))
        restore = self._checkpoints.restore
        instead = "the command as given" if restore is None else restore.path
        for path in self._checkpoints.passed_over:
            self._tell_once(f"{path} is not whole and is passed over for {instead}")

    def _argv(self, restore: Restore | None) -> tuple[str, ...]:
        """Return the command with what the next start loads, is fed, and leaves out."""
        argv = resumed(self._job.argv, self._framework, restore)
        given = self._state.other_data
        if self._framework is not None and self._framework.data_once:
            # Behind the data that is left out, the order as it was is free of it.
            begins = math.inf if restore is None else restore.step
            behind = all(last is not None and last < begins for _, last in given)
            given = () if behind and self._state.proof is None else given
        for number, (first, last) in enumerate(given, 1):
            argv = with_data(argv, self._framework, number=number, first=first, last=last)
        if self._state.excluded and Path(argv[0]).name == "srun":
            at = with_flag(argv[:1], "--exclude", ",".join(self._state.excluded), "equals")
            argv = (*at, *(word for word in argv[1:] if not word.startswith("--exclude=")))
        if self._state.rate_factor < 1:
            try:
                own = self._job.folder.absolute()
                argv = with_rate(argv, self._framework, self._state.rate_factor, own)
            except OSError as error:
                self._say_once(f"the rate stays as it is: its config cannot be copied ({error})")
        return argv

    def _environment(self, restore: Restore | None) -> dict[str, str]:
        environment = dict(os.environ)
        environment[FOLDER_NAME] = str(self._job.folder.absolute())
        environment["TRIMTAB_ATTEMPT"] = str(self._state.attempt + 1)
        for name in ("TRIMTAB_RESUME_STEP", "TRIMTAB_RESUME_CHECKPOINT"):
            environment.pop(name, None)
        if restore is not None:
            environment["TRIMTAB_RESUME_STEP"] = str(restore.step)
            environment["TRIMTAB_RESUME_CHECKPOINT"] = restore.path
        if self._state.excluded:
            environment["TRIMTAB_EXCLUDE_HOSTS"] = ",".join(self._state.excluded)
        return environment

    def _not_started(self, name: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        what = "there is no such command" if missing else f"cannot be run ({error.strerror})"
        text = f"{name}: {what}; correct the command after --"
        self.notes.write(
            self._state, "gave-up", **{"class": "user_error", "who": "config", "why": text}
        )
        self.notes.say(text)
        self._finish(NOT_FOUND_STATUS if missing else NOT_RUNNABLE_STATUS)

    def _take_over(self) -> bool:
        """Deal with the command of a supervisor that was killed; tell whether it is ours now.

        Raises:
            ChronicleError: The supervisor that started it lives, or it is another command.
        """
        holder = left_behind(self._job.folder)
        if holder is None:
            return False
        child = holder.child
        # It ran: where no step comes from a checkpoint later, that is passed over for an older one.
        self._state = replace(self._state, position=-math.inf, num_before=0)
        if not orphan(holder):
            left = members(child.token)
            if left and holder.host == platform.node():
                terminate(child.token, 0, grace_s=self._settings.stop_grace_s)
                self.notes.write(
                    self._state,
                    "note",
                    author="supervisor",
                    text=f"ended {len(left)} left processes",
                )
            if holder.host != platform.node():
                self.notes.say(
                    f"a supervisor on {holder.host} did not come to its end; its command was"
                    f" process {child.pid} there: make sure that it does not run any more"
                )
            self._state = replace(self._state, attempt=holder.attempt)
            return False
        then = as_written(holder.argv or self.notes.last_argv())
        if self._job.on_orphan == "adopt" and then not in ([], as_written(self._job.argv)):
            assert isinstance(then, list)
            raise ChronicleError(
                f"{self._job.folder}: a supervisor was killed there, and its command still runs"
                f" (process {child.pid}): {shlex.join(then)}; this is another one. Give that"
                " command to go on with it, --orphan terminate to end it and start this one, or"
                " another --run"
            )
        self._state = replace(
            self._state,
            attempt=holder.attempt - (self._job.on_orphan == "adopt"),
            failures=holder.failures,
        )
        where = f"process {child.pid}, attempt {holder.attempt}"
        if self._job.on_orphan != "adopt" or not self._command.take_over(child):
            self._state = replace(self._state, attempt=holder.attempt)
            self.notes.say(
                f"a supervisor was killed here; its command ({where}) is ended and restarted"
            )
            terminate(child.token, child.pid, grace_s=self._settings.stop_grace_s)
            return False
        self.notes.say(
            f"a supervisor was killed here; its command ({where}) goes on under this one"
        )
        self.notes.write(self._state, "note", author="supervisor", text=f"took over {where}")
        self._take(Begun(at=time.monotonic(), loaded=holder.loaded))
        self._state = replace(self._state, pace=self._pace_before(self._state.pace))
        return True

    def _pace_before(self, pace: StepPace) -> StepPace:
        """Return the pace of a command that was taken over, as its output so far shows it.

        Without it a command that hangs already is waited for as one that compiles.
        """
        copy, began = self.notes.output_copy, self.notes.last_began()
        if copy is None or began is None:
            return pace
        try:
            record, written = read_newest(copy), copy.stat().st_mtime
        except (ReadError, OSError):
            return pace
        rows = int((record.attempt == record.attempt[-1]).sum()) if record.num_rows else 0
        return pace.taken_over(rows, written - began, float(record.step[-1]) if rows else 0.0)

    def _on_end(self, code: int | None) -> None:
        ending = AttemptEnd(crash_class="", who="transient", why="", code=code)
        self._queue.put(Ended(at=time.monotonic(), ending=ending))

    def _wound_up(self, event: Ended) -> Ended:
        """Return the end with its reason, when the rest of the output is read."""
        self._command.drain()
        self.notes.say_once("copy", self._output.trouble)
        self._look(time.monotonic())
        self._tell_missing()
        lines = self._output.lines()
        code = srun_status(event.ending.code, lines)
        left = self._command.members()
        if left and (self._state.asked or code != 0):
            # What a person ended gets the time to save; after a crash nothing may stay behind.
            if self._state.asked:
                self._command.await_members()
            self._command.end_all()
        elif left:
            self._tell_left(left)
        lines = self._output.lines()
        kernel = kernel_lines(self._command.started_at) if code else ()
        ending = ending_of(lines, code, kernel=kernel)
        if code is None and not ending.line:
            # A command that was taken over is no child of ours: nobody can ask for its status.
            done = any(is_finish(line) for line in lines[-_FINISH_LINES:])
            ending = replace(
                ending_of((), 0 if done else None),
                why="it says that training is complete" if done else "its status is not known",
            )
        self._command.forget()
        account = None if self._judge is None else self._judge.last_words()
        self._tell_alarms()
        done = not ending.crash_class
        ours = self._state.asked or self._state.stopping_for is not None
        event = replace(event, trained=self._trained())
        event = replace(event, at=time.monotonic(), ending=ending)
        if account is None or ours or not (done or ending.who == "numeric"):
            return event
        # Done in broken numbers is not done.
        died = "" if done else ending.line or ending.why
        numeric = self._numeric_end(account, done=done, died=died)
        last = answer_numbers(account, self._policy, ended=True) if done else None
        broken = last.why if last is not None and last.severe else ""
        if done:
            self._record_open(account)
        return replace(event, numeric=numeric, broken=broken)

    def _tell_missing(self) -> None:
        """Say once which path that was given never appeared: it is mistyped, or made elsewhere."""
        for log in self._logs:
            if not log.appeared:
                self._tell_once(f"--log {log.path}: nothing appeared there, so it was not read")
        folder = self._job.checkpoints
        if folder is not None and not os.path.exists(folder):  # noqa: PTH110 - raises nothing
            self._tell_once(f"--checkpoints {folder}: never appeared, so no restart loads from it")

    def _trained(self) -> str:
        """Return the checkpoint of the last step, where the command was stopped behind that."""
        if self._end is None or self._state.stopping_for is None:
            return ""
        newest = self._checkpoints.newest(self._state, None)
        return "" if newest is None or newest.step < self._end else newest.path

    def _record_open(self, account: RunAccount) -> None:
        """Write down what is not over where the command is done: no later look tells it."""
        record = account.record
        for told in account.incidents:
            found = told.incident
            own = found.attempt == record.attempts[int(record.attempt[-1])].number
            if own and found.end_row is None and told.is_open_alarm:
                self.notes.write_at(
                    int(found.onset),
                    self._state,
                    "incident",
                    state="open",
                    kind=found.kind,
                    severity=told.severity,
                    onset=found.onset,
                    precursor=found.precursor,
                    headline=told.headline,
                )

    def _numeric_end(self, account: RunAccount, *, done: bool, died: str) -> Numeric | None:
        """Return the answer to the numbers of a command that ended by itself."""
        return self._shielded(
            "the answer",
            lambda: self._responder.answer(account, self._state, broken_only=done, died=died),
        )

    def _tell_left(self, left: Sequence[int]) -> None:
        """Say that a command is done and processes of it are not: a board, or a worker that hangs.

        They are left alone: what was started in the background on purpose is not ours to end.
        """
        names = ", ".join(f"{pid} ({name_of(pid)})" for pid in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if left[_MOST_NAMED:] else ""
        text = f"{len(left)} processes of the command, which is done, still run: {names}{more}"
        self.notes.write(
            self._state, "note", author="supervisor", text=text, pids=list(left[:_MOST_NAMED])
        )
        self.notes.say(f"{text}; they are left alone, end them with kill where they are not wanted")

    def _tell_stacks(self) -> None:
        """Write down where every rank stands, and name the odd one."""
        found = self._command.stacks()
        odd = odd_ones(found)
        told = [
            {
                "pid": s.pid,
                "rank": s.rank,
                "state": s.state,
                "place": s.place,
                "frames": list(s.frames),
                "odd": s in odd,
            }
            for s in found
        ]
        names = ", ".join(f"{s.name} ({s.place})" for s in odd[:4])
        text = f"stacks: {names or 'no odd one'}"
        self.notes.write(self._state, "note", author="supervisor", text=text, stacks=told)
        if names:
            self.notes.say(f"hang: odd one of {len(found)}: {names}")
        if odd and self._state.stopping_for is not None:
            why = f"{self._state.stopping_for.why}; stands elsewhere: {names}"
            ending = replace(self._state.stopping_for, why=why, rank=odd[0].rank)
            self._state = replace(self._state, stopping_for=ending)

    def _write_down(self, command: WriteDown) -> None:
        data = dict(command.data)
        if command.event in ("restart", "gave-up", "end"):
            data |= self._state.pace.times(time.monotonic())  # what trimtab goodput sums up
        if command.event == "restart":
            self._choose()
            restore = self._checkpoints.restore
            data["checkpoint"] = None if restore is None else restore.path
            where = "as given" if restore is None else f"from {restore.path}"
            self._book.why = f"{words(data['class'])}: {data['why']}"
            # Of a hang it was just said what it was.
            said = "" if data["class"] == "hang" else f": {data['why']}"
            self.notes.say(
                f"restart {self._state.attempt} · {data['class']}{said} ·"
                f" in {data['wait_s']:g} s, {where}"
            )
            if data.get("line"):
                self.notes.say(f"  line: {data['line']}")
        elif command.event == "hang":
            self.notes.say(f"hang · {data['why']}")
        elif command.event == "note":
            self.notes.say(str(data["text"]))
        self.notes.write(self._state, command.event, **data)

    def _finish(self, status: int) -> None:
        if status == GAVE_UP_STATUS or self._command.runs:
            self._command.end_all()
        self._command.forget()
        self._status = status
