"""The guard in Lightning's Trainer: one callback.

    trainer = Trainer(max_steps=10_000, callbacks=[GuardCallback("runs/tiny", mode="act")])
    trainer.fit(module, loader)

Lightning keeps its loop; the guard decides the order of the data, and does the clipping, the
optimizer's step and the schedulers' within that loop. A rollback happens inside the step and
restores Lightning's counters too, so that what follows a step (hooks, validation, checkpoints, the
end of an epoch) follows it again. The batches of a probe are measured within the step and never
reach Lightning's loop.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch

from trimtab.checkpoints.sidecar import read_stamp
from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.port import LaunchSettings, TrainerPort
from trimtab.guard.port import count_tokens as count_tokens_of
from trimtab.integrations.graded_checkpoints import GradedCheckpoints
from trimtab.integrations.lightning.checkpoints import LightningCheckpoints
from trimtab.integrations.lightning.loggers import listeners_of
from trimtab.integrations.lightning.loop_parts import (
    EpochCounters,
    LightningLoader,
    LightningScaler,
    LightningSchedulers,
    LoaderSource,
    length_of,
    take_loader,
)
from trimtab.integrations.lightning.trainer_checks import check_trainer, steps_of
from trimtab.integrations.packages import warn_of_version

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtraError("The adapter for Lightning's Trainer", "lightning") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from lightning.pytorch.utilities.types import STEP_OUTPUT

    from trimtab.plan.policy import Mode, Policy

__all__ = ["GuardCallback"]

_KEY = "trimtab"
"""Under which a Lightning checkpoint holds what the guard adds."""


class _GuardSettings(TypedDict):
    mode: Mode | None
    policy: Policy | None
    say: Callable[[str], None] | None


class GuardCallback(Callback):
    """Guards a `Trainer.fit`; see the module.

    Taken over from the Trainer: `gradient_clip_val` (by norm), `accumulate_grad_batches`,
    `precision`, `max_steps`, `max_epochs`, `limit_train_batches`. A run found in the directory
    is resumed from its newest healthy state, Lightning's counters included.

    Raises, at `fit`:
        ConfigError: The Trainer's settings cannot be guarded; the message says what to change.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        mode: Mode | None = None,
        policy: Policy | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        logs: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Set up; nothing is done before `fit`.

        Args:
            run: Run directory of the guard.
            mode: observe, advise or act; default: the policy's.
            policy: Settings; default: `Policy()`.
            count_tokens: Returns the tokens of a batch; default: elements of its first integer
                tensor.
            logs: Whether the Trainer's own loggers get the guard's signals and events, under
                `trimtab/`.
            say: Shows one line to the user; default: standard error.
        """
        super().__init__()
        self.guard: Guard | None = None
        """The guard, from the start of `fit` on."""
        self._run = Path(run)
        self._settings: _GuardSettings = {"mode": mode, "policy": policy, "say": say}
        self._logs = logs
        self._count_tokens = count_tokens or count_tokens_of
        self._undo: list[Callable[[], None]] = []
        self._loader: LightningLoader | None = None
        self._graded: GradedCheckpoints | None = None
        self.counters: EpochCounters | None = None
        """Lightning's counters as they are saved, from the start of `fit` on."""
        self._noted = False
        self._last_loss: torch.Tensor = torch.tensor(math.nan)
        self._companion: dict[str, object] | None = None
        self._launched: LaunchSettings | None = None

    @property
    def port(self) -> TrainerPort | None:
        """Port of the guard; None while there is none."""
        return None if self.guard is None else TrainerPort(self.guard)

    # -- Lightning's hooks --------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Join the guard to Lightning's loop."""
        if stage != "fit":
            return
        warn_of_version("lightning")
        check_trainer(trainer, pl_module)
        self.guard, self._loader, self._noted = None, None, False
        try:
            self._attach(trainer)
        except (AttributeError, ImportError) as error:  # another version, other names
            self._detach()
            warnings.warn(
                f"trimtab: this version of Lightning is built differently ({error}); the run is not"
                " guarded",
                stacklevel=2,
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the optimizer's settings as launched: loading a checkpoint overwrites them."""
        if len(trainer.optimizers) == 1:
            self._launched = LaunchSettings(pl_module, trainer.optimizers[0])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002 (Lightning's signature)
        outputs: STEP_OUTPUT,
        batch: object,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Note the loss of a batch that did not complete a step."""
        if self.guard is not None and not self._noted:
            self._note_loss(trainer, outputs)
        self._noted = False

    def on_validation_end(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
    ) -> None:
        """Leave the time of a validation out of the step's."""
        if self.port is not None:
            self.port.restart_clock()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """End the run: saved, reported, written down."""
        if self.guard is not None and self._graded is not None:
            self._graded.settle()
            self.guard.finish()

    def on_save_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: dict[str, object],
    ) -> None:
        """Add what Lightning's checkpoint lacks: random states, data position, our own state."""
        port = self.port
        if port is not None:
            port.contain("checkpoint", lambda: checkpoint.update({_KEY: port.companion()}))

    def on_load_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: Mapping[str, Any],
    ) -> None:
        """Keep what was added, until Lightning has loaded the rest."""
        self._companion = checkpoint.get(_KEY)

    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        exception: BaseException,  # noqa: ARG002
    ) -> None:
        """Release the run; an interrupt that came through the guard is written down first."""
        batches = None if self._loader is None else self._loader.batches
        if batches is not None:
            batches.close()
        if self.guard is not None:
            self.guard.close()

    def teardown(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        stage: str,  # noqa: ARG002
    ) -> None:
        """Restore Lightning's loop as it was."""
        self._detach()
        if self.guard is not None:
            self.guard.close()

    # -- joining the loop ---------------------------------------------------------------------

    def _attach(self, trainer: Trainer) -> None:
        loop, strategy = trainer.fit_loop, trainer.strategy
        self.counters = EpochCounters(trainer)
        self._replace(loop, "_data_source", LoaderSource(loop._data_source, self._wrap(trainer)))
        self._replace(loop, "run", functools.partial(self._run_loop, trainer, loop.run))
        self._replace(strategy, "optimizer_step", functools.partial(self._optimizer_step, trainer))
        # Private to Lightning, for the batches of a probe: imported here, so that a version without
        # them still trains, unguarded.
        from lightning.pytorch.loops.utilities import _block_parallel_sync_behavior
        from lightning.pytorch.trainer import call

        self._call, self._on_this_rank_alone = call, _block_parallel_sync_behavior

    def _replace(self, owner: object, name: str, ours: object) -> None:
        """Put our own in the place of an attribute, until `_detach`."""
        own = vars(owner)
        before = (own[name],) if name in own else None
        getattr(owner, name)  # raises where another version has another name
        setattr(owner, name, ours)

        def undo() -> None:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before[0])

        self._undo.append(undo)

    def _detach(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, trainer: Trainer) -> Callable[[object], LightningLoader]:
        def wrap(loader: object) -> LightningLoader:
            limit = trainer.limit_train_batches
            taken = take_loader(loader, trainer)
            stage = trainer.state.stage
            assert stage is not None
            # With the sampler that Lightning would use on several ranks, which take_loader keeps.
            prepared = trainer._data_connector._prepare_dataloader(taken, shuffle=True, mode=stage)
            ready = take_loader(prepared, trainer)
            whole = length_of(ready)
            if whole is None:  # one epoch for Lightning, as long as the run
                whole = trainer.max_steps * trainer.accumulate_grad_batches
            length = int(whole * limit) if isinstance(limit, float) else min(limit, whole)
            self._loader = LightningLoader(ready, length)
            return self._loader

        return wrap

    def _run_loop(self, trainer: Trainer, run: Callable[[], None]) -> None:
        """Begin to guard, once all is set up and restored, and run Lightning's loop."""
        loop = trainer.fit_loop
        loop.setup_data()
        if self._loader is not None and self.counters is not None and not loop.skip:
            self.guard = self._make_guard(trainer, self._loader, self.counters)
            port = TrainerPort(self.guard)
            if self.counters.begin() or self._companion is not None:
                epoch_loop = loop.epoch_loop
                self._replace(epoch_loop, "reset", functools.partial(_reset, epoch_loop.reset))
            self._companion = None
            self.counters.running = True
            port.read_every_step()  # Lightning saves between two steps
            self._loader.batches = port.batches()
            self._listen(trainer, port)
            self._watch_checkpoints(trainer, port)
            self._warn_of_grade(trainer.ckpt_path)
        run()

    def _watch_checkpoints(self, trainer: Trainer, port: TrainerPort) -> None:
        """Have each checkpoint that Lightning saves or removes graded, or its grade removed."""
        graded = self._graded = GradedCheckpoints(port)
        files = LightningCheckpoints(port, graded, trainer.checkpoint_callbacks)
        port.on_restore(files.rolled_back)
        save, remove = trainer.save_checkpoint, trainer.strategy.remove_checkpoint
        self._replace(trainer, "save_checkpoint", functools.partial(files.saved, save))
        self._replace(
            trainer.strategy, "remove_checkpoint", functools.partial(files.removed, remove)
        )

    def _listen(self, trainer: Trainer, port: TrainerPort) -> None:
        if self._logs and port.is_chief:
            port.contain("journal", lambda: port.listen(*listeners_of(trainer)))

    def _make_guard(
        self, trainer: Trainer, loader: LightningLoader, counters: EpochCounters
    ) -> Guard:
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"the module has {len(trainer.optimizers)} optimizers; GuardCallback needs"
                " exactly one"
            )
        if not trainer.optimizers[0].param_groups:  # Lightning's stand-in for none
            raise ConfigError(
                f"{type(trainer.lightning_module).__name__}.configure_optimizers returns no"
                " optimizer: nothing is trained that could be guarded; leave GuardCallback out"
            )
        schedulers = LightningSchedulers(trainer) if trainer.lr_scheduler_configs else None
        if schedulers is not None:
            self._replace(
                trainer.fit_loop.epoch_loop, "update_lr_schedulers", schedulers.lightning_steps
            )
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._scaler = None if scaler is None else LightningScaler(scaler)
        self._clips_itself = trainer.gradient_clip_algorithm == "value" or _overrides(
            trainer.lightning_module, "configure_gradient_clipping"
        )
        clip = None if self._clips_itself else trainer.gradient_clip_val
        if self._companion is not None and self._launched is not None:
            self._launched.check(self._companion)
        model = trainer.strategy.model
        assert model is not None
        guard = Guard(
            model,
            trainer.optimizers[0],
            data=loader.for_guard(),
            scheduler=schedulers,
            scaler=self._scaler,
            clip=float(clip) if clip else None,
            accumulate=trainer.accumulate_grad_batches,
            steps=steps_of(trainer, len(loader)),
            run=self._run,
            count_tokens=self._count_tokens,
            extra={"lightning": counters},
            loaded_step=trainer.global_step if trainer.ckpt_path else None,
            companion=self._companion,
            **self._settings,
        )
        port = TrainerPort(guard)
        if trainer.ckpt_path and self._launched is not None:
            port.launched_with(self._launched)
        port.clip_in_group_order()  # as Lightning does
        return guard

    def _warn_of_grade(self, ckpt_path: str | Path | None) -> None:
        found = None if ckpt_path is None else read_stamp(Path(ckpt_path))
        if found is not None and found.grade != "healthy":
            warnings.warn(
                f"trimtab: {ckpt_path} is {found.grade} ({found.why}); choose an earlier one",
                stacklevel=2,
            )

    # -- one step -----------------------------------------------------------------------------

    def _optimizer_step(
        self,
        trainer: Trainer,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], STEP_OUTPUT],
        model: object = None,  # noqa: ARG002 (Lightning's signature)
        **_: object,
    ) -> STEP_OUTPUT:
        """Stand in for the strategy's: forward, backward, then the guard's step."""
        loss = closure()
        port = self.port
        assert port is not None
        self._note_loss(trainer, loss)
        self._before_update(trainer, optimizer)
        port.step()
        while port.probing and self._loader is not None and self._loader.batches is not None:
            self._measure_batch(trainer, port)
        return loss

    def _note_loss(self, trainer: Trainer, output: STEP_OUTPUT) -> None:
        """Hand on the loss of one batch as `training_step` returned it."""
        loss = _loss_of(output)
        if loss is not None:
            # Lightning has divided it by the batches that are accumulated.
            self._last_loss = loss.detach() * trainer.accumulate_grad_batches
        assert self.guard is not None
        self.guard.note_loss(self._last_loss)  # a step without a loss keeps the last one's
        self._noted = True

    def _before_update(self, trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
        """Call the hooks that see gradients, and clipping that is not by norm, on unscaled ones."""
        module = trainer.lightning_module
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        self._call._call_callback_hooks(trainer, "on_before_optimizer_step", optimizer)
        self._call._call_lightning_module_hook(trainer, "on_before_optimizer_step", optimizer)
        if self._clips_itself:
            trainer.precision_plugin._clip_gradients(
                module,
                optimizer,
                trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )

    def _measure_batch(self, trainer: Trainer, port: TrainerPort) -> None:
        """Find the loss of one batch; nothing of it is counted, logged or updated."""
        assert self._loader is not None
        assert self._loader.batches is not None
        batch = next(self._loader.batches, None)
        if batch is None:
            return
        module, epoch_loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = self._call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        kept = epoch_loop._results
        epoch_loop._results = type(kept)(training=True)  # what the module logs now is dropped
        try:
            trainer._logger_connector.on_batch_start(batch)
            kwargs = epoch_loop._build_kwargs(OrderedDict(), batch, epoch_loop.batch_idx)
            with self._on_this_rank_alone(trainer.strategy, block=True):
                output = self._call._call_strategy_hook(trainer, "training_step", *kwargs.values())
        finally:
            epoch_loop._results = kept
        loss = _loss_of(output)
        port.note_loss(self._last_loss if loss is None else loss.detach())
        port.step()


def _loss_of(output: STEP_OUTPUT) -> torch.Tensor | None:
    """Return the loss in what a `training_step` returned."""
    if output is None or isinstance(output, torch.Tensor):
        return output
    loss: torch.Tensor | None = output.get("loss")
    return loss


def _reset(reset: Callable[[], None]) -> None:
    """Reset Lightning's loop without its warning about lost data: the guard keeps the position."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
        reset()


def _overrides(module: LightningModule, name: str) -> bool:
    return getattr(type(module), name) is not getattr(LightningModule, name)
