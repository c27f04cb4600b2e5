"""The guard in a loop written with megatron-core: data parallel, fp32, its optimizer and scheduler.

    guard = MegatronGuard(model, optimizer, scheduler, data=loader, steps=10_000, run="runs/tiny",
    mode="act")
    for batch in guard:
        guard.backward(loss_of(model, batch))
        guard.step()          # was finish_grad_sync, optimizer.step, scheduler.step, zero_grad,
        zero_grad_buffer

`model` is megatron-core's DistributedDataParallel. Norm and clipping are megatron-core's own, with
the guard's factor on the limit. For Megatron-LM's own trainer see `megatron_watch`: it stops a run,
and says with which arguments to start it again.
"""

from __future__ import annotations

from typing import Any

import torch

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedOptimizer

try:
    from megatron.core import parallel_state
except ImportError as error:
    raise MissingExtraError("The adapter for megatron-core", "megatron") from error

__all__ = ["CoreOptimizer", "CoreScheduler", "MegatronGuard"]


class MegatronGuard(Guard):
    """A `Guard` over megatron-core's objects; see the module, and `Guard` for its settings."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        data: Any,
        increment: int = 1,
        **settings: Any,
    ) -> None:
        """Take over a run.

        Args:
            model: megatron-core's DistributedDataParallel.
            optimizer: From `get_megatron_optimizer`; its `clip_grad` is the limit.
            scheduler: `OptimizerParamScheduler`.
            data: As for `Guard`.
            increment: By how much a step advances the scheduler; Megatron-LM counts samples.
            settings: As of `Guard`, without `clip`.

        Raises:
            ConfigError: Tensor or pipeline parallel, another optimizer than fp32 without sharding,
                or what `Guard` refuses.
        """
        warn_of_version("megatron-core")
        self._core = _one_optimizer(optimizer)
        self._wrapped = model
        _check_layout()
        super().__init__(
            model.module,
            CoreOptimizer(self._core, model),
            data=data,
            scheduler=None if scheduler is None else CoreScheduler(scheduler, increment),
            **settings,
        )

    def step(self) -> None:
        """Reduce and clip gradients as megatron-core does, then do the guard's step."""
        if not self.probing:
            self._wrapped.finish_grad_sync()
            self._core.prepare_grads()
            self._clip()
        super().step()

    def _clip(self) -> None:
        engine, own = self._engine, self._core.config.clip_grad or None
        limit = None if own is None else own * engine.decisions.clip_factor
        norm = self._core.get_grad_norm() if limit is None else self._core.clip_grad_norm(limit)
        engine.clip = own
        engine._clipped = (torch.as_tensor(norm, dtype=torch.float64), limit)


def _one_optimizer(optimizer: Any) -> Any:
    """Return the one fp32 optimizer, out of the chain that megatron-core puts it into.

    Raises:
        ConfigError: There are several, or it is of another kind.
    """
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    kinds = [type(o).__name__ for o in chain]
    if kinds != ["FP32Optimizer"]:
        raise ConfigError(
            f"optimizer is {' and '.join(kinds)}: MegatronGuard was tried with one FP32Optimizer"
            " only; for bf16, fp16 and the distributed optimizer use"
            " trimtab.integrations.megatron.watch"
        )
    return chain[0]


def _check_layout() -> None:
    tensor = parallel_state.get_tensor_model_parallel_world_size()
    pipeline = parallel_state.get_pipeline_model_parallel_world_size()
    if tensor > 1 or pipeline > 1:
        raise ConfigError(
            f"tensor parallel {tensor}, pipeline parallel {pipeline}: MegatronGuard is for data"
            " parallel only; use trimtab.integrations.megatron.watch, which stops the run and says"
            " how to start it again"
        )


class CoreOptimizer(SteppedOptimizer):
    """megatron-core's optimizer as the guard steps it: gradients are ready and clipped already.

    Groups, state and `state_dict` are those of the torch optimizer within.
    """

    def __init__(self, core: Any, model: Any) -> None:
        """Wrap an FP32Optimizer and the model whose gradient buffers go with it."""
        self.optimizer = core.optimizer
        self._core, self._model = core, model

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 - torch's signature
        """Update; return whether it was done."""
        return self._core.step_with_ready_grads()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Drop the gradients, and those in the buffers."""
        self._core.zero_grad(set_to_none)
        self._model.zero_grad_buffer()


class CoreScheduler:
    """megatron-core's scheduler of rate and weight decay.

    As the guard steps it and puts it back.
    """

    def __init__(self, scheduler: Any, increment: int) -> None:
        """Wrap an OptimizerParamScheduler."""
        self.scheduler, self._increment = scheduler, increment

    def step(self) -> None:
        """Advance by one step's worth."""
        self.scheduler.step(increment=self._increment)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it back; its own loading adds the saved count to the one that it has."""
        self.scheduler.num_steps = 0
        self.scheduler.load_state_dict(state)
