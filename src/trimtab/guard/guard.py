"""The public face of the guard: about eight lines in a plain PyTorch loop."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.data.order import Fed
from trimtab.guard.data.streams import open_order
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.loop import setup_checks
from trimtab.guard.loop.fault_barrier import Edge, to_stderr
from trimtab.guard.loop.loss_accumulator import Losses
from trimtab.guard.loop.resume_check import ReplayCheck
from trimtab.guard.loop.signal_handler import Interrupts
from trimtab.guard.loop.startup import begin
from trimtab.guard.loop.step_loop import Afterwards
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.run_lock import RunLock
from trimtab.guard.recovery.executor import Recovery
from trimtab.guard.state.checkpoint_store import bring_records, holds_run
from trimtab.guard.state.external_checkpoint import companion_of
from trimtab.guard.state.training_state import Training, restore_rng
from trimtab.guard.step.deferred_step import LateEngine
from trimtab.plan.policy import Mode, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader

    from trimtab.guard.loop.fault_barrier import Part
    from trimtab.guard.state.training_state import Stateful

__all__ = ["Guard"]

_EMPTY_EPOCHS = 1000
"""Epochs in a row without a batch that may be fed, after which the data counts as used up."""


class Guard(Afterwards):
    """Guards one training run.

    It owns the order of the data, so that it can go back and leave data out; it measures, judges
    and writes down every step; in `act` mode it rolls back, finds the cause with short trials, and
    goes on with the cheapest remedy that holds. In `observe` mode the losses are bitwise those of
    the same loop without it. A fault of its own is journalled, and training goes on unguarded.

    Example::

        guard = Guard(model, optimizer, data=loader, scheduler=scheduler, clip=1.0,
                      steps=10_000, run="runs/tiny", mode="act")
        for batch in guard:
            loss = model(batch)
            guard.backward(loss)
            guard.step()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        data: DataLoader[Any],
        run: str | Path,
        mode: Mode | None = None,
        policy: Policy | None = None,
        scheduler: Any | None = None,
        scaler: Any | None = None,
        clip: float | None = None,
        steps: int | None = None,
        resume: bool = True,
        check_resume: int = 0,
        output_layer: torch.nn.Module | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        accumulate: int = 1,
        extra: Mapping[str, Stateful] | None = None,
        loaded_step: int | None = None,
        companion: Mapping[str, Any] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Take over a run; nothing of it is changed before the first step.

        Args:
            model: The module that is trained.
            optimizer: Its optimizer; parameters in its groups are clipped and measured.
            data: A DataLoader over a map-style dataset, or a stream (`guard.streams` says which and
                with what limits); its order is kept exactly.
            run: Run directory; a run that is in it goes on from its newest healthy checkpoint.
            mode: observe, advise or act; default: the policy's.
            policy: Settings; default: `Policy()`.
            scheduler: Learning-rate scheduler; stepped by `step()`.
            scaler: `torch.amp.GradScaler`; used by `backward()` and `step()`.
            clip: Largest global gradient norm; None: no clipping.
            steps: Effective steps of the whole run, going through the data as often as needed;
                None: as many as one epoch has batches.
            resume: Go on with a run found in the directory; False: refuse such a directory.
            check_resume: Do so many steps of a new run twice, the second time from a checkpoint on
                disk, and say whether they repeat bit for bit; 0: do not.
            output_layer: Layer whose input is the last hidden state; default: found.
            count_tokens: Gives the tokens of a batch; default: elements of its first integer
                tensor.
            accumulate: Most batches of the loader that make one step: so many are handed out before
                `step()` must be called; each with its own `backward(loss, parts=accumulate)`.
            extra: More objects that decide the future, by name, whose `state_dict()` is plain data;
                saved, rolled back and resumed with the rest.
            loaded_step: Step of a checkpoint of another trainer's that is loaded already: the run
                goes on from there and not from a checkpoint of the guard's.
            companion: What `companion()` gave for that checkpoint; None: there is nothing.
            say: Shows one line to the user; default: standard error. In `observe` only the start,
                the end, and each incident once.

        Raises:
            ConfigError: A setting is impossible, or the data cannot be rewound.
            ChronicleError: The run directory cannot be written, or another guard is writing to it.
            ActError: A run is there but does not fit these objects.
        """
        policy = Policy() if policy is None else policy
        directory = RunDirectory(arguments.run_folder(run))
        setup_checks.check_objects(model, optimizer, scheduler, policy)
        policy = replace(policy, mode=mode) if mode is not None else policy
        setup_checks.check_arguments(optimizer, clip, steps, scheduler, accumulate)
        self._order = open_order(data)
        self._ranks = ranks = Ranks()
        brought = ranks.agree(partial(bring_records, directory, policy.copy_to, resume=resume))
        is_old = ranks.agree(partial(holds_run, directory))
        if is_old and not resume:
            raise ConfigError(
                f"{run}: holds a run already; choose another directory, or resume=True to go on"
                " with it"
            )
        self.policy = policy
        self._steps = steps if steps is not None else self._order.steps_per_epoch(accumulate)
        self._say = setup_checks.safe_say(say or to_stderr) if ranks.chief else _say_nothing
        self._count_tokens = setup_checks.safe_counter(count_tokens or setup_checks.count_tokens)
        self._lock = ranks.on_chief(lambda: RunLock(directory.root))
        try:
            self._recorder = ranks.together(lambda: Recorder(directory, writes=ranks.chief))
            self._resume_skip_list()
            self._training = Training(model, optimizer, scheduler, scaler, dict(extra or {}))
            self._engine = LateEngine(
                self._training,
                self._order,
                policy,
                self._recorder,
                clip=clip,
                ranks=ranks,
                output_layer=output_layer,
            )
            self._engine.store.notes += brought
            self._recovery = Recovery(self._engine, say=self._tell, final_step=self._steps)
            self._edge = Edge(
                journal=self._journal_fault,
                stand_down=self._recovery.stand_down,
                note=self._note_fault,
            )
            self._losses = Losses()
            self._fed: list[Fed] = []
            self._accumulate = accumulate
            self._ended = False
            self._started = False
            self._row, self._judged = None, None
            self._stop_heard, self._own_loop = False, False
            self._interrupts = Interrupts(self._tell, alone=ranks.count == 1)
            self._engine.stop_wanted = self._interrupts.is_wanted
            self._engine.looks_closely = lambda: self._recovery.busy or self._recovery.unsettled
            self._engine.on_gradients = lambda look: self._edge.run("probes", look)
            self._rng_at_start = begin(
                self._engine,
                steps=self._steps,
                is_old=is_old,
                say=self._tell,
                loaded_step=loaded_step,
                companion=companion,
            )
            self._executed_at_start = self._engine.decisions.executed_steps
            self._told_step = self._engine.store.whole_step
            wanted = check_resume > 0 and self._engine.counters.step == 0
            self._check = ReplayCheck(self._engine, check_resume, self._tell) if wanted else None
        except BaseException:
            self._release()
            raise

    # -- what the user's loop calls ---------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the run is done; after a rollback, the batches to train on again.

        Once the run is done, it yields nothing. After a `break`, or an error that was caught, a
        second loop goes on; a batch that was handed out without a `step()` is given up, as by
        `drop_batch`.
        """
        return self._hand_out(whole=True)

    def epoch(self) -> Iterator[Any]:
        """Yield what is left of one epoch of the data, for a trainer with an epoch loop of its own.

        As the loop over the guard itself, but it stops at the end of each epoch, and the next call
        begins the next one; after a rollback into the epoch before, it yields the rest of that one.
        """
        return self._hand_out(whole=False)

    def _hand_out(self, *, whole: bool) -> Iterator[Any]:
        self._settle(act=not self._fed)
        self._start()
        self._own_loop = whole
        interrupts = self._interrupts
        interrupts.watch()
        try:
            while not self._ended:
                if not self._recovery.busy and self._done() and not self._fed:
                    break
                interrupts.step_begins()
                fetched = self._next_batch(whole=whole)
                if fetched is None and not self._fed and self._settle():
                    continue  # what was read only now may have sent the run back
                if fetched is None and not whole:
                    interrupts.in_step = bool(self._fed)
                    return
                if fetched is None:
                    break
                yield self._note_batch(*fetched)
                self._check_stepped()
        except GeneratorExit:
            self._settle_last(act=self._ranks.count == 1 and not self._fed)
            if interrupts.seen:
                self._end("interrupted")
            raise
        finally:
            interrupts.in_step = interrupts.in_step and not whole
            interrupts.release()
        self._end("all steps done" if self._done() else "the data is used up")

    def _note_batch(self, batch: Any, first: int, last: int) -> Any:
        """Take note of a batch that is handed out, and look at it."""
        begins = not self._fed
        self._fed.append(Fed(first, last, self._count_tokens(batch)))
        if begins:
            self._losses.clear()
        if not self.probing:
            self._edge.run("probes", lambda: self._engine.before_forward(batch, begins=begins))
        if self._checking is not None:
            self._edge.run("probes", lambda: self._checking.see_batch(batch))  # type: ignore[union-attr]
        return batch

    def _start(self) -> None:
        if self.step_is_due:
            self._give_up_batch("their loop was left before guard.step()")
        if self._started or self._ended:
            return
        self._check_schedules()
        self._started = True
        if self._rng_at_start is not None:
            restore_rng(self._rng_at_start)  # what a script draws before its loop was drawn already
        if self.policy.mode == "act":
            self._edge.run("recovery", self._engine.snapshot)
            self._edge.run("journal", self._tell_notes)
        if self._check is not None and not self._edge.run("checkpoint", self._check.begin):
            self._check = None
        if not self._done():
            self._edge.run(
                "journal", lambda: self._verdict("running", "under way, or it was killed")
            )
        self._engine.start_clock()

    def _next_batch(self, *, whole: bool) -> tuple[Any, int, int] | None:
        """Return the next batch that may be fed; None where the data, or the epoch, is used up."""
        for _ in range(_EMPTY_EPOCHS):
            fetched = self._order.fetch()
            if fetched is not None:
                return fetched
            if self._steps is None and whole and not self._recovery.busy:
                return None
            self._order.next_epoch()
            if not whole:
                return None
        return None

    def _check_stepped(self) -> None:
        if len(self._fed) < self._accumulate:
            return
        last = "the last batch" if self._accumulate == 1 else f"the last {len(self._fed)} batches"
        every = "every batch" if self._accumulate == 1 else f"every {self._accumulate} batches"
        raise ConfigError(
            f"guard.step() was not called for {last}; call guard.backward(loss) for each and"
            f" guard.step() once for {every}; guard.drop_batch(why=...) before `continue` gives up"
            " what cannot be used"
        )

    def _check_between(self) -> None:
        if self._fed:
            raise ConfigError(
                "a step is under way; call guard.checkpoint() between guard.step() and the next"
                " batch, or give the batch up with guard.drop_batch(why=...)"
            )

    def go_on_after(self, batches: int) -> None:
        """Begin so many batches of this rank into the data.

        With the random states that are in force.

        For a trainer that has loaded a checkpoint of its own to which the guard had added nothing.
        """
        self._order.advance(batches)
        self._rng_at_start = None

    def on_restore(self, callback: Callable[[int], None]) -> None:
        """Call `callback(step)` each time the state of a step was put back, after it was."""
        self._engine.on_restore.append(callback)

    def step(self) -> None:
        """Clip, update or skip, record, judge; go back where it is needed and allowed.

        Raises:
            SystemExit: Nothing is left to try and the policy says to stop then; or SIGTERM came.
            KeyboardInterrupt: SIGINT came in the meantime.
        """
        if not self._fed or not self._losses:
            raise ConfigError(
                "guard.step() needs one batch from the guard and guard.backward(loss) before it"
            )
        if self._settle_first():
            return
        engine, edge = self._engine, self._edge
        fed, self._fed = Fed.joined(self._fed), []
        mean = self._losses.mean()
        if self.probing:
            self._training.optimizer.zero_grad(set_to_none=True)
            whole = engine.pool(float(mean), 0.0, fed.samples, fed.tokens)
            self._hear_of_faults()
            if self.probing:
                edge.run(
                    "recovery", lambda: self._recovery.after_probe(fed.first, fed.last, whole.loss)
                )
            self._interrupts.step_ends(together=whole.stop)
            return
        if self._reads_late():
            self._row = engine.step_late(mean, fed, skip_nonfinite=self._acting)
            self._interrupts.step_ends(together=False)
            return
        values, labels = engine.step(
            float(mean), fed.samples, fed.tokens, skip_nonfinite=self._acting
        )
        found = self._write_down(values, labels, fed, engine.probe)
        self._act_on(values["loss"], found)
        self._stop_if_given_up()
        self._interrupts.step_ends(together=self._stop_heard or engine.step_sum.stop)

    def checkpoint(self) -> None:
        """Save the state to disk now, whole or not at all; also done every so many steps.

        Call it between steps. Saved while an alarm is open, or with weights that are not finite, it
        is
        suspect: a restart passes it over.

        Raises:
            ActError: It cannot be saved.
            ConfigError: The run has ended, or a step is under way.
        """
        self._check_open("checkpoint")
        self._check_between()
        self._engine.save_checkpoint("asked for", doubt=self._recovery.doubt)

    def companion(self) -> dict[str, Any]:
        """Return what to save beside a trainer's own model, optimizer, scheduler and scaler.

        Tensors and text, for `Guard(loaded_step=..., companion=...)`. All ranks must call it,
        between two steps.

        Raises:
            ConfigError: A step is under way.
        """
        self._check_between()
        self._settle()
        return companion_of(self._engine)

    def _note_fault(self) -> bool:
        """Take note of a first fault on this rank; return whether to stand down at once."""
        self._engine.faulted = True
        return self._ranks.count == 1

    def _tell(self, line: str) -> None:
        self._say(line)

    def _journal_fault(self, error: str, part: Part) -> None:
        self._recorder.event("fault", step=self._engine.counters.step, error=error, where=part)


def _say_nothing(_line: str) -> None:
    """The first rank speaks for all."""
