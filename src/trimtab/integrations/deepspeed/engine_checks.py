"""What of a DeepSpeed engine cannot be guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

__all__ = ["check_engine"]


def check_engine(engine: DeepSpeedEngine) -> None:
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
