"""The guard around a DeepSpeed engine, ZeRO stages 0 to 3.

    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler,
                                           config=config)
    guard = DeepSpeedGuard(engine, data=loader, steps=10_000, run="runs/tiny", mode="act")
    for batch in guard:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()

The engine keeps backward, clipping, loss scaling, reduction and the update; its `backward`, `step`
and `save_checkpoint` go through the guard from here on.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trimtab.errors import MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.port import Ranks, TrainerPort
from trimtab.integrations.companion_file import load_companion
from trimtab.integrations.deepspeed.checkpoints import TagFiles, healthy_tag
from trimtab.integrations.deepspeed.engine_checks import check_engine
from trimtab.integrations.deepspeed.engine_state import (
    EngineCounters,
    EngineOptimizer,
    EngineSchedule,
    LossScale,
)
from trimtab.integrations.graded_checkpoints import GradedCheckpoints
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedScheduler
from trimtab.plan.policy import Policy

try:
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
except ImportError as error:
    raise MissingExtraError("The adapter for DeepSpeed", "deepspeed") from error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from deepspeed import DeepSpeedEngine
    from torch.utils.data import DataLoader

    from trimtab.guard.port import GuardOptions

__all__ = ["DeepSpeedGuard", "healthy_tag"]


class DeepSpeedGuard(Guard):
    """A `Guard` over a DeepSpeed engine; see the module, and `Guard` for its settings.

    Clipping, gradient accumulation, loss scale and scheduler are the engine's. The norm is the
    engine's global one, before clipping.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        *,
        data: DataLoader[object] | None = None,
        loaded: str | Path | None = None,
        **settings: Unpack[GuardOptions],
    ) -> None:
        """Take over a run.

        Args:
            engine: From `deepspeed.initialize`, with an optimizer.
            data: A DataLoader, or None for the engine's own (`training_data`).
            loaded: The path that `engine.load_checkpoint` returned, if it was called: the run
                resumes from there and not from a checkpoint of the guard's.
            settings: As of `Guard`; clip, accumulate, scheduler and scaler are the engine's.

        Raises:
            ConfigError: The engine does what cannot be guarded, or as for `Guard`.
        """
        warn_of_version("deepspeed")
        check_engine(engine)
        self._engine_backward, self._engine_step = engine.backward, engine.step
        stand_in = EngineOptimizer(
            engine, Ranks(), sharded=isinstance(engine.optimizer, ZeROOptimizer)
        )
        # The guard reads weights next; under ZeRO 3 those must be partitions, not gathered copies.
        stand_in.zero_grad()
        scheduler = engine.lr_scheduler
        policy = settings.get("policy") or Policy()
        # No gradients are left to look at once the engine has stepped.
        off = (*policy.probes_off, "gradients")
        settings["policy"] = replace(policy, probes_off=off)
        settings["extra"] = {**(settings.get("extra") or {}), "deepspeed": EngineCounters(engine)}
        _resume_from(engine, loaded, settings)
        super().__init__(
            engine.module,
            stand_in,
            data=_loader(engine, data),
            scheduler=None if scheduler is None else EngineSchedule(engine, scheduler),
            scaler=LossScale(engine) if engine.fp16_enabled() else None,
            clip=float(engine.gradient_clipping()) or None,
            accumulate=engine.gradient_accumulation_steps(),
            **settings,
        )
        port = TrainerPort(self)
        port.let_engine_update(_EngineStep(engine, stand_in, port, self._engine_step))
        if self.policy.mode == "act" and hasattr(engine.optimizer, "check_grad_overflow"):
            # Without it ZeRO 1 and 2 in bf16 apply gradients that are not finite.
            engine.optimizer.check_grad_overflow = True
        if scheduler is not None:
            engine.lr_scheduler = SteppedScheduler(scheduler)
        files = TagFiles(port, GradedCheckpoints(port), engine)
        self.on_restore(files.rolled_back)
        engine.backward, engine.step = self.backward, self.step
        engine.save_checkpoint = files.save

    def backward(  # type: ignore[override]
        self,
        loss: torch.Tensor,
        *args: object,
        samples: torch.Tensor | None = None,
        **more: object,
    ) -> torch.Tensor:
        """Run the engine's backward pass; in a probe only note the loss."""
        if TrainerPort(self).has_batch:  # else it is the loss of data that the guard did not give
            self.note_loss(loss, samples=samples)
            if self.probing:
                return loss
        returned: torch.Tensor = self._engine_backward(loss, *args, **more)
        return returned

    def step(self, *args: object, **more: object) -> None:
        """Run the engine's step as a step of the guard; call it after every batch, as before."""
        # The engine counts micro-batches by its calls, so it is called for those in between, too.
        if self.step_is_due:
            super().step()
        elif not self.probing:
            self._engine_step(*args, **more)


class _EngineStep:
    """The engine's step as the update within the guard's step.

    The engine measures the norm while it updates, and leaves out what is not finite. Without a
    wrapper of its own around the optimizer it does neither: then both are done here.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        stand_in: EngineOptimizer,
        port: TrainerPort,
        step: Callable[[], None],
    ) -> None:
        """Take the engine's own step, which `engine.step` no longer is."""
        self._engine, self._stand_in, self._port, self._step = engine, stand_in, port, step

    def update(self) -> tuple[torch.Tensor, float | None]:
        """Run the engine's step at the rates in force; return norm and limit."""
        port, limit = self._port, self._port.clip_limit
        if port.clip_factor != 1.0:
            self._set_clip(limit)
        bare = not self._stand_in.has_masters
        norm = port.measure_norm() if bare else math.nan
        # With masters the engine itself leaves out an update that is not finite.
        hold = bare and port.acting and not math.isfinite(norm)
        with (
            port.rates_in_force(self._stand_in.param_groups),
            self._stand_in.held_back() if hold else contextlib.nullcontext(),
        ):
            self._step()
        if not bare:
            norm = float(self._engine.get_global_grad_norm())
        return torch.tensor(norm, dtype=torch.float64), limit

    def was_applied(self) -> bool:
        """Whether the engine made the last update."""
        return bool(self._engine.was_step_applied())

    def before_state(self) -> None:
        """Release gathered weights: an evaluation between two steps leaves them gathered."""
        self._stand_in.zero_grad()

    def _set_clip(self, limit: float | None) -> None:
        if hasattr(self._engine.optimizer, "clip_grad"):
            self._engine.optimizer.clip_grad = limit
        else:
            self._engine._config.gradient_clipping = limit


def _loader(engine: DeepSpeedEngine, data: DataLoader[object] | None) -> DataLoader[object]:
    """Return the DataLoader to read from."""
    found: DataLoader[object] = engine.training_dataloader if data is None else data
    if type(found).__name__ == "DeepSpeedDataLoader":
        iter(found)  # the engine's own makes its DataLoader when it is first iterated
        inner: DataLoader[object] = getattr(found, "dataloader")  # noqa: B009 - its private class
        return inner
    return found


def _resume_from(
    engine: DeepSpeedEngine, loaded: str | Path | None, settings: GuardOptions
) -> None:
    """Set what makes a guard resume from a tag that the engine has loaded."""
    if loaded is None and engine.global_steps == 0:
        return
    settings["loaded_step"] = engine.global_steps
    if loaded is not None:
        path = Path(loaded)
        settings["companion"] = load_companion(path if path.is_dir() else path.parent)
