"""Shape: feed-forward width by each framework's rounding rule, embedding rows, parameters."""

import math
import re

from trimtab.configs.derivation import Derivation
from trimtab.configs.values import NO, YES, finite, flag

__all__ = ["llama_ffn", "parameters", "shape"]

GATED_FAMILIES = re.compile(
    r"llama|mi[sx]tral|qwen|gemma|olmo|deepseek|phi3|internlm|smollm", re.IGNORECASE
)
"""Model families whose feed-forward block is gated in every published version."""
SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s?([bm])(?![a-z0-9])", re.IGNORECASE)
MANY_EXPERTS = 16
HYBRID = re.compile(r"(?=.*M)[M*-]{2,1000}")
MIXTURE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+)x(\d+(?:\.\d+)?)b", re.IGNORECASE)


def shape(facts: Derivation) -> None:
    """Fill heads, widths, embedding rows and experts."""
    hidden, heads = facts.get("hidden"), facts.get("heads")
    if hidden is None and heads and facts.get("head_dim"):
        facts.derive("hidden", heads * (facts.get("head_dim") or 0), "head_dim")
        hidden = facts.get("hidden")
    activation = str(facts.fact("activation") or "").lower()
    gated = flag(facts.fact("gated"))
    if gated is None and (
        re.search(r"glu\b|glu$|glu_|gated|llama|,\s*linear|linear\s*,", activation)
        or activation in {"silu", "swish"}
    ):
        facts.derive("gated_ffn", YES, "activation")
    elif gated is None and activation in {
        "gelu",
        "relu",
        "gelu_new",
        "relu2",
        "squared_relu",
        "squared-relu",
        "gelu_tanh",
        "gelu_fast",
    }:
        facts.derive("gated_ffn", NO, "activation")
    facts.derive("gated_ffn", gated, "gated", origin="stated")
    if (
        GATED_FAMILIES.search(str(facts.fact("model_name") or ""))
        and facts.fact("activation") is None
    ):
        facts.derive("gated_ffn", YES, "model_name")
    flavor = re.fullmatch(r"\d+(?:\.\d+)?[bB]x(\d+)[eE]", str(facts.fact("flavor") or ""))
    if flavor:  # 17bx128e: 17 B active, 128 experts
        facts.derive("experts", int(flavor[1]), "flavor")
    experts = facts.amount("experts")
    if experts is not None and experts > 1:
        facts.keep("experts")
    if pattern := hybrid(facts):
        facts.derive("layers", len(pattern), "layer_pattern")
    attention(facts)
    facts.keep("vocab", "vocab_padded")
    facts.keep("vocab")
    if facts.get("hidden"):
        feed_forward(facts, int(facts.get("hidden") or 0))


def attention(facts: Derivation) -> None:
    """Say how keys and values are shared, and state the one head of multi-query attention.

    Sources: Shazeer (arXiv:1911.02150) for one head of keys and values; Ainslie et al.
    (arXiv:2305.13245) for groups; DeepSeek-V2 (arXiv:2405.04434) for a latent vector.
    """
    kind = re.sub(r"[^a-z]", "", str(facts.fact("attention_type") or "").lower())
    if facts.amount("kv_rank") or kind in ("mla", "multiheadlatentattention"):
        # Every head has keys of its own, made from one latent vector; groups do not apply.
        facts.derive("attention", "mla", "kv_rank", "attention_type")
        width = (facts.amount("nope_dim") or 0) + (facts.amount("rope_dim") or 0)
        facts.derive("head_dim", width or None, "nope_dim")
        return
    single = flag(facts.fact("multi_query")) or "multiquery" in kind or kind == "mqa"
    if single and facts.get("heads"):
        facts.derive("kv_heads", 1, "multi_query", "attention_type")
    heads, kv_heads = facts.get("heads"), facts.get("kv_heads")
    if heads and kv_heads:
        shared = "mqa" if kv_heads == 1 < heads else "gqa" if kv_heads < heads else "mha"
        facts.derive("attention", shared, "kv_heads", "multi_query", "attention_type")


