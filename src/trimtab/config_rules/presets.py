"""Published settings as sets that fit each other, and the difference of a config to one of them.

Taking one value from one paper and one from another is how OPT's first runs were set up.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.configs.facts import Facts
from trimtab.configs.settings import Setting, Settings
from trimtab.errors import ConfigError

__all__ = ["PRESETS", "Preset", "PresetDifference", "difference", "find_preset"]


@dataclass(frozen=True)
class Preset:
    """One published run's settings."""

    name: str
    source: str
    values: Mapping[str, Any]

    def as_settings(self) -> Settings:
        """Return it in the form of a config."""
        return Settings(self.name, "preset", {k: Setting(v) for k, v in self.values.items()})


_ADAM = {"optimizer": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
_GPT = {
    **_ADAM,
    "weight_decay": 0.1,
    "clip": 1.0,
    "schedule": "cosine",
    "gated_ffn": False,
    "norm": "layernorm",
}
_GPT3 = {
    **_GPT,
    "hidden": 12288,
    "layers": 96,
    "heads": 96,
    "ffn": 49152,
    "vocab": 50257,
    "seq": 2048,
    "params": 175e9,
}
_LLAMA3 = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "vocab": 128256,
    "seq": 8192,
    "kv_heads": 8,
    "gated_ffn": True,
    "norm": "rmsnorm",
    "position": "rotary",
    "dtype": "bf16",
    "activation": "silu",
}
_OLMO2 = {
    **_ADAM,
    "weight_decay": 0.1,
    "clip": 1.0,
    "schedule": "cosine",
    "warmup_steps": 2000,
    "init_std": 0.02,
    "qk_norm": True,
    "z_loss": 1e-5,
    "decay_embeddings": False,
    "vocab": 100352,
    "seq": 4096,
    "gated_ffn": True,
    "norm": "rmsnorm",
    "position": "rotary",
    "dtype": "bf16",
    "reduce_dtype": "fp32",
}
_PYTHIA = {
    **_GPT,
    "seq": 2048,
    "vocab": 50304,
    "batch_tokens": 2097152,
    "train_steps": 143000,
    "warmup_steps": 1430,
    "dtype": "fp16",
    "loss_scale": 0,
}

PRESETS: tuple[Preset, ...] = (
    Preset(
        "gpt3-175b",
        "GPT-3 paper (arXiv:2005.14165); init as in Megatron-LM's 175B example",
        {
            **_GPT3,
            "lr": 6e-5,
            "min_lr": 6e-6,
            "warmup_tokens": 375e6,
            "batch_tokens": 3.2e6,
            "train_tokens": 300e9,
            "init_std": 0.006,
            "activation": "gelu",
            "position": "learned",
        },
    ),
    Preset(
        "opt-175b",
        "OPT paper (arXiv:2205.01068); metaseq, runs 12.x",
        {
            **_GPT3,
            "lr": 1.2e-4,
            "min_lr": 1.2e-5,
            "warmup_steps": 2000,
            "batch_tokens": 2097152,
            "train_tokens": 300e9,
            "init_std": 0.006,
            "activation": "relu",
            "position": "learned",
            "dtype": "fp16",
            "loss_scale_init": 4,
            "loss_scale_window": 256,
            "loss_scale_min": 0.03125,
            "dropout": 0.1,
            "embedding_dropout": 0.0,
            "embed_norm": False,
        },
    ),
    Preset(
        "bloom-176b",
        "BLOOM paper (arXiv:2211.05100); BigScience launch script",
        {
            **_GPT,
            "hidden": 14336,
            "layers": 70,
            "heads": 112,
            "ffn": 57344,
            "vocab": 250880,
            "seq": 2048,
            "params": 176e9,
            "lr": 6e-5,
            "min_lr": 6e-6,
            "warmup_tokens": 375e6,
            "batch_samples": 2048,
            "batch_start_samples": 192,
            "train_tokens": 366e9,
            "init_std": 0.0048,
            "embed_norm": True,
            "activation": "gelu",
            "position": "alibi",
            "dtype": "bf16",
            "reduce_dtype": "fp32",
            "save_steps": 100,
        },
    ),
    Preset(
        "llama3-8b",
        "Llama 3 paper (arXiv:2407.21783), table 3",
        {
            **_LLAMA3,
            "hidden": 4096,
            "layers": 32,
            "heads": 32,
            "ffn": 14336,
            "params": 8.03e9,
            "lr": 3e-4,
        },
    ),
    Preset(
        "llama3-70b",
        "Llama 3 paper (arXiv:2407.21783), table 3",
        {
            **_LLAMA3,
            "hidden": 8192,
            "layers": 80,
            "heads": 64,
            "ffn": 28672,
            "params": 70.6e9,
            "lr": 1.5e-4,
        },
    ),
    Preset(
        "llama3-405b",
        "Llama 3 paper (arXiv:2407.21783), table 3 and section 3.4",
        {
            **_LLAMA3,
            "hidden": 16384,
            "layers": 126,
            "heads": 128,
            "ffn": 53248,
            "params": 405e9,
            "lr": 8e-5,
            "min_lr": 8e-7,
            "warmup_steps": 8000,
            "batch_tokens": 16777216,
            "batch_start_samples": 1024,
            "reduce_dtype": "fp32",
        },
    ),
    Preset(
        "olmo2-7b",
        "OLMo 2 report (arXiv:2501.00656) and OLMo-core configs",
        {
            **_OLMO2,
            "hidden": 4096,
            "layers": 32,
            "heads": 32,
            "ffn": 11008,
            "params": 7.3e9,
            "lr": 3e-4,
            "batch_tokens": 4194304,
        },
    ),
    Preset(
        "olmo2-13b",
        "OLMo 2 report (arXiv:2501.00656); the published config has 3e-4 where the report has 9e-4",
        {
            **_OLMO2,
            "hidden": 5120,
            "layers": 40,
            "heads": 40,
            "ffn": 13824,
            "params": 13.7e9,
            "lr": 9e-4,
            "batch_tokens": 8388608,
        },
    ),
    Preset(
        "olmo2-32b",
        "OLMo 2 report (arXiv:2501.00656) and OLMo-core configs",
        {
            **_OLMO2,
            "hidden": 5120,
            "layers": 64,
            "heads": 40,
            "kv_heads": 8,
            "ffn": 27648,
            "params": 32.2e9,
            "lr": 6e-4,
            "batch_tokens": 8388608,
        },
    ),
    Preset(
        "pythia-70m",
        "Pythia (arXiv:2304.01373), gpt-neox configs",
        {
            **_PYTHIA,
            "hidden": 512,
            "layers": 6,
            "heads": 8,
            "ffn": 2048,
            "params": 70.4e6,
            "lr": 1e-3,
            "min_lr": 1e-4,
            "init_std": "small_init",
        },
    ),
    Preset(
        "pythia-6.9b",
        "Pythia (arXiv:2304.01373), gpt-neox configs",
        {
            **_PYTHIA,
            "hidden": 4096,
            "layers": 32,
            "heads": 32,
            "ffn": 16384,
            "params": 6.86e9,
            "lr": 1.2e-4,
            "min_lr": 1.2e-5,
        },
    ),
)
_ALIASES: Mapping[str, str] = {
    "gpt3/megatron": "gpt3-175b",
    "megatron": "gpt3-175b",
    "gpt-3": "gpt3",
}


