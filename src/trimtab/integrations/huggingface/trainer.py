"""The guard inside Hugging Face's Trainer: rollbacks and skipped data within one process.

The Trainer keeps its loop. What changes: its training data come from the guard, `optimizer.step()`
is the guard's step, and `accelerator.clip_grad_norm_` is the guard's clipping. The Trainer counts
passes of its loop, the guard counts steps; after each step the Trainer's counters are set to the
guard's, and while the guard probes or tries a remedy nothing is logged, evaluated or saved.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerCallback

from trimtab.errors import ConfigError, TrimtabError
from trimtab.guard import Guard
from trimtab.guard.port import LaunchSettings, TrainerPort, to_stderr
from trimtab.integrations.accelerate.joined import (
    AcceleratedSchedule,
    Hooks,
    PreparedOptimizer,
    inner_optimizer,
)
from trimtab.integrations.huggingface.callback import WatchCallback
from trimtab.integrations.huggingface.checkpoints import (
    TrainerFiles,
    choose_checkpoint,
    read_companion,
)
from trimtab.integrations.huggingface.dataloader import EpochLength, Feed
from trimtab.integrations.huggingface.trainer_state import TrainerProgress
from trimtab.integrations.huggingface.trial_rows import TrialRows
from trimtab.integrations.huggingface.validation import FixedEvaluation
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import TrainOutput

    from trimtab.guard.port import Stateful
    from trimtab.plan.policy import Mode, Policy

    _TrainerBase = Trainer
else:
    _TrainerBase = object  # a mixin: the Trainer class comes after it

__all__ = ["GuardMixin", "GuardSettings", "GuardedTrainer"]

_NOT_SIGNALS = frozenset(
    {"loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "step_time"}
)
"""Keys of the Trainer's log that the guard records itself, or that say where the run is."""
_NO_METRICS: dict[str, dict[str, list[float]]] = {"train": {}}


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """How a Trainer is guarded; what the Trainer is set to itself is taken from it."""

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
    validate: Callable[[], Mapping[str, tuple[float, str]]] | None = None
    """Function that the yardstick reads, see `Guard`; a loader goes through no Trainer's loop."""
    validate_samples: int = 0
    """So many samples of the Trainer's `eval_dataset` are the yardstick, evaluated by its own loop:
    judged is the reward where there is one, else the loss."""

    def __post_init__(self) -> None:
        """Refuse two yardsticks, and what is none."""
        if self.validate is not None and not callable(self.validate):
            raise ConfigError(
                f"validate is {type(self.validate).__name__}, expected a function; for samples of"
                " eval_dataset set validate_samples"
            )
        if self.validate is not None and self.validate_samples:
            raise ConfigError("validate and validate_samples are both given; one is enough")
        if self.validate_samples < 0:
            raise ConfigError(f"validate_samples is {self.validate_samples}, expected 0 or more")


