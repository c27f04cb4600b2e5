"""The guard around a DeepSpeed engine, ZeRO stages 0 to 3.

    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler,
    config=config) guard = DeepSpeedGuard(engine, data=loader, steps=10_000, run="runs/tiny",
    mode="act")
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
from typing import Any

import torch

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.probes.gradients import clip_gradients
from trimtab.guard.step.schedules import apply_weight_decay
from trimtab.integrations.deepspeed.checkpoints import TagFiles, healthy_tag, read_companion
from trimtab.integrations.deepspeed.engine_state import (
    EngineOptimizer,
    EngineSchedule,
    LossScale,
    Place,
)
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedScheduler
from trimtab.plan.policy import Policy

try:
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
except ImportError as error:
    raise MissingExtraError("The adapter for DeepSpeed", "deepspeed") from error

__all__ = ["DeepSpeedGuard", "healthy_tag"]


class DeepSpeedGuard(Guard):
    """A `Guard` over a DeepSpeed engine; see the module, and `Guard` for its settings.

    Clipping, gradient accumulation, loss scale and scheduler are the engine's. The norm is the
    engine's global one, before clipping.
    """

    def __init__(
        self,
        engine: Any,
        *,
        data: Any = None,
        loaded: str | Path | None = None,
        **settings: Any,
    ) -> None:
        """Take over a run.

        Args:
            engine: From `deepspeed.initialize`, with an optimizer.
            data: A DataLoader, or None for the engine's own (`training_data`).
            loaded: What `engine.load_checkpoint` gave as path, where it was called: the run goes on
                from there and not from a checkpoint of the guard's.
            settings: As of `Guard`; clip, accumulate, scheduler and scaler are the engine's.

        Raises:
            ConfigError: The engine does what cannot be guarded, or what `Guard` refuses.
        """
        warn_of_version("deepspeed")
        _check(engine)
        self._trained = engine
        self._own_backward, self._own_step = engine.backward, engine.step
        self._stand_in = EngineOptimizer(
            engine, Ranks(), sharded=isinstance(engine.optimizer, ZeROOptimizer)
        )
        self._stand_in.zero_grad()
        scheduler = engine.lr_scheduler
        policy = settings.pop("policy", None) or Policy()
        off = (*policy.probes_off, "gradients")  # none are left once the engine has stepped
        super().__init__(
            engine.module,
            self._stand_in,
            data=_loader(engine, data),
            scheduler=None if scheduler is None else EngineSchedule(engine, scheduler),
            scaler=LossScale(engine) if engine.fp16_enabled() else None,
            clip=float(engine.gradient_clipping()) or None,
            accumulate=engine.gradient_accumulation_steps(),
            extra={**settings.pop("extra", {}), "deepspeed": Place(engine)},
            policy=replace(policy, probes_off=off),
            **_place_of(engine, loaded),
            **settings,
        )
        core, training = self._engine, self._training
        core.late = False  # the engine has read the values before it updates
        self._own_state = training.state
        training.state = self._state  # type: ignore[method-assign]
        self._own_apply = core._apply
        core._clip = self._update  # type: ignore[method-assign]
        core._apply = self._applied  # type: ignore[method-assign]
        if self.policy.mode == "act" and hasattr(engine.optimizer, "check_grad_overflow"):
            engine.optimizer.check_grad_overflow = True  # ZeRO 1 and 2 in bf16 look only if told to
        if scheduler is not None:
            engine.lr_scheduler = SteppedScheduler(scheduler)
        files = TagFiles(self, engine)
        self.on_restore(files.rolled_back)
        engine.backward, engine.step, engine.save_checkpoint = self.backward, self.step, files.save

    def backward(
        self, loss: torch.Tensor, *args: Any, samples: torch.Tensor | None = None, **more: Any
    ) -> Any:
        """Run the engine's backward pass; nothing but noting the loss in a probe."""
        if not self._fed:  # not a batch of ours
            return self._own_backward(loss, *args, **more)
        self.note_loss(loss, samples=samples)
        return loss if self.probing else self._own_backward(loss, *args, **more)

    def step(self, *args: Any, **more: Any) -> None:
        """Run the engine's step as a step of the guard; call it after every batch, as ever."""
        if len(self._fed) >= self._accumulate:
            super().step()
        elif not self.probing:
            self._own_step(*args, **more)

    def _update(self, *, look: bool = True) -> tuple[torch.Tensor, float | None]:  # noqa: ARG002 - the engine's own looks
        """Run the engine's step at the rate asked for.

        Return norm and limit, where others only clip.

        The engine measures while it updates, and leaves out what is not finite. Without a wrapper
        of its own around the optimizer it does neither: then both are done here.
        """
        core, groups = self._engine, self._stand_in.param_groups
        limit = None if core.clip is None else core.clip * core.decisions.clip_factor
        if core.decisions.clip_factor != 1.0:
            self._set_clip(limit)
        bare = not self._stand_in.has_masters
        norm = math.nan
        if bare:
            norm = float(clip_gradients(core.parameters, None, self._ranks))
        hold = bare and self._acting and not math.isfinite(norm)
        planned = [g["lr"] for g in groups]
        apply_weight_decay(core)
        for group, rate in zip(groups, core.rates(planned), strict=True):
            group["lr"] = rate
        with self._stand_in.held_back() if hold else contextlib.nullcontext():
            self._own_step()
        for group, rate in zip(groups, planned, strict=True):
            group["lr"] = rate
        if not bare:
            norm = float(self._trained.get_global_grad_norm())
        return torch.tensor(norm, dtype=torch.float64), limit

    def _state(self) -> dict[str, Any]:
        """Return live states, with no weights gathered.

        An evaluation between two steps leaves them so.
        """
        self._stand_in.zero_grad()
        return self._own_state()

    def _applied(self, scale: float | None, *, skip: bool, **more: Any) -> tuple[float, bool]:
        rate, skipped = self._own_apply(scale, skip=skip, **more)
        return rate, skipped or not self._trained.was_step_applied()

    def _set_clip(self, limit: float | None) -> None:
        if hasattr(self._trained.optimizer, "clip_grad"):
            self._trained.optimizer.clip_grad = limit
        else:
            self._trained._config.gradient_clipping = limit


