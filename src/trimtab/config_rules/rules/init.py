"""Init: how large the first weights are, for this width and depth."""

import math

from trimtab.config_rules.rules.rule import Checks, RuleVerdict, compact, times
from trimtab.configs.facts import Facts, small_init, wide_init

__all__ = ["INIT_CHECKS"]

_LESSONS = "BigScience lessons learned"
_FAR, _ABSURD = 8.0, 25.0
"""Times sqrt(2 / 5h) from which an init is told at any width, and from which it is an error for any
model. The highest that we know of a published model is 7.6 (MiniCPM 2.4B, arXiv:2404.06395: 0.1 at
width 2304, with a scaled output). At 25 the logits of a tied output start at a std of 16. Ours."""
_WIDE = 4096
"""Narrower models train at 0.02 and well above, as GPT-2 and small OPT did (see
`model_checks.weights`)."""


def _is_normalised(run: Facts) -> bool:
    """Whether queries and keys are normalised, or norms follow each block.

    Large init is tamed there.
    """
    return run.get("qk_norm") is True


def init_std(run: Facts) -> RuleVerdict | None:
    """Compare the init std with sqrt(2 / 5h): closely from width 4096 on, far ones at any width."""
    std, hidden = run.positive("init_std"), run.positive("hidden")
    if std is None or hidden is None or run.is_tuning or run.is_continued:
        return None
    small, wide = small_init(hidden), wide_init(hidden)
    ratio = std / small
    if ratio <= (1.2 if hidden >= _WIDE else _FAR):
        return None
    values = {
        "init_std": std,
        "hidden": hidden,
        "sqrt(2/5h)": small,
        "sqrt(1/3h)": wide,
        "ratio": ratio,
    }
    unstated = "" if run.is_stated("init_std") else " (the framework's default)"
    message = (
        f"init std {compact(std)}{unstated} is {times(ratio)} × too big for hidden {hidden:.0f}:"
        f" √(2/(5·{hidden:.0f})) = {small:.5f}, √(1/(3·{hidden:.0f})) = {wide:.5f}"
    )
    change = {"init_std": float(f"{small:.3g}")}
    if ratio >= _ABSURD:
        logits = std * math.sqrt(hidden)
        said = f"{message}; the logits of a tied output start at std {logits:.0f}, GPT-2's at 0.55"
        return RuleVerdict("error", said, values, change)
    if _is_normalised(run):
        return RuleVerdict(
            "info",
            f"{message}; OLMo 2 trained with 0.02 and norms on queries and keys",
            values,
            change,
        )
    if run.is_description:
        scaled = run.positive("embedding_scale") not in (None, 1.0)  # as µP does
        return RuleVerdict(
            "info" if ratio < _FAR or scaled else "warning",
            f"{message}; counts only if this model is trained from scratch",
            values,
            change,
        )
    # Llama-type models trained with 0.02 at large widths; a default that nobody chose is no error.
    llama_like = run.get("gated_ffn") is True or "rms" in run.text("norm")
    if ratio >= 2.5 and run.is_large and (run.is_stated("init_std") or not llama_like):
        return RuleVerdict("error", message, values, change)
    return RuleVerdict("warning" if ratio >= 1.45 else "info", message, values, change)


def residual_init(run: Facts) -> RuleVerdict | None:
    """Compare the init of the layers that write to the residual stream with sigma / sqrt(2L)."""
    std, out, layers = (
        run.positive("init_std"),
        run.positive("init_std_output"),
        run.positive("layers"),
    )
    if std is None or out is None or layers is None or run.is_tuning:
        return None
    scaled = std / math.sqrt(2 * layers)
    ratio = out / scaled
    if ratio <= 1.5:
        return None
    return RuleVerdict(
        "info" if _is_normalised(run) or layers < 24 else "warning",
        f"output layers start at std {compact(out)}, "
        f"{times(ratio)} × {compact(std)}/√(2·{layers:.0f})"
        f" = {scaled:.5f}: the residual stream grows with depth",
        {"init_std_output": out, "sigma/sqrt(2L)": scaled, "ratio": ratio},
        {"init_std_output": float(f"{scaled:.3g}")},
    )


def embedding_scale(run: Facts) -> RuleVerdict | None:
    """Compute the std that embeddings have when they enter the first block."""
    scale, std = run.positive("embedding_scale"), run.positive("init_std")
    if scale is None or std is None or run.is_tuning or run.get("embed_norm") is True:
        return None
    effective = scale * std
    if effective < 0.5:
        return None
    # QK-norm and a soft-cap bound what a large embedding can do to the logits.
    tamed = _is_normalised(run) or run.positive("softcap_final") is not None or not run.is_large
    return RuleVerdict(
        "warning" if tamed else "error",
        f"embeddings enter the first block with std {effective:.2g} (init {compact(std)} × scale"
        f" {compact(scale)}); GPT-2 has 0.02, and 0.01 for positions",
        {"embedding_scale": scale, "init_std": std, "effective_std": effective},
        {"embedding_scale": 1},
    )


def embedding_norm(run: Facts) -> RuleVerdict | None:
    """Mention the embedding norm at a size where it cannot be added later."""
    params = run.params
    if params is None or params < 5e10 or run.is_tuning or run.is_continued:
        return None
    if run.get("embed_norm") is True or _is_normalised(run) or run.is_description:
        return None
    absent = run.get("embed_norm") is False
    return RuleVerdict(
        "warning" if absent and run.text("dtype").startswith("fp16") else "info",
        f"no embedding LayerNorm at {compact(params)} parameters, and it cannot be added later",
        {"params": params},
        {"embed_norm": True},
    )


INIT_CHECKS: Checks = {
    "L01": (init_std, None),
    "L02": (residual_init, None),
    "L03": (embedding_scale, None),
    "L05": (embedding_norm, None),
}
