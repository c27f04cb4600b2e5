"""What to type in each framework: its own name of a setting.

Where a config has the setting, its own key is used; else the framework's usual one; else plain words.
"""

import re
from collections.abc import Mapping
from typing import Any

from trimtab.preflight.rules.rule import compact
from trimtab.preflight.settings import Settings

__all__ = ["spell"]

_MEGATRON: Mapping[str, str] = {
    "init_std": "--init-method-std {}", "dtype": "--{}", "beta2": "--adam-beta2 {}", "eps": "--adam-eps {}",
    "lr": "--lr {}", "min_lr": "--min-lr {}", "clip": "--clip-grad {}", "weight_decay": "--weight-decay {}",
    "warmup_steps": "--lr-warmup-iters {}", "ffn": "--ffn-hidden-size {}", "heads": "--num-attention-heads {}",
    "layers": "--num-layers {}", "qk_norm": "--qk-layernorm", "save_steps": "--save-interval {}",
    "loss_scale_init": "--initial-loss-scale {}", "loss_scale": "(leave --loss-scale out)",
    "reduce_dtype": "--accumulate-allreduce-grads-in-fp32", "beta1": "--adam-beta1 {}",
}  # fmt: skip
_TRAINER: Mapping[str, str] = {
    "lr": "learning_rate: {}", "clip": "max_grad_norm: {}", "beta1": "adam_beta1: {}", "beta2": "adam_beta2: {}",
    "eps": "adam_epsilon: {}", "weight_decay": "weight_decay: {}", "warmup_steps": "warmup_steps: {}", "dtype": "{}: true",
    "save_steps": "save_steps: {}", "init_std": "initializer_range: {}", "ffn": "intermediate_size: {}",
    "heads": "num_attention_heads: {}", "layers": "num_hidden_layers: {}",
}  # fmt: skip
_NEOX: Mapping[str, str] = {
    "init_std": 'init_method: "small_init"', "dtype": 'precision: "{}"', "clip": "gradient_clipping: {}", "lr": "optimizer.params.lr: {}",
    "weight_decay": "weight_decay: {}", "warmup_steps": "warmup: (a share of train_iters)", "min_lr": "min_lr: {}",
    "loss_scale": "fp16.loss_scale: 0",
}  # fmt: skip
_TITAN: Mapping[str, str] = {
    "lr": "optimizer.lr = {}", "eps": "optimizer.eps = {}", "beta2": "optimizer.beta2 = {}", "weight_decay": "optimizer.weight_decay = {}",
    "warmup_steps": "lr_scheduler.warmup_steps = {}", "clip": "training.max_norm = {}", "save_steps": "checkpoint.interval = {}",
    "reduce_dtype": 'training.mixed_precision_reduce = "float32"',
}  # fmt: skip
_OLMO: Mapping[str, str] = {
    "lr": "optimizer.learning_rate: {}", "eps": "optimizer.eps: {}", "weight_decay": "optimizer.weight_decay: {}",
    "clip": "max_grad_norm: {}", "warmup_steps": "scheduler.t_warmup: {}", "init_std": "model.init_std: {}",
    "qk_norm": "model.attention_layer_norm: true", "z_loss": "auxiliary_loss_multiplier: {}",
    "decay_norms_and_biases": "optimizer.decay_norm_and_bias: false", "decay_embeddings": "optimizer.decay_embeddings: false",
    "reduce_dtype": "fsdp.precision: mixed",
}  # fmt: skip
_COMPOSER: Mapping[str, str] = {
    "lr": "optimizer.lr: {}", "beta2": "optimizer.betas: [0.9, {}]", "eps": "optimizer.eps: {}", "weight_decay": "optimizer.weight_decay: {}",
    "warmup_steps": "scheduler.t_warmup: {}ba", "dtype": "precision: amp_{}", "reduce_dtype": "fsdp_config.mixed_precision: DEFAULT",
    "clip": "algorithms.gradient_clipping.clipping_threshold: {}", "qk_norm": "model.attn_config.qk_ln: true",
    "init_std": "model.init_config.init_std: {}",
}  # fmt: skip
_NEMO: Mapping[str, str] = {
    "init_std": "model.init_method_std={}", "lr": "model.optim.lr={}", "dtype": "trainer.precision={}", "clip": "trainer.gradient_clip_val={}",
    "weight_decay": "model.optim.weight_decay={}", "warmup_steps": "model.optim.sched.warmup_steps={}", "ffn": "model.ffn_hidden_size={}",
    "min_lr": "model.optim.sched.min_lr={}", "beta2": "model.optim.betas=[0.9,{}]", "reduce_dtype": "model.grad_allreduce_dtype=fp32",
}  # fmt: skip
_DEEPSPEED: Mapping[str, str] = {
    "clip": '"gradient_clipping": {}', "lr": '"optimizer": {{"params": {{"lr": {}}}}}', "dtype": '"{}": {{"enabled": true}}',
    "weight_decay": '"optimizer": {{"params": {{"weight_decay": {}}}}}', "loss_scale": '"fp16": {{"loss_scale": 0}}',
    "warmup_steps": '"scheduler": {{"params": {{"warmup_num_steps": {}}}}}', "reduce_dtype": '"communication_data_type": "fp32"',
}  # fmt: skip
_METASEQ: Mapping[str, str] = {
    "lr": "--lr {}", "clip": "--clip-norm {}", "beta2": "--adam-betas '(0.9, {})'", "eps": "--adam-eps {}", "dtype": "--{}",
    "weight_decay": "--weight-decay {}", "warmup_steps": "--warmup-updates {}", "save_steps": "--save-interval-updates {}",
    "loss_scale_init": "--fp16-init-scale {}",
}  # fmt: skip
_LEVANTER: Mapping[str, str] = {
    "lr": "optimizer.learning_rate: {}", "eps": "optimizer.epsilon: {}", "beta2": "optimizer.beta2: {}", "weight_decay": "optimizer.weight_decay: {}",
    "warmup_steps": "optimizer.warmup: {}", "clip": "optimizer.max_grad_norm: {}", "init_std": "model.initializer_range: {}",
    "z_loss": "z_loss_weight: {}",
}  # fmt: skip
_FRAMEWORKS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("megatron-deepspeed", {**_MEGATRON, "qk_norm": "", "embed_norm": "--embed-layernorm"}),
    ("nemo", _NEMO), ("megatron", _MEGATRON), ("neox", _NEOX), ("titan", _TITAN), ("olmo", _OLMO),
    ("foundry", _COMPOSER), ("composer", _COMPOSER), ("metaseq", _METASEQ), ("fairseq", _METASEQ),
    ("levanter", _LEVANTER), ("deepspeed", _DEEPSPEED), ("hf", _TRAINER), ("transformers", _TRAINER), ("axolotl", _TRAINER),
    ("llama-factory", _TRAINER),
)  # fmt: skip
"""A part of the framework's name, and its table; the first that fits holds."""
_WORDS: Mapping[str, str] = {
    "init_std": "the init's standard deviation", "init_std_output": "the init of output layers", "lr": "the peak learning rate",
    "min_lr": "the final learning rate", "warmup_steps": "the warm-up in steps", "beta2": "Adam's beta2", "eps": "Adam's epsilon",
    "clip": "the gradient clip", "dtype": "the number format", "ffn": "the FFN width", "embed_norm": "a norm after the embedding",
    "qk_norm": "norms on queries and keys", "reduce_dtype": "the format of gradient sums", "optimizer_dtype": "the format of Adam's moments",
    "loss_scale": "the loss scale (0: dynamic)",
}  # fmt: skip


