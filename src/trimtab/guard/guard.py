"""The guard of a training run: about eight lines in a plain PyTorch loop."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.judge import make_judge
from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.control.control import Control
from trimtab.guard.control.delegation import delegate
from trimtab.guard.data.streams import open_order
from trimtab.guard.distributed.holders import Holders
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.loop import setup_checks
from trimtab.guard.loop.assembly import Setup, assemble
from trimtab.guard.loop.at_exit import left_at_exit
from trimtab.guard.loop.certificate import machine_of, why_uncertified
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.row_sync import RowSync
from trimtab.guard.recording.run_lock import RunLock
from trimtab.guard.state.checkpoint_store import bring_records, holds_run
from trimtab.guard.state.decisions import trained_parameters
from trimtab.guard.state.external_checkpoint import companion_of
from trimtab.guard.state.optimizers import device_of, one_optimizer, one_scheduler
from trimtab.guard.state.training_state import Training
from trimtab.plan.policy import Mode, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader

    from trimtab.chronicle.coverage import Coverage
    from trimtab.detectors.contract import Detector
    from trimtab.guard.data.order import Fed
    from trimtab.guard.loop.checkpoint_scores import Evaluation
    from trimtab.guard.recording.recorder import Listener
    from trimtab.guard.state.training_state import Stateful
    from trimtab.incidents import Incident

__all__ = ["Guard"]

_NO_SIGNALS = ("step",)
"""Names of a row that are no signals."""


class Guard:
    """Guards one training run.

    It owns the order of the data, so that it can go back and leave data out. It measures, judges
    and writes down every step. In `act` mode it rolls back, finds the cause with short trials, and
    goes on with the cheapest remedy that holds. In `observe` mode the losses are bitwise those of
    the same loop without it. A fault of its own is journalled, and training goes on unguarded.

    Changes by hand are methods of `guard.control`; they are offered on the guard itself, too.

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
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        data: DataLoader[object],
        run: str | Path,
        mode: Mode | None = None,
        policy: Policy | None = None,
        scheduler: Any | None = None,
        scaler: Any | None = None,
        clip: float | None = None,
        steps: int | None = None,
        resume: bool = True,
        start_over: bool = False,
        check_resume: int = 0,
        output_layer: torch.nn.Module | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        accumulate: int = 1,
        extra: Mapping[str, Stateful] | None = None,
        loaded_step: int | None = None,
        companion: Mapping[str, object] | None = None,
        detectors: Iterable[Detector[Any] | str] = (),
        thresholds: Mapping[str, float] | None = None,
        say: Callable[[str], None] | None = None,
        validate: Iterable[Any]
        | Callable[[], float | Mapping[str, tuple[float, str]]]
        | None = None,
    ) -> None:
        """Take over a run; nothing of it is changed before the first step.

        Args:
            model: The module that is trained.
            optimizer: Its optimizer, or a list of several (Muon for the matrices, AdamW for the
                rest) that make one step together; parameters in its groups are clipped and
                measured.
            data: A DataLoader over a map-style dataset, or a stream (`guard.streams` says which and
                with what limits); its order is kept exactly.
            run: Run directory; a run that is in it goes on from its newest healthy checkpoint.
            mode: observe, advise or act; default: the policy's.
            policy: Settings; default: `Policy()`.
            scheduler: Learning-rate scheduler, or a list of several; stepped by `step()`.
            scaler: `torch.amp.GradScaler`; used by `backward()` and `step()`.
            clip: Largest global gradient norm; None: no clipping.
            steps: Effective steps of the whole run, going through the data as often as needed;
                None: as many as one epoch has batches.
            resume: Go on with a run found in the directory; False: refuse such a directory.
            start_over: Begin at step 0 where the run found there cannot be gone on with (its
                checkpoints are missing, damaged or not to be read, or its journal is gone), instead
                of refusing; nothing is moved or removed for it. A run that can be gone on with is.
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
            detectors: Further detectors, judged beside the built-in ones.
            thresholds: `detector.setting` -> number, such as `{"spike.threshold_sigma": 8}`.
            say: Shows one line to the user; default: standard error. In `observe` only the start,
                the end, and each incident once.
            validate: What the yardstick reads: a loader of held-out batches, which come through
                your loop with `guard.phase == "probe"` and the model in eval mode; or a function
                that evaluates the model itself and returns a loss, or {name: (value, "up" or
                "down")}, the good direction, the first of which is judged. Without it the
                yardstick is off, or with `Policy(yardstick_share=0.01)` reads a few batches from
                the end of the data order.

        Raises:
            ConfigError: A setting is impossible, or the data cannot be rewound.
            ChronicleError: The run directory cannot be written, or another guard is writing to it.
            ActError: The run found there does not fit these objects.
            ReadError: The run found there cannot be gone on with, see `start_over`.
        """
        policy = Policy() if policy is None else policy
        directory = RunDirectory(arguments.run_folder(run))
        setup_checks.check_objects(
            *(model, optimizer, scheduler, policy),
            scaler=scaler,
            output_layer=output_layer,
            say=say,
            count_tokens=count_tokens,
        )
        optimizer, scheduler = one_optimizer(optimizer), one_scheduler(scheduler)
        setup_checks.check_belonging(model, optimizer, scheduler)
        policy = replace(policy, mode=mode) if mode is not None else policy
        setup_checks.check_arguments(
            *(optimizer, clip, steps, scheduler, accumulate),
            check_resume=check_resume,
            loaded_step=loaded_step,
        )
        judge = make_judge(detectors, thresholds)
        order, ranks = open_order(data), Ranks()
        training = Training(model, optimizer, scheduler, scaler, setup_checks.extra_parts(extra))
        holders = Holders(ranks, trained_parameters(training), training.bare_model)
        uncertified = ""
        if policy.mode == "act":
            machine = machine_of(device_of(optimizer))
            uncertified = ranks.agree(
                partial(why_uncertified, machine, policy, directory.root, ranks.count)
            )
            if uncertified and not policy.act_uncertified:
                policy = replace(policy, mode="advise")
        with setup_checks.disk_errors_named(directory.root, policy.copy_to):
            brought = ranks.agree(partial(bring_records, directory, policy.copy_to, resume=resume))
            is_old = ranks.agree(partial(holds_run, directory))
            if is_old and not resume:
                raise ConfigError(
                    f"{run}: holds a run already; choose another directory, or resume=True to go on"
                    " with it"
                )
            steps = steps if steps is not None else order.steps_per_epoch(accumulate)
            errors = setup_checks.CallbackErrors()
            shown = setup_checks.safe_say(say or to_stderr, errors) if ranks.chief else _say_nothing
            counter = setup_checks.safe_counter(count_tokens or setup_checks.count_tokens, errors)
            lock = ranks.on_chief(lambda: RunLock(directory.root))
            try:
                row_sync = RowSync(
                    every_steps=policy.sync_rows_every_steps, every_s=policy.sync_rows_every_s
                )
                recorder = ranks.together(
                    lambda: Recorder(directory, writes=ranks.chief, lock=lock, row_sync=row_sync)
                )
                setup_checks.resume_skip_list(order, ranks, directory.skip_list)
                made = assemble(
                    Setup(
                        training=training,
                        order=order,
                        policy=policy,
                        ranks=ranks,
                        holders=holders,
                        recorder=recorder,
                        lock=lock,
                        judge=judge,
                        say=shown,
                        count_tokens=counter,
                        callback_errors=errors,
                        clip=clip,
                        steps=steps,
                        accumulate=accumulate,
                        check_resume=check_resume,
                        output_layer=output_layer,
                        loaded_step=loaded_step,
                        companion=companion,
                        is_old=is_old,
                        start_over=start_over,
                        validate=validate,
                        notes=(*brought, *filter(None, (holders.text,))),
                        uncertified=uncertified,
                    )
                )
            except BaseException:
                if lock is not None:
                    lock.release()
                raise
        self.policy = policy
        self.control = made.control
        self._order = order
        self._ranks = ranks
        self._recorder = recorder
        self._training = training
        self._lock = lock
        self._parts = made.parts
        self._engine = made.engine
        self._recovery = made.recovery
        self._edge = made.edge
        self._judged = made.judged
        self._interrupts = made.interrupts
        self._batches = made.batches
        self._start = made.start
        self._after = made.after
        self._pending = made.pending
        self._shutdown = made.shutdown
        self._loop = made.loop
        self._gate = made.gate
        self._readings = made.readings
        self._scores = made.scores

    # -- the loop ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the run is done; after a rollback, the batches to train on again.

        Once the run is done, it yields nothing. After a `break`, or an error that was caught, a
        second loop goes on; a batch that was handed out without a `step()` is given up, as by
        `drop_batch`.
        """
        return left_at_exit(self._loop.run(whole=True))

    def epoch(self) -> Iterator[Any]:
        """Yield what is left of one epoch of the data, for a trainer with an epoch loop of its own.

        As the loop over the guard itself, but it stops at the end of each epoch, and the next call
        begins the next one; after a rollback into the epoch before, it yields the rest of that one.
        """
        return left_at_exit(self._loop.run(whole=False))

    def backward(
        self, loss: torch.Tensor, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Run the backward pass, scaled where there is a scaler; nothing but noting it in a probe.

        The gradients of several calls before `step()` add up, as those of `loss.backward()` do.
        Where they are to be those of the mean, say of how many parts the step is made: the backward
        pass is then that of `loss / parts`, and the mean of the losses is logged, each with its
        share.

        Args:
            loss: Mean loss of what was fed, one number; not divided, and not scaled for fp16.
            parts: How many parts like this one make the step; where they are not of one size,
                `len(batch) / len(part)`.
            samples: As for `note_loss`.

        Raises:
            ConfigError: It is no loss with a graph, `parts` is below 1, or no batch was handed out.
        """
        loss = self._loop.recount(loss)
        self.note_loss(loss, parts=parts, samples=samples)
        self._loop.backward(loss, parts=parts)

    def note_loss(
        self, loss: torch.Tensor | None, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Take note of a batch's loss, where a trainer runs the backward pass itself.

        Args:
            loss: Mean loss of the batch, nats per token; neither scaled for fp16 nor divided by the
                number of batches that are accumulated. None, where several ranks train: another
                one has it, as the last stage of a pipeline has.
            parts: As for `backward`; only how much it counts in the mean that is logged.
            samples: Losses of single samples, [samples] or [samples, tokens]; the outliers are
                named. What is no such tensor is left out, and said once.

        Raises:
            ConfigError: It is no tensor of one real number, `parts` is below 1, or no batch was
                handed out.
        """
        self._loop.note_loss(loss, parts=parts, samples=samples)

    def clip_gradients(self, limit: float | None) -> float:
        """Unscale and clip now, where a trainer does so before its optimizer's step.

        `step()` then does not do it again; the guard's own factor on the limit applies.

        Args:
            limit: Largest global gradient norm, None: only measure it; kept for later steps.

        Returns:
            The norm before clipping, NaN and Inf as they are; 0 in a probe, which has no gradients.
        """
        return self._loop.clip_gradients(limit)

    def note_signals(self, **signals: float) -> None:
        """Record further signals with the step under way (a reward, a KL divergence).

        Of several ranks all must note the same names; the mean is recorded. Names that the guard
        measures itself are left out, and so is `step`.

        Raises:
            ConfigError: A value is no number.
        """
        taken = {
            name: float(arguments.number(f"note_signals: {name}=", value))
            for name, value in signals.items()
            if name not in _NO_SIGNALS
        }
        if not self.probing:
            self._parts.pool.note(taken)

    def step(self) -> None:
        """Clip, update or skip, record, judge; go back where it is needed and allowed.

        Raises:
            SystemExit: Nothing is left to try and the policy says to stop then; or SIGTERM came.
            KeyboardInterrupt: SIGINT came in the meantime.
        """
        self._loop.step()

    def finish(self, reason: str = "") -> None:
        """End the run here, as the end of the guard's own loop does: save, report, write it down.

        A trainer calls it that stops by itself and does not ask for one batch more.

        Args:
            reason: For the journal; default: whether all steps are done.
        """
        self._shutdown.end(
            reason or ("all steps done" if self._after.done else "the trainer stopped")
        )

    def close(self) -> None:
        """Stop guarding: close the files and unlock the run directory; done at the end too."""
        self._shutdown.close()

    # -- by hand: the same as `guard.control.…` ---------------------------------------------

    scale_lr = delegate(Control.scale_lr)
    limit_lr = delegate(Control.limit_lr)
    override_lr = delegate(Control.override_lr)
    schedule_weight_decay = delegate(Control.schedule_weight_decay)
    set_optimizer = delegate(Control.set_optimizer)
    tighten_clip = delegate(Control.tighten_clip)
    reset_moments = delegate(Control.reset_moments)
    set_loss_scale = delegate(Control.set_loss_scale)
    skip_samples = delegate(Control.skip_samples)
    skip_list = delegate(Control.skip_list)
    change_data = delegate(Control.change_data)
    expect = delegate(Control.expect)
    undo = delegate(Control.undo)
    roll_back = delegate(Control.roll_back)
    start_over = delegate(Control.start_over)
    checkpoint = delegate(Control.checkpoint)
    drop_batch = delegate(Control.drop_batch)

    # -- for a trainer that keeps its own loop and checkpoints ------------------------------

    def companion(self) -> dict[str, object]:
        """Return what to save beside a trainer's own model, optimizer, scheduler and scaler.

        Tensors and text, for `Guard(loaded_step=..., companion=...)`. All ranks must call it,
        between two steps.

        Raises:
            ConfigError: A step is under way.
        """
        self._gate.check_between()
        self._pending.settle()
        return companion_of(
            self._parts.state,
            judgement=self._parts.judgement,
            ranks=self._ranks,
            attempt=self._recorder.attempt,
        )

    def go_on_after(self, batches: int) -> None:
        """Begin so many batches of this rank into the data, with the random states in force.

        A trainer calls it that has loaded its own checkpoint, to which the guard added nothing.
        """
        self._order.advance(batches)
        self._start.keep_current()

    def on_restore(self, callback: Callable[[int], None]) -> None:
        """Call `callback(step)` each time the state of a step was put back, after it was.

        What it raises is told and journalled, and protection goes on; but what it was to put back
        is then as it was.
        """
        if not callable(callback):
            raise ConfigError(
                f"on_restore({arguments.shown(callback)}): expected a function of step"
            )
        name = getattr(callback, "__qualname__", type(callback).__name__)

        def called(step: int) -> None:
            try:
                callback(step)
            except Exception as error:  # noqa: BLE001 - a user's function ends no protection
                self._edge.tell_callback(
                    f"the on_restore callback {name}",
                    error,
                    f"the guard went back to step {step}, what the callback puts back may not have",
                )

        self._parts.state.on_restore(called)

    def on_checkpoint(self, evaluate: Evaluation, *, every: int = 1) -> None:
        """Score every so many of the guard's checkpoints, the state that was just saved.

        The figures stand in the journal, and as results in the logbook, under the attempt and the
        step. The model is in eval mode; weights, buffers, gradients and random states are put back
        after it. What it raises is told and journalled, and training goes on. A run that goes on
        counts on; all ranks must call it, and `evaluate` is called on all of them.

        Args:
            evaluate: Returns a number, or {name: number}; NaN and Inf are written down as such.
            every: Checkpoints from one evaluation to the next.

        Raises:
            ConfigError: `evaluate` cannot be called, or `every` is no whole number above 0.

        Cost: the evaluation, and a copy of the parameters in host memory while it runs.
        """
        if not callable(evaluate):
            raise ConfigError(f"on_checkpoint({evaluate!r}): expected a function without arguments")
        name = getattr(evaluate, "__name__", type(evaluate).__name__)
        every = arguments.whole("on_checkpoint: every=", every)
        if every < 1:
            raise ConfigError(f"on_checkpoint(every={every}): expected 1 or more")
        self._scores.add(evaluate, every=every, name=name)

    def covers(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the guard clips exactly these, among those that have a gradient."""
        theirs = {id(p) for p in parameters if p.grad is not None}
        ours = self._parts.optimizer_step.parameters
        return theirs == {id(p) for p in ours if p.grad is not None}

    def listen(self, *listeners: Listener) -> None:
        """Pass on what is written down to loggers, such as those of `integrations.loggers`.

        It works on the first rank only. A logger that fails is left out; the run goes on.

        Raises:
            ConfigError: One is no listener.
        """
        for one in listeners:
            if not all(hasattr(one, name) for name in ("sample", "event", "close")):
                raise ConfigError(
                    f"listen({arguments.shown(one)}): expected loggers of"
                    " trimtab.integrations.loggers, or what has sample(), event() and close()"
                )
        if self._ranks.chief:
            self._recorder.listeners.extend(listeners)

    # -- what it knows ----------------------------------------------------------------------

    @property
    def coverage(self) -> Coverage:
        """Which steps were judged: `judged_steps` of `steps`, and `gaps` (first, last, why)."""
        return self._judged.coverage()

    @property
    def step_number(self) -> int:
        """Last finished effective step; falls back in a rollback."""
        return self._parts.state.counters.step

    @property
    def data_epoch(self) -> float:
        """Where the run is in the data.

        It is the number of the epoch under way, from 0, plus the share of it that is done.
        """
        return max(self._order.epoch, 0) + self._order.epoch_share

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch under way has no batch left to hand out."""
        return self._order.at_end

    @property
    def phase(self) -> str:
        """calm, probe or trial; the yardstick's batches come in `probe`, too.

        It stays `probe` after the `step()` of the yardstick's last batch, until the next batch.
        """
        return "probe" if self._loop.in_reading else self._recovery.phase

    @property
    def probing(self) -> bool:
        """Whether batches are only looked at: gradients made now are thrown away by `step()`."""
        return self._loop.probing or self._loop.in_reading

    @property
    def step_is_due(self) -> bool:
        """Whether as many batches were handed out as make a step, `Guard(accumulate=...)`."""
        return self._batches.step_is_due

    @property
    def lr_factor(self) -> float:
        """Factor of the guard on the scheduler's rate of the next step; never above 1."""
        return self._parts.rates.factor_of_script

    @property
    def next_lr(self) -> float:
        """Rate of the first group in the next step.

        It is the scheduler's or the override's, times the guard's factor.
        """
        return self._parts.rates.next_lr

    @property
    def last_norm(self) -> float:
        """Gradient norm of the last step, before clipping, of all ranks; NaN before the first."""
        self._pending.settle(act=False)
        return self._parts.pool.whole.norm

    @property
    def skipped_samples(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""
        return self._order.skips

    @property
    def actions(self) -> tuple[dict[str, object], ...]:
        """What was done, in order."""
        return tuple(self._recovery.actions)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Incidents acted on or advised about in this process, in order."""
        return tuple(self._recovery.incidents)

    @property
    def num_incidents(self) -> int:
        """How many incidents were acted on or advised about in this process."""
        return len(self._recovery.incidents)

    @property
    def wasted_steps(self) -> float:
        """Steps run that are not on the final lineage, as a share of the effective steps.

        Trials and what was rolled back count whole; a probed batch (forward only) counts a third.
        """
        return self._parts.state.wasted_steps

    # -- for adapters of this package -------------------------------------------------------

    @property
    def _fed(self) -> list[Fed]:
        """What was handed out for the step under way."""
        return self._batches.fed

    @property
    def _accumulate(self) -> int:
        """Most batches that make one step."""
        return self._batches.accumulate

    @property
    def _acting(self) -> bool:
        """Whether anything may be done to the run."""
        return self._after.acting


def _say_nothing(_line: str) -> None:
    """Show nothing: the first rank speaks for all."""
