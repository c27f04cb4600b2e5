"""How a guarded run ends: saved where that is safe, reported, written down, and closed."""

from __future__ import annotations

import math
import shlex
import socket
from typing import TYPE_CHECKING

from trimtab.detectors.endings import place_text
from trimtab.guard.loop.exit_status import EXIT_GIVEN_UP
from trimtab.guard.probes.finite import unsound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.guard.loop.after_step import AfterStep
    from trimtab.guard.loop.exit_status import State
    from trimtab.guard.loop.messages import Messages
    from trimtab.guard.loop.pending_step import PendingStep
    from trimtab.guard.loop.run_status import RunStatus
    from trimtab.guard.loop.signal_handler import Interrupts
    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recording.judged_steps import JudgedSteps
    from trimtab.guard.recording.run_lock import RunLock
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.step.run_context import RunContext
    from trimtab.incidents import Incident

__all__ = ["Shutdown"]

_MOST_TOLD = 3
"""Changes of settings that the last line names."""


class Shutdown:
    """Ends a run, once."""

    def __init__(
        self,
        parts: RunContext,
        *,
        recovery: Recovery,
        edge: Edge,
        judged: JudgedSteps,
        after: AfterStep,
        pending: PendingStep,
        messages: Messages,
        status: RunStatus,
        interrupts: Interrupts,
        lock: RunLock | None,
    ) -> None:
        """Stand ready to end a run.

        Args:
            parts: Of the run.
            recovery: Concludes what it is verifying.
            edge: Keeps a fault of ours from hiding how the run ended.
            judged: Says which steps were not judged.
            after: Says whether all steps are done.
            pending: The step that is not read yet.
            messages: Tell the user.
            status: Writes how the process ended.
            interrupts: Says whether a batch is under way.
            lock: On the run directory; None on all ranks but the first.
        """
        self._parts = parts
        self._recovery = recovery
        self._edge = edge
        self._judged = judged
        self._after = after
        self._pending = pending
        self._messages = messages
        self._status = status
        self._interrupts = interrupts
        self._lock = lock
        self._ended = False
        self._why = ""
        self._unsound = ""
        """How the run ended with weights or moments that are not finite."""
        """Why the run is stopped, in words."""
        self._executed_at_start = parts.state.decisions.executed_steps

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._ended

    def settle_last(self, *, act: bool) -> None:
        """Settle what is pending on the way out, where a fault of ours must not stand in it."""
        self._edge.run("record", lambda: self._pending.settle(act=act))

    def close(self) -> None:
        """Close the files and unlock the run directory; done again, it changes nothing."""
        if not self._ended:
            self.settle_last(act=False)
        self._ended = True
        # Probes and recorder are closed after it: the last save still writes to the journal.
        self._edge.run("checkpoint", self._parts.points.store.close)
        self._messages.pass_on_notes()
        self._write_what_waits()
        self._parts.data.close()
        self._parts.probes.close()
        self._recovery.close()
        self._parts.recorder.close()
        if self._lock is not None:
            self._lock.release()

    def end(self, reason: str) -> None:
        """End the run: save it where that is safe, tell the user, write down why."""
        if self._ended:
            return
        parts, edge = self._parts, self._edge
        # To act is a collective; in mid-step the other ranks may not come to it.
        self.settle_last(act=parts.ranks.count == 1 or not self._interrupts.in_step)
        state, points, step = parts.state, parts.points, parts.state.counters.step
        if self._after.done and state.decisions.executed_steps == self._executed_at_start:
            # the run was finished by an earlier process, which has reported it
            self._status.confirm_done()
            self.close()
            return
        whole = not self._interrupts.in_step and not self._recovery.busy
        # the pooled loss: all ranks must decide alike whether they save
        calm = self._after.calm and math.isfinite(parts.pool.whole.loss)
        if whole and step not in (0, points.saved_step) and parts.ranks.agree(lambda: calm):
            why = "end of the run" if reason != "interrupted" else reason
            edge.run("checkpoint", lambda: points.save(why), retried=True, now=True)
        # Before the journal's end: the save in the background writes its own event.
        edge.run("checkpoint", lambda: points.store.finish(wait=True))
        edge.run("checkpoint", self._note_unsound)
        edge.run("recovery", self._recovery.finish)
        edge.end_step()
        self._write_what_waits()
        self._give_up_rows()
        coverage = self._judged.coverage()
        judged = {} if coverage.whole else {"judged": coverage.to_json()}
        edge.run(
            "journal",
            lambda: parts.recorder.event(
                "end",
                step=step,
                final_step=step,
                reason=reason,
                wasted_steps=state.wasted_steps,
                in_force=list(self._status.in_force),
                **judged,
            ),
        )
        how: State = "done"
        if reason in ("interrupted", "started over", "given up"):
            how = "given-up" if reason == "given up" else "interrupted"
        why = self._why or self._recovery.given_up or self._unsound or reason
        self._status.write(how, why, unsound=bool(self._unsound))
        # Last, so that it tells of what fails on the way out, too; a process that was asked to go
        # may be killed while the second place is still copied to.
        if reason != "interrupted":
            self.close()
        edge.run("journal", lambda: self._tell_end(reason))
        self.close()

    def _write_what_waits(self) -> None:
        """Bring to disk what it refused before; there is no later time."""
        edge, recorder = self._edge, self._parts.recorder
        edge.run("rows", recorder.write_rows, retried=True, now=True)
        edge.run("journal", recorder.write_events, retried=True, now=True)

    def _give_up_rows(self) -> None:
        """Count the steps as not judged whose rows end with this process."""
        step = self._parts.state.counters.step
        why = self._edge.reason("rows")
        for lost in sorted({s for s in self._parts.recorder.held_steps if s <= step}):
            self._judged.miss(lost, f"rows lost: {why}")

    def end_of_loop(self) -> None:
        """End the run where its loop has nothing more to hand out."""
        self.end("all steps done" if self._after.done else "the data is used up")

    def stop_if_given_up(self) -> None:
        """End the process where nothing is left to try and the policy says to stop then.

        Raises:
            SystemExit: It is so.
        """
        if self._recovery.hopeless:
            self._why = self._why_hopeless()
            self._messages.tell(self._why)
            self._edge.run("journal", lambda: self._note_stop(self._why))
        elif not (self._recovery.given_up and self._parts.policy.on_give_up == "stop"):
            return
        self.end("given up")
        raise SystemExit(EXIT_GIVEN_UP)

    def _note_stop(self, why: str) -> None:
        parts = self._parts
        parts.recorder.event(
            "decision",
            step=parts.state.counters.step,
            what="stop the run",
            why=why,
            evidence=[],
        )

    def _why_hopeless(self) -> str:
        """Return what is not finite, and where: module, rank and host."""
        name, parts = self._after.broken_module, self._parts
        module = dict(parts.training.bare_model.named_modules()).get(name) if name else None
        what = "every update is NaN or Inf"
        if module is not None:
            what = f"module '{name}' ({type(module).__name__}) returned NaN or Inf"
        ranks = self._after.broken_ranks.replace(" ", ", ") or (
            "0" if parts.ranks.count == 1 else ""
        )
        where = f" on rank {ranks}" if ranks else ""
        steps = self._recovery.state.broken_steps
        saved = parts.points.store.whole_step
        also = " and in every one looked at from there" * self._recovery.state.forward_fails
        kept = (
            f"the newest healthy checkpoint is of step {saved}" if saved > 0 else "none was saved"
        )
        return (
            f"{what}{where} (host {socket.gethostname()}) in the last {steps} steps{also}, and"
            f" nothing is left to try: the run is stopped with exit code {EXIT_GIVEN_UP}; {kept}"
        )

    def _note_unsound(self) -> None:
        """Note that what was trained is broken, as far as this rank holds it."""
        what = unsound(self._parts.training)
        if what:
            self._unsound = f"the run ends in a state that is not finite: {what}"
            self._parts.points.store.note(self._unsound)

    def _tell_end(self, reason: str) -> None:
        step, saved = self._parts.state.counters.step, self._parts.points.store.whole_step
        told = self._judged.coverage().text()
        judged = f"; {told}" if told else ""
        if reason == "interrupted":
            on = (
                f"goes on from step {saved}" if saved > 0 else "starts again: nothing was saved yet"
            )
            lost = self._parts.recorder.lost
            on = f"cannot go on: {lost}" if lost else on
            held = _still(self._status.in_force)
            self._messages.say(f"interrupted at step {step}; the same script {on}{judged}{held}")
            return
        done = f"{step} steps done" + ("" if self._after.done else f" ({reason})")
        # some show only when the whole run is judged: the line and the verdict must agree
        reported, found = self._recovery.num_reported, self._status.open_incidents
        if len(found) > reported:
            for incident in self._recovery.unreported(found):
                self._messages.say(f"seen now that the whole run is judged: {incident.headline}")
        trials = self._recovery.num_trials
        tried = f"{_count(trials, 'trial')}, " if trials else ""
        counts = (
            f"{self._incidents(found)}{_earlier(reported - len(found))},"
            f" {tried}{_count(len(self._recovery.actions), 'action')}"
        )
        recorder = self._parts.recorder
        root = recorder.directory.root
        lost = f"; not recorded to the end: {recorder.lost}" if recorder.lost else ""
        self._messages.say(
            f"{done}, {counts}{judged}{_still(self._status.in_force)}"
            f"{_changed(self._status.unannounced)};"
            f" trimtab report {shlex.quote(str(root))}{lost}"
        )

    def _incidents(self, found: Sequence[Incident]) -> str:
        """Return how many incidents `verdict.json` names, and the gravest of them."""
        counted = _count(len(found), "incident")
        if not found:
            return counted
        worst = max(found, key=lambda i: (i.severity == "critical", i.onset))
        place = place_text(float(worst.onset))
        where = f"since step {place}"
        if worst.end is not None:
            where = f"step {place}" + f" to {place_text(float(worst.end))}" * (
                worst.end != worst.onset
            )
        actions = self._recovery.actions
        answered = any(float(str(a["step"])) >= worst.onset for a in actions)
        # What was tried in trials and given up was not left alone.
        acts = self._status.mode == "act" and not self._recovery.num_trials
        alone = ", left alone" if acts and not answered else ""
        return f"{counted} ({worst.severity}: {worst.kind.replace('-', ' ')} {where}{alone})"


def _earlier(number: int) -> str:
    """Return how many more were told while the run went on; empty for none."""
    return f", {number} more told on the way (settled, or notes)" if number > 0 else ""


def _still(told: Sequence[str]) -> str:
    """Return what is in force at the end, as the end of a sentence; empty for nothing."""
    return f"; in force: {', '.join(told)}" if told else ""


def _changed(told: Sequence[str]) -> str:
    """Return the settings that changed, as the end of a sentence; empty for none."""
    more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return (
        f"; settings changed, not announced: {', '.join(told[:_MOST_TOLD])}{more}" if told else ""
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
