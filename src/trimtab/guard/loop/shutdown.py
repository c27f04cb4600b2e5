"""How a guarded run ends: saved where that is safe, told, written down, and let go of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.guard.control.rollback import Undoing
from trimtab.guard.loop.exit_status import State, asks_for_restart, write_verdict
from trimtab.guard.probes.finite import unsound

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.loop.signal_handler import Interrupts
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.recording.run_lock import RunLock

__all__ = ["Ending"]


class Ending(Undoing):
    """The part of `Guard` that comes last."""

    _ranks: Ranks
    _recorder: Recorder
    _lock: RunLock | None
    _interrupts: Interrupts
    _steps: int | None
    _executed_at_start: int
    """Optimizer steps done before this process, over all attempts."""
    _say: Callable[[str], None]

    def close(self) -> None:
        """Stop guarding: close the files and give the run directory free; done at the end too."""
        if not self._ended:
            self._settle_last(act=False)
        self._ended = True
        self._edge.run("checkpoint", self._engine.store.close)
        self._edge.run("journal", self._tell_notes)
        self._engine.probes.close()
        self._recorder.close()
        self._release()

    def finish(self, reason: str = "") -> None:
        """End the run here, as the end of the guard's own loop does: saved, told, written down.

        For a trainer that stops by itself and does not ask for one batch more.

        Args:
            reason: For the journal; default: whether all steps are done.
        """
        self._end(reason or ("all steps done" if self._done() else "the trainer stopped"))

    def _settle_last(self, *, act: bool) -> None:
        """Settle on the way out, where nothing of ours may stand in it."""
        self._edge.run("record", lambda: self._settle(act=act))

    def _tell_notes(self) -> None:
        for text in self._engine.store.take_notes():
            self._say(f"step {self._engine.counters.step:>6,}  {text}")
            self._recovery.note(text)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _done(self) -> bool:
        return self._steps is not None and self._engine.counters.step >= self._steps

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._settle_last(act=self._ranks.count == 1 or not self._interrupts.in_step)
        engine, step = self._engine, self._engine.counters.step
        if self._done() and engine.decisions.executed_steps == self._executed_at_start:
            # it was finished before, and told so
            self._edge.run("journal", self._confirm_done)
            self.close()
            return
        whole = not self._interrupts.in_step and not self._recovery.busy
        calm = not self._recovery.alarmed and math.isfinite(
            engine.step_sum.loss
        )  # on all ranks alike
        if whole and calm and step not in (0, engine.saved_step):
            why = "end of the run" if reason != "interrupted" else reason
            self._edge.run("checkpoint", lambda: engine.save_checkpoint(why))
        self._edge.run("checkpoint", lambda: engine.store.finish(wait=True))
        self._edge.run("checkpoint", self._tell_unsound)
        self._edge.run("recovery", self._recovery.finish)
        self._edge.run(
            "journal",
            lambda: self._recorder.event(
                "end", step=step, final_step=step, reason=reason, wasted_steps=self.wasted_steps
            ),
        )
        self._edge.run("journal", lambda: self._tell_end(reason))
        state: State = "done"
        if reason in ("interrupted", "started over", "given up"):
            state = "given-up" if reason == "given up" else "interrupted"
        self._edge.run("journal", lambda: self._verdict(state, self._recovery.given_up or reason))
        self.close()

    def _tell_unsound(self) -> None:
        """Say that what was trained is broken, as far as this rank holds it.

        Not all may be here.
        """
        what = unsound(self._engine.training)
        if what:
            self._engine.store.notes.append(f"the run ends in a state that is not finite: {what}")

    def _confirm_done(self) -> None:
        """Let an older verdict stand, with its reason, unless it would start the run for ever."""
        if asks_for_restart(self._recorder.directory.root):
            self._verdict("done", "all steps done")

    def _tell_end(self, reason: str) -> None:
        step, saved = self._engine.counters.step, self._engine.store.whole_step
        if reason == "interrupted":
            on = (
                f"goes on from step {saved}" if saved > 0 else "starts again: nothing was saved yet"
            )
            self._say(f"interrupted at step {step}; the same script {on}")
            return
        done = f"{step} steps done" + ("" if self._done() else f" ({reason})")
        trials = self._recovery.num_trials
        tried = f"{_count(trials, 'trial')}, " if trials else ""
        counts = (
            f"{_count(self._recovery.num_reported, 'incident')},"
            f" {tried}{_count(len(self.actions), 'action')}"
        )
        self._say(f"{done}, {counts}; trimtab report {self._recorder.directory.root}")

    def _verdict(self, state: State, reason: str) -> None:
        engine = self._engine
        if self._ranks.chief:
            write_verdict(
                self._recorder.directory.root,
                state=state,
                reason=reason,
                steps=self._steps,
                step=engine.counters.step,
                saved_step=engine.store.whole_step,
                attempt=self._recorder.attempt,
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
