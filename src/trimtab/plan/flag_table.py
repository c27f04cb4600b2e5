"""Flags by framework, as data: for each remedy, and for each test that separates causes.

Megatron-LM as of 2024-2026; Megatron-DeepSpeed is BigScience's fork, whose scheduler override and
data skip have other names. metaseq and fairseq, torchtitan, OLMo, nanoGPT, Lightning's CLI, NeMo
and DeepSpeed as their public configuration files name the options. `{...}` is filled in from the
plan.
"""

from collections.abc import Mapping

__all__ = ["DIALECTS", "REMEDY_FLAGS", "TEST_FLAGS", "TRAPS"]

DIALECTS: tuple[tuple[str, str], ...] = (
    # Longer names first: "megatron" and "deepspeed" are both part of this one.
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron", "megatron"),
    ("nemo", "nemo"),
    ("deepspeed", "deepspeed"),
    ("trainer", "hf-trainer"),
    ("hf-", "hf-trainer"),
    ("huggingface", "hf-trainer"),
    ("transformers", "hf-trainer"),
    ("metaseq", "metaseq"),
    ("fairseq", "metaseq"),
    ("torchtitan", "torchtitan"),
    # A framework of its own, with other names: OLMo's flags would fail there.
    ("olmo-core", ""),
    ("olmo", "olmo"),
    ("nanogpt", "nanogpt"),
    ("lightning", "lightning"),
)
"""What the name of a log format or framework contains -> whose flags it calls for; the first wins;
empty: none known."""