class GuardMixin(_TrainerBase):
    """Put before a Trainer class, guards its `train()`: `class G(GuardMixin, SFTTrainer): ...`.

    `guard` is the guard while training runs. What a loss function knows besides its loss goes into
    the row of the step with `self.guard.note_signals(kl=..., reward=...)`; what the Trainer logs
    beside its loss goes into the row after it.
    """

    guard: Guard | None = None

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
        self._launched: LaunchSettings | None = None
        self._skips_data = False
        self._held_limit: int | None = None
        self.group_size = 1
        """Batches of the step under way."""
        self.group_done = 0
        self._step_before = -1
        self._misaligned = False
        self._trial_rows = TrialRows(self)
        self._measured: dict[str, list[float]] = {}
        self.add_callback(_Relay(self))

    @property
    def port(self) -> TrainerPort | None:
        """Port of the guard; None while there is none."""
        return None if self.guard is None else TrainerPort(self.guard)

    # -- what the Trainer calls -------------------------------------------------------------

    def get_train_dataloader(self) -> Feed:  # type: ignore[override]
        """Return the Trainer's data in the guard's order."""
        self._feed = Feed(self, super().get_train_dataloader())
        return self._feed

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: DataLoader[object]
    ) -> tuple[int, int, int, int, int, int | None, int]:
        """Return the Trainer's figures, with epochs that end with the data, not after passes."""
        figures = super().set_initial_training_values(args, dataloader)
        self._num_epochs, _, examples, samples, batch, length, steps = figures
        counted = None if length is None else EpochLength(length, self)
        # The Trainer's loop over epochs has no end of its own: a rollback may need further passes,
        # and `max_steps` ends the run.
        return sys.maxsize, sys.maxsize, examples, samples, batch, counted, steps

    def get_batch_samples(
        self, epoch_iterator: Iterator[object], num_batches: int, device: torch.device
    ) -> tuple[list[object], torch.Tensor | int | None]:
        """Return the batches of the next step: fewer at the end of an epoch, none after it."""
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.group_size, self.group_done = len(samples), 0
        if not samples:
            self.control.should_epoch_stop = True
        return samples, num_items

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the Trainer's step of one batch and note its loss in the guard."""
        port = self.port
        if port is not None and self.group_done == 0:
            self._step_before = port.step_number
            self._measured = {}
        before = self._num_measured() if port is not None else {}
        loss = super().training_step(*args, **kwargs)
        self.group_done += 1
        if port is None:
            return loss
        self._note_measured(port, before)
        # The Trainer divides by the batches of a step; the guard expects each batch's own mean.
        port.note_loss(loss * self.group_size if self.group_size > 1 else loss)
        # The Trainer adds up what it logs, and a probe's loss is none of a step.
        return torch.zeros_like(loss) if port.probing else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the Trainer does; rows of a trial once it is kept."""
        port = self.port
        if port is not None and not port.is_calm and "loss" in logs:
            self._trial_rows.hold(logs)
        else:
            super().log(logs, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Note the optimizer's settings as launched: loading a checkpoint overwrites them."""
        self._launched = LaunchSettings(self.model_wrapped, inner_optimizer(self.optimizer))
        super()._load_optimizer_and_scheduler(checkpoint)

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor | float | None:
        """Clip through the accelerator, also if gradients lie on several meshes."""
        norm: torch.Tensor | float | None
        if self.guard is None:
            norm = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]
        else:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        return norm

    def _get_learning_rate(self) -> float:
        """Return the rate of the step just done, as it was in force."""
        optimizer = getattr(self, "optimizer", None)
        in_force = optimizer.last_lr if isinstance(optimizer, PreparedOptimizer) else None
        return super()._get_learning_rate() if in_force is None else in_force

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - the Trainer's signature
        *args: Any,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train as the Trainer does; a run found in the run directory is resumed.

        Args:
            resume_from_checkpoint: A checkpoint of the Trainer's own to resume from; True: the
                newest healthy state there is, its own or the guard's; None: the guard's, if there
                is one.
            *args: For the Trainer.
            **kwargs: For the Trainer.

        Raises:
            ConfigError: A `WatchCallback` is added as well, or as for `Guard`.
        """
        if any(isinstance(callback, WatchCallback) for callback in self.callback_handler.callbacks):
            raise ConfigError(
                f"{type(self).__name__} records and judges itself; a WatchCallback or GuardCallback"
                " is redundant: remove it"
            )
        arguments = self.args
        chosen: str | Path | bool | None = resume_from_checkpoint
        if chosen is True:
            chosen = choose_checkpoint(self._output_dir(), self._run_directory())
        self._loaded = Path(chosen) if isinstance(chosen, str | Path) else None
        self._launched = None
        self._skips_data = skips_data = arguments.ignore_data_skip
        arguments.ignore_data_skip = True  # the guard knows the position in the data
        try:
            return super().train(
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
        _check_distributed(accelerator)
        feed, chosen, loaded = self._feed, self.guard_settings, self._loaded
        assert feed is not None
        state.num_train_epochs = self._num_epochs
        # A scheduler that waits for a metric is stepped by the Trainer, at evaluations.
        by_metric = isinstance(scheduler, ReduceLROnPlateau)
        schedule = AcceleratedSchedule(
            None if by_metric else scheduler, optimizer, accelerator.scaler
        )
        progress = TrainerProgress(self)
        extra: dict[str, Stateful] = {"trainer": progress}
        reference = getattr(self, "ref_model", None)
        if getattr(args, "sync_ref_model", False) and reference is not None:
            extra["reference"] = accelerator.unwrap_model(reference)  # it follows the policy
        if by_metric and scheduler is not None:
            extra["plateau"] = scheduler
        show = (chosen.say or to_stderr) if state.is_world_process_zero else _say_nothing
        companion = None if loaded is None else read_companion(loaded, say=show)
        if companion is not None and self._launched is not None:
            self._launched.check(companion)
        accumulate = args.gradient_accumulation_steps
        self.guard = guard = Guard(
            self.model_wrapped,
            inner_optimizer(optimizer),
            data=feed.source(total_batches=state.max_steps * accumulate),
            run=self._run_directory(),
            mode=self._mode(),
            policy=chosen.policy,
            scheduler=schedule,
            scaler=accelerator.scaler,
            clip=args.max_grad_norm or None,
            steps=state.max_steps,
            check_resume=chosen.check_resume,
            output_layer=chosen.output_layer,
            count_tokens=chosen.count_tokens,
            accumulate=accumulate,
            extra=extra,
            loaded_step=None if loaded is None else state.global_step,
            companion=companion,
            say=chosen.say,
            validate=FixedEvaluation(self, chosen.validate_samples)
            if chosen.validate_samples
            else chosen.validate,
        )
        port = TrainerPort(guard)
        port.on_restore(self._trial_rows.drop_after)
        if loaded is not None and companion is None:
            port.begin_after(self._batches_done())
        if self._launched is not None:
            port.launched_with(self._launched)
        if port.step_number:
            state.global_step = self._initial_global_step = port.step_number
            state.epoch = port.data_epoch
            progress.count_from_here()
        port.keep_gradients()  # for `on_optimizer_step`; the Trainer drops them after it
        self._files = TrainerFiles(self._output_dir(), port)
        self._hooks = Hooks(accelerator, port, note_losses=False)
        self._set_stepped(
            PreparedOptimizer(optimizer, port, schedule),
            scheduler if by_metric else SteppedScheduler(scheduler),
        )

    def go_unguarded(self, error: Exception) -> None:
        """Leave the Trainer as it is, after an internal error before the first step."""
        to_stderr(
            f"trimtab: internal error; the run is not guarded: {type(error).__name__}: {error}"
        )
        self._release()
        self.guard = None
        self._set_stepped(self.optimizer, self.lr_scheduler)
        self.args.ignore_data_skip = self._skips_data
        loaded = self._loaded
        if loaded is not None and self._feed is not None and not self._skips_data:
            self._feed.skip(self._batches_done(), lambda: self._load_rng_state(str(loaded)))

    def after_step(self) -> None:
        """Set the Trainer's count so that its own increment gives the guard's."""
        port = self.port
        if port is not None:
            self.state.global_step = port.step_number - 1
            short = self.group_size < self.args.gradient_accumulation_steps
            # A short step belongs to the end of an epoch: elsewhere the guard went back from there,
            # and the Trainer's count of batches no longer matches the epoch.
            self._misaligned = short and not port.epoch_is_over

    def after_pass(self, control: TrainerControl) -> None:
        """Follow a pass of the Trainer's loop.

        The Trainer ends its epoch with the data. In a probe or trial, and after a pass that was not
        one step forward, nothing is logged, evaluated or saved.
        """
        port, state = self.port, self.state
        if port is None:
            return
        state.epoch = port.data_epoch
        forward = port.step_number == self._step_before + 1
        if not forward or port.probing:
            control.should_log = control.should_evaluate = control.should_save = False
        elif not port.is_calm:
            self._trial_rows.note_due(control, state.global_step)
        if not port.is_calm:
            if state.global_step >= state.max_steps:
                control.should_training_stop = False
        else:
            self._trial_rows.release(control, super().log)
            port.contain("checkpoint", self._files.follow_rollback)
        self._hold_checkpoints(doubt=port.unsettled)
        if port.epoch_is_over or self._misaligned:
            control.should_epoch_stop = True

    def after_log(self, logs: Mapping[str, object]) -> None:
        """Record with the next step what else was logged with a loss."""
        port = self.port
        # rows of a trial that was kept come later than the steps they are of
        if port is not None and "loss" in logs and self.state.global_step == port.step_number:
            further = {
                name: float(value)
                for name, value in logs.items()
                if isinstance(value, int | float)
                and name not in _NOT_SIGNALS
                and name not in self._measured
            }
            port.note_signals(**further)

    def after_save(self) -> None:
        """Complete a checkpoint of the Trainer's own, once all ranks have written their part."""
        port = self.port
        if port is not None:
            self.accelerator.wait_for_everyone()
            step = self.state.global_step
            port.contain("checkpoint", lambda: self._files.saved(step))

    def after_epoch(self, control: TrainerControl) -> None:
        """Report nothing for an epoch that was cut short; end the guard when training ends."""
        port = self.port
        if port is None:
            return
        if self._misaligned or port.probing:
            control.should_log = control.should_evaluate = control.should_save = False
        elif not port.is_calm:
            self._trial_rows.note_due(control, self.state.global_step)
        self._misaligned = False
        if control.should_training_stop:
            port.finish()

    # -- inside -----------------------------------------------------------------------------

    def _output_dir(self) -> Path:
        return Path(str(self.args.output_dir))

    def _run_directory(self) -> Path:
        chosen = self.guard_settings.run
        return Path(chosen) if chosen is not None else self._output_dir() / "trimtab"

    def _mode(self) -> Mode | None:
        """Return the mode asked for; observe where a part of the state cannot go back."""
        why = _cannot_go_back(self)
        if why:
            (self.guard_settings.say or to_stderr)(f"trimtab: only observing: {why}")
        return "observe" if why else self.guard_settings.mode

    def _num_measured(self) -> dict[str, int]:
        """Return how much TRL's trainers have measured since they last logged, by name."""
        return {n: len(v) for n, v in getattr(self, "_metrics", _NO_METRICS)["train"].items()}

    def _note_measured(self, port: TrainerPort, before: Mapping[str, int]) -> None:
        """Note what TRL's trainers have measured of a batch (reward, KL, entropy) with its step."""
        for name, values in getattr(self, "_metrics", _NO_METRICS)["train"].items():
            if name not in _NOT_SIGNALS:
                self._measured.setdefault(name, []).extend(values[before.get(name, 0) :])
        port.note_signals(**{n: sum(v) / len(v) for n, v in self._measured.items() if v})

    def _batches_done(self) -> int:
        """Return how many batches of this rank the steps of the Trainer's checkpoint took."""
        assert self._feed is not None
        accumulate = self.args.gradient_accumulation_steps
        return _batches(self.state.global_step, self._feed.num_batches, accumulate)

    def _set_stepped(self, optimizer: torch.optim.Optimizer | None, scheduler: object) -> None:
        """Set what the Trainer steps, in the callback handler too: callbacks get it from there."""
        for owner in (self, self.callback_handler):
            owner.optimizer = optimizer
            owner.lr_scheduler = scheduler

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
        scheduler: object = self.lr_scheduler
        if isinstance(scheduler, SteppedScheduler):
            self.lr_scheduler = scheduler.scheduler  # type: ignore[assignment]
        if self.guard is not None:
            self.guard.close()