def _check(engine: Any) -> None:
    """Refuse what cannot be guarded.

    Raises:
        ConfigError: The message says what, and what to do.
    """
    odd = {
        "has no optimizer": not hasattr(engine.optimizer, "param_groups"),
        "is a pipeline": type(engine).__name__ == "PipelineEngine",
        "has tensor parallel ranks": getattr(engine, "mp_world_size", 1) > 1,
        "has sequence parallel ranks": getattr(engine, "sequence_parallel_size", 1) > 1,
        "has experts (MoE)": bool(engine.has_moe_layers),
        "offloads to NVMe": bool(engine.zero_nvme_offload_optimizer()),
        "uses ZenFlow": bool(getattr(engine, "zenflow", False)),
        "scales losses by torch_autocast": (
            getattr(engine, "torch_autocast_z0_gradscaler", None) is not None
        ),
        "does not compute the gradient norm": not getattr(
            engine, "zero_compute_grad_norm", lambda: True
        )(),
        "leaves the accumulation boundary to the loop": not getattr(
            engine, "managed_gradient_accumulation", lambda: True
        )(),
    }
    for what, is_so in odd.items():
        if is_so:
            raise ConfigError(
                f"the DeepSpeed engine {what}, which DeepSpeedGuard cannot roll back; run without"
                " that, or judge its log with `trimtab inspect`"
            )


def _loader(engine: Any, data: Any) -> Any:
    """Return the DataLoader to read from; the engine's own makes it when it is first iterated."""
    data = engine.training_dataloader if data is None else data
    if type(data).__name__ == "DeepSpeedDataLoader":
        iter(data)
        return data.dataloader
    return data


def _place_of(engine: Any, loaded: str | Path | None) -> dict[str, Any]:
    """Return the settings that make a guard go on from a tag the engine has loaded."""
    if loaded is None and engine.global_steps == 0:
        return {}
    if loaded is None:
        return {"loaded_step": engine.global_steps}
    path = Path(loaded)
    return {
        "loaded_step": engine.global_steps,
        "companion": read_companion(path if path.is_dir() else path.parent),
    }
