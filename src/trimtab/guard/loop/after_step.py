"""What follows a step: record, judge, recover, snapshot, checkpoint."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from trimtab.detectors.no_gradient import NoGradientDetector
from trimtab.guard.recovery.triage import puts_in_doubt
from trimtab.guard.settings.in_force import in_force

if TYPE_CHECKING:
    from trimtab.detectors.contract import Finding
    from trimtab.guard.loop.checkpoint_scores import CheckpointScores
    from trimtab.guard.loop.messages import Messages
    from trimtab.guard.loop.readings import Readings
    from trimtab.guard.loop.resume_check import ReplayCheck
    from trimtab.guard.loop.run_status import RunStatus
    from trimtab.guard.recording.fault_barrier import Edge, Part
    from trimtab.guard.recording.judged_steps import JudgedSteps
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.settings.ledger import SettingChanged
    from trimtab.guard.step.run_context import RunContext
    from trimtab.guard.step.step_recorder import StepRow

__all__ = ["AfterStep"]

_NO_GRADIENT = NoGradientDetector().name
_MOST_MISSED = 1024
"""Findings that are kept for recovery while nothing is acted on."""


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
        judged: JudgedSteps,
        check: ReplayCheck | None,
        steps: int | None,
        readings: Readings,
        scores: CheckpointScores,
    ) -> None:
        """Follow the steps of a run.

        Args:
            parts: Of the run.
            recovery: Decides what is done about trouble.
            edge: Keeps a fault of ours from stopping the run.
            messages: Tell the user.
            status: Says what a restart would go on from.
            judged: Keeps the steps that were not judged.
            check: The resume check at the start of the run; None: there is none.
            steps: Of the whole run, where known.
            readings: Of the yardstick.
            scores: Of checkpoints.
        """
        self._scores = scores
        self._readings = readings
        self._parts = parts
        self._recovery = recovery
        self._edge = edge
        self._messages = messages
        self._status = status
        self._judged = judged
        self._unheard: tuple[Finding, ...] = ()
        """Findings that recovery has not heard of."""
        self._check = check
        self._told_parts, self._parts_known = parts.holders.text, False
        self._ungraded: list[Finding] = []
        """Findings of which the checkpoints on disk have not heard."""
        self._steps = steps
        self.broken_module = ""
        """Name of the module that was last seen to return what is not finite."""
        self.broken_ranks = ""
        """Ranks on which a step was last not finite."""

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
        # First: the faults came with the pooled step, so all ranks stand down at the same one.
        self.hear_faults()
        edge.run("probes", lambda: parts.rows.add_probes(row), retried=True)
        edge.run("recovery", parts.rows.check_rate)
        if row.layers:
            edge.run("probes", lambda: parts.recorder.layers(step, row.layers))
        for text in parts.probes.take_notes():
            edge.run("journal", partial(recovery.note, text))
        self.broken_module = row.labels.get("nonfinite_module", self.broken_module)
        self.broken_ranks = row.labels.get("nonfinite_ranks", self.broken_ranks)
        if "odd_ranks" in row.labels:
            edge.run("journal", lambda: recovery.note_odd_ranks(row.labels["odd_ranks"]))
        if "adam_broken_at" in row.labels:
            edge.run("journal", lambda: recovery.note_broken_state(row.labels["adam_broken_at"]))
        whole = math.isfinite(row.values["loss"]) and math.isfinite(row.values["grad_norm"])
        if (self.acting or not whole) and not self._recovery.busy:
            edge.run("journal", lambda: self._tell_of_skip(row))
        edge.run("verdict", parts.rows.note_order)
        for change in parts.settings.add_to(row.values, step):
            self.tell_change(change)
        if not self._parts_known:
            edge.run("journal", self._tell_parts)
        if parts.pool.whole.changed:
            edge.run("journal", self._tell_changes_elsewhere)
        edge.run("record", lambda: parts.rows.agree(row))
        edge.run("recovery", lambda: recovery.see_row(row.values))
        found = self._record(row)
        for text in parts.rows.take_notes():
            edge.run("journal", partial(recovery.tell, text))
        for finding in found:
            edge.run("journal", partial(parts.recorder.finding, finding, step=step))
            named = "grad_zero_at" in row.labels and not recovery.busy
            if finding.detector == _NO_GRADIENT and named:
                text = f"no gradient reaches {row.labels['grad_zero_at']}"
                edge.run("journal", partial(recovery.tell, text))
        edge.run("journal", parts.recorder.write_events, retried=True)
        # In a trial alarms are expected, and its states are not among the checkpoints.
        if not self._recovery.busy:
            edge.run("checkpoint", lambda: self._grade_checkpoints(found))
        return tuple(found)

    def tell_change(self, change: SettingChanged) -> None:
        """Write down a setting that changed; say it where the guard may say more than incidents."""
        parts, recovery = self._parts, self._recovery
        self._edge.run(
            "journal",
            lambda: parts.recorder.event("setting-changed", step=change.step, **change.event),
        )
        if recovery.busy:
            return
        self._edge.run("recovery", lambda: recovery.after_change(f"changed {change.name}"))
        if not change.expected:
            parts.pool.note_change(change)
            self._messages.tell(f"{change.text()}: changed, and not announced")

    def _tell_parts(self) -> None:
        """Say which parts ranks hold, where the start did not say it so."""
        text, before = self._parts.holders.text, self._told_parts
        self._told_parts, self._parts_known = text, self._parts.holders.is_settled
        if text and text != before:
            self._recovery.tell(text)

    def _tell_changes_elsewhere(self) -> None:
        """Write down and say what has changed on other ranks than the first; all must call it."""
        for change, ranks in self._parts.pool.changes_elsewhere().items():
            of = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            where = ", ".join(filter(None, (change.where, of)))
            event = {**change.event, "where": where}
            self._parts.recorder.event("setting-changed", step=change.step, **event)
            text = f"{change.text()}: changed on {of} and not on rank 0, and not announced"
            self._recovery.tell(text)

    def tell_ended(self, held: str, why: str) -> None:
        """Write down that a setting is held no longer.

        Args:
            held: What was held, in words.
            why: What the script did, in words.
        """
        state = self._parts.state
        self._edge.run(
            "journal",
            lambda: self._parts.recorder.event(
                "decision",
                step=state.counters.step,
                what=f"no longer hold {held}",
                why=why,
                evidence=[],
                in_force=list(in_force(state.decisions, state.counters.step + 1)),
            ),
        )
        if not self._recovery.busy:
            self._messages.tell(f"{held} is held no longer: {why}")

    def _record(self, row: StepRow) -> list[Finding]:
        """Take a row into the record, judge it, and bring it to disk, each as far as it goes."""
        edge, recorder = self._edge, self._parts.recorder
        found: list[Finding] = []
        part: Part = "record"
        # The judge counts rows: one that is not on record must not reach it.
        done = edge.run("record", lambda: self._parts.rows.record(row), retried=True)
        if done:
            part = "judge"
            done = edge.run("judge", lambda: found.extend(self._judge(row)), retried=True)
        if not done:
            why = edge.reason(part) or "the guard was degraded"
            self._judged.miss(self._parts.state.counters.step, why)
        edge.run("rows", recorder.write_rows, retried=True)
        thinned = recorder.take_thinned()
        if thinned:
            self._messages.note(
                f"rows of {len(thinned)} steps between {thinned[0]} and {thinned[-1]} are given up:"
                " the disk takes none, and memory holds no more; they were judged"
            )
        return found

    def _judge(self, row: StepRow) -> tuple[Finding, ...]:
        state = self._parts.state
        return self._parts.judgement.judge_row(
            state.decisions.row - 1, state.counters.step, row.values
        )

    def _grade_checkpoints(self, found: list[Finding]) -> None:
        # Kept until it is done: a disk that does not answer now must not leave them called healthy.
        self._ungraded += [f for f in found if puts_in_doubt(f)]
        self._parts.points.doubt(self._ungraded)
        self._ungraded = []

    def _tell_of_skip(self, row: StepRow) -> None:
        self._recovery.after_update(
            row.values,
            row.labels,
            row.fed.first,
            row.fed.last,
            scaled="loss_scale" in row.values,
        )

    def hear_faults(self) -> None:
        """Stand down with all ranks where one is degraded, and come back with them."""
        self._edge.hear(self._parts.pool.whole.faults)

    def end_case(self) -> None:
        """End a probe or trial where nothing may be acted on; between two steps, on all ranks."""
        if self._edge.stood_down and self._recovery.busy:
            self._edge.run("recovery", self._recovery.stand_down)

    # -- recover, snapshot, checkpoint ------------------------------------------------------

    def recover_and_save(self, loss: float, found: tuple[Finding, ...]) -> None:
        """Do what a step that was written down asks for.

        Args:
            loss: Of the step.
            found: What the judge found in it.
        """
        edge, check = self._edge, self.check
        if check is not None:
            edge.run("recovery", lambda: check.after_step(loss))
        elif edge.stood_down:
            self._unheard = (*self._unheard, *found)[-_MOST_MISSED:]
        else:
            self._unheard = (*self._unheard, *found)[-_MOST_MISSED:]
            if edge.take_return():
                edge.run("recovery", self._agree_again)
            if edge.run("recovery", lambda: self._recover(loss), retried=True):
                self._unheard = ()
        self.end_case()
        self._status.refresh()
        # An alarm that stays open (observe leaves it so) is no reason to look less.
        quiet = check is None and not edge.stood_down and not self._recovery.busy
        edge.run("probes", lambda: self._readings.after_step(loss, quiet=quiet))
        if self._recovery.busy:
            return
        self._keep_state(calm=self.calm and math.isfinite(loss))

    @property
    def calm(self) -> bool:
        """Whether no alarm is open."""
        unheard = any(f.severity != "info" and not f.closed for f in self._unheard)
        return not (self._recovery.alarmed or unheard)

    def _recover(self, loss: float) -> None:
        reads = self._readings.available
        self._recovery.after_step(loss, self._unheard, last=self.done, reads=reads)

    def _agree_again(self) -> None:
        """Have all ranks go on from what the first one knows: one of them may have missed a step.

        A collective.
        """
        parts, ranks = self._parts, self._parts.ranks
        if ranks.count == 1:
            return
        state, judge, self._unheard = ranks.agree(
            lambda: (self._recovery.state, parts.judgement.to_json(), self._unheard)
        )
        self._recovery.adopt(state)
        parts.judgement.restore(parts.judgement.from_json(judge))

    def _keep_state(self, *, calm: bool) -> None:
        """Snapshot and save, where it is time or the last try failed.

        Args:
            calm: Whether no alarm is open and the loss is finite, as this rank knows it. The waits
                are alike on all ranks: what follows are collectives.
        """
        parts, policy, edge = self._parts, self._parts.policy, self._edge
        agree = parts.ranks.agree
        step = parts.state.counters.step
        due = parts.points.pace.is_due(step) or edge.is_due_again("snapshot")
        if due and self.acting and agree(lambda: calm):
            edge.run("snapshot", parts.points.snapshot, retried=True)
        edge.run("checkpoint", lambda: parts.points.store.finish(wait=False))
        self._messages.pass_on_notes()
        self._status.refresh()
        every = policy.checkpoint_every_steps
        if self._recovery.unsettled:
            every = min(every, policy.checkpoint_every_steps_unsettled)
        again = edge.is_due_again("checkpoint")
        due = (step % every == 0 or again) and step != parts.points.saved_step
        if due and agree(lambda: calm):
            # By itself: what fails in it must not keep one rank from the save that follows.
            edge.run("checkpoint", lambda: parts.points.store.finish(wait=True))
            background = policy.checkpoint_in_background and not again
            why = "again, after one that failed" if again else "on schedule"
            if edge.run(
                "checkpoint",
                lambda: parts.points.save(why, background=background),
                retried=True,
            ):
                edge.run("journal", self._scores.after_save)
