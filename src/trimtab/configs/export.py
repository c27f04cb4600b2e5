"""A training config as the `config.json` of a published architecture, or why it does not fit.

BLOOM's embedding norm meant a new architecture in every tool that was to load the weights
(BigScience chronicles of the 104B and the 176B). What an architecture cannot hold is named here by
its layer, before anything is trained that can be loaded nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trimtab.configs.settings import Settings

__all__ = ["ARCHITECTURES", "Architecture", "export", "left_open"]

_ROTARY = ("rotary", "rope")
_LEARNED = ("learned", "learned_absolute", "absolute")
_LAYER_NORM = ("layernorm", "default", "ln", "layer_norm")
_RMS_NORM = ("rmsnorm", "rms", "rms_norm")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What one architecture of Hugging Face's transformers has, and the keys of its config."""

    model_type: str
    cls: str
    keys: Mapping[str, str]
    """Canonical setting -> key of `config.json`."""
    position: tuple[str, ...]
    norm: tuple[str, ...]
    gated_ffn: bool
    embed_norm: bool = False
    qk_norm: bool = False
    grouped: bool = False
    """Whether there may be fewer key-value heads than heads."""
    ffn_factor: int | None = None
    """The fixed ratio of the feed-forward width to the hidden width, where it is fixed."""


_GPT_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "init_std": "initializer_range",
}
_LLAMA_KEYS = {
    **_GPT_KEYS,
    "kv_heads": "num_key_value_heads",
    "ffn_effective": "intermediate_size",
    "seq": "max_position_embeddings",
}

ARCHITECTURES: Mapping[str, Architecture] = {
    a.model_type: a
    for a in (
        Architecture(
            model_type="gpt2",
            cls="GPT2LMHeadModel",
            position=_LEARNED,
            norm=_LAYER_NORM,
            gated_ffn=False,
            keys={
                "hidden": "n_embd",
                "layers": "n_layer",
                "heads": "n_head",
                "vocab": "vocab_size",
                "seq": "n_positions",
                "ffn_effective": "n_inner",
                "tied_embeddings": "tie_word_embeddings",
                "init_std": "initializer_range",
            },
        ),
        Architecture(
            model_type="opt",
            cls="OPTForCausalLM",
            position=_LEARNED,
            norm=_LAYER_NORM,
            gated_ffn=False,
            keys={
                "hidden": "hidden_size",
                "layers": "num_hidden_layers",
                "heads": "num_attention_heads",
                "vocab": "vocab_size",
                "seq": "max_position_embeddings",
                "ffn_effective": "ffn_dim",
                "tied_embeddings": "tie_word_embeddings",
                "init_std": "init_std",
            },
        ),
        Architecture(
            model_type="bloom",
            cls="BloomForCausalLM",
            position=("alibi",),
            norm=_LAYER_NORM,
            gated_ffn=False,
            embed_norm=True,
            ffn_factor=4,
            keys={
                "hidden": "hidden_size",
                "layers": "n_layer",
                "heads": "n_head",
                "vocab": "vocab_size",
                "tied_embeddings": "tie_word_embeddings",
                "init_std": "initializer_range",
            },
        ),
        Architecture(
            model_type="gpt_neox",
            cls="GPTNeoXForCausalLM",
            position=_ROTARY,
            norm=_LAYER_NORM,
            gated_ffn=False,
            keys={
                **_GPT_KEYS,
                "ffn_effective": "intermediate_size",
                "seq": "max_position_embeddings",
            },
        ),
        Architecture(
            model_type="llama",
            cls="LlamaForCausalLM",
            position=_ROTARY,
            norm=_RMS_NORM,
            gated_ffn=True,
            grouped=True,
            keys=_LLAMA_KEYS,
        ),
        Architecture(
            model_type="qwen3",
            cls="Qwen3ForCausalLM",
            position=_ROTARY,
            norm=_RMS_NORM,
            gated_ffn=True,
            grouped=True,
            qk_norm=True,
            keys={**_LLAMA_KEYS, "head_dim": "head_dim"},
        ),
        Architecture(
            model_type="olmo2",
            cls="Olmo2ForCausalLM",
            position=_ROTARY,
            norm=_RMS_NORM,
            gated_ffn=True,
            grouped=True,
            qk_norm=True,
            keys=_LLAMA_KEYS,
        ),
    )
}
"""By the name that `config.json` gives as `model_type`."""

_PARTS = {
    "embed_norm": "the norm after the embedding (word_embeddings_layernorm)",
    "qk_norm": "the norms of queries and keys (q_norm, k_norm)",
    "gated_ffn": "the gate of the feed-forward block (gate_proj)",
    "experts": "the router and its experts",
    "position": "the position encoding",
    "norm": "the norms of the blocks",
    "kv_heads": "grouped key-value heads",
    "ffn": "the width of the feed-forward block",
    "head_dim": "the width of a head",
}


