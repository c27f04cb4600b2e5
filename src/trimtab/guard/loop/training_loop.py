"""The loop of a guarded run, step by step.

    for batch in guard:                 # fetch a batch, before_forward
        loss = model(batch)             # the user's
        guard.backward(loss)            # backward pass, scaled
        guard.step():
            settle                      # what the last step left to read
            probe? look only            # forward only, under a restored state: no update
            clip                        # before_optimizer_step
            pool over ranks
            apply or skip
            record, judge               # after_step
            recover, snapshot, checkpoint
    on_train_end

What each moment does is written out in the methods of these names. The parts that do it are given:
this file only says in which order.
"""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.loop.own_schedules import OwnSchedules
from trimtab.guard.step.step_recorder import StepRow

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch

    from trimtab.guard.data.order import Fed
    from trimtab.guard.loop.after_step import AfterStep
    from trimtab.guard.loop.messages import Messages
    from trimtab.guard.loop.pending_step import PendingStep
    from trimtab.guard.loop.readings import Readings
    from trimtab.guard.loop.run_status import RunStatus
    from trimtab.guard.loop.shutdown import Shutdown
    from trimtab.guard.loop.signal_handler import Interrupts
    from trimtab.guard.loop.step_batches import StepBatches
    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.state.starting_rng import StartingRng
    from trimtab.guard.step.run_context import RunContext

__all__ = ["TrainingLoop"]


