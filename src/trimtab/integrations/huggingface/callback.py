"""The guard as a plain TrainerCallback: it sees what the Trainer logs, and can stop the run.

A callback has neither the batches nor the gradients, so it cannot go back within the process. It
records and judges what is logged, grades the Trainer's checkpoints, keeps the healthy ones while
something is wrong, and in `act` ends the run with a verdict, the poisoned checkpoints moved aside:
the same script with `resume_from_checkpoint=True` then goes on from a healthy one.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.judge import Judge
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ConfigError, ReadError
from trimtab.guard.loop.exit_status import write_verdict
from trimtab.guard.recording.fault_barrier import Edge, to_stderr
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.run_lock import RunLock
from trimtab.guard.recovery.triage import is_trouble, speaks_of_state
from trimtab.incidents import group_findings
from trimtab.integrations.huggingface.checkpoints import complete, newest_before, set_aside_after
from trimtab.integrations.packages import warn_of_version
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory
from trimtab.vocabulary import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.detectors.contract import Finding
    from trimtab.incidents import Incident
    from trimtab.plan.policy import Mode

__all__ = ["GuardCallback"]

_OTHER = ("eval_", "train_", "test_")
_PLACES = frozenset({"epoch", "step", "total_flos"})
_WATCHED_BY = "_trimtab_callback"
"""Attribute of the Trainer's state, which is made anew for each training: a reference to the
callback."""


class GuardCallback(TrainerCallback):
    """Watches a Trainer by its log; for recovery within the process see `GuardedTrainer`.

    One row for each time the Trainer logs a loss: with `logging_steps=1` for each step. Its losses
    are means over that interval, and with `logging_nan_inf_filter=True` (the Trainer's default) a
    NaN loss is not among them; the gradient's norm then tells.

    Example::

        trainer.add_callback(GuardCallback(mode="act"))
    """

    def __init__(
        self,
        run: str | Path | None = None,
        *,
        mode: Mode | None = None,
        policy: Policy | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Set up; nothing is written before training begins.

        Args:
            run: Run directory; None: `trimtab` in the Trainer's output directory.
            mode: observe: record and judge; advise: also say causes; act: also end the run.
            policy: Settings; of them count `mode` and `patience_steps`, here rows of the log.
            say: Shows one line to the user; default: standard error.
        """
        warn_of_version("transformers")
        policy = policy or Policy()
        self.policy = policy if mode is None else replace(policy, mode=mode)
        self._run = run
        self._say = say or to_stderr
        self._recorder: Recorder | None = None
        self._lock: RunLock | None = None
        self._judge = Judge()
        self._held: tuple[Any, int | None] | None = None
        self._forget()

    # -- the Trainer's events -----------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Open the run directory, letting go of a training before that was broken off.

        Raises:
            ConfigError: Another `GuardCallback` watches this training already.
        """
        self.close()
        self._forget()
        other = getattr(state, _WATCHED_BY, _nobody)()
        if other is not None and other is not self:
            other.close()
            raise ConfigError(
                "two GuardCallbacks watch this training, and one is enough; take one of them out"
            )
        setattr(state, _WATCHED_BY, weakref.ref(self))
        if not self._edge.run("journal", lambda: self._open(args, state)):
            self.close()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Record and judge what was logged; end the run where that is called for."""
        if self._recorder is None or logs is None or "loss" not in logs:
            return
        values = _values(logs)
        found: list[Finding] = []
        step = int(state.global_step)
        if not self._edge.run("record", lambda: self._record(step, values)):
            return
        self._edge.run("judge", lambda: found.extend(self._judge_row(step, values)))
        for finding in found:
            self.findings[finding.key] = finding
            self._edge.run("journal", lambda f=finding: self._tell(f, step))  # type: ignore[misc]
        self._edge.run("checkpoint", lambda: self._hold(args))
        if self.policy.mode == "act" and not self._edge.stood_down and not self._stopped:
            self._edge.run("recovery", lambda: self._stop(args, step, control))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Give the checkpoint just saved a manifest and a grade."""
        if self._recorder is not None and state.is_world_process_zero:
            step, attempt = int(state.global_step), self._recorder.attempt
            self._edge.run(
                "checkpoint",
                lambda: complete(
                    Path(args.output_dir), step, attempt=attempt, alarmed=bool(self._alarms())
                ),
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Write down how it ended."""
        if self._recorder is not None:
            self._edge.run("journal", lambda: self._close(args, int(state.global_step)))

    def close(self) -> None:
        """Let go of the run directory, and put the Trainer's settings back.

        Done twice, nothing changes.

        Done at the end of a training. One that an exception or Ctrl-C breaks off has no such event:
        call it then, or let the next training do so at its begin.
        """
        if self._held is not None:
            (args, limit), self._held = self._held, None
            args.save_total_limit = limit
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- inside -----------------------------------------------------------------------------

    def _forget(self) -> None:
        """Know nothing of a training before."""
        self._edge = Edge(journal=self._journal_fault, stand_down=lambda: None, note=lambda: True)
        self.findings: dict[tuple[str, str, int], Finding] = {}
        """What is open or was found in the last training, by key."""
        self._told: set[tuple[str, str, int]] = set()
        self._stopped = ""
        self._row = 0

    def _open(self, args: Any, state: Any) -> None:
        root = Path(self._run) if self._run is not None else Path(args.output_dir) / "trimtab"
        chief, directory = bool(state.is_world_process_zero), RunDirectory(root)
        number, parent = 0, None
        try:
            record = read_run_directory(root)
            self._row, number = record.num_rows, len(record.attempts)
            parent = record.attempts[-1].number if record.attempts else None
        except ReadError:  # nothing is there yet
            self._row = 0
        self._state = self._judge.start()
        self._lock = RunLock(root) if chief else None
        self._recorder = Recorder(directory, writes=chief)
        step = int(state.global_step)
        self._recorder.settings({"mode": self.policy.mode, "source": "the Trainer's log"})
        self._recorder.start_attempt(
            f"1.{number}",
            step=step,
            parent=parent,
            parent_step=step if parent else None,
            why="resumed after a stop" if parent else "start",
            trial=False,
        )

    def _record(self, step: int, values: dict[str, float]) -> None:
        assert self._recorder is not None
        self._recorder.sample(step, values, {})
        self._row += 1

    def _judge_row(self, step: int, values: dict[str, float]) -> tuple[Finding, ...]:
        self._state, found = self._judge.update(self._state, self._row - 1, float(step), values)
        return found

    def _tell(self, finding: Finding, step: int) -> None:
        assert self._recorder is not None
        self._recorder.finding(finding, step=step)
        if (
            finding.severity == "info"
            or finding.key in self._told
            or self._recorder.journal is None
        ):
            return
        self._told.add(finding.key)
        incident = self._incident()
        if incident is None:
            return
        self._say(f"step {step:>6,}  {incident.headline}")
        if self.policy.mode != "observe":
            record = read_run_directory(self._recorder.directory.root)
            top = diagnose(record, incident).top
            self._say(f"             cause: {top.title} ({top.confidence:.2f})")

    def _incident(self) -> Incident | None:
        """Return the newest incident that is more than information, from the record on disk."""
        assert self._recorder is not None
        record = read_run_directory(self._recorder.directory.root)
        incidents = group_findings(record, self.findings.values())
        return next((i for i in reversed(incidents) if i.severity != "info"), None)

    def _alarms(self) -> list[Finding]:
        return [
            f
            for f in self.findings.values()
            if f.severity != "info" and not f.closed and f.end_row is None and speaks_of_state(f)
        ]

    def _hold(self, args: Any) -> None:
        """Rotate no checkpoint away while an alarm is open: the newer ones may be of no use."""
        if self._alarms() and self._held is None:
            self._held, args.save_total_limit = (args, args.save_total_limit), None
        elif not self._alarms() and self._held is not None:
            (_, args.save_total_limit), self._held = self._held, None

    def _stop(self, args: Any, step: int, control: Any) -> None:
        row, patience = self._row - 1, self.policy.patience_steps
        trouble = [
            f
            for f in self._alarms()
            if is_trouble(f, row - f.onset_row, patience, last=False, scaled=bool(args.fp16))
        ]
        if not trouble:
            return
        first_sign = min(f.onset for f in trouble)
        self._stopped = trouble[0].text
        control.should_training_stop, control.should_save = True, False
        assert self._recorder is not None
        if self._recorder.journal is None:
            return
        root = Path(args.output_dir)
        healthy = newest_before(root, first_sign)
        set_aside_after(root, math.ceil(first_sign) - 1, first_sign=first_sign, why=self._stopped)
        self._recorder.event(
            "decision", step=step, what="end the run", why=self._stopped, evidence=[]
        )
        on = (
            f"goes on from checkpoint-{healthy}"
            if healthy
            else "begins anew: no checkpoint is healthy"
        )
        self._say(
            f"step {step:>6,}  ending the run; with resume_from_checkpoint=True the script {on}"
        )
        self._verdict(args, step, healthy or 0)

    def _verdict(self, args: Any, step: int, resume_step: int) -> None:
        assert self._recorder is not None
        if self._recorder.journal is not None:
            write_verdict(
                self._recorder.directory.root,
                state="given-up" if self._stopped else "done",
                reason=self._stopped or "the Trainer has ended",
                step=step,
                steps=args.max_steps if args.max_steps > 0 else None,
                saved_step=resume_step,
                attempt=self._recorder.attempt,
            )

    def _close(self, args: Any, step: int) -> None:
        assert self._recorder is not None
        reason = self._stopped or "the Trainer has ended"
        self._recorder.event("end", step=step, final_step=step, reason=reason, wasted_steps=0.0)
        if not self._stopped:
            self._verdict(args, step, newest_before(Path(args.output_dir), math.inf) or 0)
        self.close()

    def _journal_fault(self, error: str, part: str) -> None:
        if self._recorder is not None:
            self._recorder.event("fault", step=self._row, error=error, where=part)


def _nobody() -> GuardCallback | None:
    return None


def _values(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what was logged by canonical name; a name that nobody knows stays as it is."""
    return {
        canonical(name) or name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and name not in _PLACES and not name.startswith(_OTHER)
    }
