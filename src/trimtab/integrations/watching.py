"""Rows of a trainer that cannot go back: recorded, judged, and the run ended if it must be.

The callbacks and hooks that only watch share this. They know what the trainer logs, but have
neither its batches nor its optimizer's step, so a rollback within the process is not possible.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.judge import Judge
from trimtab.errors import ReadError
from trimtab.guard.loop.exit_status import write_verdict
from trimtab.guard.recording.fault_barrier import Edge
from trimtab.guard.recording.fault_events import FaultEvents
from trimtab.guard.recording.judged_steps import JudgedSteps
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.run_lock import RunLock
from trimtab.guard.recovery.triage import is_trouble, speaks_of_state
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trimtab.detectors.contract import Finding
    from trimtab.guard.loop.exit_status import State
    from trimtab.guard.port import Ranks
    from trimtab.plan.policy import Policy
    from trimtab.record import RunRecord

__all__ = ["RowWatch", "first_sign"]


class RowWatch:
    """Records and judges rows, and decides when to end the run."""

    def __init__(self, *, policy: Policy, source: str) -> None:
        """Set up; nothing is written before `open`.

        Args:
            policy: Of it count `mode` and `patience_steps`, here in rows.
            source: Where the rows come from, for the record.
        """
        self.policy = policy
        judged = JudgedSteps(lambda: self._step, lambda: "")
        events = FaultEvents(lambda: self.recorder, step=lambda: self._step, judged=judged)
        self.edge = Edge(events, alone=True, step=lambda: self._step)
        """Runs our own work: an internal error in it is journalled and stops no training."""
        self.findings: dict[tuple[str, str, int], Finding] = {}
        """What is open or was found, by key."""
        self.stopped = ""
        """Why the run is to end; empty while it is not."""
        self.row = 0
        """Rows so far."""
        self._source = source
        self._judge = Judge()
        self._state = self._judge.start()
        self._recorder: Recorder | None = None
        self._lock: RunLock | None = None
        self._step = 0

    # -- the run directory ----------------------------------------------------------------------

    def open(self, root: Path, *, writes: bool, ranks: Ranks | None = None) -> None:
        """Lock and open a run directory.

        Args:
            root: Where to record.
            writes: False on all ranks but the first: nothing is written there.
            ranks: Makes a failure on one rank a failure on all, if given; then all must call.

        Raises:
            ChronicleError: It cannot be written, or another process is writing to it.
        """
        directory = RunDirectory(root)
        if ranks is None:
            lock = self._lock = RunLock(root) if writes else None
            self._recorder = Recorder(directory, writes=writes, lock=lock)
        else:
            lock = self._lock = ranks.on_chief(lambda: RunLock(root))
            self._recorder = ranks.together(lambda: Recorder(directory, writes=writes, lock=lock))
        self._recorder.on_lost = lambda error: self.edge.note("journal", error)

    def start(self, step: int) -> None:
        """Begin an attempt after `step`: the first, or one more of the run that is there."""
        number, parent = 0, None
        try:
            record = self.read()
            self.row, number = record.num_rows, len(record.attempts)
            parent = record.attempts[-1].number if record.attempts else None
        except ReadError:  # a new directory
            self.row = 0
        self._step = step
        recorder = self.recorder
        recorder.settings({"mode": self.policy.mode, "source": self._source})
        recorder.start_attempt(
            f"1.{number}",
            step=step,
            parent=parent,
            parent_step=step if parent else None,
            why="resumed after a stop" if parent else "start",
            trial=False,
        )
        recorder.hold_events(partial(self.edge.note, "journal"))

    @property
    def recorder(self) -> Recorder:
        """The recorder of the run directory, which must be open."""
        assert self._recorder is not None
        return self._recorder

    @property
    def is_open(self) -> bool:
        """Whether a run directory is open."""
        return self._recorder is not None

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run down."""
        return self._recorder is not None and self._recorder.journal is not None

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.recorder.directory.root

    def read(self) -> RunRecord:
        """Return the run as it is on disk.

        Raises:
            ReadError: Nothing is recorded yet.
        """
        return read_run_directory(self.root)

    def close(self) -> None:
        """Close the files and release the run directory; a second call does nothing."""
        if self._recorder is not None:
            self.edge.run("rows", self._recorder.write_rows, retried=True, now=True)
            self.edge.run("journal", self._recorder.write_events, retried=True, now=True)
            self._recorder.close()
            self._recorder = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- rows -------------------------------------------------------------------------------------

    def take_in(self, step: int, values: Mapping[str, float]) -> tuple[Finding, ...]:
        """Record and judge a row, each as far as it goes; return what was found."""
        edge = self.edge
        found: list[Finding] = []
        edge.hear(edge.begin_step())
        if edge.run("record", lambda: self._record(step, values), retried=True):
            edge.run("judge", lambda: found.extend(self._judged(step, values)), retried=True)
        edge.run("rows", self.recorder.write_rows, retried=True)
        edge.run("journal", self.recorder.write_events, retried=True)
        return tuple(found)

    def _record(self, step: int, values: Mapping[str, float]) -> None:
        self.recorder.sample(step, values, {})
        self.row += 1
        self._step = step

    def _judged(self, step: int, values: Mapping[str, float]) -> tuple[Finding, ...]:
        self._state, found = self._judge.update(self._state, self.row - 1, float(step), values)
        return found

    def note(self, finding: Finding, *, step: int) -> bool:
        """Keep and journal a finding; return whether it is a new one."""
        is_new = finding.key not in self.findings
        self.findings[finding.key] = finding
        self.recorder.finding(finding, step=step)
        return is_new

    @property
    def alarms(self) -> list[Finding]:
        """Open findings that put the weights in doubt."""
        return [
            f
            for f in self.findings.values()
            if f.severity != "info" and not f.closed and f.end_row is None and speaks_of_state(f)
        ]

    # -- the end ----------------------------------------------------------------------------------

    def trouble(self, *, scaled: bool) -> list[Finding]:
        """Return the alarms that have outlasted the patience.

        Args:
            scaled: Whether a loss scaler is in use, with which overflowing gradients are normal.
        """
        row, patience = self.row - 1, self.policy.patience_steps
        return [
            f
            for f in self.alarms
            if is_trouble(f, row - f.onset_row, patience, last=False, scaled=scaled)
        ]

    @property
    def may_stop(self) -> bool:
        """Whether ending the run is allowed, and not decided yet."""
        return self.policy.mode == "act" and not self.edge.stood_down and not self.stopped

    def stop(self, step: int, trouble: Sequence[Finding]) -> None:
        """Decide to end the run, and journal why."""
        self.stopped = trouble[0].text
        self.recorder.event(
            "decision", step=step, what="end the run", why=self.stopped, evidence=[]
        )

    def verdict(
        self, state: State, reason: str, *, step: int, steps: int | None, saved_step: int
    ) -> None:
        """Write `verdict.json`.

        Raises:
            OSError: It cannot be written.
        """
        if self.recorder.lost:
            return
        write_verdict(
            self.root,
            state=state,
            reason=reason,
            step=step,
            steps=steps,
            saved_step=saved_step,
            attempt=self.recorder.attempt,
        )


def first_sign(trouble: Sequence[Finding]) -> float:
    """Return the step of the earliest onset; infinity without any."""
    return min((f.onset for f in trouble), default=math.inf)
