"""State of the process, for what started it: `verdict.json`, kept up to date."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from trimtab.analysis.account import MIN_RECORDS
from trimtab.analysis.assemble import events_of, make_account
from trimtab.chronicle.authority_words import unannounced_changes
from trimtab.errors import TrimtabError
from trimtab.guard.loop.exit_status import asks_for_restart, write_verdict
from trimtab.guard.settings.in_force import in_force
from trimtab.masking import masked_text
from trimtab.text import plain

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
    from trimtab.guard.step.rates import Rates
    from trimtab.incidents import Incident
    from trimtab.kinds import RunVerdict
    from trimtab.plan.policy import Mode

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
        rates: Rates,
        steps: int | None,
        mode: Mode,
        not_acting: str,
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
            rates: Of the next step, the script's own and with what was decided.
            steps: Of the whole run, where known.
            mode: The guard's, as it is.
            not_acting: Why that is not `act` though it was asked for; empty where it is.
        """
        self._mode, self._not_acting = mode, not_acting
        self._rates = rates
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
        self._written_in_force: tuple[str, ...] = ()
        self._known_error = _last_error()
        self.open_incidents: tuple[Incident, ...] = ()
        """Incidents that the verdict of the run rests on, as last written."""
        self.unannounced: tuple[str, ...] = ()
        """Settings that changed without being announced, as last written."""

    def running(self) -> None:
        """Write that the process runs; what was killed leaves this behind."""
        self._known_error = _last_error()
        self.write("running", "under way, or it was killed")

    def left(self, *, done: bool) -> None:
        """Write that the user's loop was left, by `break` or an exception.

        Args:
            done: Whether all steps of the run are done.
        """
        step = self._state.counters.step
        why = "all steps done" if done else f"its loop was left after step {step}"
        error = _last_error()
        # Of an exception that ended the program only the interpreter knows, once it has printed it.
        crashed = not done and error is not None and error is not self._known_error
        if crashed:
            said = masked_text(plain(f"{type(error).__name__}: {error}", limit=200))
            why += f", by an exception that ended the program: {said}"
        self.write("done" if done else "interrupted", why, crashed=crashed)

    def refresh(self) -> None:
        """Write again where it says something else than was written last, or was not written."""
        now = (self._store.whole_step, self._judged.doubt, self.in_force)
        written = (self._written_step, self._written_degraded, self._written_in_force)
        if now != written or self._edge.is_due_again("verdict"):
            self._written_step, self._written_degraded, self._written_in_force = now
            self.running()

    @property
    def mode(self) -> Mode:
        """The guard's, as it is."""
        return self._mode

    @property
    def in_force(self) -> tuple[str, ...]:
        """What the guard holds against the script's own settings, in words."""
        return in_force(self._state.decisions, self._state.counters.step + 1)

    def confirm_done(self) -> None:
        """Keep an older verdict with its reason, unless it would start the run for ever."""
        self._edge.run("verdict", self._confirm_done)

    def _confirm_done(self) -> None:
        if asks_for_restart(self._recorder.directory.root):
            self._write("done", "all steps done")

    def write(
        self, state: State, reason: str, *, unsound: bool = False, crashed: bool = False
    ) -> None:
        """Write the state of the process.

        Args:
            state: Of the process.
            reason: In words.
            unsound: Whether weights or moments are not finite at its end.
            crashed: Whether an exception ended the program.
        """
        bad = crashed or (unsound and state == "done")
        now = state != "running"
        self._edge.run(
            "verdict", lambda: self._write(state, reason, bad=bad), retried=True, now=now
        )

    def _write(self, state: State, reason: str, *, bad: bool = False) -> None:
        if self._ranks.chief and not self._recorder.lost:
            verdict = self._verdict(state)
            # No start goes on from there as it is: whoever reads the verdict must not take it so.
            verdict = "ended-badly" if bad else verdict
            write_verdict(
                self._recorder.directory.root,
                state=state,
                reason=reason,
                steps=self._steps,
                step=self._state.counters.step,
                saved_step=self._store.whole_step,
                attempt=self._recorder.attempt,
                verdict=verdict,
                mode=self._mode,
                not_acting=self._not_acting,
                coverage=self._judged.coverage(),
                in_force=self.in_force,
                incidents=self.open_incidents,
                unannounced=self.unannounced,
                lr=_finite(self._rates.next_lr),
                script_lr=_finite(self._rates.script_lr),
            )

    def _verdict(self, state: State) -> RunVerdict:
        """Return the verdict of the run, as far as it was judged.

        A run that is done gets the verdict that `trimtab inspect` gives its directory. While it
        runs, or where it is interrupted, an open alarm decides: to judge everything again would
        cost seconds that a process under SIGTERM does not have.
        """
        self.open_incidents = self._recovery.incidents[-1:] if self._recovery.alarmed else ()
        if state != "running":
            self._edge.run("verdict", self._look_up_changes)
        if state == "given-up":
            return "ended-badly"
        if self._recorder.live.num_rows < MIN_RECORDS:
            return "not-judged"
        verdict: RunVerdict = "incident" if self._recovery.alarmed else "healthy"
        if state == "done":
            root, record = self._recorder.directory.root, self._recorder.live.record()
            judge = self._judgement.judge
            try:
                account = make_account(record, events=events_of(root), judge=judge)
                verdict = account.verdict
                self.open_incidents = tuple(
                    i.incident for i in account.incidents if i.is_open_alarm
                )
            except (OSError, TrimtabError) as error:
                # The file must say how the run ended, also where the journal cannot be read now.
                self._edge.note("verdict", error)
                verdict = "incident" if verdict == "incident" else "not-judged"
        blind = self._edge.is_blind or self._judged.coverage().gaps
        return "not-judged" if blind and verdict == "healthy" else verdict

    def _look_up_changes(self) -> None:
        # The journal knows those of earlier processes of the run, too.
        self.unannounced = unannounced_changes(events_of(self._recorder.directory.root))


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else None


def _last_error() -> BaseException | None:
    """Return the last exception that nobody caught, an interrupt or an exit left out."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, Exception) else None
