"""Number formats: what is kept and summed in how many bits."""

import math

from trimtab.config_rules.rules.rule import Checks, RuleVerdict, compact
from trimtab.configs.facts import Facts

__all__ = ["PRECISION_CHECKS"]

_NARROW = ("bf16", "bfloat16", "fp16", "float16", "half")


def _is_fp16(run: Facts) -> bool:
    return run.text("dtype").startswith(("fp16", "float16", "half"))


def fp16(run: Facts) -> RuleVerdict | None:
    """fp16 in a large model."""
    if not _is_fp16(run):
        return None
    params = run.params
    size = (
        compact(params) + " parameters" if params else f"hidden {run.positive('hidden') or 0:.0f}"
    )
    values = {"dtype": run.get("dtype"), "params": params}
    change = {"dtype": "bf16"}
    if run.is_large:
        said = f"fp16 at {size}: its range ends at 65 504"
        if run.settings.framework == "hf-config":  # the format of its weights on disk
            return RuleVerdict(
                "info", f"{said}; counts only if it is trained in this format", values, change
            )
        return RuleVerdict("warning", said, values, change)
    if params and params >= 5e9 and not (run.is_tuning or run.is_continued):
        return RuleVerdict(
            "warning",
            f"fp16 from scratch at {size}: OPT-6.7B and the 104B fought overflows in it; bf16 needs"
            " no loss scale",
            values,
            change,
        )
    if params and params >= 1e9:
        return RuleVerdict("info", f"fp16 at {size}; bf16 needs no loss scale", values, change)
    return None


def loss_scale(run: Facts) -> RuleVerdict | None:
    """A fixed loss scale, or an initial one that is no power of two."""
    if not _is_fp16(run):
        return None
    scale = run.positive("loss_scale")
    if scale is not None:
        return RuleVerdict(
            "error" if scale == 1 else "warning",
            (
                "fp16 without loss scaling (scale fixed at 1): small gradients become 0"
                if scale == 1
                else f"loss scale fixed at {scale:g}: it neither backs off on overflow nor grows"
            ),
            {"loss_scale": scale},
            {"loss_scale": 0},
        )
    start = run.positive("loss_scale_init")
    # frexp gives a mantissa of exactly 0.5 for powers of two, and for nothing else.
    if start is not None and start >= 1 and math.frexp(start)[0] != 0.5:
        near = 2.0 ** round(math.log2(start))
        return RuleVerdict(
            "info",
            f"initial loss scale {start:g} is no power of two, so scaling rounds the gradients",
            {"loss_scale_init": start},
            {"loss_scale_init": near},
        )
    return None


def states(run: Facts) -> RuleVerdict | None:
    """Optimizer states, parameters and gradient sums in 16 bits."""
    kept = run.text("optimizer_dtype")
    if kept in _NARROW and not run.is_adapter:
        return RuleVerdict(
            "error",
            f"Adam's moments in {kept}: an increment below 1/256 of the second moment is rounded"
            " away",
            {"optimizer_dtype": kept},
            {"optimizer_dtype": "fp32"},
        )
    reduce, ranks = run.text("reduce_dtype"), run.positive("data_parallel")
    narrow = reduce.startswith(("bf16", "bfloat16"))
    if (
        narrow
        and (run.is_large or (run.params or 0) >= 1e9 or (ranks or 0) >= 64)
        and not run.is_adapter
    ):
        over = f" over {ranks:.0f} ranks" if ranks else ""
        return RuleVerdict(
            "error" if ranks and ranks >= 64 else "warning",
            f"gradients are summed in bf16{over}: 8 significant bits for a sum of many values",
            {"reduce_dtype": reduce, "data_parallel": ranks},
            {"reduce_dtype": "fp32"},
        )
    if run.text("dtype") == "fp16-pure" and not run.is_adapter:
        return RuleVerdict(
            "error",
            "weights are turned to fp16 (.half()) without an fp32 copy: updates below 1/2048 of a"
            " weight are lost, and Adam's ε 1e-8 rounds to 0 in fp16",
            {"dtype": "fp16"},
            {},
            "keep the weights in fp32 and run the forward pass under torch.autocast with bf16",
        )
    if run.text("dtype") in ("bf16-true", "bf16-pure", "pure_bf16") and not run.is_adapter:
        return RuleVerdict(
            "warning",
            "weights are kept in bf16 without an fp32 copy: updates below 1/256 of a weight are"
            " lost",
            {"dtype": run.get("dtype")},
            {"dtype": "bf16"},
            "mixed precision with fp32 weights",
        )
    return None


def gelu(run: Facts) -> RuleVerdict | None:
    """The cube in the tanh form of GELU overflows fp16 beyond 40."""
    activation = run.text("activation")
    if not _is_fp16(run) or not (
        "gelu" in activation and any(p in activation for p in ("tanh", "new", "fast", "approx"))
    ):
        return None
    return RuleVerdict(
        "info",
        "tanh-GELU in fp16: x³ is infinite from x = 40.4 on",
        {"activation": run.get("activation")},
        {"activation": "relu"},
        "or bf16",
    )


PRECISION_CHECKS: Checks = {
    "L24": (fp16, lambda run: not _is_fp16(run) or run.params is not None),
    "L25": (loss_scale, _is_fp16),
    "L27": (states, None),
    "L30": (gelu, _is_fp16),
}