class TrainingLoop:
    """Hands out batches and does their steps, in one order."""

    def __init__(
        self,
        parts: RunContext,
        *,
        batches: StepBatches,
        recovery: Recovery,
        edge: Edge,
        after: AfterStep,
        pending: PendingStep,
        shutdown: Shutdown,
        status: RunStatus,
        messages: Messages,
        interrupts: Interrupts,
        start: StartingRng,
        ends_with_data: bool,
        readings: Readings,
    ) -> None:
        """Run with these parts.

        Args:
            parts: Measure, update, record and keep the state.
            batches: Fetch the batches of each step.
            recovery: Says which phase the run is in, and decides what is done about trouble.
            edge: Keeps a fault of ours from stopping the run.
            after: Records, judges, recovers and saves after each step.
            pending: The step that is done and not read yet.
            shutdown: Ends the run.
            status: Says what a restart would go on from.
            messages: Tell the user.
            interrupts: Put SIGINT and SIGTERM off to the end of a step.
            start: Random states that the loop begins with.
            ends_with_data: Whether the run ends where the data is used up once.
            readings: Of the yardstick, made between two steps.
        """
        self._readings = readings
        self._parts = parts
        self._batches = batches
        self._recovery = recovery
        self._edge = edge
        self._after = after
        self._pending = pending
        self._shutdown = shutdown
        self._status = status
        self._messages = messages
        self._interrupts = interrupts
        self._start = start
        self._ends_with_data = ends_with_data
        self._started = False
        self._told: set[str] = set()
        self._in_reading = False
        training = parts.training
        self._own = OwnSchedules(
            training.optimizer,
            training.scheduler,
            lambda text: self._tell_once(text, about=text[:40]),
        )

    @property
    def in_reading(self) -> bool:
        """Whether the loop's body runs a batch of the yardstick, also after its `step()`.

        It ends when the next batch is asked for: what the body does after the last `step()` of a
        reading was done once already, after the step itself.
        """
        return self._in_reading or self._readings.active

    @property
    def probing(self) -> bool:
        """Whether batches are only looked at: the forward pass counts, no update is made."""
        return self._readings.active or self._recovery.phase == "probe"

    # -- batches are handed out -------------------------------------------------------------

    def run(self, *, whole: bool) -> Generator[object, None, None]:
        """Yield batches until the run is done, or the epoch is over.

        Args:
            whole: Go on through epochs and end the run at its end; False: stop after each epoch, as
                the loop is a trainer's own.
        """
        batches, interrupts, clock = self._batches, self._interrupts, self._parts.clock
        clock.note_asked()
        # The row of the last step of an earlier loop may still be on the device.
        self._pending.settle(act=not batches.in_step)
        self.on_train_begin()
        self._pending.loop_begins(own=whole)
        self._readings.loop_begins(own=whole)
        interrupts.watch()
        update = self._parts.optimizer_step
        outside = update.outside_steps
        outside.watch()
        update.free_gradients_late(late=whole)
        try:
            while not self._shutdown.ended:
                if self._readings.active or self._begin_reading():
                    batch = self._hand_out_for_reading()
                    self._in_reading = True
                    self._edge.run("probes", self._own.keep)
                    yield batch
                    clock.note_asked()
                    self._edge.run("probes", self._own.put_back)
                    self._in_reading = False
                    if batches.step_is_due:
                        self._leave_reading("guard.step() was not called for its batch")
                    continue
                if not self._recovery.busy and self._after.done and not batches.in_step:
                    break
                interrupts.step_begins()
                clock.note_fetch()
                fetched = batches.fetch(
                    whole=whole, ends=self._ends_with_data and not self._recovery.busy
                )
                if fetched is None and not batches.in_step and self._pending.settle():
                    continue  # what was read only now may have sent the run back
                if fetched is None and not whole:
                    interrupts.loop_left(in_step=batches.in_step)
                    return
                if fetched is None:
                    break
                self.before_forward(*fetched)
                if self.probing:
                    self._edge.run("probes", self._own.keep)
                batch = self._brought_back(fetched[0])
                update.free_gradients()
                yield batch
                clock.note_asked()
                if self._own.active:
                    self._edge.run("probes", self._own.put_back)
                batches.check_stepped()
        # `break`, or an exception in the loop's body, closes the generator at its `yield`.
        except GeneratorExit:
            if self._readings.active:
                self._leave_reading("the loop was left")
            # other ranks may not come along where only this one left its loop
            alone = self._parts.ranks.count == 1
            self._shutdown.settle_last(act=alone and not batches.in_step)
            if interrupts.seen:
                self._shutdown.end("interrupted")
            elif not self._shutdown.ended:
                self._status.left(done=self._after.done)
            raise
        finally:
            outside.release()
            update.free_gradients_late(late=False)
            self._in_reading = False
            interrupts.loop_left(in_step=interrupts.in_step and not whole)
            interrupts.release()
        self.on_train_end()

    def _begin_reading(self) -> bool:
        """Begin a reading of the yardstick where one is asked for; return whether it hands out."""
        readings = self._readings
        if not readings.wanted or self._batches.in_step:
            return False
        self._pending.settle()
        # Before the reading keeps those that there are, to put them back after it.
        self._parts.optimizer_step.free_gradients()
        # What was read only now may ask for another reading, or for none.
        readings.begin()
        return readings.active

    def _hand_out_for_reading(self) -> object:
        self._interrupts.step_begins()
        batch = self._brought_back(self._readings.next_batch(len(self._batches.fed)))
        self._batches.hand_out(batch, 0, -1)
        return batch

    def _brought_back(self, batch: object) -> object:
        """Return a batch in the scale that is held; as the loader gave it where none is."""
        found = [batch]
        self._edge.run("probes", lambda: found.append(self._parts.settings.bring_back(batch)))
        return found[-1]

    def on_train_begin(self) -> None:
        """Take a first snapshot, and say that the run is under way; once."""
        if self._readings.active:
            self._end_reading()
        if self._batches.step_is_due:
            self.give_up_batch("their loop was left before guard.step()")
        if self._started and not self._shutdown.ended and not self._after.done:
            self._status.running()  # a loop before was left
        if self._started or self._shutdown.ended:
            return
        self._parts.rates.check_given()
        self._started = True
        self._start.enforce()
        if self._parts.policy.mode == "act":
            self._edge.run("snapshot", self._parts.points.snapshot, retried=True)
            self._messages.pass_on_notes()
        self._after.begin_check()
        if not self._after.done:
            self._status.running()
        # What the imports left would be collected at some step of the loop, in a fifth of a second.
        if gc.isenabled():
            gc.collect()
        # Last: what is saved at the start is not part of the first step's time.
        self._parts.clock.start()

    def before_forward(self, batch: object, first: int, last: int) -> None:
        """Take note of a batch that is handed out, and look at it."""
        begins = self._batches.hand_out(batch, first, last)
        self._parts.clock.note_batch()
        if not self.probing:
            self._edge.run("probes", lambda: self._look_at_batch(batch, begins=begins))
            self._edge.run("probes", lambda: self._look_at_scale(batch))
            self._edge.run("probes", lambda: self._readings.see_batch(batch))
        check = self._after.check
        if check is not None:
            self._edge.run("probes", lambda: check.see_batch(batch))

    def _look_at_batch(self, batch: object, *, begins: bool) -> None:
        parts = self._parts
        if begins:
            parts.pool.begin_step()
            if self._after.acting:
                parts.optimizer_step.keep_buffers()
            parts.probes.arm(parts.state.counters.step + 1, closely=self._after.looks_closely)
        parts.pool.see_batch(batch)

    def _look_at_scale(self, batch: object) -> None:
        """Write down a batch of another scale than the usual."""
        step = self._parts.state.counters.step + 1
        for change in self._parts.settings.see_batch(batch, step):
            self._after.tell_change(change)

    # -- the user has run the forward pass --------------------------------------------------

    def note_loss(self, loss: torch.Tensor | None, *, parts: float, samples: object = None) -> None:
        """Take in the loss of one part of the step; see `Guard.note_loss`."""
        self._parts.clock.note_forward()
        self._batches.note_loss(loss, parts, may_lack=self._parts.ranks.count > 1)
        self._parts.probes.gives_loss = self._batches.losses.are_here
        if loss is not None and not self.probing:
            self._edge.run("recovery", lambda: self._recovery.see_loss(loss))
        if samples is not None and not self._parts.probes.samples.take_in(samples):
            self._tell_once(
                f"samples={arguments.shown(samples)} is left out: expected a tensor of losses,"
                " [samples] or [samples, tokens]",
                about="samples",
            )

    def recount(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss as it is counted with what is held; see `settings.measured`."""
        return self._parts.settings.recount(loss, self._parts.state.counters.step + 1)

    def backward(self, loss: torch.Tensor, *, parts: float) -> None:
        """Run the backward pass, scaled where there is a scaler; nothing in a probe."""
        if self.probing:
            return
        if not loss.requires_grad:
            raise ConfigError(
                "guard.backward() was given a loss without a graph; do not detach it, and compute"
                " it with gradients on"
            )
        if parts == 1 and self._batches.gradients_add_up:
            self._tell_once(
                "one batch was given several losses: their gradients add up, and their mean is"
                " logged; for N parts of one batch call guard.backward(loss, parts=N), which makes"
                " them those of the mean",
                about="sum",
            )
        if parts != 1:
            loss = loss / parts
        self._parts.precision.note_scaled_loss()
        scaler = self._parts.precision.scaler
        scaled = loss if scaler is None else scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def clip_gradients(self, limit: float | None) -> float:
        """Unscale and clip now; return the norm before it, 0 in a probe."""
        if self.probing:
            return 0.0
        self._parts.optimizer_step.set_clip(limit)
        return self._parts.optimizer_step.clip_ahead()[0]

    # -- the step ---------------------------------------------------------------------------

    def step(self) -> None:
        """Do the step that was handed out, and what follows it; see `Guard.step`."""
        self._batches.check_ready()
        if self._own.active:
            self._edge.run("probes", self._own.before_step)
        try:
            self._step()
        finally:
            if self._own.active:
                self._edge.run("probes", self._own.after_step)

    def _step(self) -> None:
        if self._readings.active:
            self._read()
            return
        # The row before is judged first: no update is made on a state that is to be undone.
        if self._settle_first():
            return
        fed, loss = self._batches.take()
        if self.probing:
            self._look_only(fed, loss)
            return
        settings = self._parts.settings
        self._edge.run("probes", self._look_at_settings)
        if self._pending.may_wait():
            self._pending.defer(loss, fed)
            self._edge.run("probes", settings.after_update)
            self._parts.clock.note_left()
            self._interrupts.step_ends(together=False)
            return
        # `float` waits for the device: this step is read now.
        row = self._update(float(loss), fed)
        self.after_step(row)
        self._edge.run("probes", settings.after_update)
        self._shutdown.stop_if_given_up()
        self._parts.clock.note_left()
        self._interrupts.step_ends(together=self._pending.stop_heard or self._parts.pool.whole.stop)

    def _look_at_settings(self) -> None:
        """Write down what changed since the last step that neither a schedule nor we have set."""
        for text in self._parts.optimizer_step.outside_steps.take():
            self._tell_once(text, about=text[:32])
        step = self._parts.state.counters.step + 1
        for change in self._parts.settings.before_update(step):
            self._after.tell_change(change)
        self._recovery.see_step(self._parts.settings.trained)
        for held, lr in self._parts.rates.end_holds():
            back = f"the script itself has put it back, to {lr:.3g}"
            self._after.tell_ended(f"the learning rate at {held:.3g}", back)
        held_settings = self._parts.state.decisions.held_settings
        for name, why in self._parts.settings.ended_holds(step).items():
            held_settings.pop(name, None)
            self._after.tell_ended(name, why)

    def _read(self) -> None:
        """Give the losses of the yardstick's batches to it; nothing else follows from them."""
        count = len(self._batches.fed)
        _, loss = self._batches.take()
        # The time of what is read is not part of the next step's.
        self._readings.take_in(float(loss), count)
        if not self._readings.active:
            self._parts.clock.start()
        self._interrupts.step_ends(together=False)

    def _end_reading(self) -> None:
        self._batches.forget()
        self._readings.give_up()

    def _leave_reading(self, why: str) -> None:
        """Give up a reading that the loop did not go through with; training goes on without it."""
        self._end_reading()
        self._interrupts.step_ends(together=False)
        self._tell_once(
            f"a reading of fixed batches was given up: {why}; call guard.backward(loss) and"
            " guard.step() where guard.phase is 'probe', too, or set yardstick_share = 0",
            about="reading",
        )

    def leave_to_step(self, call: str) -> bool:
        """Return whether a call by hand comes while the yardstick's batches are read; say so once.

        The same loop body ran after the step itself, where the call was done.
        """
        if not self.in_reading:
            return False
        self._tell_once(
            f"guard.{call}() was asked for while fixed batches were read; left to the step itself",
            about="by hand",
        )
        return True

    def _settle_first(self) -> bool:
        """Settle before an update; return whether it takes the batches under way back."""
        state = self._parts.state
        before = state.num_restores
        acted = self._pending.settle()
        self._shutdown.stop_if_given_up()
        if not (acted and (self._recovery.busy or state.num_restores > before)):
            return False
        self._batches.forget()
        self._parts.deferred.drop()
        self._interrupts.step_ends(together=self._pending.stop_heard)
        return True

    def _look_only(self, fed: Fed, loss: torch.Tensor) -> None:
        """Give the loss of a probed batch to recovery; no update is made."""
        self._parts.optimizer_step.zero_grad()
        # The norm is 0 as a probe has no backward pass; the vector that is gathered stays the same.
        whole = self._parts.pool.pool(float(loss), 0.0, fed.samples, fed.tokens)
        self._after.hear_faults()
        if self.probing:
            self._edge.run(
                "recovery", lambda: self._recovery.after_probe(fed.first, fed.last, whole.loss)
            )
        self._after.end_case()
        self._edge.run("journal", self._parts.recorder.write_events, retried=True)
        self._interrupts.step_ends(together=whole.stop)

    def _update(self, loss: float, fed: Fed) -> StepRow:
        """Clip, pool over ranks, apply or skip; return the row of the step."""
        update, pool, rows = self._parts.optimizer_step, self._parts.pool, self._parts.rows
        # before_optimizer_step
        # Collectives, in this order on all ranks: the norm where gradients are sharded, the
        # shares, and where the norm is not finite the name of the tensor.
        norm, limit = update.take_clipped(look=True)
        whole = pool.pool(loss, float(norm), fed.samples, fed.tokens)
        labels = update.look_at_gradients(whole, limit)
        pool.find_elsewhere(whole, labels)
        # the pooled norm: all ranks leave the update out, or none does
        applied = update.apply(skip=self._after.acting and not math.isfinite(whole.norm))
        # after_optimizer_step
        self._parts.state.count_step()
        values = rows.values(
            whole,
            lr=applied.lr,
            scheduled=applied.scheduled,
            limit=limit,
            noted=pool.pool_noted(whole),
            skipped=applied.skipped,
            scale=applied.scale,
        )
        return StepRow(fed, values, labels)

    def after_step(self, row: StepRow) -> None:
        """Record and judge the step, then recover, snapshot and checkpoint as it asks for."""
        found = self._after.record_and_judge(row)
        self._after.recover_and_save(row.loss, found)

    # -- given up, or over ------------------------------------------------------------------

    def drop_batch(self, why: str) -> None:
        """Give up what was handed out since the last step; the loop goes on with the next batch."""
        if self._readings.active:
            self._end_reading()
            self._interrupts.step_ends(together=False)
            return
        self.give_up_batch(why)
        self._interrupts.step_ends(together=False)

    def give_up_batch(self, why: str) -> None:
        """Throw away what was handed out since the last step, and say so."""
        fed = self._batches.give_up()
        self._parts.optimizer_step.abandon()
        self._parts.pool.forget_noted()
        self._messages.note(f"samples {fed.first}-{fed.last} given up: {why}")

    def on_train_end(self) -> None:
        """End the run: save, report, and write the end down."""
        self._shutdown.end_of_loop()

    def _tell_once(self, text: str, *, about: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._messages.note(text)