def export(settings: Settings, architecture: str) -> dict[str, Any]:
    """Return the `config.json` of a config as another architecture.

    What the config does not state is left out, so that the architecture's default holds.

    Args:
        settings: A config as it was read.
        architecture: A name of `ARCHITECTURES`.

    Raises:
        ConfigError: There is no such architecture; it lacks a layer that the config has (or the
            other way round), named in the message with architectures that would do; or the shape is
            unknown.
    """
    target = ARCHITECTURES.get(architecture)
    if target is None:
        raise ConfigError(
            f"no architecture {architecture[:40]!r}; known are {', '.join(ARCHITECTURES)}"
        )
    missing = [name for name in ("hidden", "layers", "heads") if settings.get(name) is None]
    if missing:
        raise ConfigError(
            f"{settings.path}: does not state {', '.join(missing)}; without the shape there is"
            " nothing to export"
        )
    misfits = list(_misfits(settings, target))
    if misfits:
        fitting = [n for n, a in ARCHITECTURES.items() if not list(_misfits(settings, a))]
        rest = (
            f"; {', '.join(fitting)} can hold it"
            if fitting
            else "; no known one can: export with code of your own"
        )
        raise ConfigError(f"{settings.path}: {target.cls} {'; it '.join(misfits)}{rest}")
    config: dict[str, object] = {"model_type": target.model_type, "architectures": [target.cls]}
    for name, key in target.keys.items():
        value = settings.get(name)
        # Where the framework builds the width as stated, no effective width was derived.
        if name == "ffn_effective" and value is None:
            value = settings.get("ffn")
        if isinstance(value, str) or value is None:
            continue
        config[key] = value
    return config


def left_open(settings: Settings, architecture: str) -> tuple[str, ...]:
    """Return in words what the config does not state and a known architecture decides."""
    target = ARCHITECTURES[architecture]
    has = {
        "position": target.position[0],
        "norm": target.norm[0],
        "embed_norm": "yes" if target.embed_norm else "no",
        "qk_norm": "yes" if target.qk_norm else "no",
    }
    return tuple(
        f"{_PARTS[name]}: {word}" for name, word in has.items() if settings.get(name) is None
    )


def _misfits(settings: Settings, target: Architecture) -> Iterable[str]:
    """Yield what does not fit, each after the architecture's name."""
    for name in ("embed_norm", "qk_norm", "gated_ffn"):
        stated, there = settings.get(name), getattr(target, name)
        if stated is True and not there:
            yield f"has no place for {_PARTS[name]} ({_where(settings, name)})"
        if stated is False and there:
            yield f"always has {_PARTS[name]}, the config has none ({_where(settings, name)})"
    if (settings.number("experts") or 0) > 1:
        yield f"has no place for {_PARTS['experts']} ({_where(settings, 'experts')})"
    for name in ("position", "norm"):
        word, known = str(settings.get(name) or "").lower(), getattr(target, name)
        if word and word not in known:
            yield (
                f"has another kind of {_PARTS[name]}: {known[0]}, not {word[:40]}"
                f" ({_where(settings, name)})"
            )
    yield from _misfits_of_shape(settings, target)


def _misfits_of_shape(settings: Settings, target: Architecture) -> Iterable[str]:
    heads, groups = settings.number("heads"), settings.number("kv_heads")
    if groups is not None and groups != heads and not target.grouped:
        yield f"has no place for {_PARTS['kv_heads']} ({_where(settings, 'kv_heads')})"
    hidden, ffn = settings.number("hidden"), settings.number("ffn_effective")
    ffn = settings.number("ffn") if ffn is None else ffn
    if target.ffn_factor and ffn is not None and hidden and ffn != target.ffn_factor * hidden:
        yield (
            f"has {_PARTS['ffn']} fixed at {target.ffn_factor} times the hidden width"
            f" ({_where(settings, 'ffn')})"
        )
    width = settings.number("head_dim")
    if (
        width is not None
        and heads
        and hidden
        and width * heads != hidden
        and "head_dim" not in target.keys
    ):
        yield f"has {_PARTS['head_dim']} fixed at hidden / heads ({_where(settings, 'head_dim')})"


def _where(settings: Settings, name: str) -> str:
    """Return key, value and line of a setting in the config."""
    found = settings.values.get(name)
    if found is None:
        return name
    line = f", line {found.line}" if found.line else ""
    return f"{found.key or name} = {str(found.value)[:40]}{line}"
