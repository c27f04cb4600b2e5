"""The learning rate against published ones, for pre-training and for tuning."""

from dataclasses import replace

from trimtab.config_rules.references import GPT3_LR, LLAMA_LR, MIXTURE_LR, MUON_LR, WORKED_LR
from trimtab.config_rules.rules.rule import Checks, RuleVerdict, Severity, compact, times
from trimtab.configs.facts import OTHER_OPTIMIZERS, Facts

__all__ = ["LEARNING_RATE_CHECKS", "advised_peak"]

_TUNING_LR = 2e-5
"""Full fine-tuning of 1 B and more: Zephyr, Tulu and Llama recipes lie between 5e-6 and 2e-5."""
_HIGHEST = max(WORKED_LR.points, key=lambda p: p.value)
"""Above it no published rate of a language model of 100 M and more lies."""
_ABSURD = 100.0
"""Times the highest rate that worked: a slip of units at any size. Ours."""
_ADAPTER_LR = (2e-4, 1e-2)
"""LoRA and QLoRA papers 2e-4 (arXiv:2106.09685, 2305.14314); PEFT's prefix and (IA)3 examples."""
_NEVER_TUNED = 0.1
"""No published tuning of given weights with Adam has such a rate, prompts aside. Ours."""
_PREFERENCE_LR = 1e-6
"""Preference tuning: Zephyr 5e-7, Tulu 3 2e-7, ORPO up to 8e-6."""


def learning_rate(run: Facts) -> RuleVerdict | None:
    """Compare the peak rate with the published ones of this size; the minimum follows the peak."""
    lr = run.positive("lr")
    if lr is None or not run.has_adam:
        return None
    said, low = _peak(run, lr), run.number("min_lr")
    peak = None if said is None else said.change.get("lr")
    stated = run.setting("min_lr")
    if said is None or low is None or stated is None or stated.origin != "stated":
        return said
    if not isinstance(peak, int | float) or low < 0.999 * peak:
        return said
    return replace(said, change={**said.change, "min_lr": float(f"{peak / 10:.3g}")})


def advised_peak(run: Facts) -> float | None:
    """Return the peak rate that the rule on it advises, else the one stated."""
    lr = run.positive("lr")
    if lr is None or not run.has_adam or run.other_architecture:
        return lr
    said = _peak(run, lr)
    peak = lr if said is None else said.change.get("lr", lr)
    return float(peak) if isinstance(peak, int | float) else lr


def _peak(run: Facts, lr: float) -> RuleVerdict | None:
    if run.is_adapter:
        return _adapter(run, lr)
    if run.is_tuning:
        return _tuning(run, lr)
    return _pretraining(run, lr)


def _pretraining(run: Facts, lr: float) -> RuleVerdict | None:
    params = run.lookup_params
    if params is None:
        return _of_unknown_size(run, lr)
    usual, llama, worked = GPT3_LR.at(params), LLAMA_LR.at(params), WORKED_LR.at(params)
    ratio = lr / usual
    points = ", ".join(f"{p.run} {compact(p.value)}" for p in GPT3_LR.around(params))
    values = {
        "lr": lr,
        "params": params,
        "gpt3": usual,
        "llama": llama,
        "highest_that_worked": worked,
        "ratio": ratio,
    }
    message = (
        f"peak rate {compact(lr)} is {times(ratio)} × that of GPT-3 at {compact(params)}"
        f" ({compact(usual)}; {points})"
    )
    change = {"lr": float(f"{usual:.2g}")}
    scaled = run.positive("embedding_scale")
    if scaled not in (None, 1.0) and ratio > 1.5:  # a base rate of µP is divided by the width
        return RuleVerdict(
            "info",
            f"{message}; not comparable if this is µP's base rate (embedding multiplier"
            f" {compact(scaled or 1)})",
            values,
            change,
        )
    # 1.95: twice what ever worked, with room for rounding.
    if lr >= 1.95 * worked or (ratio >= 3 and params >= 5e10 and lr > 1.05 * worked):
        known = f"; the highest known to have worked there is {compact(worked)}"
        # a model this small costs little, and sweeps with far higher rates are ordinary there
        severe = params >= 1e8 or lr >= _ABSURD * worked
        return RuleVerdict("error" if severe else "warning", message + known, values, change)
    # Both families at once: Llama-type models train well above GPT-3's rates.
    if ratio > 1.5 and lr > 1.05 * llama:
        # Mixtures have been trained at higher rates: DeepSeek-V3 2.2e-4 at 37 B active.
        calm = run.get("qk_norm") is True or (run.is_mixture and lr <= 1.05 * MIXTURE_LR.at(params))
        severity: Severity = "info" if calm else "warning"
        return RuleVerdict(
            severity,
            f"{message}, and above Llama's ({compact(llama)}); up to {compact(worked)} has worked",
            values,
            change,
        )
    if ratio > 1.5:
        return RuleVerdict(
            "info", f"{message}; Llama-type models used up to {compact(llama)}", values, change
        )
    # A run that goes on from trained weights is meant to have a low rate.
    if ratio < 1 / 5 and not run.is_continued:
        return RuleVerdict(
            "warning" if ratio < 1 / 30 else "info",
            f"peak rate {compact(lr)} is {times(1 / ratio)} × below "
            f"that of GPT-3 at {compact(params)}"
            f" ({compact(usual)}): low for training from scratch",
            values,
            change,
        )
    return None