def find_preset(name: str, settings: Settings | None = None) -> Preset:
    """Return a preset by name; a family's name gives the member of the size nearest to a config's.

    Raises:
        ConfigError: There is none of that name.

    Example:
        >>> find_preset("bloom").name
        'bloom-176b'
    """
    asked = _ALIASES.get(name.lower(), name.lower())
    family = [p for p in PRESETS if p.name == asked] or [
        p for p in PRESETS if p.name.startswith(asked + "-")
    ]
    if not family:
        raise ConfigError(f"no preset {name!r}; there are {', '.join(p.name for p in PRESETS)}")
    params = Facts(settings).params if settings is not None else None
    if params is None:
        return family[0]
    return min(family, key=lambda p: abs(float(p.values["params"]) / params - 1))


@dataclass(frozen=True)
class PresetDifference:
    """One setting that differs; None where a side does not state it."""

    setting: str
    ours: Any
    theirs: Any


def difference(
    ours: Settings, theirs: Settings, *, absent: bool = False
) -> tuple[PresetDifference, ...]:
    """Return the settings in which two configs differ by more than 1 %.

    Args:
        ours: One config.
        theirs: The other, or a preset's.
        absent: Also list settings that only one of the two states.
    """
    found = []
    for name in dict.fromkeys((*theirs, *ours)):
        mine, other = ours.get(name), theirs.get(name)
        if (mine is None or other is None) and not absent:
            continue
        if not _same(mine, other):
            found.append(PresetDifference(name, mine, other))
    return tuple(found)


_SAME_WORDS: Mapping[str, str] = {
    "rope": "rotary",
    "rotaryposition": "rotary",
    "rotaryembedding": "rotary",
    "learnedabsolute": "learned",
    "absolute": "learned",
    "swiglu": "silu",
    "swish": "silu",
    "rms": "rmsnorm",
    "llamarmsnorm": "rmsnorm",
    "fusedrmsnorm": "rmsnorm",
    "layernorm1p": "layernorm",
    "adamwtorch": "adamw",
    "adamwtorchfused": "adamw",
    "fusedadam": "adamw",
    "decoupledadamw": "adamw",
    "distributedfusedadam": "adamw",
    "cosinewithwarmup": "cosine",
    "cosineannealing": "cosine",
    "cosinewithminlr": "cosine",
    "warmupcosine": "cosine",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
}
"""Two names of one thing."""


def _word(value: Any) -> str:
    """Return a word without case and separators, and by one name where there are two."""
    plain = re.sub(r"[^a-z0-9.]", "", str(value).lower())
    return _SAME_WORDS.get(plain, plain)


def _same(one: Any, other: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (one, other))
    if not numbers:
        return _word(one) == _word(other)
    try:
        return math.isclose(one, other, rel_tol=0.01)
    except OverflowError:  # an integer beyond all floats
        return bool(one == other)
