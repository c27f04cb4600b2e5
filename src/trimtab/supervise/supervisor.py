"""The one place that carries out what `update` decides."""

import contextlib
import math
import os
import platform
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from trimtab.analysis.account import RunAccount
from trimtab.chronicle.approvals import Mailbox, Said, mailbox_of
from trimtab.chronicle.journal import Journal, read_journal
from trimtab.chronicle.launch import write_launch
from trimtab.chronicle.run_lock import RunLock
from trimtab.chronicle.rundir import RunDirectory
from trimtab.crash.lines import is_finish
from trimtab.durable import make_folder
from trimtab.errors import ChronicleError, ConfigError
from trimtab.masking import masked_text
from trimtab.monitor.notifier import Alarm
from trimtab.plan.policy import Policy
from trimtab.record import RunRecord
from trimtab.supervise.aside import Moved, put_back, set_aside
from trimtab.supervise.ending import AttemptEnd, ending_of
from trimtab.supervise.holder import Holder, boot_id, orphan, read_holder, write_holder
from trimtab.supervise.keep import KeptCopies
from trimtab.supervise.kernel_log import kernel_lines
from trimtab.supervise.numeric import (
    Judged,
    LossBefore,
    NumberJudge,
    NumericAnswer,
    NumericChange,
    answer_numbers,
    choose_change,
    newest_level,
    raised_start,
    sum_up,
    trend_before,
)
from trimtab.supervise.processes import (
    FOLDER_NAME,
    Child,
    ChildId,
    adopt,
    become_subreaper,
    find_command,
    is_alive,
    members,
    name_of,
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
    not_known,
    rate_of,
    resumed,
    with_data,
    with_flag,
    with_rate,
)
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.slurm import is_requeued, signal_steps, srun_status
from trimtab.supervise.stacks import odd_ones, take_stacks
from trimtab.supervise.state import (
    Alert,
    Answered,
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
_MOST_NAMED = 8
_COPIES_KEPT = 6
"""Of a checkpoint that each save overwrites. Ours."""
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
        self._launched = self._rate_launched()
        self._launch: dict[str, str] = {}
        """What the command was last started with: machine, packages, code."""
        """By what the rate of this command exceeds that of the one before."""
        self._lock, self._journal = self._open()
        copy = None if self._journal is None else job.folder / "output.log"
        self._output = Output(copy, size_bytes=settings.output_size_bytes)
        self._progress: OutputProgress | None = None
        self._written = 0
        self._kept = self._keep_copies()
        self._answer: NumericAnswer | None = None
        """The answer whose outcome is not known yet."""
        self._trend: LossBefore | None = None
        self._verified = 0
        """The attempt of the log that was judged last."""
        self._asked_for: set[str] = set()
        """Incidents that a person was asked about."""
        self._mailbox = self._open_mailbox()
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
        waiting = self._state.request
        if waiting is not None:
            if answer_numbers(judged.account, self._policy) is None:
                gone = "the numbers came back by themselves"
                at = time.monotonic()
                self._take(Answered(at=at, id=waiting.id, answer="withdrawn", why=gone))
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

    def _numeric(self, account: RunAccount, *, broken_only: bool = False) -> Numeric | None:
        """Return the answer to broken numbers; None: wait, or not allowed, which is said once.

        Args:
            account: What was judged.
            broken_only: Whether only what no later step heals is answered.
        """
        state = self._state
        launched = 1.0 if state.numeric_restarts else self._launched
        answer = (
            answer_numbers(account, self._policy)
            or self._not_held(account.record)
            or raised_start(account.record, self._policy, launched)
        )
        if answer is None or (broken_only and not answer.lasting):
            return None
        by_step = answer.axis == "step"
        # What broke right after it was loaded may have been saved broken.
        relapsed = state.loaded is not None and answer.from_start
        loaded = state.loaded[0] if state.loaded is not None and relapsed else None
        known_places = (answer.before * by_step, state.before, loaded)
        before = min((b for b in known_places if b), default=None)
        epoch = answer.before if answer.axis == "epoch" else None
        known = by_step or epoch is not None
        restore = self._newest(before, before_epoch=epoch) if known else None
        # Where it broke before the first save, the beginning is what lies before the first sign.
        anew = known and restore is None and state.loaded is None
        goes_on = any(
            first is not None
            and last is not None
            and first <= answer.before <= last + self._policy.patience_steps
            for first, last in state.other_data
        )
        change = choose_change(
            account.record,
            self._policy,
            num_before=state.numeric_restarts,
            goes_on=goes_on,
            factor=state.rate_factor,
            argv=self._job.argv,
            framework=self._framework,
            step=None if restore is None else restore.step,
            row=answer.row,
            launched=launched,
        )
        if relapsed and restore is not None:
            why = "the checkpoint that it began from was broken; an older one"
            change = NumericChange(rate_factor=state.rate_factor, why=why)
        to_step = 0 if restore is None else restore.step
        lost = max(int(state.step) - to_step, 0) if by_step and state.step is not None else None
        costs = sum_up(answer, self._policy, lost=lost or 0, start=self._start_steps())
        if not answer.due and costs.wait <= costs.go:
            return None
        why_not = self._why_not(change, found=restore is not None or anew)
        key = f"{answer.kind} {answer.onset} {state.attempt}"
        if key in self._asked_for:
            return None
        if why_not or change is None:
            self._say_once(key, f"{answer.why} · not answered: {why_not}")
            return None
        allowed = self._policy.permissions
        if self._answer is None:
            self._trend = trend_before(account.record, answer.row, self._policy)
        self._answer = answer
        ask = tuple(c for c in self._classes(change) if allowed.permission(c) == "ask")
        if ask:
            self._asked_for.add(key)
        self._write(
            "decision",
            kind=answer.kind,
            why=f"{answer.why}; {change.why}",
            to_step=to_step,
            rate_factor=change.rate_factor,
            other_data=change.data,
            cost_steps=lost,
            sum=costs.text,
        )
        what = f"back to step {to_step}, rate x {change.rate_factor:g}"
        what += f"{', other data' if change.data else ''} ({change.why})"
        if not ask:
            self._say(f"{answer.why} · goes {what}; {costs.text}")
        ending = AttemptEnd(
            crash_class="numeric", who="numeric", why=answer.why, line=answer.headline
        )
        return Numeric(
            at=time.monotonic(),
            ending=ending,
            before=to_step + 1 if restore is not None else 0,
            rate_factor=change.rate_factor,
            other_data=change.data,
            ask=ask,
            what=f"go {what}",
            cost_steps=lost or 0,
            suspect=(answer.before, answer.through) if by_step else (None, None),
        )

    def _start_steps(self) -> float:
        """Return how many steps the start of this attempt took the time of; 0: not known."""
        pace = self._state.pace
        began = 0.0 if pace.first_at is None else pace.first_at - pace.started
        return began / pace.median_s if pace.median_s else 0.0

    def _rate_launched(self) -> float:
        """Return the rate of the command over that of the last one in this folder; 1: unknown."""
        now = rate_of(self._job.argv, self._framework)
        if now is None:
            return 1.0
        with contextlib.suppress(ChronicleError):
            events = read_journal(RunDirectory(self._job.folder).journal)[0]
            argv = next((e.data.get("argv") for e in reversed(events) if e.event == "start"), None)
            then = (
                rate_of(list(map(str, argv)), self._framework) if isinstance(argv, list) else None
            )
            if then is not None:
                return now[1] / then[1]
        return 1.0

    def _not_held(self, record: RunRecord) -> NumericAnswer | None:
        """Judge the answer before against the trend before it; return it where it did not hold."""
        trend, answer = self._trend, self._answer
        rows = self._policy.verify_steps
        if trend is None or answer is None or self._state.proof is not None:
            return None
        level = newest_level(record, rows=rows)
        attempt = len(record.attempts)
        if level is None or self._verified == attempt:
            return None
        self._verified = attempt
        held = level <= trend.limit
        told = f"loss {level:.4g} after {rows} rows, expected at most {trend.limit:.4g}"
        self._write("outcome", what="held" if held else "did not hold", why=told)
        self._say(f"the answer {'held' if held else 'did not hold'}: {told}")
        if held:
            self._trend = self._answer = None
            return None
        return replace(answer, why=f"the answer before did not hold: {told}")

    def _why_not(self, change: NumericChange | None, *, found: bool) -> str:
        """Return why an answer is not given; empty: it is, or a person is asked."""
        if self._policy.mode != "act":
            return f'mode is {self._policy.mode}; [policy] mode = "act" allows it'
        if not found:
            return "no whole checkpoint before the first sign is known; name them by --checkpoints"
        if change is None:
            return "a checkpoint brings its rate along here, and other data did not hold"
        if self._state.numeric_restarts >= self._policy.max_failures:
            return f"{self._state.numeric_restarts} answers before did not hold"
        for action in self._classes(change):
            why = self._policy.permissions.why_not(action)
            if why:
                return why
        return ""

    def _classes(self, change: NumericChange) -> tuple[str, ...]:
        """Return the classes of action of an answer to broken numbers."""
        classes = ["restart", "restore"]
        if change.rate_factor != self._state.rate_factor:
            classes += ["change-flags", "cut-rate"]
        if change.data:
            classes += ["change-flags", "skip-data"]
        return tuple(dict.fromkeys(classes))

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
        if not asks or self._lock is None:
            return None
        try:
            mailbox = Mailbox(mailbox_of(self._job.folder))
        except OSError as error:
            self._say(f"{self._job.folder}: no answer can be heard ({error.strerror})")
            return None
        while mailbox.read():
            pass
        return mailbox

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> int:
        become_subreaper()
        before = {s: signal.signal(s, self._on_signal) for s in (*_ENDING, *_PASSED_ON)}
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
            if self._progress is not None:
                self._progress.close()
            if self._mailbox is not None:
                self._mailbox.close()
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
        self._hear_answers()
        if self._child is not None:
            reap(self._child.id.pid)
            self._look(now)
            if self._kept is not None:
                self._kept.look(self._state.step)
                self._say_once("kept", self._kept.trouble)
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
        written = written_bytes(self._members())
        before, self._written = self._written, written
        return "saving" if before and written - before > _SAVING_BYTES else ""

    # -- commands -----------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Begin():
                self._begin()
            case Stop():
                self._stop(stacks=command.stacks, warned=command.warned)
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
        if self._kept is not None and restore is not None and Path(restore.path) != self._kept.file:
            trouble = self._kept.put_in_place(restore)
            self._say_once(trouble, trouble)
        argv = resumed(self._job.argv, self._framework, restore)
        kept = self._framework is None or not self._framework.data_once
        given = self._state.other_data if kept or self._state.proof is not None else ()
        for number, (first, last) in enumerate(given, 1):
            argv = with_data(argv, self._framework, number=number, first=first, last=last)
        argv = self._without_hosts(argv)
        if self._state.rate_factor < 1:
            argv = with_rate(argv, self._framework, self._state.rate_factor)
        self._record_launch()
        token = secrets.token_hex(8)
        self._output.begin()
        if self._progress is not None:
            self._progress.close()
        self._progress = OutputProgress(self._output)
        self._started_at = time.time()
        loaded = None if restore is None else (restore.step, restore.path)
        try:
            child = spawn(
                argv,
                self._environment(restore),
                token,
                self._on_end,
                lambda child: self._remember(child, argv, loaded),
            )
        except OSError as error:
            self._not_started(argv[0], error)
            return
        self._follow(child)
        self._take(Begun(at=time.monotonic(), loaded=loaded))

    def _record_launch(self) -> None:
        """Write down the command, the machine and the code; again where they changed since."""
        folder = self._job.folder
        name = f"supervise-{1 + sum(1 for _ in (folder / 'launch').glob('supervise-*'))}"
        told = write_launch(folder, name, argv=self._job.argv)
        if told == self._launch:
            shutil.rmtree(folder / "launch" / name, ignore_errors=True)
            return
        self._launch = told
        self._write(
            "start",
            argv=list(self._job.argv),
            folder=str(folder),
            launch=name,
            environment=told,
        )

    def _choose(self) -> None:
        """Choose what the next attempt loads; the first one loads what its command says."""
        self._restore = None
        self._chosen = True
        if self._job.checkpoints is not None and self._kept is None:
            self._say_once("checkpoints", not_known(self._job.checkpoints))
        first = self._state.attempt == 0 and not is_requeued(os.environ)
        if first or self._state.before == 0:
            return
        self._restore = self._newest(self._state.before)

    def _folder(self) -> Path | None:
        """Return where the checkpoints lie, as far as that is known."""
        return self._job.checkpoints or checkpoint_folder(self._job.argv, self._framework)

    def _newest(self, before: float | None, before_epoch: float | None = None) -> Restore | None:
        if self._kept is not None:
            return self._kept.newest(before, self._state.refused)
        folder = self._folder()
        if folder is None:
            return None
        return newest(folder, refused=self._state.refused, before=before, before_epoch=before_epoch)

    def _keep_copies(self) -> KeptCopies | None:
        """Return who keeps copies of a checkpoint that is overwritten; None: it is not."""
        folder = self._folder()
        if folder is None or self._framework is None or not self._framework.one_file:
            return None
        file = folder / self._framework.one_file
        return KeptCopies(file, self._job.folder / "kept", count=_COPIES_KEPT)

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
            Pump(source, target, self._output, target)
            for source, target in zip(child.streams, (1, 2), strict=True)
        )
        for pump in self._pumps:
            pump.start()

    def _remember(
        self, child: ChildId, argv: Sequence[str], loaded: tuple[int, str] | None
    ) -> None:
        """Write down who runs, before it does."""
        if self._lock is None:
            return
        holder = Holder(
            host=platform.node(),
            boot=boot_id(),
            attempt=self._state.attempt + 1,
            child=child,
            argv=tuple(argv),
            loaded=loaded,
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
        """Deal with the command of a supervisor that was killed; tell whether it is ours now.

        Raises:
            ChronicleError: The supervisor that started it lives.
        """
        holder = self._left_behind()
        if holder is None:
            return False
        child = holder.child
        # It ran: where no step comes from a checkpoint later, that is passed over for an older one.
        self._state = replace(self._state, position=-math.inf)
        if not orphan(holder):
            left = members(child.token)
            if left and holder.host == platform.node():
                terminate(child.token, 0, grace_s=self._settings.stop_grace_s)
                self._write("note", author="supervisor", text=f"ended {len(left)} left processes")
            if holder.host != platform.node():
                self._say(
                    f"a supervisor on {holder.host} did not come to its end; its command was"
                    f" process {child.pid} there: make sure that it does not run any more"
                )
            self._state = replace(self._state, attempt=holder.attempt)
            return False
        self._state = replace(
            self._state,
            attempt=holder.attempt - (self._job.on_orphan == "adopt"),
            failures=holder.failures,
        )
        taken = adopt(child, self._on_end) if self._job.on_orphan == "adopt" else None
        where = f"process {child.pid}, attempt {holder.attempt}"
        if taken is None:
            self._state = replace(self._state, attempt=holder.attempt)
            self._say(f"a supervisor was killed here; its command ({where}) is ended and restarted")
            terminate(child.token, child.pid, grace_s=self._settings.stop_grace_s)
            return False
        self._say(f"a supervisor was killed here; its command ({where}) goes on under this one")
        self._write("note", author="supervisor", text=f"took over {where}")
        self._progress = OutputProgress(self._output)
        self._started_at = time.time()
        self._follow(taken)
        self._take(Begun(at=time.monotonic(), loaded=holder.loaded))
        return True

    def _left_behind(self) -> Holder | None:
        """Return the command of this folder that runs, or ran when its supervisor was killed.

        What a supervisor could not write down, on a full disk, the processes tell themselves.
        """
        holder = read_holder(self._job.folder)
        seen = find_command(self._job.folder)
        if seen is None:
            return holder
        if is_alive(*seen.supervisor):
            raise ChronicleError(
                f"{self._job.folder}: process {seen.supervisor[0]} supervises a command there"
                f" (process {seen.child.pid}), and one command has one supervisor; wait for it, or"
                " give another --run"
            )
        if holder is not None and holder.child.pid == seen.child.pid:
            return holder
        return Holder(
            host=platform.node(),
            boot=boot_id(),
            attempt=seen.attempt,
            child=seen.child,
            argv=(),
            loaded=None,
            failures=0,
        )

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
        code = srun_status(event.ending.code, self._output.lines())
        left = self._members()
        if left and (self._state.asked or code != 0):
            # What a person ended gets the time to save; after a crash nothing may stay behind.
            if self._state.asked:
                self._await_members(self._settings.stop_grace_s)
            self._end_all()
        elif left:
            self._tell_left(left)
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
        done = not ending.crash_class
        if account is not None and not ours and (done or ending.who == "numeric"):
            # Done with weights that are not finite is not done.
            numeric = self._numeric(account, broken_only=done)
        if numeric is not None and numeric.ask:
            self._say(f"{numeric.what}: not done, a person must allow it; the command has ended")
            numeric = None
        return replace(event, at=time.monotonic(), ending=ending, numeric=numeric)

    def _members(self) -> list[int]:
        """Return the processes of the command that live."""
        return [] if self._child is None else members(self._child.id.token, self._child.id.pid)

    def _tell_left(self, left: Sequence[int]) -> None:
        """Say that a command is done and processes of it are not: a board, or a worker that hangs.

        They are left alone: what was started in the background on purpose is not ours to end.
        """
        names = ", ".join(f"{pid} ({name_of(pid)})" for pid in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if left[_MOST_NAMED:] else ""
        text = f"{len(left)} processes of the command, which is done, still run: {names}{more}"
        self._write("note", author="supervisor", text=text, pids=list(left[:_MOST_NAMED]))
        self._say(f"{text}; they are left alone, end them with kill where they are not wanted")

    def _await_members(self, seconds: float) -> None:
        assert self._child is not None
        deadline = time.monotonic() + seconds
        while self._members() and time.monotonic() < deadline:
            reap(self._child.id.pid)
            time.sleep(0.02)

    def _end_all(self, *, warned: bool = False) -> None:
        if self._child is None:
            return
        try:
            child = self._child.id
            grace_s = 0.0 if warned else self._settings.stop_grace_s
            terminate(child.token, child.pid, grace_s=grace_s)
        except ConfigError as error:
            self._say(str(error))

    def _stop(self, *, stacks: bool, warned: bool) -> None:
        if self._child is None:
            return
        if stacks:
            self._tell_stacks()
        self._end_all(warned=warned)

    def _tell_stacks(self) -> None:
        """Write down where every rank stands, and name the odd one."""
        assert self._child is not None
        found = take_stacks(self._members(), self._output.tail)
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
            if signum in _ENDING and signal_steps(self._job.argv, signum, os.environ):
                return
            if signum in _ENDING:
                os.killpg(child.pid, signum)
            else:
                os.kill(child.pid, signum)

    def _write_down(self, command: WriteDown) -> None:
        data = dict(command.data)
        if command.event in ("restart", "gave-up", "end"):
            data |= self._state.pace.times(time.monotonic())  # what trimtab goodput sums up
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
        elif command.event == "note":
            self._say(str(data["text"]))
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
