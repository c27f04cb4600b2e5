"""What follows a step: record, judge, recover, snapshot, checkpoint."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from trimtab.guard.recovery.triage import puts_in_doubt

if TYPE_CHECKING:
    from trimtab.detectors.contract import Finding
    from trimtab.guard.loop.messages import Messages
    from trimtab.guard.loop.resume_check import ReplayCheck
    from trimtab.guard.loop.run_status import RunStatus
    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.step.run_context import RunContext
    from trimtab.guard.step.step_recorder import StepRow

__all__ = ["AfterStep"]


class AfterStep:
    """Does what follows a step, each part by itself, so that a fault in one spares the next."""

    def __init__(
        self,
        parts: RunContext,
        *,
        recovery: Recovery,
        edge: Edge,
        messages: Messages,
        status: RunStatus,
        check: ReplayCheck | None,
        steps: int | None,
    ) -> None:
        """Follow the steps of a run.

        Args:
            parts: Of the run.
            recovery: Decides what is done about trouble.
            edge: Keeps a fault of ours from stopping the run.
            messages: Tell the user.
            status: Says what a restart would go on from.
            check: The resume check at the start of the run; None: there is none.
            steps: Of the whole run, where known.
        """
        self._parts = parts
        self._recovery = recovery
        self._edge = edge
        self._messages = messages
        self._status = status
        self._check = check
        self._steps = steps

    @property
    def acting(self) -> bool:
        """Whether anything may be done to the run."""
        return self._parts.policy.mode == "act" and not self._edge.stood_down

    @property
    def done(self) -> bool:
        """Whether all steps of the run are done."""
        return self._steps is not None and self._parts.state.counters.step >= self._steps

    @property
    def check(self) -> ReplayCheck | None:
        """The resume check, while it is under way."""
        return self._check if self._check is not None and self._check.active else None

    @property
    def unsettled(self) -> bool:
        """Whether something is under way or in doubt: recovery, or the resume check."""
        return self._recovery.busy or self._recovery.unsettled or self.check is not None

    @property
    def looks_closely(self) -> bool:
        """Whether early signs are to be read more often; the same on all ranks."""
        return self._recovery.busy or self._recovery.unsettled

    def begin_check(self) -> None:
        """Save the state that the resume check goes back to; a check that cannot is left out."""
        if self._check is not None and not self._edge.run("checkpoint", self._check.begin):
            self._check = None

    # -- record and judge -------------------------------------------------------------------

    def record_and_judge(self, row: StepRow) -> tuple[Finding, ...]:
        """Write a step down and judge it; return what was found."""
        parts, edge, recovery = self._parts, self._edge, self._recovery
        step = parts.state.counters.step
        # First: the flag came with the pooled step, so all ranks drop to `observe` at the same one.
        self.stand_down_together()
        edge.run("probes", lambda: parts.rows.add_probes(row))
        if row.layers:
            edge.run("record", lambda: parts.recorder.layers(step, row.layers))
        for text in parts.probes.take_notes():
            edge.run("journal", partial(recovery.note, text))
        if "odd_ranks" in row.labels:
            edge.run("journal", lambda: recovery.note_odd_ranks(row.labels["odd_ranks"]))
        if "adam_broken_at" in row.labels:
            edge.run("journal", lambda: recovery.note_broken_state(row.labels["adam_broken_at"]))
        if self.acting and not self._recovery.busy:
            edge.run("journal", lambda: self._tell_of_skip(row))
        found: list[Finding] = []
        edge.run("record", parts.rows.note_order)
        # The judge counts rows: one that was not written must not reach it.
        if edge.run("record", lambda: parts.rows.record(row)):
            edge.run("judge", lambda: found.extend(self._judge(row)))
        for finding in found:
            edge.run("journal", partial(parts.recorder.finding, finding, step=step))
        # In a trial alarms are expected, and its states are not among the checkpoints.
        if not self._recovery.busy:
            edge.run("checkpoint", lambda: self._grade_checkpoints(found))
        return tuple(found)

    def _judge(self, row: StepRow) -> tuple[Finding, ...]:
        state = self._parts.state
        return self._parts.judgement.judge_row(
            state.decisions.row - 1, state.counters.step, row.values
        )

    def _grade_checkpoints(self, found: list[Finding]) -> None:
        self._parts.points.doubt([f for f in found if puts_in_doubt(f)])

    def _tell_of_skip(self, row: StepRow) -> None:
        self._recovery.after_update(
            row.values,
            row.labels,
            row.fed.first,
            row.fed.last,
            scaled="loss_scale" in row.values,
        )

    def stand_down_together(self) -> None:
        """Stand down with all ranks, where one of them has noted a fault."""
        if self._parts.pool.whole.faulted:
            self._edge.stand_down()

    # -- recover, snapshot, checkpoint ------------------------------------------------------

    def recover_and_save(self, loss: float, found: tuple[Finding, ...]) -> None:
        """Do what a step that was written down asks for.

        Args:
            loss: Of the step.
            found: What the judge found in it.
        """
        parts, policy, edge = self._parts, self._parts.policy, self._edge
        check = self.check
        if check is not None:
            edge.run("recovery", lambda: check.after_step(loss))
        elif not edge.stood_down:
            edge.run("recovery", lambda: self._recovery.after_step(loss, found, last=self.done))
        self._status.refresh()
        if self._recovery.busy:
            return
        step = parts.state.counters.step
        # `alarmed` and the pooled loss are the same on all ranks; saving is a collective.
        calm = not self._recovery.alarmed and math.isfinite(loss)
        if step % policy.snapshot_every_steps == 0 and calm and self.acting:
            edge.run("recovery", parts.points.snapshot)
        edge.run("checkpoint", lambda: parts.points.store.finish(wait=False))
        self._messages.pass_on_notes()
        self._status.refresh()
        every = policy.checkpoint_every_steps
        if self._recovery.unsettled:
            every = min(every, policy.checkpoint_every_steps_unsettled)
        if step % every == 0 and calm and step != parts.points.saved_step:
            background = policy.checkpoint_in_background
            edge.run("checkpoint", lambda: parts.points.save("on schedule", background=background))