def _of_unknown_size(run: Facts, lr: float) -> RuleVerdict | None:
    if lr <= 1.05 * _HIGHEST.value:
        return None
    experts = run.number("experts") or 0
    severe = experts >= 16 or lr >= _ABSURD * _HIGHEST.value  # so many experts: no small model
    return RuleVerdict(
        "error" if severe else "warning",
        f"peak rate {compact(lr)}: the highest known to have worked for a language model of any"
        f" size is {compact(_HIGHEST.value)} ({_HIGHEST.run})",
        {"lr": lr, "highest_that_worked": _HIGHEST.value},
        {},
        "give --params for the rate of this size",
    )


def _adapter(run: Facts, lr: float) -> RuleVerdict | None:
    if lr <= _ADAPTER_LR[1] or "prompt" in run.text("objective"):
        return None
    usual, highest = _ADAPTER_LR
    return RuleVerdict(
        "error" if lr >= _NEVER_TUNED else "warning",
        f"rate {compact(lr)} for an adapter: {times(lr / usual)} × LoRA's {compact(usual)};"
        f" bottleneck adapters and prefixes take up to {compact(highest)}",
        {"lr": lr, "usual": usual, "ratio": lr / usual},
        {"lr": usual},
        "only prompt tuning takes rates near 0.3",
    )


def _tuning(run: Facts, lr: float) -> RuleVerdict | None:
    above_all = lr > (1.05 * _HIGHEST.value if (run.params or 1e9) >= 1e8 else 1e-2)
    if run.params is not None and run.params < 1e9 and not above_all:
        return None
    objective = run.text("objective") or run.named_objective
    preference = any(
        o in objective for o in ("dpo", "orpo", "kto", "ipo", "simpo", "cpo", "ppo", "grpo", "rl")
    )
    usual = _PREFERENCE_LR if preference else _TUNING_LR
    ratio = lr / usual
    if ratio <= (10.5 if preference else 4.5):
        return None
    samples = run.positive("batch_samples")
    small = (
        f", with {samples:.0f} sequence{'s' if samples > 1 else ''} per step"
        if samples and samples <= 8
        else ""
    )
    # a model of unknown size may be small, unless its optimizer is there to save memory
    saving = any(part in run.text("optimizer") for part in ("8bit", "4bit", "paged", "galore"))
    severe = ratio >= (90 if preference else 9.5) and ((run.params or 0) >= 1e9 or saving)
    severe = severe or lr >= _NEVER_TUNED
    return RuleVerdict(
        "error" if severe else "warning",
        f"rate {compact(lr)} for"
        f" {'preference tuning' if preference else 'full fine-tuning'}{small}: {times(ratio)} × the"
        f" usual {compact(usual)}",
        {"lr": lr, "usual": usual, "ratio": ratio},
        {"lr": usual},
        "" if preference else "rates of 1e-4 and more are for LoRA",
    )


