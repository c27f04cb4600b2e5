"""The one place that carries out what `update` decides."""

import contextlib
import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from trimtab.analysis.account import RunAccount
from trimtab.chronicle.journal import Journal
from trimtab.chronicle.run_lock import RunLock
from trimtab.chronicle.rundir import RunDirectory
from trimtab.crash.lines import is_finish
from trimtab.durable import make_folder
from trimtab.errors import ChronicleError, ConfigError
from trimtab.masking import masked_text
from trimtab.monitor.notifier import Alarm
from trimtab.plan.policy import Policy
from trimtab.supervise.aside import Moved, put_back, set_aside
from trimtab.supervise.ending import AttemptEnd, ending_of
from trimtab.supervise.holder import Holder, boot_id, orphan, read_holder, write_holder
from trimtab.supervise.kernel_log import kernel_lines
from trimtab.supervise.numeric import Judged, NumberJudge, NumericAnswer, answer_numbers
from trimtab.supervise.processes import (
    Child,
    adopt,
    become_subreaper,
    is_alive,
    members,
    reap,
    spawn,
    terminate,
    written_bytes,
)
from trimtab.supervise.progress import LogProgress, OutputProgress, Seen, section_of
from trimtab.supervise.resume import (
    Restore,
    checkpoint_folder,
    find_framework,
    newest,
    resumed,
    with_flag,
    with_rate,
)
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.stacks import odd_ones, take_stacks
from trimtab.supervise.state import (
    Alert,
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
    WriteDown,
)
from trimtab.supervise.streams import Output, Pump
from trimtab.supervise.update import GAVE_UP_STATUS, update
from trimtab.text import visible

__all__ = ["NOT_FOUND_STATUS", "NOT_RUNNABLE_STATUS", "Job", "supervise"]

