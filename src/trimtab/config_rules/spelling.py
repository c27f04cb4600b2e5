"""What to type in each framework: its own name of a setting.

Where a config has the setting, its own key is used; else the framework's usual one; else plain
words.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from trimtab.config_rules.rules.rule import compact
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Settings

__all__ = ["spell"]

_MEGATRON: Mapping[str, str] = {
    "init_std": "--init-method-std {}",
    "dtype": "--{}",
    "beta2": "--adam-beta2 {}",
    "eps": "--adam-eps {}",
    "lr": "--lr {}",
    "min_lr": "--min-lr {}",
    "clip": "--clip-grad {}",
    "weight_decay": "--weight-decay {}",
    "warmup_steps": "--lr-warmup-iters {}",
    "ffn": "--ffn-hidden-size {}",
    "heads": "--num-attention-heads {}",
    "layers": "--num-layers {}",
    "qk_norm": "--qk-layernorm",
    "save_steps": "--save-interval {}",
    "loss_scale_init": "--initial-loss-scale {}",
    "loss_scale": "(leave --loss-scale out)",
    "reduce_dtype": "--accumulate-allreduce-grads-in-fp32",
    "beta1": "--adam-beta1 {}",
    "batch_start_samples": "--rampup-batch-size {0} {0} SAMPLES",
}
_TRAINER: Mapping[str, str] = {
    "lr": "learning_rate: {}",
    "clip": "max_grad_norm: {}",
    "beta1": "adam_beta1: {}",
    "beta2": "adam_beta2: {}",
    "eps": "adam_epsilon: {}",
    "weight_decay": "weight_decay: {}",
    "warmup_steps": "warmup_steps: {}",
    "dtype": "{}: true",
    "save_steps": "save_steps: {}",
    "init_std": "initializer_range: {}",
    "ffn": "intermediate_size: {}",
    "heads": "num_attention_heads: {}",
    "layers": "num_hidden_layers: {}",
}
_NEOX: Mapping[str, str] = {
    "init_std": 'init_method: "small_init"',
    "dtype": 'precision: "{}"',
    "clip": "gradient_clipping: {}",
    "lr": "optimizer.params.lr: {}",
    "weight_decay": "weight_decay: {}",
    "warmup_steps": "warmup: (a share of train_iters)",
    "min_lr": "min_lr: {}",
    "loss_scale": "fp16.loss_scale: 0",
}
_TITAN: Mapping[str, str] = {
    "lr": "optimizer.lr = {}",
    "eps": "optimizer.eps = {}",
    "beta2": "optimizer.beta2 = {}",
    "weight_decay": "optimizer.weight_decay = {}",
    "warmup_steps": "lr_scheduler.warmup_steps = {}",
    "clip": "training.max_norm = {}",
    "save_steps": "checkpoint.interval = {}",
    "reduce_dtype": 'training.mixed_precision_reduce = "float32"',
    "dtype": 'training.mixed_precision_param = "bfloat16"',
}
_OLMO: Mapping[str, str] = {
    "lr": "optimizer.learning_rate: {}",
    "eps": "optimizer.eps: {}",
    "weight_decay": "optimizer.weight_decay: {}",
    "beta2": "optimizer.betas: [0.9, {}]",
    "dtype": "precision: amp_{}",
    "clip": "max_grad_norm: {}",
    "warmup_steps": "scheduler.t_warmup: {}",
    "init_std": "model.init_std: {}",
    "qk_norm": "model.attention_layer_norm: true",
    "z_loss": "auxiliary_loss_multiplier: {}",
    "decay_norms_and_biases": "optimizer.decay_norm_and_bias: false",
    "decay_embeddings": "optimizer.decay_embeddings: false",
    "reduce_dtype": "fsdp.precision: mixed",
}
_COMPOSER: Mapping[str, str] = {
    "lr": "optimizer.lr: {}",
    "beta2": "optimizer.betas: [0.9, {}]",
    "eps": "optimizer.eps: {}",
    "weight_decay": "optimizer.weight_decay: {}",
    "warmup_steps": "scheduler.t_warmup: {}ba",
    "dtype": "precision: amp_{}",
    "reduce_dtype": "fsdp_config.mixed_precision: DEFAULT",
    "clip": "algorithms.gradient_clipping.clipping_threshold: {}",
    "qk_norm": "model.attn_config.qk_ln: true",
    "init_std": "model.init_config.init_std: {}",
}
_NEMO: Mapping[str, str] = {
    "init_std": "model.init_method_std={}",
    "lr": "model.optim.lr={}",
    "dtype": "trainer.precision={}",
    "clip": "trainer.gradient_clip_val={}",
    "weight_decay": "model.optim.weight_decay={}",
    "warmup_steps": "model.optim.sched.warmup_steps={}",
    "ffn": "model.ffn_hidden_size={}",
    "min_lr": "model.optim.sched.min_lr={}",
    "beta2": "model.optim.betas=[0.9,{}]",
    "reduce_dtype": "model.grad_allreduce_dtype=fp32",
}
_DEEPSPEED: Mapping[str, str] = {
    "clip": '"gradient_clipping": {}',
    "lr": '"optimizer": {{"params": {{"lr": {}}}}}',
    "dtype": '"{}": {{"enabled": true}}',
    "weight_decay": '"optimizer": {{"params": {{"weight_decay": {}}}}}',
    "loss_scale": '"fp16": {{"loss_scale": 0}}',
    "beta2": '"optimizer": {{"params": {{"betas": [0.9, {}]}}}}',
    "warmup_steps": '"scheduler": {{"params": {{"warmup_num_steps": {}}}}}',
    "reduce_dtype": '"communication_data_type": "fp32"',
}
_METASEQ: Mapping[str, str] = {
    "lr": "--lr {}",
    "clip": "--clip-norm {}",
    "beta2": "--adam-betas '(0.9, {})'",
    "eps": "--adam-eps {}",
    "dtype": "--{}",
    "weight_decay": "--weight-decay {}",
    "warmup_steps": "--warmup-updates {}",
    "save_steps": "--save-interval-updates {}",
    "loss_scale_init": "--fp16-init-scale {}",
}
_LEVANTER: Mapping[str, str] = {
    "lr": "optimizer.learning_rate: {}",
    "eps": "optimizer.epsilon: {}",
    "beta2": "optimizer.beta2: {}",
    "weight_decay": "optimizer.weight_decay: {}",
    "warmup_steps": "optimizer.warmup: {}",
    "clip": "optimizer.max_grad_norm: {}",
    "init_std": "model.initializer_range: {}",
    "z_loss": "z_loss_weight: {}",
}
_FRAMEWORKS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("megatron-deepspeed", {**_MEGATRON, "qk_norm": "", "embed_norm": "--embed-layernorm"}),
    ("nemo", _NEMO),
    ("megatron", _MEGATRON),
    ("neox", _NEOX),
    ("titan", _TITAN),
    ("olmo", _OLMO),
    ("foundry", _COMPOSER),
    ("composer", _COMPOSER),
    ("metaseq", _METASEQ),
    ("fairseq", _METASEQ),
    ("levanter", _LEVANTER),
    ("deepspeed", _DEEPSPEED),
    ("hf", _TRAINER),
    ("transformers", _TRAINER),
    ("axolotl", _TRAINER),
    ("llama-factory", _TRAINER),
)
"""A part of the framework's name, and its table; the first that fits holds."""
_WITH_EQUALS = (".toml", ".py", ".gin", ".ini", ".cfg", ".conf")
"""Endings of files in which a setting is `key = value`."""
_KEY = r"-{0,2}[\w./-]+"
_WORDS: Mapping[str, str] = {
    "init_std": "the init's standard deviation",
    "init_std_output": "the init of output layers",
    "lr": "the peak learning rate",
    "min_lr": "the final learning rate",
    "warmup_steps": "the warm-up in steps",
    "beta2": "Adam's beta2",
    "eps": "Adam's epsilon",
    "clip": "the gradient clip",
    "dtype": "the number format",
    "ffn": "the FFN width",
    "embed_norm": "a norm after the embedding",
    "qk_norm": "norms on queries and keys",
    "reduce_dtype": "the format of gradient sums",
    "optimizer_dtype": "the format of Adam's moments",
    "loss_scale": "the loss scale (0: dynamic)",
    "saves": "checkpoints",
}


