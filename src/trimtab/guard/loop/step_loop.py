"""What follows a step: written down, judged, acted upon, saved.

At once, or when the next step is due.

Values are read late only in a calm step: nothing is under way or in doubt, nothing dear is
measured, no snapshot or checkpoint is due, it is not the last, no loss scaler waits. All else is
read when it is done, what was pending before it. So a pending row never lies between a state that
is kept and what it was judged by, and the steps, findings and decisions are those of a run that
reads at once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from trimtab.guard.loop.exit_status import EXIT_GIVEN_UP
from trimtab.guard.loop.shutdown import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.detectors.contract import Finding
    from trimtab.guard.data.order import Fed
    from trimtab.guard.loop.resume_check import ReplayCheck
    from trimtab.guard.step.deferred_read import LateRow
    from trimtab.plan.policy import Policy

__all__ = ["Afterwards"]


class Afterwards(Ending):
    """The part of `Guard` that comes after an update."""

    policy: Policy
    _fed: list[Fed]
    _check: ReplayCheck | None
    _told_step: int
    _row: LateRow | None
    """The last step, where it was done and is not read yet."""
    _judged: tuple[float, tuple[Finding, ...], int] | None
    """Loss, findings and position of a row that was written down and not acted upon yet."""
    _stop_heard: bool
    """Whether a rank was asked to stop, as a late row said."""
    _own_loop: bool
    """Whether the loop over the guard itself is running, and not one of a trainer's."""

    @property
    def _acting(self) -> bool:
        return self.policy.mode == "act" and not self._edge.stood_down

    @property
    def _checking(self) -> ReplayCheck | None:
        """The resume check, while it is under way."""
        return self._check if self._check is not None and self._check.active else None

    # -- one step late ----------------------------------------------------------------------

    def _reads_late(self) -> bool:
        """Whether the step under way may be read when the next one is due; alike on all ranks."""
        engine, policy, step = self._engine, self.policy, self._engine.counters.step + 1
        if not (engine.late and self._own_loop) or step == self._steps:
            return False
        if self._recovery.busy or self._recovery.unsettled or self._checking is not None:
            return False
        if step % policy.checkpoint_every_steps == 0:
            return False
        if self._acting and step % policy.snapshot_every_steps == 0:
            return False
        stops = self._stop_heard or (self._ranks.count == 1 and self._interrupts.is_wanted())
        return not stops and engine.can_wait(skip_nonfinite=self._acting)

    def _settle(self, *, act: bool = True) -> bool:
        """Read, write down and judge the step that is pending; return whether it was acted upon.

        Args:
            act: Also do what follows from it; False in the midst of a batch, where nothing may be
                put back, and where other ranks may not come along: then it is done at the next
                call.
        """
        engine = self._engine
        row, self._row = self._row, None
        if row is not None:
            values, labels, seen = engine.read(row)
            self._stop_heard = self._stop_heard or engine.step_sum.stop
            look = partial(engine.put_in_late, seen)
            found = self._write_down(values, labels, row.fed, look)
            self._judged = (values["loss"], found, row.position)
        if not act or self._judged is None:
            return False
        (loss, found, engine.position_then), self._judged = self._judged, None
        try:
            self._act_on(loss, found)
        finally:
            engine.position_then = None
        return True

    def _settle_first(self) -> bool:
        """Settle before an update; return whether it takes the batches under way back."""
        acted = self._settle()
        self._stop_if_given_up()
        if not (acted and self._recovery.busy):
            return False
        self._fed.clear()
        self._losses.clear()
        self._engine.drop_step()
        self._interrupts.step_ends(together=self._stop_heard)
        return True

    def _stop_if_given_up(self) -> None:
        if self._recovery.given_up and self.policy.on_give_up == "stop":
            self._end("given up")
            raise SystemExit(EXIT_GIVEN_UP)

    # -- written down, judged, acted upon ---------------------------------------------------

    def _write_down(
        self,
        values: dict[str, float],
        labels: dict[str, str],
        fed: Fed,
        look: Callable[[dict[str, float], dict[str, str]], dict[str, list[float]]],
    ) -> tuple[Finding, ...]:
        """Record and judge a step, each by itself, so that a fault in one spares the next.

        Args:
            values: Of the step; what was seen besides is added.
            labels: The same.
            fed: What was handed out for it.
            look: Adds what the probes saw, and returns what they saw layer by layer.
        """
        engine, edge, recovery = self._engine, self._edge, self._recovery
        self._hear_of_faults()
        layers: dict[str, list[float]] = {}
        edge.run("probes", lambda: layers.update(look(values, labels)))
        if layers:
            edge.run("record", lambda: self._recorder.layers(engine.counters.step, layers))
        for text in engine.probes.take_notes():
            edge.run("journal", lambda t=text: recovery.note(t))  # type: ignore[misc]
        if "odd_ranks" in labels:
            edge.run("journal", lambda: recovery.note_odd_ranks(labels["odd_ranks"]))
        if "adam_broken_at" in labels:
            edge.run("journal", lambda: recovery.note_broken_state(labels["adam_broken_at"]))
        if self._acting and not self._recovery.busy:
            scaled = "loss_scale" in values
            edge.run(
                "journal",
                lambda: recovery.after_update(values, labels, fed.first, fed.last, scaled=scaled),
            )
        found: list[Finding] = []
        edge.run("record", engine.note_order)
        if edge.run("record", lambda: engine.record(values, labels)):
            edge.run("judge", lambda: found.extend(engine.judge_row(values)))
        for finding in found:
            edge.run("journal", partial(self._recorder.finding, finding, step=engine.counters.step))
        if not self._recovery.busy:
            edge.run("checkpoint", lambda: engine.store.doubt(found))
        return tuple(found)

    def _act_on(self, loss: float, found: tuple[Finding, ...]) -> None:
        """Recover and save, as a step that was written down asks for."""
        engine, policy, edge = self._engine, self.policy, self._edge
        if self._checking is not None:
            edge.run("recovery", lambda: self._checking.after_step(loss))  # type: ignore[union-attr]
        elif not edge.stood_down:
            edge.run("recovery", lambda: self._recovery.after_step(loss, found, last=self._done()))
        self._tell_state()
        if self._recovery.busy:
            return
        step = engine.counters.step
        calm = not self._recovery.alarmed and math.isfinite(loss)
        if step % policy.snapshot_every_steps == 0 and calm and self._acting:
            edge.run("recovery", engine.snapshot)
        edge.run("checkpoint", lambda: engine.store.finish(wait=False))
        edge.run("journal", self._tell_notes)
        self._tell_state()
        every = policy.checkpoint_every_steps
        if self._recovery.unsettled:
            every = min(every, policy.checkpoint_every_steps_unsettled)
        if step % every == 0 and calm and step != engine.saved_step:
            background = policy.checkpoint_in_background
            edge.run(
                "checkpoint", lambda: engine.save_checkpoint("on schedule", background=background)
            )

    def _hear_of_faults(self) -> None:
        """Stand down with all ranks together, where one of them has noted a fault."""
        if self._engine.step_sum.faulted:
            self._edge.stand_down()

    def _tell_state(self) -> None:
        """Write down what a restart would go on from, where that is not what was said last."""
        if self._engine.store.whole_step != self._told_step:
            self._told_step = self._engine.store.whole_step
            self._edge.run(
                "journal", lambda: self._verdict("running", "under way, or it was killed")
            )
