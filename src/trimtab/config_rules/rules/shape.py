"""Shape and architecture: widths that fit each other, and what was added against instability."""

import math

from trimtab.config_rules.rules.rule import Checks, RuleVerdict, compact
from trimtab.configs.facts import Facts

__all__ = ["SHAPE_CHECKS", "depth_risk", "depth_words"]


_DEEPEST = 5
"""Level of hidden / layers from 12.5 to 25; GPT-2 XL is at 4."""


def depth_risk(hidden: float, layers: float) -> int:
    """Return the risk level of a shape: floor(log2(400 / (hidden / layers))) + 1.

    1 is the shape of wide models that trained well (hidden / layers of 200 to 400), 2 that of
    GPT-3 and Llama 3 405B (100 to 200); doubling the depth at equal width adds one.

    Example:
        >>> depth_risk(11600, 64), depth_risk(11600, 128)
        (2, 3)
    """
    return math.floor(math.log2(400 * layers / hidden)) + 1


def depth_words(hidden: float, layers: float) -> str:
    """Return the level with its scale.

    Example:
        >>> depth_words(11600, 64)
        '2 of 5'
    """
    level = depth_risk(hidden, layers)
    return (
        f"{level} of {_DEEPEST}"
        if 1 <= level <= _DEEPEST
        else f"{level}, where 1 to {_DEEPEST} are usual"
    )


def ffn_width(run: Facts) -> RuleVerdict | None:
    """Compare the FFN's inner width with the hidden width."""
    hidden = run.positive("hidden")
    ffn = run.positive("ffn_effective") or run.positive("ffn")
    if (
        hidden is None
        or ffn is None
        or not run.is_stated("ffn")
        or (run.number("experts") or 0) > 1
    ):
        return None
    ratio = ffn / hidden
    values = {"hidden": hidden, "ffn": ffn, "ratio": ratio}
    activation = run.text("activation")
    gated = run.get("gated_ffn")
    plain = gated is False or (gated is None and ("gelu" in activation or activation == "relu"))
    # A gated block has three matrices, so 8/3 of the width costs what 4 costs with two.
    lowest = 2.0 if plain else 1.5
    if ratio < lowest:
        stated = run.positive("ffn")
        built = f" (built from {stated:.0f})" if stated and stated != ffn else ""
        left = f"; {ffn:.0f} is 4 × {ffn / 4:.0f}: left over from another width?" if plain else ""
        target = int(4 * hidden) if plain else round(8 * hidden / 384) * 128
        return RuleVerdict(
            "error",
            f"FFN width {ffn:.0f}{built} is {ratio:.3g} × hidden {hidden:.0f}, usual is"
            f" {'4' if plain else '8/3 to 4'} ×{left}",
            values,
            {} if built else {"ffn": target},
            f"state a width from which {target} comes" if built else "",
        )
    if plain and ratio > 8.5 and run.is_large:
        return RuleVerdict(
            "warning",
            f"FFN width {ffn:.0f} is {ratio:.3g} × hidden {hidden:.0f}, usual is 4 ×",
            values,
            {"ffn": 4 * int(hidden)},
        )
    return None


def aspect(run: Facts) -> RuleVerdict | None:
    """Compare width over depth with 100 to 200, at 10 B parameters and more."""
    ratio, hidden, layers = run.aspect, run.positive("hidden"), run.positive("layers")
    # Small models are built in every shape; only large published ones agree on one.
    if ratio is None or hidden is None or layers is None or not run.is_large:
        return None
    values = {
        "hidden": hidden,
        "layers": layers,
        "aspect": ratio,
        "depth_risk": depth_risk(hidden, layers),
    }
    text = f"{layers:.0f} layers × {hidden:.0f}: hidden/layers is {ratio:.0f}"
    if ratio >= 400:
        return RuleVerdict(
            "error",
            f"{text}, large models that trained well have 100 to 205",
            values,
            words=_same_size(hidden, layers),
        )
    if ratio > 250:
        return RuleVerdict(
            "warning",
            f"{text}, wider than any published model of this size",
            values,
            words=_same_size(hidden, layers),
        )
    if ratio < 60:
        return RuleVerdict(
            "info", f"{text}, deeper than usual; deeper models were less stable", values
        )
    return None


_USUAL_ASPECT = 128
"""Hidden / layers of GPT-3, Llama 3 70B and 405B, and OLMo 2 lies between 80 and 130."""