def spell(settings: Settings, change: Mapping[str, Any], words: str = "") -> str:
    """Return what to type, or words where the framework's name of a setting is not known.

    Example:
        >>> from trimtab.configs.settings import Setting
        >>> run = Settings("a.sh", "megatron", {"init_std": Setting(0.02, "default")})
        >>> spell(run, {"init_std": 0.00587, "beta2": 0.95})
        '--init-method-std 0.00587 --adam-beta2 0.95'
    """
    names = list(change)
    if {"beta1", "beta2"} <= change.keys() and _betas(settings, "beta2", change):
        names.remove("beta1")
    parts = [part for name in names if (part := _one(settings, name, change))]
    joined = " ".join(parts) if all(p.startswith("--") for p in parts) else ", ".join(parts)
    return "; ".join(p for p in (joined, words) if p)


def _one(settings: Settings, name: str, change: Mapping[str, Any]) -> str:
    value = change[name]
    table = next((t for part, t in _FRAMEWORKS if part in settings.framework.lower()), {})
    template = table.get(name, "")
    if name.endswith("dtype") and (typed := _number_format(settings, name, str(value))):
        return typed
    if typed := _betas(settings, name, change):
        return typed
    if name == "warmup_steps" and (typed := _warm_up(settings, float(value))):
        return typed
    text = _plain(value)
    if (lent := settings.values.get(name)) and (
        file := re.fullmatch(r"([\w.-]+): ([\w.]+)", lent.key)
    ):
        return f"{file[2]}: {text} (in {file[1]})"
    if own := _own_key(settings, name, value):
        return _assigned(settings, own, text + _unit(settings.values[name].text))
    if template:
        return _on_command_line(settings, template.format(text))
    if name == "batch_start_samples":  # a ramp needs more than a start
        return ""
    what = _WORDS.get(name) or name.replace("_", " ")
    return f"turn on {what}" if value is True else f"set {what} to {text}"


