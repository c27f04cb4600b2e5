"""The guard in a loop written with megatron-core: data parallel, fp32, its optimizer and scheduler.

    guard = MegatronGuard(model, optimizer, scheduler, data=loader, steps=10_000, run="runs/tiny",
                          mode="act")
    for batch in guard:
        guard.backward(loss_of(model, batch))
        guard.step()    # instead of finish_grad_sync, optimizer.step, scheduler.step, zero_grad
                        # and zero_grad_buffer

`model` is megatron-core's DistributedDataParallel. Norm and clipping are megatron-core's own, with
the guard's factor on the limit. For Megatron-LM's own trainer see `MegatronWatch`: it stops a run,
and prints the arguments to restart it with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.port import TrainerPort
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedOptimizer

try:
    from megatron.core import parallel_state
except ImportError as error:
    raise MissingExtraError("The adapter for megatron-core", "megatron") from error

if TYPE_CHECKING:
    from typing import Unpack

    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import MegatronOptimizer
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from torch.utils.data import DataLoader

    from trimtab.guard.port import GuardOptions

__all__ = ["CoreOptimizer", "CoreScheduler", "MegatronGuard"]


class MegatronGuard(Guard):
    """A `Guard` over megatron-core's objects; see the module, and `Guard` for its settings."""

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: MegatronOptimizer,
        scheduler: OptimizerParamScheduler | None = None,
        *,
        data: DataLoader[object],
        increment: int = 1,
        accumulate: int = 1,
        **settings: Unpack[GuardOptions],
    ) -> None:
        """Take over a run.

        Args:
            model: megatron-core's DistributedDataParallel.
            optimizer: From `get_megatron_optimizer`; its `clip_grad` is the limit.
            scheduler: `OptimizerParamScheduler`.
            data: As for `Guard`.
            increment: By how much a step advances the scheduler; Megatron-LM counts samples.
            accumulate: As for `Guard`.
            settings: As of `Guard`, without `clip`.

        Raises:
            ConfigError: Tensor or pipeline parallel, another optimizer than fp32 without sharding,
                or what `Guard` refuses.
        """
        warn_of_version("megatron-core")
        core = _one_optimizer(optimizer)
        _check_layout()
        self._gradients = _CoreGradients(core, model)
        super().__init__(
            model.module,
            CoreOptimizer(core, model),
            data=data,
            scheduler=None if scheduler is None else CoreScheduler(scheduler, increment),
            accumulate=accumulate,
            **settings,
        )

    def step(self) -> None:
        """Reduce and clip gradients as megatron-core does, then do the guard's step."""
        if not self.probing:
            self._gradients.prepare(TrainerPort(self))
        super().step()


class _CoreGradients:
    """The gradients of a step: reduced, measured and clipped by megatron-core."""

    def __init__(self, core: FP32Optimizer, model: DistributedDataParallel) -> None:
        self._core, self._model = core, model

    def prepare(self, port: TrainerPort) -> None:
        """Reduce and clip; hand the norm to the guard."""
        self._model.finish_grad_sync()
        self._core.prepare_grads()
        own = self._core.config.clip_grad or None
        limit = None if own is None else own * port.clip_factor
        norm = self._core.get_grad_norm() if limit is None else self._core.clip_grad_norm(limit)
        measured = torch.as_tensor(norm, dtype=torch.float64)
        port.note_clipped(measured, own_limit=own, limit=limit)


def _one_optimizer(optimizer: MegatronOptimizer) -> FP32Optimizer:
    """Return the one fp32 optimizer, out of the chain that megatron-core puts it into.

    Raises:
        ConfigError: There are several, or it is of another kind.
    """
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    kinds = [type(o).__name__ for o in chain]
    # Others hold master weights and shards, which a rollback would have to copy as well.
    if kinds != ["FP32Optimizer"]:
        raise ConfigError(
            f"optimizer is {' and '.join(kinds)}: MegatronGuard was tested with one FP32Optimizer"
            " only; for bf16, fp16 and the distributed optimizer use MegatronWatch"
        )
    return chain[0]


def _check_layout() -> None:
    tensor = parallel_state.get_tensor_model_parallel_world_size()
    pipeline = parallel_state.get_pipeline_model_parallel_world_size()
    if tensor > 1 or pipeline > 1:
        raise ConfigError(
            f"tensor parallel {tensor}, pipeline parallel {pipeline}: MegatronGuard is for data"
            " parallel only; use MegatronWatch, which stops the run and prints how to restart it"
        )


class CoreOptimizer(SteppedOptimizer):
    """megatron-core's optimizer as the guard steps it: gradients are ready and clipped already.

    Groups, state and `state_dict` are those of the torch optimizer within.
    """

    def __init__(self, core: FP32Optimizer, model: DistributedDataParallel) -> None:
        """Wrap an FP32Optimizer and the model whose gradient buffers go with it."""
        self.optimizer = core.optimizer
        self._core, self._model = core, model

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update; the gradients are ready."""
        self._core.step_with_ready_grads()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
        """Drop the gradients, and those in the buffers."""
        self._core.zero_grad(set_to_none)
        self._model.zero_grad_buffer()


class CoreScheduler:
    """megatron-core's scheduler of rate and weight decay, as the guard steps and restores it."""

    def __init__(self, scheduler: OptimizerParamScheduler, increment: int) -> None:
        """Wrap an OptimizerParamScheduler."""
        self.scheduler, self._increment = scheduler, increment

    def step(self) -> None:
        """Advance by one step's worth."""
        self.scheduler.step(increment=self._increment)

    def state_dict(self) -> dict[str, object]:
        """Return the scheduler's state."""
        state: dict[str, object] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the scheduler's state."""
        self.scheduler.num_steps = 0  # its own loading adds the saved count to the one it has
        self.scheduler.load_state_dict(state)
