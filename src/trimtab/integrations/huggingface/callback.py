"""A TrainerCallback that watches: it judges what the Trainer logs, and can end the run.

A callback has neither the batches nor the gradients, so it cannot go back within the process. It
records and judges what is logged, grades the Trainer's checkpoints, keeps the healthy ones while
something is wrong, and in `act` ends the run with a verdict, the poisoned checkpoints moved aside:
the same script with `resume_from_checkpoint=True` then resumes from a healthy one.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ConfigError
from trimtab.guard.port import to_stderr
from trimtab.incidents import group_findings
from trimtab.integrations.huggingface.checkpoints import complete, newest_before, set_aside_after
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.watching import RowWatch, first_sign
from trimtab.plan.policy import Policy
from trimtab.vocabulary import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Mode

__all__ = ["WatchCallback"]

_OTHER = ("eval_", "train_", "test_")
_PLACES = frozenset({"epoch", "step", "total_flos"})
_WATCHED_BY = "_trimtab_callback"
"""Attribute of the Trainer's state, which is made anew for each training: a reference to the
callback."""


class WatchCallback(TrainerCallback):
    """Watches a Trainer by its log; for recovery within the process see `GuardedTrainer`.

    One row for each time the Trainer logs a loss: with `logging_steps=1` for each step. Its losses
    are means over that interval, and with `logging_nan_inf_filter=True` (the Trainer's default) a
    NaN loss is not among them; the gradient's norm then shows it.

    Example::

        trainer.add_callback(WatchCallback(mode="act"))
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
            mode: observe: record and judge; advise: also print causes; act: also end the run.
            policy: Settings; of them count `mode` and `patience_steps`, here rows of the log.
            say: Shows one line to the user; default: standard error.
        """
        warn_of_version("transformers")
        policy = policy or Policy()
        self.policy = policy if mode is None else replace(policy, mode=mode)
        self._run = run
        self._say = say or to_stderr
        self._held: tuple[TrainingArguments, int | None] | None = None
        self._watch = self._new_watch()
        self._reported: set[tuple[str, str, int]] = set()

    @property
    def findings(self) -> Mapping[tuple[str, str, int], Finding]:
        """What is open or was found in the last training, by key."""
        return self._watch.findings

    # -- the Trainer's events -----------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Open the run directory; release that of an earlier training that was broken off.

        Raises:
            ConfigError: Another `WatchCallback` watches this training already.
        """
        self.close()
        self._watch = self._new_watch()
        self._reported.clear()
        other = getattr(state, _WATCHED_BY, _nobody)()
        if other is not None and other is not self:
            other.close()
            raise ConfigError(
                "two WatchCallbacks (GuardCallback is its older name) watch this training, and one"
                " is enough; remove one of them"
            )
        # A weak reference: the state must not keep a callback alive that the user has dropped.
        setattr(state, _WATCHED_BY, weakref.ref(self))
        if not self._watch.edge.run("journal", lambda: self._open(args, state)):
            self.close()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Record and judge what was logged; end the run if that is called for."""
        watch = self._watch
        # Evaluations and the summary at the end are logged by the same event, without a loss.
        if not watch.is_open or logs is None or "loss" not in logs:
            return
        values = _values(logs)
        step = int(state.global_step)
        for finding in watch.take_in(step, values):
            watch.edge.run("journal", lambda f=finding: self._report(f, step))  # type: ignore[misc]
        watch.edge.run("checkpoint", lambda: self._hold(args))
        if watch.may_stop:
            watch.edge.run("recovery", lambda: self._stop(args, step, control))

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Give the checkpoint just saved a manifest and a grade."""
        watch = self._watch
        if watch.is_open and state.is_world_process_zero:
            root, step, attempt = _output(args), int(state.global_step), watch.recorder.attempt
            watch.edge.run(
                "checkpoint",
                lambda: complete(root, step, attempt=attempt, alarmed=bool(watch.alarms)),
            )

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Write down how the training ended."""
        if self._watch.is_open:
            self._watch.edge.run("journal", lambda: self._end(args, int(state.global_step)))

    def close(self) -> None:
        """Release the run directory, and restore the Trainer's settings; twice is the same as once.

        It is done at the end of a training. One that an exception or Ctrl-C breaks off has no such
        event: call it then, or the next training with this callback does so when it begins.
        """
        if self._held is not None:
            (args, limit), self._held = self._held, None
            args.save_total_limit = limit
        self._watch.close()

    # -- inside -----------------------------------------------------------------------------

    def _new_watch(self) -> RowWatch:
        """Return a watch that knows nothing of an earlier training."""
        return RowWatch(policy=self.policy, source="the Trainer's log")

    def _open(self, args: TrainingArguments, state: TrainerState) -> None:
        root = Path(self._run) if self._run is not None else _output(args) / "trimtab"
        self._watch.open(root, writes=bool(state.is_world_process_zero))
        self._watch.start(int(state.global_step))

    def _report(self, finding: Finding, step: int) -> None:
        """Journal a finding; show the incident of a new alarm."""
        watch = self._watch
        watch.note(finding, step=step)
        if finding.severity == "info" or finding.key in self._reported or not watch.writes:
            return
        self._reported.add(finding.key)
        record = watch.read()
        # The record is read back from disk, as a later `inspect` will see it.
        incidents = group_findings(record, watch.findings.values())
        incident = next((i for i in reversed(incidents) if i.severity != "info"), None)
        if incident is None:
            return
        self._say(f"step {step:>6,}  {incident.headline}")
        if self.policy.mode != "observe":
            top = diagnose(record, incident).top
            self._say(f"             cause: {top.title} ({top.confidence:.2f})")

    def _hold(self, args: TrainingArguments) -> None:
        """Rotate no checkpoint away while an alarm is open: the newer ones may be of no use."""
        alarmed = bool(self._watch.alarms)
        if alarmed and self._held is None:
            self._held, args.save_total_limit = (args, args.save_total_limit), None
        elif not alarmed and self._held is not None:
            (_, args.save_total_limit), self._held = self._held, None

    def _stop(self, args: TrainingArguments, step: int, control: TrainerControl) -> None:
        watch = self._watch
        trouble = watch.trouble(scaled=bool(args.fp16))
        if not trouble:
            return
        # Not saved: the state is the one that is in trouble.
        control.should_training_stop, control.should_save = True, False
        watch.stop(step, trouble)
        if not watch.writes:
            return
        root, began = _output(args), first_sign(trouble)
        healthy = newest_before(root, began)
        set_aside_after(root, math.ceil(began) - 1, first_sign=began, why=watch.stopped)
        on = (
            f"resumes from checkpoint-{healthy}"
            if healthy
            else "starts from the beginning: no checkpoint is healthy"
        )
        self._say(
            f"step {step:>6,}  ending the run; with resume_from_checkpoint=True the script {on}"
        )
        self._write_verdict(args, step, healthy or 0)

    def _write_verdict(self, args: TrainingArguments, step: int, resume_step: int) -> None:
        watch = self._watch
        if watch.writes:
            watch.verdict(
                "given-up" if watch.stopped else "done",
                watch.stopped or "the Trainer has ended",
                step=step,
                steps=args.max_steps if args.max_steps > 0 else None,
                saved_step=resume_step,
            )

    def _end(self, args: TrainingArguments, step: int) -> None:
        watch = self._watch
        reason = watch.stopped or "the Trainer has ended"
        watch.recorder.event("end", step=step, final_step=step, reason=reason, wasted_steps=0.0)
        if not watch.stopped:
            self._write_verdict(args, step, newest_before(_output(args), math.inf) or 0)
        self.close()


def _nobody() -> WatchCallback | None:
    return None


def _output(args: TrainingArguments) -> Path:
    return Path(str(args.output_dir))


def _values(logs: Mapping[str, object]) -> dict[str, float]:
    """Return what was logged by canonical name; a name that is not known stays as it is."""
    return {
        canonical(name) or name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and name not in _PLACES and not name.startswith(_OTHER)
    }