def _warm_up(settings: Settings, steps: float) -> str:
    """Return a warm-up in the unit that the file gives it in.

    Tokens, samples or a share of the run.
    """
    run = Facts(settings)
    for name, factor in (
        ("warmup_tokens", run.positive("batch_tokens")),
        ("warmup_samples", run.positive("batch_samples")),
        ("warmup_ratio", 1 / (run.positive("train_steps") or math.inf)),
    ):
        found = settings.values.get(name)
        if (
            found is not None
            and found.origin == "stated"
            and factor
            and re.fullmatch(_KEY, found.key)
        ):
            amount = steps * factor if name != "warmup_ratio" else float(f"{steps * factor:.2g}")
            return _assigned(settings, found.key, _plain(amount))
    return ""


def _unit(text: str) -> str:
    """Return the unit that stands behind a number, such as `ba` in `100ba`."""
    found = re.fullmatch(r"[\d.]+(ba|tok|sp|ep)", text)
    return found[1] if found else ""


def _assigned(settings: Settings, key: str, text: str) -> str:
    """Return how a value stands after a key in a file of this syntax."""
    if key.startswith("-"):
        return f"{key} {text}"
    if settings.path.lower().endswith(_WITH_EQUALS):
        if settings.path.lower().endswith(".py"):
            text = {"true": "True", "false": "False"}.get(text, text)
        quoted = (
            text
            if re.fullmatch(r"[\[(]?[-+\d.].*|true|false|True|False|torch\..*", text)
            else f'"{text}"'
        )
        return f"{key} = {quoted}"
    return f"{key}: {text}"


def _on_command_line(settings: Settings, typed: str) -> str:
    """Return `weight_decay: 0.1` as an option where the config is a command line."""
    plain = re.fullmatch(r"(\w+): (\S+)", typed)
    if plain is None or not any(s.key.startswith("--") for s in settings.values.values()):
        return typed
    return f"--{plain[1]}" if plain[2] == "true" else f"--{plain[1]} {plain[2]}"


def _number_format(settings: Settings, name: str, value: str) -> str:
    """Return the file's own key with the number format in the file's own words.

    Empty where it has none.
    """
    found = settings.values.get(name)
    if found is None or found.origin == "default" or not re.fullmatch(_KEY, found.key):
        return ""
    written = _in_words_of(found.text, value)
    if written:
        return _assigned(settings, found.key, written)
    if found.text.lower() not in ("true", "1") or "fp16" not in found.key:
        return ""
    key = found.key.replace("fp16", value)
    return key if key.startswith("-") else _assigned(settings, key, "true")


def _in_words_of(text: str, value: str) -> str:
    """Return bf16 or fp32 as a file that says `amp_fp16`, `float16`, `16-mixed` would say it.

    Empty where it says neither.

    Example:
        >>> _in_words_of("amp_fp16", "bf16"), _in_words_of("bfloat16", "fp32")
        ('amp_bf16', 'float32')
    """
    bits = "32" if value == "fp32" else "16"
    brain = "b" if value == "bf16" else ""
    for pattern, new in (
        (r"b?float16", f"{brain}float{bits}"),
        (r"b?fp16|bf16", f"{'bf' if brain else 'fp'}{bits}"),
        (r"half", value),
        (r"^16(?=-|$)", f"bf{bits}" if brain else bits),
    ):
        if re.search(pattern, text):
            return re.sub(pattern, new, text)
    return ""


def _betas(settings: Settings, name: str, change: Mapping[str, Any]) -> str:
    """Return both betas where the file states them under one key; else empty."""
    found = settings.values.get(name)
    if name not in ("beta1", "beta2") or found is None or "betas" not in found.key.lower():
        return ""
    run = Facts(settings)
    first, second = (
        _plain(change.get(part, run.positive(part) or usual))
        for part, usual in (("beta1", 0.9), ("beta2", 0.95))
    )
    if found.key.startswith("-"):
        return (
            f"{found.key} '({first}, {second})'"
            if found.text.startswith("(")
            else f"{found.key} {first} {second}"
        )
    return _assigned(settings, found.key, f"[{first}, {second}]")


def _own_key(settings: Settings, name: str, value: Any) -> str:
    """Return the config's own key of a setting, where a value can be typed after it."""
    found = settings.values.get(name)
    if found is None or found.origin != "stated":
        return ""
    if isinstance(value, bool) and (not isinstance(found.value, bool) or found.key.startswith("-")):
        return ""
    if name in ("dtype", "loss_scale"):  # several keys, or one that must go
        return ""
    return found.key if re.fullmatch(_KEY, found.key) else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}" if abs(value) >= 10 or value == 0 else f"{value:.1f}"
    if isinstance(value, float):
        return compact(value).replace(" ", "") if abs(value) < 1 else f"{value:g}"
    return str(value)
