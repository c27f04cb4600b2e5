"""The role of each parameter of a model: embedding, position, norm, bias, output layer and others.

Recognized by the type of its module first, by its name second. Names follow those of Megatron,
transformers, torchtitan, OLMo, nanoGPT and metaseq.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Anatomy", "Part", "Role", "dissect", "is_norm", "local", "positions_without_weights"]

Role = Literal[
    "token embedding",
    "position embedding",
    "embedding norm",
    "norm",
    "bias",
    "residual output",
    "matrix",
    "head",
    "other",
]

# wpe of nanoGPT and GPT-2, embed_positions of metaseq and OPT, position_embeddings of Megatron.
_POSITION = re.compile(
    r"(?<![a-z])(wpe|pos|positions?|position(?:al)?_\w+|pos_\w+|embed_positions)(?![a-z])",
    re.IGNORECASE,
)
# The second matrix of attention and of the feed-forward block, as each code base calls it.
_RESIDUAL = re.compile(
    r"(?:^|\.)(o_proj|out_proj|c_proj|down_proj|down|fc2|w2|wo|dense_4h_to_h|linear2|linear_fc2"
    r"|linear_proj|attention\.dense|self_attention\.dense"
    r"|(?:attn|attention|self_attn|mixer)\.(?:proj|output|out)|mlp\.proj|ff_out|attn_out)$"
)
_HEAD = re.compile(
    r"(?:^|\.)(lm_head|embed_out|output_layer|output|head|unembed|decoder|to_logits|readout)$"
)


@dataclass(frozen=True)
class Part:
    """One parameter and what it is for."""

    name: str
    """First name under which the model lists it; tied weights have one."""
    parameter: nn.Parameter
    role: Role
    module: nn.Module
    module_name: str
    in_block: bool
    """Whether it lies in the repeated part."""


@dataclass(frozen=True)
class Anatomy:
    """A model's parameters by role."""

    parts: tuple[Part, ...]
    hidden: int | None
    """Width of the residual stream; None where no token embedding was recognised."""
    vocab: int | None
    layers: int | None
    """Length of the longest list of blocks."""
    blocks_name: str | None
    tied: tuple[tuple[str, ...], ...]
    """Names that share one parameter."""

    def of(self, *roles: Role) -> list[Part]:
        """Return the parts with these roles, in the model's order."""
        return [p for p in self.parts if p.role in roles]

    @property
    def num_params(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(p.parameter.numel() for p in self.parts)


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    # A DTensor, recognized without importing torch.distributed.
    inner = getattr(tensor, "_local_tensor", None)
    return inner if isinstance(inner, Tensor) else tensor


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: LayerNorm, RMSNorm and their many namesakes."""
    # By name: every code base has an RMSNorm of its own. A module with children is a wrapper.
    return "norm" in type(module).__name__.lower() and not any(module.children())


def dissect(model: nn.Module) -> Anatomy:
    """Return what each parameter of a model is for.

    Cost: no arithmetic on weights; works on the meta device.
    """
    blocks_name, blocks = _blocks(model)
    token = _token_embedding(model)
    vocab, hidden = _shape(token[1]) if token is not None else (None, None)
    names: dict[int, list[str]] = {}
    # Duplicates are wanted here: they are how tied weights show.
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    modules = dict(model.named_modules())
    parts = []
    for all_names in names.values():
        name = all_names[0]
        owner = name.rpartition(".")[0]
        weight = model.get_parameter(name)
        in_block = blocks_name is not None and name.startswith(f"{blocks_name}.")
        role = _role(name, weight, modules[owner], owner, in_block, token, hidden, vocab)
        parts.append(Part(name, weight, role, modules[owner], owner, in_block))
    return Anatomy(
        tuple(parts),
        hidden,
        vocab,
        None if blocks is None else len(list(blocks.children())),
        blocks_name,
        tuple(tuple(n) for n in names.values() if len(n) > 1),
    )


def _blocks(model: nn.Module) -> tuple[str | None, nn.Module | None]:
    """Return the longest list of modules that hold matrices; the outermost of equally long ones."""
    best: tuple[str | None, nn.Module | None] = (None, None)
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential) or not len(module):
            continue
        if isinstance(module, nn.Sequential) and any(isinstance(m, nn.Linear) for m in module):
            continue  # the layers of one feed-forward block
        # A list of norms or of activations is no stack of blocks.
        has_matrix = all(any(p.dim() >= 2 for p in m.parameters()) for m in module.children())
        if has_matrix and (best[1] is None or len(module) > len(best[1])):  # type: ignore[arg-type]
            best = (name, module)
    return best


def _embeddings(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_named = "embedding" in type(module).__name__.lower()
        if is_named and isinstance(weight, Tensor) and weight.dim() == 2:
            yield name, module


def _token_embedding(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the largest embedding that is not named after positions."""
    found = [(n, m) for n, m in _embeddings(model) if not _POSITION.search(n.rpartition(".")[2])]
    return max(found, key=lambda pair: _shape(pair[1])[0], default=None)


def _shape(embedding: nn.Module) -> tuple[int, int]:
    rows, columns = embedding.get_parameter("weight").shape
    return rows, columns


def _role(
    name: str,
    weight: Tensor,
    module: nn.Module,
    owner: str,
    in_block: bool,  # noqa: FBT001 (private, all given by position)
    token: tuple[str, nn.Module] | None,
    hidden: int | None,
    vocab: int | None,
) -> Role:
    if token is not None and module is token[1] and name.endswith("weight"):
        return "token embedding"
    if is_norm(module) or (weight.dim() == 1 and re.search(r"norm|(?:^|[._])ln", owner)):
        return "embedding norm" if not in_block and _follows(owner, token) else "norm"
    if name.endswith("bias") or name.rpartition(".")[2].startswith("bias_"):
        return "bias"
    if weight.dim() < 2:
        return "other"
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if _POSITION.search(leaf):
        return "position embedding"
    if "embedding" in type(module).__name__.lower():
        return "other"
    if not in_block and (vocab in weight.shape or _HEAD.search(owner)):
        return "head"
    # The name alone misleads: `proj` and `output` also name layers that write elsewhere.
    if in_block and _RESIDUAL.search(owner) and (hidden is None or hidden in weight.shape):
        return "residual output"
    return "matrix"


# Names of modules and buffers that hold no weights: rotary tables, slopes of ALiBi.
_WITHOUT_WEIGHTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "rotary",
        re.compile(r"rotary|(?<![a-z])rope(?![a-z])|inv_?freq|freqs_(cis|complex)|cos_cached"),
    ),
    ("alibi", re.compile(r"alibi")),
)


def positions_without_weights(model: nn.Module) -> str | None:
    """Return `rotary` or `alibi` where a module, a buffer or the model's config shows it.

    A table that the forward pass makes anew, in a function of its own, is not seen.
    """
    seen = [name.rpartition(".")[2] + " " + type(m).__name__ for name, m in model.named_modules()]
    seen += [name.rpartition(".")[2] for name, _ in model.named_buffers()]
    # A table kept as a plain attribute: `self.freqs_cis` of Meta's code.
    seen += [key for key, value in vars(model).items() if isinstance(value, Tensor)]
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", "\n".join(seen)).lower()
    for kind, pattern in _WITHOUT_WEIGHTS:
        if pattern.search(text):
            return kind
    config = getattr(model, "config", None)
    if getattr(config, "rope_theta", None) or getattr(config, "rope_parameters", None):
        return "rotary"
    return "alibi" if getattr(config, "alibi", None) is True else None


def _follows(owner: str, token: tuple[str, nn.Module] | None) -> bool:
    """Whether a norm outside the blocks is named after the embedding or lies in it."""
    if token is not None and owner.startswith(f"{token[0]}."):
        return True
    return bool(re.search(r"embed", owner, re.IGNORECASE))
