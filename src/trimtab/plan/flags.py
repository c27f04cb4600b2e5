"""Command-line flags that carry out a remedy, by the framework that wrote the log.

Megatron-LM as of 2024-2026; Megatron-DeepSpeed is BigScience's fork, whose scheduler override and
data skip have other names. Where a checkpoint's own values win over flags, the trap is named.
"""

from collections.abc import Mapping

__all__ = ["TRAPS", "dialect", "flags_for"]

_MEGATRON: Mapping[str, str] = {
    "roll-back": "--load CHECKPOINTS --ckpt-step {to_step:.0f}",
    "roll-back-further": "--load CHECKPOINTS --ckpt-step {to_step:.0f}",
    "lower-lr": "--override-opt_param-scheduler --lr {lr:.4g}",
    "restore-lr": "--override-opt_param-scheduler --lr {lr:.4g}",
    "skip-data": "--iterations-to-skip $(seq {first_step:.0f} {last_step:.0f})",
    "lower-clip": "--clip-grad {clip:.3g}",
    "adam-beta2": "--adam-beta2 0.95",
    "adam-eps": "--adam-eps {eps:.0e}",
    "init-std": "--init-method-std {std:.3g}",
    "bf16": "--bf16 --accumulate-allreduce-grads-in-fp32",
    "qk-norm": "--qk-layernorm",
    "optimizer-reset": "--no-load-optim",
}
_DEEPSPEED: Mapping[str, str] = {
    **_MEGATRON,
    "roll-back": "--load CHECKPOINTS",
    "roll-back-further": "--load CHECKPOINTS",
    "lower-lr": "--override-lr-scheduler --lr {lr:.4g}",
    "restore-lr": "--override-lr-scheduler --lr {lr:.4g}",
    "skip-data": "--skip-train-iteration-range {first_step:.0f}-{last_step:.0f}",
    "embedding-layernorm": "--embed-layernorm",
    "qk-norm": "",
}
_TRAINER: Mapping[str, str] = {
    "roll-back": "--resume_from_checkpoint OUTPUT/checkpoint-{to_step:.0f}",
    "roll-back-further": "--resume_from_checkpoint OUTPUT/checkpoint-{to_step:.0f}",
    "lower-lr": "--learning_rate {lr:.4g}",
    "restore-lr": "--learning_rate {lr:.4g}",
    "lower-clip": "--max_grad_norm {clip:.3g}",
    "adam-beta2": "--adam_beta2 0.95",
    "adam-eps": "--adam_epsilon {eps:.0e}",
    "bf16": "--bf16 True --fp16 False",
}
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "megatron": _MEGATRON,
    "megatron-deepspeed": _DEEPSPEED,
    "hf-trainer": _TRAINER,
}

TRAPS: Mapping[tuple[str, str], str] = {
    (
        "megatron",
        "lower-lr",
    ): "--lr is the peak of the schedule; compare the rate of the first logged step with it, since a loaded optimizer can bring the old peak back; BigScience's fork calls the override --override-lr-scheduler",
    (
        "megatron-deepspeed",
        "lower-lr",
    ): "--lr is the peak of the schedule; compare the rate of the first logged step with it",
    ("megatron-deepspeed", "roll-back"): "every latest* file in the folder must name the step",
    (
        "hf-trainer",
        "lower-lr",
    ): "the checkpoint's scheduler.pt and optimizer.pt hold the old rate and win over the flag; compare the rate of the first logged step",
}
"""What to watch for, by dialect and remedy."""


def dialect(log_format: str) -> str:
    """Return whose flags a log's format calls for; empty where no flags are known.

    Example:
        >>> dialect("megatron"), dialect("csv")
        ('megatron', '')
    """
    name = log_format.lower()
    if "megatron" in name:
        return "megatron-deepspeed" if "deepspeed" in name else "megatron"
    return "hf-trainer" if "trainer" in name else ""


def flags_for(log_format: str, remedy: str, values: Mapping[str, float | str | bool | None]) -> str:
    """Return the flags, or an empty string where none are known or a value is missing.

    Example:
        >>> flags_for("megatron", "lower-lr", {"lr": 3e-5})
        '--override-opt_param-scheduler --lr 3e-05'
        >>> flags_for("megatron", "roll-back", {"to_step": None})
        ''
    """
    template = _FLAGS.get(dialect(log_format), {}).get(remedy, "")
    try:
        return template.format(**values)
    except (KeyError, TypeError, ValueError):
        return ""