def spell(settings: Settings, change: Mapping[str, Any], words: str = "") -> str:
    """Return what to type, or words where the framework's name of a setting is not known.

    Example:
        >>> from trimtab.preflight.settings import Setting
        >>> run = Settings("a.sh", "megatron", {"init_std": Setting(0.02, "default")})
        >>> spell(run, {"init_std": 0.00587, "beta2": 0.95})
        '--init-method-std 0.00587 --adam-beta2 0.95'
    """
    parts = [_one(settings, name, value) for name, value in change.items()]
    joined = " ".join(parts) if all(p.startswith("--") for p in parts) else ", ".join(parts)
    return "; ".join(p for p in (joined, words) if p)


def _one(settings: Settings, name: str, value: Any) -> str:
    text = _plain(value)
    table = next((t for part, t in _FRAMEWORKS if part in settings.framework.lower()), {})
    own = _own_key(settings, name, value)
    if own.startswith("-"):
        return f"{own} {text}"
    if own and not (table.get("lr", "").startswith("--") and "." not in own):
        return f"{own}: {text}"
    if template := table.get(name, ""):
        return template.format(text)
    if own:
        return f"--{own.replace('_', '-')} {text}"
    return f"set {_WORDS.get(name) or name.replace('_', ' ')} to {text}"


def _own_key(settings: Settings, name: str, value: Any) -> str:
    """Return the config's own key of a setting, where a value can be typed after it."""
    found = settings.values.get(name)
    if found is None or found.origin != "stated" or isinstance(value, bool):
        return ""
    if name in ("dtype", "loss_scale"):  # several keys, or one that must go
        return ""
    return found.key if re.fullmatch(r"-{0,2}[\w./-]+", found.key) else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}" if abs(value) >= 10 or value == 0 else f"{value:.1f}"
    if isinstance(value, float):
        return compact(value).replace(" ", "") if abs(value) < 1 else f"{value:g}"
    return str(value)
