"""The step that is done and not read yet, or read and not acted upon yet.

Values are read late only in a calm step: nothing is under way or in doubt, no costly measurement,
snapshot or checkpoint is due, it is not the last step, and no loss scaler waits for the value. All
other steps are read when they are done, and what was pending is read before them. So a pending row
never lies between a state that is kept and what it was judged by, and the steps, findings and
decisions are those of a run that reads at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trimtab.detectors.contract import Finding
    from trimtab.guard.data.order import Fed
    from trimtab.guard.loop.after_step import AfterStep
    from trimtab.guard.loop.signal_handler import Interrupts
    from trimtab.guard.step.deferred_read import LateRow
    from trimtab.guard.step.run_context import RunContext

__all__ = ["PendingStep"]


class PendingStep:
    """Holds at most one step back, and settles it before the next one is applied."""

    def __init__(
        self, parts: RunContext, *, after: AfterStep, interrupts: Interrupts, steps: int | None
    ) -> None:
        """Begin with nothing pending.

        Args:
            parts: Of the run.
            after: Records, judges and does what follows.
            interrupts: Says whether this process was asked to stop.
            steps: Of the whole run, where known.
        """
        self._parts = parts
        self._after = after
        self._interrupts = interrupts
        self._steps = steps
        self._late: LateRow | None = None
        self._judged: tuple[float, tuple[Finding, ...], int] | None = None
        self._stop_heard = False
        self._own_loop = False

    @property
    def stop_heard(self) -> bool:
        """Whether a row that was read late shows that a rank was asked to stop."""
        return self._stop_heard

    def loop_begins(self, *, own: bool) -> None:
        """Take note of a loop; `own`: over the guard itself, and not one of a trainer's."""
        self._own_loop = own

    def may_wait(self) -> bool:
        """Whether the step under way may be read when the next one is due; alike on all ranks."""
        parts, policy = self._parts, self._parts.policy
        step, acting = parts.state.counters.step + 1, self._after.acting
        # A trainer's own loop needs the values between two steps; the last step ends the run.
        if not (parts.reads_late.on and self._own_loop) or step == self._steps:
            return False
        if parts.holders.may_differ:  # one rank may have to wait for what another part noted
            return False
        if self._after.unsettled or step % policy.checkpoint_every_steps == 0:
            return False
        if acting and parts.points.pace.is_due(step):
            return False
        # A signal reaches one rank only; with several the pooled flag `stop` decides for all.
        asked = parts.ranks.count == 1 and self._interrupts.is_wanted()
        return not (self._stop_heard or asked) and parts.deferred.can_wait(skip_nonfinite=acting)

    def defer(self, loss: torch.Tensor, fed: Fed) -> None:
        """Do the step under way without reading it; only where `may_wait`."""
        self._late = self._parts.deferred.step(loss, fed, skip_nonfinite=self._after.acting)

    def settle(self, *, act: bool = True) -> bool:
        """Read, record and judge the step that is pending; return whether it was acted upon.

        Args:
            act: Also do what follows from it; False in the midst of a batch, where nothing may be
                put back, and where other ranks may not come along: then it is done at the next
                call.
        """
        late, self._late = self._late, None
        if late is not None:
            row = self._parts.deferred.read(late)
            self._stop_heard = self._stop_heard or self._parts.pool.whole.stop
            found = self._after.record_and_judge(row)
            self._judged = (row.loss, found, late.position)
        if not act or self._judged is None:
            return False
        (loss, found, position), self._judged = self._judged, None
        # The next batch is fetched already: actions must see the position as of the row.
        with self._parts.state.at_position(position):
            self._after.recover_and_save(loss, found)
        return True