NOT_FOUND_STATUS = 127
NOT_RUNNABLE_STATUS = 126
"""As a shell says that there is no such command, and that it may not be run."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_LAST_WORDS_S = 2.0
"""How long the rest of the output is waited for after the end of the command."""
_UNOWNED = ("", "files", "folders")
_FINISH_LINES = 20
_LEFT_ALONE_S = 0.5
"""Silence from which on the section of a run is asked for."""
_SAVING_BYTES = 1 << 20
"""Bytes written from one look to the next from which on a run is saving. Ours: a log line is a
thousand times smaller."""


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
    return _Supervisor(job, settings, policy or Policy(), alarm).run()


class _Supervisor:
    """Carries out commands, and hands what happens to `update`."""

    def __init__(
        self, job: Job, settings: SuperviseSettings, policy: Policy, alarm: Alarm | None
    ) -> None:
        self._job, self._settings, self._policy, self._alarm = job, settings, policy, alarm
        self._framework = find_framework(job.argv, settings.framework)
        self._queue: SimpleQueue[Event] = SimpleQueue()
        self._state = JobState(excluded=settings.exclude_hosts, authority=policy.permissions)
        self._status: int | None = None
        self._child: Child | None = None
        self._pumps: tuple[Pump, ...] = ()
        self._restore: Restore | None = None
        self._chosen = False
        self._moved: Moved | None = None
        self._silenced: set[str] = set()
        self._logs = tuple(LogProgress(path) for path in job.logs)
        self._lock, self._journal = self._open()
        copy = None if self._journal is None else job.folder / "output.log"
        self._output = Output(copy, size_bytes=settings.output_size_bytes)
        self._progress: OutputProgress | None = None
        self._written = 0
        self._judged: SimpleQueue[Judged] = SimpleQueue()
        self._judge = self._make_judge(copy)

    # -- the folder ---------------------------------------------------------------------------

    def _open(self) -> tuple[RunLock | None, Journal | None]:
        """Take the folder; where the disk refuses it, the command runs all the same."""
        try:
            make_folder(self._job.folder)
            lock = RunLock(self._job.folder)
        except (OSError, ChronicleError) as error:
            held = isinstance(error.__cause__, BlockingIOError) or error.__cause__ is None
            if isinstance(error, ChronicleError) and held:
                raise ChronicleError(
                    f"{self._job.folder}: another supervisor or guard writes there, and one command"
                    f" has one supervisor ({error}); wait for it, or give another --run"
                ) from error
            self._say(f"{error}; nothing is written down, the command runs all the same")
            return None, None
        try:
            return lock, Journal(RunDirectory(self._job.folder).journal)
        except ChronicleError as error:
            self._say(f"{error}; nothing is written down, the command runs all the same")
            return lock, None

    def _write(self, event: str, **data: object) -> None:
        if self._journal is None:
            return
        step = self._state.step
        try:
            self._journal.append(
                event,
                attempt=f"{self._state.attempt}.0",
                step=0 if step is None else int(step),
                **data,
            )
        except ChronicleError as error:
            self._say_once("journal", f"{error}; the command goes on")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            shown = masked_text(visible(text, keep="\n"))
            sys.stderr.write(f"trimtab supervise: {shown}\n")
            sys.stderr.flush()

    def _say_once(self, key: str, text: str) -> None:
        if text and key not in self._silenced:
            self._silenced.add(key)
            self._say(text)

    # -- the numbers --------------------------------------------------------------------------

    def _make_judge(self, copy: Path | None) -> NumberJudge | None:
        path = self._job.logs[0] if self._job.logs else copy
        if path is None or not self._settings.judge_every_s:
            return None
        return NumberJudge(path, self._settings.judge_every_s, self._judged.put)

    def _hear_judge(self) -> None:
        """Tell alarms that are new, and answer what lasts, as far as the policy allows."""
        judged = self._tell_alarms()
        if judged is None or self._state.phase != "running" or self._state.step is None:
            return
        numeric = self._numeric(judged.account)
        if numeric is not None:
            self._take(numeric)

    def _tell_alarms(self) -> Judged | None:
        """Tell alarms that are new; return what was judged last."""
        judged: Judged | None = None
        with contextlib.suppress(Empty):
            while True:
                judged = self._judged.get_nowait()
                for told in judged.fresh:
                    self._say(f"{told.severity} · {told.headline}")
                    self._alarm_for(told.kind, told.severity, told.headline)
        return judged

    def _numeric(self, account: RunAccount) -> Numeric | None:
        """Return the answer to broken numbers; None: wait, or not allowed, which is said once."""
        state = self._state
        answer = answer_numbers(
            account,
            self._policy,
            num_before=state.numeric_restarts,
            argv=self._job.argv,
            framework=self._framework,
        )
        if answer is None:
            return None
        restore = self._newest(min(answer.before, state.before or answer.before))
        why_not = self._why_not(answer, restore)
        if why_not:
            self._say_once(
                f"{answer.told.kind} {answer.told.onset}", f"{answer.why} · not answered: {why_not}"
            )
            return None
        assert restore is not None
        factor = answer.rate_factor or 1.0
        lost = 0 if state.step is None else max(int(state.step) - restore.step, 0)
        self._write(
            "decision",
            kind=answer.told.kind,
            why=answer.why,
            to_step=restore.step,
            rate_factor=factor,
            cost_steps=lost,
        )
        self._say(
            f"{answer.why} · goes back to step {restore.step}, rate x {factor:g}; costs {lost}"
            " steps and one start"
        )
        ending = AttemptEnd(
            crash_class="numeric", who="numeric", why=answer.why, line=answer.told.headline
        )
        return Numeric(at=time.monotonic(), ending=ending, before=answer.before, rate_factor=factor)

    def _why_not(self, answer: NumericAnswer, restore: Restore | None) -> str:
        """Return why an answer is not given; empty: it is."""
        if self._policy.mode != "act":
            return f'mode is {self._policy.mode}; [policy] mode = "act" allows it'
        if restore is None:
            return "no whole checkpoint before the first sign is known; name them by --checkpoints"
        if self._state.numeric_restarts >= self._policy.max_failures:
            return f"{self._state.numeric_restarts} answers before did not hold"
        classes = ["restart", "restore"]
        if answer.rate_factor is not None:
            classes += ["change-flags", "cut-rate"]
        for action in classes:
            permission = self._policy.permissions.permission(action)
            if permission != "act":
                return f"{action} is {permission} in the policy"
        return ""

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> int:
        become_subreaper()
        before = {s: signal.signal(s, self._on_signal) for s in (*_ENDING, *_PASSED_ON)}
        if self._judge is not None:
            self._judge.start()
        try:
            if self._lock is None or not self._take_over():
                self._write("start", argv=list(self._job.argv), folder=str(self._job.folder))
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
            if self._progress is not None:
                self._progress.close()
            if self._journal is not None:
                self._journal.close()
            if self._lock is not None:
                self._lock.release()

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._queue.put(Asked(at=time.monotonic(), signum=signum, ends=signum in _ENDING))

    def _wait(self) -> None:
        try:
            self._take(self._queue.get(timeout=self._settings.look_every_s))
            return
        except Empty:
            pass
        now = time.monotonic()
        self._hear_judge()
        if self._child is not None:
            reap(self._child.id.pid)
            self._look(now)
        self._say_once("copy", self._output.trouble)
        self._take(Tick(at=now, heard=self._output.heard, section=self._section(now)))

    def _take(self, event: Event) -> None:
        if isinstance(event, Ended):
            event = self._wound_up(event)
        self._state, commands = update(self._settings, self._state, event)
        for command in commands:
            self._carry_out(command)

    def _look(self, now: float) -> None:
        """Hand on the newest step, wherever it is told."""
        seen: list[Seen | None] = [] if self._progress is None else [self._progress.look()]
        for log in self._logs:
            seen.append(log.look(now))
            self._say_once(str(log.path), log.trouble and f"{log.trouble}; the command goes on")
        for place in seen:
            if place is not None:
                self._take(
                    NewStep(
                        at=now,
                        step=place.step,
                        position=place.position,
                        rate=place.rate,
                        counted=place.counted,
                    )
                )

    def _section(self, now: float) -> str:
        """Return the slow section that a silent command is in, as far as it shows."""
        if self._state.phase != "running" or self._child is None:
            return ""
        if now - max(self._state.pace.since, self._state.pace.started) < _LEFT_ALONE_S:
            return ""
        section = section_of(self._output.tail(4096).decode("utf-8", "replace").splitlines())
        if section:
            return section
        usual = self._state.pace.median_s or 0.0
        if now - self._state.pace.since < 2.0 + usual:
            return ""
        written = written_bytes(members(self._child.id.token))
        before, self._written = self._written, written
        return "saving" if before and written - before > _SAVING_BYTES else ""

    # -- commands -----------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Begin():
                self._begin()
            case Stop():
                self._stop(stacks=command.stacks)
            case Forward():
                self._forward(command.signum)
            case WriteDown():
                self._write_down(command)
            case Alert():
                self._say(command.text)
                self._send(command)
            case MoveAside():
                self._set_aside()
            case PutBack():
                self._put_back()
            case Finish():
                self._finish(command.status)

    def _begin(self) -> None:
        if not self._chosen:
            self._choose()
        self._chosen = False
        restore = self._restore
        argv = resumed(self._job.argv, self._framework, restore)
        argv = self._without_hosts(argv)
        if self._state.rate_factor < 1:
            argv = with_rate(argv, self._framework, self._state.rate_factor)
        token = secrets.token_hex(8)
        self._output.begin()
        if self._progress is not None:
            self._progress.close()
        self._progress = OutputProgress(self._output)
        self._started_at = time.time()
        try:
            child = spawn(argv, self._environment(restore), token, self._on_end)
        except OSError as error:
            self._not_started(argv[0], error)
            return
        loaded = None if restore is None else (restore.step, restore.path)
        self._follow(child)
        self._take(Begun(at=time.monotonic(), loaded=loaded))
        self._remember(argv)

    def _choose(self) -> None:
        """Choose what the next attempt loads; the first one loads what its command says."""
        self._restore = None
        self._chosen = True
        if self._state.attempt == 0:
            return
        self._restore = self._newest(self._state.before)

    def _folder(self) -> Path | None:
        """Return where the checkpoints lie, as far as that is known."""
        return self._job.checkpoints or checkpoint_folder(self._job.argv, self._framework)

    def _newest(self, before: float | None) -> Restore | None:
        folder = self._folder()
        if folder is None:
            return None
        return newest(folder, refused=self._state.refused, before=before)

    def _environment(self, restore: Restore | None) -> dict[str, str]:
        environment = dict(os.environ)
        environment["TRIMTAB_SUPERVISE_DIR"] = str(self._job.folder.absolute())
        environment["TRIMTAB_ATTEMPT"] = str(self._state.attempt + 1)
        for name in ("TRIMTAB_RESUME_STEP", "TRIMTAB_RESUME_CHECKPOINT"):
            environment.pop(name, None)
        if restore is not None:
            environment["TRIMTAB_RESUME_STEP"] = str(restore.step)
            environment["TRIMTAB_RESUME_CHECKPOINT"] = restore.path
        if self._state.excluded:
            environment["TRIMTAB_EXCLUDE_HOSTS"] = ",".join(self._state.excluded)
        return environment

    def _without_hosts(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command with the hosts to be left out, where its launcher can."""
        if self._state.excluded and Path(argv[0]).name == "srun":
            at = with_flag(argv[:1], "--exclude", ",".join(self._state.excluded), "equals")
            return (*at, *(word for word in argv[1:] if not word.startswith("--exclude=")))
        return argv

    def _not_started(self, name: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        what = "there is no such command" if missing else f"cannot be run ({error.strerror})"
        text = f"{name}: {what}; correct the command after --"
        self._write("gave-up", **{"class": "user_error", "who": "config", "why": text})
        self._say(text)
        self._finish(NOT_FOUND_STATUS if missing else NOT_RUNNABLE_STATUS)

    def _follow(self, child: Child) -> None:
        self._child = child
        self._written = 0
        self._pumps = tuple(
            Pump(source, target, self._output)
            for source, target in zip(child.streams, (1, 2), strict=True)
        )
        for pump in self._pumps:
            pump.start()

    def _remember(self, argv: Sequence[str]) -> None:
        if self._child is None or self._lock is None:
            return
        holder = Holder(
            host=platform.node(),
            boot=boot_id(),
            attempt=self._state.attempt,
            child=self._child.id,
            argv=tuple(argv),
            loaded=self._state.loaded,
            failures=self._state.failures,
        )
        try:
            write_holder(self._job.folder, holder)
        except OSError as error:
            self._say_once(
                "holder",
                f"{self._job.folder}: cannot be written ({error.strerror}); the command goes on",
            )

    def _take_over(self) -> bool:
        """Deal with the command of a supervisor that was killed; tell whether it is ours now."""
        holder = read_holder(self._job.folder)
        if holder is None:
            return False
        left = members(holder.child.token)
        if not orphan(holder):
            if left and holder.host == platform.node():
                terminate(holder.child.token, 0, grace_s=self._settings.stop_grace_s)
                self._write("note", author="supervisor", text=f"ended {len(left)} left processes")
            self._state = replace(self._state, attempt=holder.attempt)
            return False
        self._state = replace(
            self._state,
            attempt=holder.attempt - (self._job.on_orphan == "adopt"),
            failures=holder.failures,
        )
        child = adopt(holder.child, self._on_end) if self._job.on_orphan == "adopt" else None
        where = f"process {holder.child.pid}, attempt {holder.attempt}"
        if child is None:
            self._state = replace(self._state, attempt=holder.attempt)
            self._say(f"a supervisor was killed here; its command ({where}) is ended and restarted")
            terminate(holder.child.token, 0, grace_s=self._settings.stop_grace_s)
            return False
        self._say(f"a supervisor was killed here; its command ({where}) goes on under this one")
        self._write("note", author="supervisor", text=f"took over {where}")
        self._progress = OutputProgress(self._output)
        self._started_at = time.time()
        self._follow(child)
        self._take(Begun(at=time.monotonic(), loaded=holder.loaded))
        return True

    def _on_end(self, code: int | None) -> None:
        ending = AttemptEnd(crash_class="", who="transient", why="", code=code)
        self._queue.put(Ended(at=time.monotonic(), ending=ending))

    def _wound_up(self, event: Ended) -> Ended:
        """Return the end with its reason, when the rest of the output is read."""
        assert self._child is not None
        deadline = time.monotonic() + _LAST_WORDS_S
        for pump in self._pumps:
            pump.join(max(deadline - time.monotonic(), 0.05))
            # What the command printed is all handed on, as a pipe would: not so what a process
            # prints later that the command left behind.
            while pump.is_alive() and pump.waits_for_reader:
                pump.join(0.05)
        self._say_once("copy", self._output.trouble)
        self._look(time.monotonic())
        code = event.ending.code
        if members(self._child.id.token) and (self._state.asked or code != 0):
            # What a person ended gets the time to save; after a crash nothing may stay behind.
            if self._state.asked:
                self._await_members(self._settings.stop_grace_s)
            self._end_all()
        ending = ending_of(
            self._output.lines(), code, kernel=kernel_lines(self._started_at) if code else ()
        )
        if code is None and not ending.line:
            # A command that was taken over is no child of ours: nobody can ask for its status.
            done = any(is_finish(line) for line in self._output.lines()[-_FINISH_LINES:])
            ending = replace(
                ending_of((), 0 if done else None),
                why="it says that training is complete" if done else "its status is not known",
            )
        self._child = None
        with contextlib.suppress(OSError):
            write_holder(self._job.folder, None)
        account = None if self._judge is None else self._judge.last_words()
        self._tell_alarms()
        numeric = None
        ours = self._state.asked or self._state.stopping_for is not None
        if ending.who == "numeric" and account is not None and not ours:
            numeric = self._numeric(account)
        return replace(event, at=time.monotonic(), ending=ending, numeric=numeric)

    def _await_members(self, seconds: float) -> None:
        assert self._child is not None
        deadline = time.monotonic() + seconds
        while members(self._child.id.token) and time.monotonic() < deadline:
            reap(self._child.id.pid)
            time.sleep(0.02)

    def _end_all(self) -> None:
        if self._child is None:
            return
        try:
            child = self._child.id
            terminate(child.token, child.pid, grace_s=self._settings.stop_grace_s)
        except ConfigError as error:
            self._say(str(error))

    def _stop(self, *, stacks: bool) -> None:
        if self._child is None:
            return
        if stacks:
            self._tell_stacks()
        self._end_all()

    def _tell_stacks(self) -> None:
        """Write down where every rank stands, and name the odd one."""
        assert self._child is not None
        found = take_stacks(members(self._child.id.token), self._output.tail)
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
        self._write(
            "note", author="supervisor", text=f"stacks: {names or 'no odd one'}", stacks=told
        )
        if names:
            self._say(f"hang: odd one of {len(found)}: {names}")
        if odd and self._state.stopping_for is not None:
            why = f"{self._state.stopping_for.why}; stands elsewhere: {names}"
            ending = replace(self._state.stopping_for, why=why, rank=odd[0].rank)
            self._state = replace(self._state, stopping_for=ending)

    def _forward(self, signum: int) -> None:
        """Hand a signal on: those that end to the whole group, as a terminal does."""
        if self._child is None:
            return
        child = self._child.id
        if not is_alive(child.pid, child.started):
            return
        with contextlib.suppress(OSError):
            if signum in _ENDING:
                os.killpg(child.pid, signum)
            else:
                os.kill(child.pid, signum)

    def _write_down(self, command: WriteDown) -> None:
        data = dict(command.data)
        if command.event == "restart":
            self._choose()
            data["checkpoint"] = None if self._restore is None else self._restore.path
            where = "as given" if self._restore is None else f"from {self._restore.path}"
            self._say(
                f"restart {self._state.attempt} · {data['class']}: {data['why']} ·"
                f" in {data['wait_s']:g} s, {where}"
            )
            if data.get("line"):
                self._say(f"  line: {data['line']}")
        elif command.event == "hang":
            self._say(f"hang · {data['why']}")
        self._write(command.event, **data)

    def _set_aside(self) -> None:
        """Move what lies after the checkpoint that is loaded aside: no trainer finds it there."""
        folder, restore = self._folder(), self._restore
        self._moved = None
        # Layouts that no framework owns have no pointer, and a script's own names are left alone.
        if folder is None or restore is None or restore.layout in _UNOWNED:
            return
        moved = set_aside(folder, restore, self._state.same)
        if isinstance(moved, Moved):
            self._moved = moved
        else:
            self._say_once(moved, moved)

    def _put_back(self) -> None:
        if self._moved is not None:
            trouble = put_back(self._moved)
            self._say_once(trouble, trouble)
        self._moved = None

    def _send(self, alert: Alert) -> None:
        self._alarm_for("gave-up", "critical" if alert.critical else "warning", alert.text)

    def _alarm_for(self, kind: str, severity: str, text: str) -> None:
        if self._alarm is None:
            return
        incident = {
            "kind": kind,
            "severity": severity,
            "attempt": f"{self._state.attempt}.0",
            "onset": self._state.step,
            "headline": text,
        }
        document = {"schema": 1, "path": str(self._job.folder), "event": "found", "id": 1}
        self._alarm.raise_for({**document, "text": text, "incident": incident})

    def _finish(self, status: int) -> None:
        if status == GAVE_UP_STATUS or self._child is not None:
            self._end_all()
        with contextlib.suppress(OSError):
            write_holder(self._job.folder, None)
        self._status = status