_ORTHOGONAL_LR = (5e-3, 0.1)
"""Rates of Muon with updates of spectral norm 1: 0.02 in modded-nanogpt and nanochat."""


def _muon(run: Facts) -> RuleVerdict:
    """Compare Muon's rate with both of its scales.

    An update of spectral norm 1 takes rates near 0.02 (Jordan); one that is scaled to AdamW's root
    mean square takes AdamW's (Moonlight, arXiv:2502.16982; Kimi K2, arXiv:2507.20534).
    """
    lr, params = run.positive("lr"), run.lookup_params
    values = {"optimizer": run.get("optimizer"), "lr": lr, "params": params}
    low, high = _ORTHOGONAL_LR
    if lr is None or run.is_tuning:
        return RuleVerdict(
            "info",
            "optimizer Muon: rates near 0.02 with updates of spectral norm 1, AdamW's with updates"
            " scaled to its root mean square",
            values,
        )
    matched = MUON_LR.at(params) if params else MUON_LR.points[0].value
    said = (
        f"Muon's rate {compact(lr)}: published are {compact(matched)} at this size where updates"
        f" are scaled to AdamW's, and 0.02 where they are not"
    )
    words = "see which scale the implementation uses (0.2·√max(d) or none)"
    if lr > high:
        return RuleVerdict("error", f"{said}; above {high:g} none is known", values, {}, words)
    if 3 * matched < lr < low:
        return RuleVerdict("warning", f"{said}; it fits neither", values, {}, words)
    if lr < matched / 30:
        return RuleVerdict("warning", f"{said}; it is far below both", values, {}, words)
    large = params is not None and params >= 3e9
    if lr >= low and large:
        return RuleVerdict(
            "info", f"{said}; no model of {compact(params or 0)} is known at it", values, {}, words
        )
    return RuleVerdict("info", said, values, {}, words)


def unknown_optimizer(run: Facts) -> RuleVerdict | None:
    """An optimizer whose hyper-parameters are not those of Adam."""
    name = run.text("optimizer")
    if not name or run.has_adam:
        return None
    if "muon" in name:
        return _muon(run)
    known = any(other in name for other in OTHER_OPTIMIZERS)
    return RuleVerdict(
        "info" if known else "warning",
        f"optimizer {run.get('optimizer')!s:.40}: "
        + (
            "its rate has a scale of its own, so it was not compared with the tables for AdamW"
            if known
            else (
                "not known here; rates, betas and decay of AdamW do not transfer to it by"
                " themselves"
            )
        ),
        {"optimizer": run.get("optimizer")},
        {},
        "tune rate, betas and decay at three small sizes first, and see that the gain persists"
        " (--gain)",
    )


def resumed_rate(run: Facts) -> RuleVerdict | None:
    """A run that goes on from a checkpoint and states no rate."""
    if run.get("resumes") is not True or run.get("lr") is not None:
        return None
    return RuleVerdict(
        "info",
        "no learning rate is stated, and the run goes on from a checkpoint: it takes the"
        " checkpoint's rate, or the framework's default",
        {"lr": None, "resumes": True},
        words="state the rate, and compare the first logged rate with the last one before",
    )


def group(run: Facts) -> RuleVerdict | None:
    """Advantages relative to a group need two completions of a prompt or more."""
    size = run.positive("group_size")
    if size is None or "rl" not in run.text("objective"):
        return None
    if size < 2:
        return RuleVerdict(
            "error",
            "one completion per prompt: its advantage relative to the group is always 0, so nothing"
            " is learned",
            {"group_size": size},
            {"group_size": 8},
        )
    return None


LEARNING_RATE_CHECKS: Checks = {
    "RESUME": (resumed_rate, lambda run: run.get("resumes") is True),
    "GROUP": (group, lambda run: run.positive("group_size") is not None),
    "L06": (
        learning_rate,
        lambda run: run.lookup_params is not None and run.has_adam and not run.is_adapter,
    ),
    "OPT": (unknown_optimizer, None),
}
