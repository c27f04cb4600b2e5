"""The command that runs now: its processes, its output, and who it is on disk."""

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from trimtab.errors import ConfigError
from trimtab.supervise.holder import Holder, boot_id, write_holder
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.processes import (
    Child,
    ChildId,
    adopt,
    is_alive,
    is_stopped,
    members,
    reap,
    spawn,
    terminate,
    worked_s,
    written_bytes,
)
from trimtab.supervise.progress import OutputProgress, Seen
from trimtab.supervise.slurm import signal_steps
from trimtab.supervise.stacks import Stack, take_stacks
from trimtab.supervise.state import JobState
from trimtab.supervise.streams import Output, Pump

__all__ = ["ENDING", "RunningCommand"]

ENDING = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_S = 2.0
"""How long the rest of the output is waited for after the end of the command."""
_SAVING_BYTES = 1 << 20
"""Bytes written from one look to the next from which on a run is saving. Ours: a log line is a
thousand times smaller."""


_WORKS_SHARE = 0.25
"""Share of one processor from which on a process works. Ours: a launcher or a rank that waits for
the others polls, at some hundredths."""
_WORKED_WITHIN_S, _WORKED_LEAST_S = 4.0, 0.9
"""Time over which that is measured, and the least that tells."""


class RunningCommand:
    """At most one command at a time."""

    def __init__(
        self,
        argv: tuple[str, ...],
        notes: SupervisorNotes,
        output: Output,
        on_end: Callable[[int | None], None],
        *,
        grace_s: float,
    ) -> None:
        """Keep the command as it was given, and whom to tell of its end."""
        self._argv, self._notes, self.output = argv, notes, output
        self._on_end, self._grace_s = on_end, grace_s
        self._child: ChildId | None = None
        self._pumps: tuple[Pump, ...] = ()
        self._progress: OutputProgress | None = None
        self._written = 0
        self._worked: list[tuple[float, dict[int, float]]] = []
        """When, and how long each process had worked by then."""
        self.started_at = 0.0
        """Seconds since the epoch."""

    @property
    def runs(self) -> bool:
        """Whether there is one whose end was not told."""
        return self._child is not None

    @property
    def is_stopped(self) -> bool:
        """Whether its own process was stopped by a signal."""
        return self._child is not None and is_stopped(self._child.pid)

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        token: str,
        state: JobState,
        loaded: tuple[int, str] | None,
    ) -> None:
        """Start it.

        Raises:
            OSError: It cannot be started.
        """
        self.output.begin()
        self._follow_output()
        self._follow(
            spawn(
                argv,
                environment,
                token,
                self._on_end,
                lambda child: self._remember(child, state, loaded),
            )
        )

    def take_over(self, child: ChildId) -> bool:
        """Go on with one that another supervisor started; false: its output is out of reach."""
        taken = adopt(child, self._on_end)
        if taken is None:
            return False
        self._follow_output()
        self._follow(taken)
        return True

    def _follow_output(self) -> None:
        self.close()
        self._progress = OutputProgress(self.output)
        self.started_at = time.time()

    def _follow(self, child: Child) -> None:
        self._child = child.id
        self._written = 0
        self._pumps = tuple(
            Pump(source, target, self.output, target)
            for source, target in zip(child.streams, (1, 2), strict=True)
        )
        for pump in self._pumps:
            pump.start()

    def _remember(self, child: ChildId, state: JobState, loaded: tuple[int, str] | None) -> None:
        """Write down who runs, before it does."""
        if self._notes.lock is None:
            return
        holder = Holder(
            host=platform.node(),
            boot=boot_id(),
            attempt=state.attempt + 1,
            child=child,
            argv=self._argv,
            loaded=loaded,
            failures=state.failures,
        )
        folder = self._notes.folder
        try:
            write_holder(folder, holder)
        except OSError as error:
            text = f"{folder}: cannot be written ({error.strerror}); the command goes on"
            self._notes.say_once("holder", text)

    def forget(self) -> None:
        """Note that nothing runs any more."""
        self._child = None
        with contextlib.suppress(OSError):
            write_holder(self._notes.folder, None)

    def look(self) -> Seen | None:
        """Return where it stands by its output, if a new row came since the last look."""
        if self._child is not None:
            reap(self._child.pid)
        return None if self._progress is None else self._progress.look()

    def members(self) -> list[int]:
        """Return its processes that live."""
        return [] if self._child is None else members(self._child.token, self._child.pid)

    def is_saving(self) -> bool:
        """Tell whether it wrote much since the last look."""
        written = written_bytes(self.members())
        before, self._written = self._written, written
        return bool(before) and written - before > _SAVING_BYTES

    def is_busy(self, now: float) -> bool:
        """Tell whether a process of it worked in the last seconds; to be asked again and again."""
        seen = {pid: worked_s(pid) for pid in self.members()}
        kept = [w for w in self._worked if w[0] >= now - _WORKED_WITHIN_S]
        self._worked = [*kept, (now, seen)]
        since, then = self._worked[0]
        if not seen:  # it has just ended, and its end is not told yet
            return True
        if now - since < _WORKED_LEAST_S:
            return False
        least = _WORKS_SHARE * (now - since)
        return any(worked - then.get(pid, 0.0) >= least for pid, worked in seen.items())

    def stacks(self) -> tuple[Stack, ...]:
        """Return where each of its processes stands."""
        return take_stacks(self.members(), self.output.tail)

    def drain(self) -> None:
        """Wait for the rest of the output, once it ended."""
        deadline = time.monotonic() + _LAST_WORDS_S
        for pump in self._pumps:
            pump.join(max(deadline - time.monotonic(), 0.05))
            # What the command printed is all handed on, as a pipe would: not so what a process
            # prints later that the command left behind.
            while pump.is_alive() and pump.waits_for_reader:
                pump.join(0.05)

    def await_members(self) -> None:
        """Give its processes the grace to end by themselves."""
        assert self._child is not None
        deadline = time.monotonic() + self._grace_s
        while self.members() and time.monotonic() < deadline:
            reap(self._child.pid)
            time.sleep(0.02)

    def end_all(self, *, warned: bool = False) -> None:
        """End its processes; where they were `warned`, they had their time."""
        if self._child is None:
            return
        try:
            grace_s = 0.0 if warned else self._grace_s
            terminate(self._child.token, self._child.pid, grace_s=grace_s)
        except ConfigError as error:
            self._notes.say(str(error))

    def forward(self, signum: int) -> None:
        """Hand a signal on: those that end to the whole group, as a terminal does."""
        child = self._child
        if child is None or not is_alive(child.pid, child.started):
            return
        with contextlib.suppress(OSError):
            if signum not in ENDING:
                os.kill(child.pid, signum)
            elif not signal_steps(self._argv, signum, os.environ):
                os.killpg(child.pid, signum)

    def close(self) -> None:
        """Remove what is on disk for it."""
        if self._progress is not None:
            self._progress.close()
