"""A callback that only watches Lightning's Trainer: it records, judges, and can end the run.

It works with every strategy, with manual optimization and with several optimizers, because it
changes nothing of the loop. It cannot go back within the process.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trimtab.errors import MissingExtraError
from trimtab.guard.port import to_stderr
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.watching import RowWatch, first_sign
from trimtab.plan.policy import Policy

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise MissingExtraError("The adapter for Lightning's Trainer", "lightning") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.utilities.types import STEP_OUTPUT

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Mode

__all__ = ["LightningWatch"]


class LightningWatch(Callback):
    """Watches a `Trainer.fit`; for recovery within the process see `GuardCallback`.

    One row for each optimizer step: its loss (the mean over accumulated batches and ranks), the
    norm of its gradients before clipping, and its learning rate.

    Example::

        Trainer(callbacks=[WatchCallback("runs/tiny", mode="act")])
    """

    def __init__(
        self,
        run: str | Path,
        *,
        mode: Mode | None = None,
        policy: Policy | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Set up; nothing is written before `fit`.

        Args:
            run: Run directory; one that is there goes on as a new attempt.
            mode: observe, advise: record and judge; act: also end the run.
            policy: Settings; of them count `mode` and `patience_steps`.
            say: Shows one line to the user; default: standard error.
        """
        super().__init__()
        policy = policy or Policy()
        self.policy = policy if mode is None else replace(policy, mode=mode)
        self._run = Path(run)
        self._say = say or to_stderr
        self._watch = self._new_watch()
        self._losses: list[torch.Tensor] = []
        self._norm: torch.Tensor | None = None
        self._saved: list[int] = []
        self._step = 0

    @property
    def stopped(self) -> str:
        """Why the run was ended; empty if it was not."""
        return self._watch.stopped

    # -- Lightning's hooks --------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Forget an earlier training."""
        warn_of_version("lightning")
        self._watch.close()
        self._watch = self._new_watch()
        self._losses, self._norm, self._saved = [], None, []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Begin an attempt at the step that was restored."""
        self._step = trainer.global_step

        def begin() -> None:
            self._watch.open(self._run, writes=trainer.is_global_zero)
            self._watch.start(self._step)

        if not self._watch.edge.run("journal", begin):
            self._watch.close()

    def on_before_optimizer_step(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Measure the gradients, which are unscaled and not clipped yet."""
        if self._watch.is_open:
            self._watch.edge.run("probes", lambda: self._measure(optimizer))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: STEP_OUTPUT,
        batch: object,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Note the loss of a batch; record and judge the step that it completed."""
        loss = outputs if outputs is None or isinstance(outputs, torch.Tensor) else outputs["loss"]
        if loss is not None:
            share = trainer.accumulate_grad_batches if _divides(trainer) else 1
            self._losses.append(loss.detach().float() * share)
        if trainer.global_step == self._step or not self._losses:
            return
        self._step = trainer.global_step
        # Before anything of ours may fail on one rank alone: all ranks must call it.
        mean = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        self._losses.clear()
        if self._watch.is_open:
            self._take_in(trainer, float(mean))

    def on_save_checkpoint(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: dict[str, object],  # noqa: ARG002
    ) -> None:
        """Note the step of a checkpoint, for the verdict."""
        self._saved.append(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Write down how the training ended."""
        if self._watch.is_open:
            self._watch.edge.run("journal", lambda: self._end(trainer))
        self._watch.close()

    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        exception: BaseException,  # noqa: ARG002
    ) -> None:
        """Release the run directory."""
        self._watch.close()

    # -- inside ---------------------------------------------------------------------------------

    def _new_watch(self) -> RowWatch:
        return RowWatch(policy=self.policy, source="Lightning's Trainer")

    def _measure(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        self._norm = torch.nn.utils.get_total_norm(gradients) if gradients else None

    def _take_in(self, trainer: Trainer, loss: float) -> None:
        watch, step = self._watch, self._step
        values = {"loss": loss}
        norm, self._norm = self._norm, None
        if norm is not None:  # a DTensor, where weights are sharded
            values["grad_norm"] = float(getattr(norm, "full_tensor", lambda: norm)())
        if trainer.optimizers and trainer.optimizers[0].param_groups:
            values["lr"] = float(trainer.optimizers[0].param_groups[0]["lr"])
        for finding in watch.take_in(step, values):
            watch.edge.run("journal", lambda f=finding: self._report(f, step))  # type: ignore[misc]
        if watch.may_stop:
            watch.edge.run("recovery", lambda: self._stop(trainer, step))

    def _report(self, finding: Finding, step: int) -> None:
        is_new = self._watch.note(finding, step=step)
        if is_new and finding.severity != "info" and self._watch.writes:
            self._say(f"step {step:>6,}  {finding.text}")

    def _stop(self, trainer: Trainer, step: int) -> None:
        # All ranks judge the same losses and decide alike; Lightning asks each of them.
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        trouble = self._watch.trouble(scaled=scaled)
        if not trouble:
            return
        trainer.should_stop = True
        self._watch.stop(step, trouble)
        saved = self._newest_before(first_sign(trouble))
        on = f"resume from the checkpoint of step {saved}" if saved else "no checkpoint is older"
        if self._watch.writes:
            self._say(f"step {step:>6,}  ending the run; {on}")

    def _newest_before(self, step: float) -> int:
        return max((saved for saved in self._saved if saved < step), default=0)

    def _end(self, trainer: Trainer) -> None:
        watch, step = self._watch, self._step
        reason = watch.stopped or "the Trainer has ended"
        watch.recorder.event("end", step=step, final_step=step, reason=reason, wasted_steps=0.0)
        if watch.writes:
            began = first_sign(watch.alarms) if watch.stopped else math.inf
            watch.verdict(
                "given-up" if watch.stopped else "done",
                reason,
                step=step,
                steps=trainer.max_steps if trainer.max_steps > 0 else None,
                saved_step=self._newest_before(began),
            )


def _divides(trainer: Trainer) -> bool:
    """Whether Lightning divides the loss by the batches that are accumulated."""
    return trainer.lightning_module.automatic_optimization