_MEGATRON: Mapping[str, str] = {
    "roll-back": "--load CHECKPOINTS --ckpt-step {to_step:.0f}",
    "roll-back-further": "--load CHECKPOINTS --ckpt-step {to_step:.0f}",
    # Without the override the checkpoint's rate stays in force, or the launch is refused.
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
_DEEPSPEED_FORK: Mapping[str, str] = {
    **_MEGATRON,
    # The fork has no option for a step: it loads what `latest` names.
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
_METASEQ: Mapping[str, str] = {
    "roll-back": "--restore-file SAVE_DIR/checkpoint_{to_step:.0f}.pt",
    "roll-back-further": "--restore-file SAVE_DIR/checkpoint_{to_step:.0f}.pt",
    "lower-lr": "--lr {lr:.4g}",
    "restore-lr": "--lr {lr:.4g}",
    "lower-clip": "--clip-norm {clip:.3g}",
    "skip-update": "--skip-gradient-update-on-clip-norm",
    "adam-beta2": """--optimizer-overrides "{{'adam_betas': '(0.9, 0.95)'}}\"""",
    "optimizer-reset": "--reset-optimizer",
    "bf16": "--bf16",
}
_TORCHTITAN: Mapping[str, str] = {
    "roll-back": "--checkpoint.load_step {to_step:.0f}",
    "roll-back-further": "--checkpoint.load_step {to_step:.0f}",
    "lower-lr": "--optimizer.lr {lr:.4g}",
    "restore-lr": "--optimizer.lr {lr:.4g}",
    "lower-clip": "--training.max_norm {clip:.3g}",
    "adam-beta2": "--optimizer.beta2 0.95",
    "adam-eps": "--optimizer.eps {eps:.0e}",
    "optimizer-reset": "--checkpoint.exclude_from_loading optimizer",
    "bf16": "--training.mixed_precision_param bfloat16 --training.mixed_precision_reduce float32",
}
_OLMO: Mapping[str, str] = {
    "roll-back": "--load_path=SAVE_FOLDER/step{to_step:.0f}",
    "roll-back-further": "--load_path=SAVE_FOLDER/step{to_step:.0f}",
    "lower-lr": "--optimizer.learning_rate={lr:.4g}",
    "restore-lr": "--optimizer.learning_rate={lr:.4g}",
    "lower-clip": "--max_grad_norm={clip:.3g}",
    "adam-beta2": "--optimizer.betas=[0.9,0.95]",
    "adam-eps": "--optimizer.eps={eps:.0e}",
    "optimizer-reset": "--reset_optimizer_state=true",
    "init-std": "--model.init_std={std:.3g}",
    "qk-norm": "--model.attention_layer_norm=true",
    "bf16": "--precision=amp_bf16",
}
_NANOGPT: Mapping[str, str] = {
    "roll-back": "--init_from=resume",
    "roll-back-further": "--init_from=resume",
    "lower-lr": "--init_from=resume --learning_rate={lr:.4g}",
    "restore-lr": "--init_from=resume --learning_rate={lr:.4g}",
    "lower-clip": "--grad_clip={clip:.3g}",
    "adam-beta2": "--beta2=0.95",
    "bf16": "--dtype=bfloat16",
}
_LIGHTNING: Mapping[str, str] = {
    "roll-back": "--ckpt_path CHECKPOINT_AT_{to_step:.0f}.ckpt",
    "roll-back-further": "--ckpt_path CHECKPOINT_AT_{to_step:.0f}.ckpt",
    "lower-lr": "--optimizer.lr {lr:.4g}",
    "restore-lr": "--optimizer.lr {lr:.4g}",
    "lower-clip": "--trainer.gradient_clip_val {clip:.3g}",
    "bf16": "--trainer.precision bf16-mixed",
}
_NEMO: Mapping[str, str] = {
    "lower-lr": "model.optim.lr={lr:.4g}",
    "restore-lr": "model.optim.lr={lr:.4g}",
    "lower-clip": "trainer.gradient_clip_val={clip:.3g}",
    "adam-beta2": "model.optim.betas=[0.9,0.95]",
    "bf16": "trainer.precision=bf16",
    "init-std": "model.init_method_std={std:.3g}",
}
_DEEPSPEED: Mapping[str, str] = {
    "roll-back": 'load_checkpoint(DIR, tag="global_step{to_step:.0f}")',
    "roll-back-further": 'load_checkpoint(DIR, tag="global_step{to_step:.0f}")',
    "lower-lr": 'ds_config: "optimizer": {{"params": {{"lr": {lr:.4g}}}}}',
    "restore-lr": 'ds_config: "optimizer": {{"params": {{"lr": {lr:.4g}}}}}',
    "lower-clip": 'ds_config: "gradient_clipping": {clip:.3g}',
    "bf16": 'ds_config: "bf16": {{"enabled": true}}, without "fp16"',
}

REMEDY_FLAGS: Mapping[str, Mapping[str, str]] = {
    "megatron": _MEGATRON,
    "megatron-deepspeed": _DEEPSPEED_FORK,
    "hf-trainer": _TRAINER,
    "metaseq": _METASEQ,
    "torchtitan": _TORCHTITAN,
    "olmo": _OLMO,
    "nanogpt": _NANOGPT,
    "lightning": _LIGHTNING,
    "nemo": _NEMO,
    "deepspeed": _DEEPSPEED,
}
"""By dialect and remedy."""

_PEAK = "compare the rate of the first logged step with it"

TRAPS: Mapping[tuple[str, str], str] = {
    (
        "megatron",
        "lower-lr",
    ): (
        "--lr is the peak of the schedule; compare the rate of the first logged step with it, since"
        " a loaded optimizer can bring the old peak back; BigScience's fork calls the override"
        " --override-lr-scheduler"
    ),
    ("megatron-deepspeed", "lower-lr"): f"--lr is the peak of the schedule; {_PEAK}",
    ("megatron-deepspeed", "roll-back"): "every latest* file in the folder must name the step",
    (
        "hf-trainer",
        "lower-lr",
    ): (
        "the checkpoint's scheduler.pt and optimizer.pt hold the old rate and win over the flag;"
        " compare the rate of the first logged step"
    ),
    ("metaseq", "roll-back"): "fairseq puts the epoch before the step: checkpoint_EPOCH_STEP.pt",
    (
        "metaseq",
        "adam-beta2",
    ): "without --optimizer-overrides the checkpoint's betas win over the flag, as OPT-175B found",
    ("metaseq", "lower-lr"): f"--lr is the peak of the schedule; {_PEAK}",
    ("torchtitan", "lower-lr"): f"optimizer.lr is the peak of the schedule; {_PEAK}",
    ("olmo", "lower-lr"): f"learning_rate is the peak of the schedule; {_PEAK}",
    (
        "nanogpt",
        "roll-back",
    ): "nanoGPT keeps one ckpt.pt: going back needs a copy of an older one in out_dir",
    ("nanogpt", "lower-lr"): "lower min_lr by the same factor",
    (
        "nanogpt",
        "adam-beta2",
    ): "the optimizer state of ckpt.pt holds the old betas and wins over the flag",
    (
        "lightning",
        "lower-lr",
    ): (
        "the checkpoint's optimizer and scheduler states hold the old rate and win; compare the"
        " rate of the first logged step"
    ),
    ("deepspeed", "lower-lr"): f"a loaded scheduler can bring the old rate back; {_PEAK}",
}
"""What to watch for, by dialect and remedy."""

_GENERIC_TESTS: Mapping[str, str] = {
    "compare-settings": "trimtab compare {log}@{parent} {log}@{attempt}",
    "data-losses": (
        "load {at}; model.eval(); loss of the batches of {first} to {last}, no backward pass"
    ),
    "replay": "load {at}; same seed, same data, nothing changed; run to {last}",
    "half-rate": "load {at}; learning rate in force x 0.5; run to {last}",
    "old-rate": "load {at}; learning rate {old_lr}; run to {last}",
    "other-precision": "load {at}; bf16 or fp32 instead of fp16; 200 steps",
    "earlier-state": "load the checkpoint before {at}; same data; run to {last}",
}
"""For trainers without known flags: what to set, in words that fit any loop."""


def _replays(load: str, rate: str, precision: str, **more: str) -> Mapping[str, str]:
    """Return the tests that are a restart with other flags, from three templates."""
    return {
        "replay": load,
        "half-rate": f"{load} {rate.format(lr='{half_lr}')}",
        "old-rate": f"{load} {rate.format(lr='{old_lr}')}",
        "other-precision": f"{load} {precision}",
        "earlier-state": load.replace("{at}", "{earlier}"),
        **more,
    }


TEST_FLAGS: Mapping[str, Mapping[str, str]] = {
    "": _GENERIC_TESTS,
    "megatron": _replays(
        "--load CHECKPOINTS --ckpt-step {at}",
        "--override-opt_param-scheduler --lr {lr}",
        "--bf16 --accumulate-allreduce-grads-in-fp32",
        replay="--load CHECKPOINTS --ckpt-step {at} --rerun-mode validate_results",
        **{"step-times": "--timing-log-level 2 --timing-log-option all --log-interval 1"},
    ),
    "megatron-deepspeed": _replays(
        "--load CHECKPOINTS  (every latest* file there must name {at})",
        "--override-lr-scheduler --lr {lr}",
        "--bf16",
        moments="--log-optimizer-states-to-tensorboard",
    ),
    "hf-trainer": _replays(
        "--resume_from_checkpoint OUTPUT/checkpoint-{at}",
        "--learning_rate {lr}",
        "--bf16 True --fp16 False",
        replay=(
            "--resume_from_checkpoint OUTPUT/checkpoint-{at} --logging_steps 1 --full_determinism"
            " True"
        ),
    ),
    "metaseq": _replays(
        "--restore-file SAVE_DIR/checkpoint_{at}.pt --log-interval 1", "--lr {lr}", "--bf16"
    ),
    "torchtitan": _replays(
        "--checkpoint.load_step {at} --metrics.log_freq 1",
        "--optimizer.lr {lr}",
        "--training.mixed_precision_param float32",
    ),
    "olmo": _replays(
        "--load_path=SAVE_FOLDER/step{at} --console_log_interval=1",
        "--optimizer.learning_rate={lr}",
        "--precision=fp32",
    ),
    "nanogpt": _replays(
        "--init_from=resume --log_interval=1  (out_dir holds the ckpt.pt of {at})",
        "--learning_rate={lr}",
        "--dtype=float32",
    ),
    "lightning": _replays(
        "--ckpt_path CHECKPOINT_AT_{at}.ckpt --trainer.log_every_n_steps 1",
        "--optimizer.lr {lr}",
        "--trainer.precision 32-true",
    ),
    "nemo": _replays(
        "exp_manager.resume_if_exists=true model.resume_from_checkpoint=CHECKPOINT_AT_{at}",
        "model.optim.lr={lr}",
        "trainer.precision=bf16",
    ),
    "deepspeed": _replays(
        'load_checkpoint(DIR, tag="global_step{at}")',
        'ds_config: "optimizer": {{{{"params": {{{{"lr": {lr}}}}}}}}}',
        'ds_config: "bf16": {{"enabled": true}}, without "fp16"',
        **{"step-times": 'ds_config: "wall_clock_breakdown": true, "steps_per_print": 1'},
    ),
}
"""By dialect and experiment; `{at}` is the checkpoint to start from, `{earlier}` one before it."""