def attention_params(facts: Derivation, hidden: float) -> float:
    """Return the weights of one layer's attention, without norms and biases."""
    heads = facts.get("heads") or 0
    rank = facts.amount("kv_rank")
    if rank and heads:
        nope, rope = facts.amount("nope_dim") or 128, facts.amount("rope_dim") or 64
        value = facts.amount("v_dim") or nope
        q_rank = facts.amount("q_rank")
        queries = heads * (nope + rope)
        query = hidden * q_rank + q_rank * queries if q_rank else hidden * queries
        keys = hidden * (rank + rope) + rank * heads * (nope + value)
        return query + keys + heads * value * hidden
    kv_share = (facts.get("kv_heads") or heads) / heads if heads else 1.0
    width = heads * (facts.get("head_dim") or 0) or hidden
    return 2 * hidden * width * (1 + kv_share)


def feed_forward(facts: Derivation, hidden: int) -> None:
    """State the width of the feed-forward block, and the one that the framework builds."""
    rule = facts.ffn_rule
    gated = bool("gated_ffn" in facts.values and facts.values["gated_ffn"].value)
    ratio = facts.amount("mlp_ratio")
    multiple = int(facts.amount("multiple_of") or finite(facts.default("multiple_of")) or 1)
    if ratio is not None:
        facts.derive("ffn", math.floor(ratio * hidden + 1e-6), "mlp_ratio")
    elif "ffn" not in facts.values and rule == "llama":
        factor = facts.amount("ffn_multiplier") or 1.0
        facts.derive(
            "ffn_effective",
            llama_ffn(hidden, factor, multiple),
            "ffn_multiplier",
            "multiple_of",
            "hidden",
        )
    elif "ffn" not in facts.values and rule in ("megatron", "neox"):
        # Megatron builds 4 h, and with SwiGLU 2/3 of it rounded down to a multiple of 64.
        built = int(4 * hidden * 2 / 3 / 64) * 64 if gated and rule == "megatron" else 4 * hidden
        facts.derive("ffn", built, "hidden", origin="default")
    ffn = facts.get("ffn")
    if ffn is None:
        return
    if rule == "neox" and gated:
        facts.derive("ffn_effective", int(ffn // 3), "ffn", "hidden")
    elif rule == "olmo" and gated:
        facts.derive("ffn_effective", int(ffn // 2), "ffn", "mlp_ratio")
    elif rule == "internlm":
        facts.derive(
            "ffn_effective", multiple * ((int(ffn) + multiple - 1) // multiple), "mlp_ratio"
        )


def llama_ffn(hidden: int, factor: float, multiple: int) -> int:
    """Return the width that Meta's Llama code builds: 2/3 of 4 h, times a factor, rounded up.

    Source: facebookresearch/llama, FeedForward.__init__.
    """
    width = int(factor * int(2 * 4 * hidden / 3))
    return multiple * ((width + multiple - 1) // multiple)


def parameters(facts: Derivation) -> None:
    """Count parameters from the shape, or read the size from a name such as `Llama-3-8B`.

    Attention with grouped or latent keys and values, two or three feed-forward matrices, routed and
    shared experts, dense first layers, one or two embeddings. Norms, biases and routers are left
    out (below 0.1 %). State-space layers whose pattern is not stated are counted as plain
    attention. Without the number of rows the embedding is left out.
    """
    if "architecture" in facts.values:  # the formulas are of transformers
        return
    hidden, layers = facts.get("hidden"), facts.get("layers")
    if hidden and (pattern := hybrid(facts)):
        facts.derive("params", counted_hybrid(facts, hidden, pattern), "layer_pattern")
        return
    if hidden and layers:
        total, active = counted(facts, hidden, layers)
        facts.derive("params", total, "hidden")
        facts.derive("active_params", active, "hidden")
        return
    for fact in ("flavor", "base_model", "model_name"):
        size = size_in_name(str(facts.fact(fact) or ""))
        if size:
            facts.derive("params", size, fact)
            facts.note.append(f"parameters taken from the name {facts.fact(fact)!r}")
            return


def hybrid(facts: Derivation) -> str:
    """Return the kinds of layers of a hybrid model, one letter each.

    M state space, * attention, - feed-forward.
    """
    pattern = str(facts.fact("layer_pattern") or "").replace("|", "")
    return pattern if HYBRID.fullmatch(pattern) else ""


def counted_hybrid(facts: Derivation, hidden: float, pattern: str) -> int | None:
    """Return the parameters of a model whose layers are of several kinds.

    The result is None where a kind's width is not stated.

    A Mamba-2 layer of expansion 2 has 4 h^2 in its input projection and 2 h^2 in its output
    projection; its other weights are left out (about 2 %). Source: Megatron-LM,
    hybrid_override_pattern; Waleffe et al. (arXiv:2406.07887).
    """
    ffn = facts.get("ffn")
    if "-" in pattern and not ffn:
        return None
    tied = "tied_embeddings" in facts.values and facts.values["tied_embeddings"].value
    heads, kv_heads = facts.get("heads"), facts.get("kv_heads")
    width = (heads or 0) * (facts.get("head_dim") or 0) or hidden
    shared = kv_heads / heads if heads and kv_heads else 1.0
    gated = bool("gated_ffn" in facts.values and facts.values["gated_ffn"].value)
    each = {
        "M": 6 * hidden * hidden,
        "*": 2 * hidden * width * (1 + shared),
        "-": (3 if gated else 2) * hidden * (ffn or 0),
    }
    tables = (facts.get("vocab") or 0) * hidden * (1 if tied else 2)
    return round(tables + sum(pattern.count(kind) * size for kind, size in each.items()))


def counted(facts: Derivation, hidden: float, layers: float) -> tuple[int | None, int | None]:
    """Return parameters and, of a mixture of experts, those that one token uses.

    The result is None where the shape leaves them open.
    """
    ffn = facts.get("ffn_effective") or facts.get("ffn")
    if facts.get("experts"):
        ffn = ffn or facts.amount("moe_ffn")
    tied = "tied_embeddings" in facts.values and facts.values["tied_embeddings"].value
    around = (facts.get("vocab") or 0) * hidden * (1 if tied else 2)
    around += layers * attention_params(facts, hidden)
    experts = facts.get("experts")
    if not ffn:
        return (round(8 * layers * hidden * hidden + around), None) if not experts else (None, None)
    gated = bool("gated_ffn" in facts.values and facts.values["gated_ffn"].value)
    matrices = 3 if gated else 2
    if not experts:
        return round(around + matrices * hidden * ffn * layers), None
    stated = facts.amount("moe_ffn")
    # A width below the model's own is one expert's: no dense block is that narrow.
    if experts > MANY_EXPERTS and stated is None and ffn > hidden:
        return None, None
    dense = min(facts.amount("dense_layers") or 0, layers)
    if stated is not None:
        around += dense * matrices * hidden * ffn
    one = matrices * hidden * (stated or ffn)
    routed = layers - dense if stated is not None else layers
    shared = facts.amount("shared_ffn")
    around += routed * (
        matrices * hidden * shared if shared else one * (facts.amount("shared_experts") or 0)
    )
    topk = facts.amount("topk")
    return (
        round(around + one * experts * routed),
        round(around + one * topk * routed) if topk else None,
    )


def size_in_name(name: str) -> float | None:
    """Return 8e9 for `Meta-Llama-3-8B`, 46e9-like products for `8x7B`.

    The result is None where no size is named.
    """
    tail = name.rstrip("/").split("/")[-1]
    if mixture := MIXTURE_IN_NAME.search(tail):
        return float(mixture[1]) * float(mixture[2]) * 1e9
    sizes = [
        float(amount) * (1e9 if unit in "bB" else 1e6)
        for amount, unit in SIZE_IN_NAME.findall(tail)
    ]
    return max((size for size in sizes if 1e6 <= size <= 3e12), default=None)
