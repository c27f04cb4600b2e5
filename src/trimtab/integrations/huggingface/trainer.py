"""The guard inside Hugging Face's Trainer, whole.

Data rewound and skipped, steps rolled back, in one process.

The Trainer keeps its loop. What changes: its training data come from the guard, `optimizer.step()`
is the guard's step, and `accelerator.clip_grad_norm_` is the guard's clipping. The Trainer counts
passes of its loop, the guard counts steps; after each step the Trainer's counters are set to the
guard's, and while the guard probes or tries a remedy nothing is logged, evaluated or saved.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerCallback

from trimtab.errors import ConfigError, TrimtabError
from trimtab.guard import Guard
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.state.external_checkpoint import check_launch
from trimtab.guard.state.training_state import Training
from trimtab.integrations.accelerate.joined import (
    AcceleratedSchedule,
    Hooks,
    PreparedOptimizer,
    inner_optimizer,
)
from trimtab.integrations.huggingface.callback import GuardCallback
from trimtab.integrations.huggingface.checkpoints import (
    TrainerFiles,
    choose_checkpoint,
    read_companion,
)
from trimtab.integrations.huggingface.dataloader import EpochLength, Feed
from trimtab.integrations.huggingface.trainer_state import Place
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.plan.policy import Mode, Policy

__all__ = ["GuardMixin", "GuardSettings", "GuardedTrainer"]

_NOT_SIGNALS = frozenset({"loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos"})
"""Keys of the Trainer's log that the guard records itself, or that say where the run is."""


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """How a Trainer is guarded; what the Trainer knows itself is not asked again."""

    mode: Mode | None = None
    """observe, advise or act; None: the policy's."""
    run: str | Path | None = None
    """Run directory; None: `trimtab` in the Trainer's output directory."""
    policy: Policy | None = None
    """None: `Policy()`."""
    check_resume: int = 0
    """See `Guard`."""
    output_layer: torch.nn.Module | None = None
    """See `Guard`."""
    count_tokens: Callable[[Any], int] | None = None
    """See `Guard`."""
    say: Callable[[str], None] | None = None
    """Shows one line to the user; None: standard error."""