def _same_size(hidden: float, layers: float) -> str:
    """Return layers and width of the usual shape with the same number of parameters.

    More layers at the same width would be another, larger model: 12 l h^2 is kept here.

    Example:
        >>> _same_size(16384, 32)
        '80 layers × 10240 have as many parameters'
    """
    deep = (layers * hidden * hidden / _USUAL_ASPECT**2) ** (1 / 3)
    rounded = max(1, round(deep / 4) * 4)
    width = (layers * hidden * hidden / rounded) ** 0.5
    return f"{rounded} layers × {max(128, round(width / 256) * 256)} have as many parameters"


def heads(run: Facts) -> RuleVerdict | None:
    """Heads must divide the width, and be neither tiny nor huge."""
    hidden, count = run.positive("hidden"), run.positive("heads")
    if hidden is None or count is None:
        return None
    stated = run.positive("head_dim")
    values = {"hidden": hidden, "heads": count, "head_dim": stated or hidden / count}
    # A stated head width need not fill the hidden width: some models project to more.
    if stated is None and hidden % count:
        return RuleVerdict(
            "error",
            f"hidden {hidden:.0f} does not divide by {count:.0f} heads",
            values,
            words=(
                "choose heads so that hidden / heads is 64 to 128, such as"
                f" {max(1, round(hidden / 128))}"
            ),
        )
    for name, what in (
        ("kv_heads", "key-value heads"),
        ("tensor_parallel", "tensor-parallel ranks"),
    ):
        part = run.positive(name)
        if part and count % part:
            return RuleVerdict(
                "error",
                f"{count:.0f} heads do not divide by {part:.0f} {what}",
                {**values, name: part},
                words=f"make {what} a divisor of {count:.0f}",
            )
    size = stated or hidden / count
    if size >= 512:
        return RuleVerdict(
            "error",
            f"heads of width {size:.0f} ({hidden:.0f} / {count:.0f}); 64 to 128 is usual",
            values,
            {"heads": round(hidden / 128)},
        )
    if size < 32 or (size > 192 and stated is None):
        return RuleVerdict(
            "warning",
            f"heads of width {size:.0f} ({hidden:.0f} / {count:.0f}); 64 to 128 is usual",
            values,
            {"heads": max(1, round(hidden / 128))},
        )
    return None


def qk_norm(run: Facts) -> RuleVerdict | None:
    """Mention QK-norm where the rate is above what models of 7 B had without it."""
    params, lr = run.lookup_params, run.positive("lr")
    if params is None or params < 6.5e9 or lr is None or lr <= 3e-4 or not run.has_adam:
        return None
    if run.is_tuning or run.get("qk_norm") is True or run.positive("softcap_attention"):
        return None
    return RuleVerdict(
        "warning" if run.get("qk_norm") is False else "info",
        f"rate {compact(lr)} at {compact(params)} without a norm on queries and keys: attention"
        " logits may grow",
        {"lr": lr, "params": params},
        {"qk_norm": True},
    )


def muon_clip(run: Facts) -> RuleVerdict | None:
    """Muon makes attention logits grow; something must hold them."""
    if "muon" not in run.text("optimizer") or run.is_tuning:
        return None
    if run.get("qk_norm") is True or run.positive("softcap_attention"):
        return None
    return RuleVerdict(
        "warning" if run.params is None or run.params >= 1e9 else "info",
        "Muon without a bound on attention logits (no QK-clip, QK-norm or soft-cap is stated)",
        {"optimizer": run.get("optimizer")},
        {"qk_norm": True},
        "or QK-clip with threshold 100",
    )


def softcap(run: Facts) -> RuleVerdict | None:
    """Soft-caps far below the published ones cut into normal logits."""
    for name, usual in (("softcap_attention", 50), ("softcap_final", 30)):
        value = run.positive(name)
        if value is not None and value < usual / 3:
            return RuleVerdict(
                "info",
                f"{name} {compact(value)} is far below Gemma 2's {usual}: ordinary logits are"
                " bent too",
                {name: value},
                {name: usual},
            )
    return None


def extra_norms(run: Facts) -> RuleVerdict | None:
    """NormFormer's additional norms."""
    if "normformer" not in run.text("norm").replace("_", "").replace("-", ""):
        return None
    return RuleVerdict(
        "info",
        "NormFormer's extra LayerNorms: OPT had them in runs 11.x and removed them in run 12",
        {"norm": run.get("norm")},
        {"norm": "layernorm"},
    )


SHAPE_CHECKS: Checks = {
    "L18": (ffn_width, lambda run: run.is_stated("ffn") and (run.number("experts") or 0) <= 1),
    "L18-aspect": (aspect, lambda run: run.is_large),
    "L19": (heads, None),
    "L21": (qk_norm, None),
    "L22": (muon_clip, lambda run: "muon" in run.text("optimizer")),
    "L23": (softcap, None),
    "NORMFORMER": (extra_norms, None),
}