def _check_distributed(accelerator: Accelerator) -> None:
    """Refuse what cannot be guarded.

    Raises:
        ConfigError: The message says what to use instead.
    """
    kind = str(accelerator.distributed_type)
    if kind.endswith("FSDP") and not accelerator.is_fsdp2:
        raise ConfigError(
            "FSDP version 1 keeps parameters in flat buffers that cannot be measured by name; "
            'set fsdp_config={"fsdp_version": 2}'
        )
    if kind.endswith("DEEPSPEED"):
        raise ConfigError(
            "TrainingArguments(deepspeed=...) hands backward and update to an engine; use"
            " WatchCallback(mode='observe'), or a loop with trimtab.integrations.deepspeed"
        )


def _cannot_go_back(trainer: object) -> str:
    """Return which part of a trainer's state is out of reach; empty where all of it goes back."""
    if getattr(trainer, "rollout_worker", None) is not None:
        return "completions are made by a worker of its own, whose state does not go back"
    if getattr(trainer, "use_vllm", False) and not hasattr(trainer, "_last_loaded_step"):
        return "the weights of vLLM cannot be loaded anew after a rollback"
    return ""


def _batches(steps: int, per_epoch: int | None, accumulate: int) -> int:
    """Return how many batches so many steps took; the last step of an epoch may be shorter."""
    if per_epoch is None:
        return steps * accumulate
    per_epoch_steps = -(-per_epoch // accumulate)
    epochs, rest = divmod(steps, per_epoch_steps)
    return epochs * per_epoch + rest * accumulate


def _say_nothing(_line: str) -> None:
    """Print nothing: the first rank does."""


class GuardedTrainer(GuardMixin, Trainer):
    """Hugging Face's Trainer, guarded.

    Example::

        trainer = GuardedTrainer(model, args, train_dataset=data, guard="act")
        trainer.train()
    """


class _Relay(TrainerCallback):
    """Comes last among a Trainer's callbacks, and passes their events to the mixin.

    Last, so that the other callbacks see each event as the Trainer meant it.
    """

    def __init__(self, trainer: GuardMixin) -> None:
        self._trainer = trainer

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        handler = self._trainer.callback_handler
        # Callbacks may have been added since the Trainer was made.
        handler.callbacks.append(handler.callbacks.pop(handler.callbacks.index(self)))
        try:
            self._trainer.begin_guard()
        except TrimtabError:  # the settings are impossible: say so before anything is trained
            raise
        except Exception as error:  # noqa: BLE001 - an internal error never stops a run
            self._trainer.go_unguarded(error)

    def on_optimizer_step(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        self._trainer.after_step()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,
        **_: object,
    ) -> None:
        self._trainer.after_pass(control)

    def on_epoch_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,
        **_: object,
    ) -> None:
        self._trainer.after_epoch(control)

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        self._trainer.after_log(logs or {})

    def on_save(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        self._trainer.after_save()