class GuardMixin:
    """Put before a Trainer class, guards its `train()`: `class G(GuardMixin, SFTTrainer): ...`.

    `guard` is the guard while training runs. What a loss function knows besides its loss goes into
    the row of the step with `self.guard.note_signals(kl=..., reward=...)`; what the Trainer logs
    beside its loss goes into the row after it.
    """

    guard: Guard | None = None
    args: Any
    state: Any
    control: Any
    accelerator: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    callback_handler: Any
    add_callback: Any

    def __init__(self, *args: Any, guard: GuardSettings | Mode = "observe", **kwargs: Any) -> None:
        """Take what the Trainer takes.

        Args:
            *args: For the Trainer.
            guard: The mode (observe, advise, act), or all settings.
            **kwargs: For the Trainer.

        Raises:
            ConfigError: `guard` is something else.
        """
        if not isinstance(guard, str | GuardSettings):
            raise ConfigError(
                f'guard={guard!r}: expected "observe", "advise", "act" or GuardSettings(...); to'
                " train unguarded, take the Trainer class itself"
            )
        super().__init__(*args, **kwargs)
        for package in ("transformers", "accelerate"):
            warn_of_version(package)
        self.guard_settings = GuardSettings(mode=guard) if isinstance(guard, str) else guard
        self._feed: Feed | None = None
        self._hooks: Hooks | None = None
        self._loaded: Path | None = None
        self._launched: Training | None = None
        self._skips_data = False
        self._held_limit: int | None = None
        self.group_size = 1
        """Batches of the step under way."""
        self.group_done = 0
        self._step_before = -1
        self._misaligned = False
        self.add_callback(_Watch(self))

    # -- what the Trainer calls -------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's data in the guard's order."""
        self._feed = Feed(self, super().get_train_dataloader())  # type: ignore[misc]
        return self._feed

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Trainer's figures, with epochs that end where the data do, not by passes."""
        epochs, updates, *rest, length, steps = super().set_initial_training_values(*args, **kwargs)  # type: ignore[misc]
        del updates
        self._num_epochs = epochs
        return (sys.maxsize, sys.maxsize, *rest, EpochLength(length, self), steps)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of the next step: fewer at the end of an epoch, none after it."""
        samples, *rest = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        self.group_size, self.group_done = len(samples), 0
        if not samples:
            self.control.should_epoch_stop = True
        return (samples, *rest)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Do the Trainer's, and tell the guard of the loss."""
        guard = self.guard
        if guard is not None and self.group_done == 0:
            self._step_before = guard.step_number
        loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        self.group_done += 1
        if guard is None:
            return loss
        guard.note_loss(loss * self.group_size if self.group_size > 1 else loss)
        return torch.zeros_like(loss) if guard.probing else loss

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Note the optimizer's settings as launched: loading a checkpoint undoes them silently."""
        self._launched = Training(self.model_wrapped, inner_optimizer(self.optimizer))
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        """Clip through the accelerator, also where gradients lie on several meshes."""
        if self.guard is None:
            return super()._clip_grad_norm(model)  # type: ignore[misc]
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_learning_rate(self) -> float:
        """Return the rate of the step just done, as it was in force."""
        optimizer = getattr(self, "optimizer", None)
        rate_in_force: float | None = getattr(optimizer, "last_lr", None)
        if rate_in_force is not None:
            return rate_in_force
        rate: float = super()._get_learning_rate()  # type: ignore[misc]
        return rate

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - the Trainer's signature
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Train as the Trainer does; a run that is in the run directory goes on from there.

        Args:
            resume_from_checkpoint: A checkpoint of the Trainer's own to go on from; True: the
                newest healthy state there is, its own or the guard's; None: the guard's, where
                there is one.
            *args: For the Trainer.
            **kwargs: For the Trainer.

        Raises:
            ConfigError: A `GuardCallback` is there as well, or as for `Guard`.
        """
        if any(isinstance(callback, GuardCallback) for callback in self.callback_handler.callbacks):
            raise ConfigError(
                f"{type(self).__name__} is guarded whole, and a GuardCallback is redundant; take"
                " it out"
            )
        arguments = self.args
        chosen: str | Path | bool | None = resume_from_checkpoint
        if chosen is True:
            chosen = choose_checkpoint(arguments.output_dir, self._run_directory())
        self._loaded = Path(chosen) if isinstance(chosen, str | Path) else None
        self._launched = None
        self._skips_data = skips_data = arguments.ignore_data_skip
        arguments.ignore_data_skip = True  # the guard knows the place in the data
        try:
            return super().train(  # type: ignore[misc]
                None if self._loaded is None else str(self._loaded), *args, **kwargs
            )
        finally:
            arguments.ignore_data_skip = skips_data
            self._release()

    # -- what the callback calls ------------------------------------------------------------

    def begin_guard(self) -> None:
        """Make the guard of the objects that the Trainer has prepared, and join the two."""
        optimizer, scheduler = self.optimizer, self.lr_scheduler
        accelerator, args, state = self.accelerator, self.args, self.state
        assert self._feed is not None
        if str(accelerator.distributed_type).endswith("FSDP") and not accelerator.is_fsdp2:
            raise ConfigError(
                "FSDP version 1 keeps parameters in flat buffers that cannot be measured by name; "
                'set fsdp_config={"fsdp_version": 2}'
            )
        if str(accelerator.distributed_type).endswith("DEEPSPEED"):
            raise ConfigError(
                "TrainingArguments(deepspeed=...) hands backward and update to an engine; take"
                " GuardCallback(mode='observe'), or a loop with"
                " trimtab.integrations.deepspeed.adapter"
            )
        state.num_train_epochs = self._num_epochs
        by_metric = isinstance(
            scheduler, ReduceLROnPlateau
        )  # stepped at evaluations, by the Trainer
        schedule = AcceleratedSchedule(
            None if by_metric else scheduler, optimizer, accelerator.scaler
        )
        place = Place(self)
        extra = {"trainer": place} | ({"plateau": scheduler} if by_metric else {})
        chosen = self.guard_settings
        tell = (chosen.say or to_stderr) if state.is_world_process_zero else _say_nothing
        companion = None if self._loaded is None else read_companion(self._loaded, say=tell)
        if companion is not None and self._launched is not None:
            check_launch(self._launched, companion)
        self.guard = guard = Guard(
            self.model_wrapped,
            inner_optimizer(optimizer),
            data=self._feed.source(
                total_batches=state.max_steps * args.gradient_accumulation_steps
            ),
            run=self._run_directory(),
            mode=chosen.mode,
            policy=chosen.policy,
            scheduler=schedule,
            scaler=accelerator.scaler,
            clip=args.max_grad_norm or None,
            steps=state.max_steps,
            check_resume=chosen.check_resume,
            output_layer=chosen.output_layer,
            count_tokens=chosen.count_tokens,
            accumulate=args.gradient_accumulation_steps,
            extra=extra,
            loaded_step=None if self._loaded is None else state.global_step,
            companion=companion,
            say=chosen.say,
        )
        if self._loaded is not None and companion is None:
            guard.go_on_after(self._batches_done())
        if self._launched is not None:
            guard._training.settings = self._launched.settings
        if guard.step_number:
            state.global_step = self._initial_global_step = guard.step_number
            state.epoch = guard.data_epoch
            place.count_from_here()
        guard._engine.keeps_gradients = (
            True  # for `on_optimizer_step`; the Trainer drops them after it
        )
        self._files = TrainerFiles(args.output_dir, guard)
        self._hooks = Hooks(accelerator, guard, note_losses=False)
        self.optimizer = PreparedOptimizer(optimizer, guard, schedule)
        self.lr_scheduler = scheduler if by_metric else SteppedScheduler(scheduler)
        for name in ("optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def go_unguarded(self, error: Exception) -> None:
        """Leave the Trainer as it is, for a fault of ours before the first step."""
        to_stderr(
            f"trimtab: a fault of its own; the run is not guarded: {type(error).__name__}: {error}"
        )
        self._release()
        self.guard = None
        for name in ("optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.args.ignore_data_skip = self._skips_data
        loaded = self._loaded
        if loaded is not None and self._feed is not None and not self._skips_data:
            trainer: Any = self
            self._feed.skip(self._batches_done(), lambda: trainer._load_rng_state(str(loaded)))

    def after_step(self) -> None:
        """Set the Trainer's count so that its own increment gives the guard's."""
        if self.guard is not None:
            self.state.global_step = self.guard.step_number - 1
            short = self.group_size < self.args.gradient_accumulation_steps
            self._misaligned = short and not self.guard.epoch_is_over  # it went back from there

    def after_pass(self, control: Any) -> None:
        """Let the Trainer end its epoch with the data; nothing else in a probe or trial, or after a
        pass that did not lead one step on.
        """  # noqa: D205
        guard, state = self.guard, self.state
        if guard is None:
            return
        state.epoch = guard.data_epoch
        if guard.phase != "calm" or guard.step_number != self._step_before + 1:
            control.should_log = control.should_evaluate = control.should_save = False
        if guard.phase != "calm":
            if state.global_step >= state.max_steps:
                control.should_training_stop = False
        else:
            guard._edge.run("checkpoint", self._files.follow_rollback)
        self._hold_checkpoints(doubt=guard._recovery.unsettled)
        if guard.epoch_is_over or self._misaligned:
            control.should_epoch_stop = True

    def after_log(self, logs: Mapping[str, Any]) -> None:
        """Record with the next step what else was logged with a loss."""
        if self.guard is not None and "loss" in logs:
            further = {
                name: float(value)
                for name, value in logs.items()
                if isinstance(value, int | float) and name not in _NOT_SIGNALS
            }
            self.guard.note_signals(**further)

    def after_save(self) -> None:
        """Complete a checkpoint of the Trainer's own, once all ranks have written their part."""
        if self.guard is not None:
            self.accelerator.wait_for_everyone()
            step = self.state.global_step
            self.guard._edge.run("checkpoint", lambda: self._files.saved(step))

    def after_epoch(self, control: Any) -> None:
        """Keep quiet about an epoch that was ended for us; end the guard where training ends."""
        guard = self.guard
        if guard is None:
            return
        if self._misaligned or guard.phase != "calm":
            self._misaligned = False
            control.should_log = control.should_evaluate = control.should_save = False
        if control.should_training_stop:
            guard.finish()

    # -- inside -----------------------------------------------------------------------------

    def _run_directory(self) -> Path:
        chosen = self.guard_settings.run
        return Path(chosen) if chosen is not None else Path(self.args.output_dir) / "trimtab"

    def _batches_done(self) -> int:
        """Return how many batches of this rank the steps of the Trainer's checkpoint took."""
        assert self._feed is not None
        accumulate = self.args.gradient_accumulation_steps
        return _batches(self.state.global_step, self._feed.num_batches, accumulate)

    def _hold_checkpoints(self, *, doubt: bool) -> None:
        """Rotate no checkpoint away while the newer ones may be of no use."""
        args = self.args
        if doubt and self._held_limit is None:
            self._held_limit, args.save_total_limit = args.save_total_limit, None
        elif not doubt and self._held_limit is not None:
            self._held_limit, args.save_total_limit = None, self._held_limit

    def _release(self) -> None:
        """Give the Trainer its own objects back."""
        if self._feed is not None:
            self._feed.close()
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._hold_checkpoints(doubt=False)
        if isinstance(self.optimizer, PreparedOptimizer):
            self.optimizer = self.optimizer.optimizer
        if isinstance(self.lr_scheduler, SteppedScheduler):
            self.lr_scheduler = self.lr_scheduler.scheduler
        if self.guard is not None:
            self.guard.close()


def _batches(steps: int, per_epoch: int | None, accumulate: int) -> int:
    """Return how many batches so many steps took, where an epoch may end in a shorter one."""
    if per_epoch is None:
        return steps * accumulate
    per_epoch_steps = -(-per_epoch // accumulate)
    epochs, rest = divmod(steps, per_epoch_steps)
    return epochs * per_epoch + rest * accumulate


def _say_nothing(_line: str) -> None:
    """The first rank speaks for all."""


class GuardedTrainer(GuardMixin, Trainer):
    """Hugging Face's Trainer, guarded.

    Example::

        trainer = GuardedTrainer(model, args, train_dataset=data, guard="act")
        trainer.train()
    """


class _Watch(TrainerCallback):
    """Stands last among a Trainer's callbacks, and hands its moments on."""

    def __init__(self, trainer: GuardMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        handler = self._trainer.callback_handler
        handler.callbacks.append(handler.callbacks.pop(handler.callbacks.index(self)))
        try:
            self._trainer.begin_guard()
        except TrimtabError:  # what the user asked for cannot be: said before anything is trained
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours never stops a run
            self._trainer.go_unguarded(error)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.after_pass(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.after_epoch(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        self._trainer.after_log(logs or {})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._trainer.after_save()
