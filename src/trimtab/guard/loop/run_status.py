"""State of the process, for what started it: `verdict.json`, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.analysis.account import MIN_RECORDS
from trimtab.analysis.assemble import events_of, make_account
from trimtab.errors import TrimtabError
from trimtab.guard.loop.exit_status import asks_for_restart, write_verdict

if TYPE_CHECKING:
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.loop.exit_status import State
    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recording.judged_steps import JudgedSteps
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.state.checkpoint_store import Store
    from trimtab.guard.state.judgement import Judgement
    from trimtab.guard.state.run_state import RunState
    from trimtab.kinds import RunVerdict

__all__ = ["RunStatus"]


class RunStatus:
    """Writes the state of the process, its reason, and the step that a restart goes on from."""

    def __init__(
        self,
        state: RunState,
        *,
        store: Store,
        recovery: Recovery,
        recorder: Recorder,
        ranks: Ranks,
        edge: Edge,
        judgement: Judgement,
        judged: JudgedSteps,
        steps: int | None,
    ) -> None:
        """Write about one run.

        Args:
            state: Gives the step.
            store: Gives the step that a restart goes on from.
            recovery: Knows whether an alarm is open.
            recorder: Gives the run directory and the attempt.
            ranks: The first one writes.
            edge: Keeps a fault of ours from stopping the run.
            judgement: The detectors of the run, which may be a user's.
            judged: Knows which steps were not judged.
            steps: Of the whole run, where known.
        """
        self._state = state
        self._store = store
        self._recovery = recovery
        self._recorder = recorder
        self._ranks = ranks
        self._edge = edge
        self._judgement = judgement
        self._judged = judged
        self._steps = steps
        self._written_step = store.whole_step
        self._written_degraded = ""

    def running(self) -> None:
        """Write that the process runs; what was killed leaves this behind."""
        self.write("running", "under way, or it was killed")

    def refresh(self) -> None:
        """Write again where it says something else than was written last, or was not written."""
        degraded = self._judged.doubt
        if (self._store.whole_step, degraded) != (
            self._written_step,
            self._written_degraded,
        ) or self._edge.is_due_again("verdict"):
            self._written_step, self._written_degraded = self._store.whole_step, degraded
            self.running()

    def confirm_done(self) -> None:
        """Keep an older verdict with its reason, unless it would start the run for ever."""
        self._edge.run("verdict", self._confirm_done)

    def _confirm_done(self) -> None:
        if asks_for_restart(self._recorder.directory.root):
            self._write("done", "all steps done")

    def write(self, state: State, reason: str) -> None:
        """Write the state of the process.

        Args:
            state: Of the process.
            reason: In words.
        """
        now = state != "running"
        self._edge.run("verdict", lambda: self._write(state, reason), retried=True, now=now)

    def _write(self, state: State, reason: str) -> None:
        if self._ranks.chief and not self._recorder.lost:
            write_verdict(
                self._recorder.directory.root,
                state=state,
                reason=reason,
                steps=self._steps,
                step=self._state.counters.step,
                saved_step=self._store.whole_step,
                attempt=self._recorder.attempt,
                verdict=self._verdict(state),
                coverage=self._judged.coverage(),
            )

    def _verdict(self, state: State) -> RunVerdict:
        """Return the verdict of the run, as far as it was judged.

        A run that is done gets the verdict that `trimtab inspect` gives its directory. While it
        runs, or where it is interrupted, an open alarm decides: to judge everything again would
        cost seconds that a process under SIGTERM does not have.
        """
        if state == "given-up":
            return "ended-badly"
        if self._recorder.live.num_rows < MIN_RECORDS:
            return "not-judged"
        verdict: RunVerdict = "incident" if self._recovery.alarmed else "healthy"
        if state == "done":
            root, record = self._recorder.directory.root, self._recorder.live.record()
            judge = self._judgement.judge
            try:
                verdict = make_account(record, events=events_of(root), judge=judge).verdict
            except (OSError, TrimtabError) as error:
                # The file must say how the run ended, also where the journal cannot be read now.
                self._edge.note("verdict", error)
                verdict = "incident" if verdict == "incident" else "not-judged"
        blind = self._edge.is_blind or self._judged.coverage().gaps
        return "not-judged" if blind and verdict == "healthy" else verdict
