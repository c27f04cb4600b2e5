"""Adam's betas and epsilon, weight decay, clipping, z-loss."""

from trimtab.config_rules.rules.rule import Checks, RuleVerdict, Severity, compact, times, tokens
from trimtab.configs.facts import Facts

__all__ = ["OPTIMIZER_CHECKS"]


_LONGEST_BETA2 = 0.9995
"""Adam's default 0.999 (arXiv:1412.6980), with room: no published language model is above. Ours."""


_CLIPS_NOTHING = 1000.0
"""Norms of gradients of runs that train lie far below, so a clip from here on is as none: Megatron
and transformers have 1.0, published configs up to 5 or so, 10 and 40 in reinforcement learning. Ours."""
_NO_ADAM_RATE = 0.1
"""No published recipe trains the weights of a network with Adam at this rate: 1e-3 is its default
(arXiv:1412.6980), 0.01 to 0.03 are the highest of small models. Ours."""


def beta2(run: Facts) -> RuleVerdict | None:
    """beta2 0.999 with large batches."""
    value, batch = run.number("beta2"), run.batch_tokens
    if value is None or value < 0.995 or value >= 1 or not run.has_adam:
        return None
    if run.is_tuning and value <= _LONGEST_BETA2:
        return None
    unstated = "" if run.is_stated("beta2") else " (the framework's default)"
    memory = 1 / (1 - value)
    values = {"beta2": value, "batch_tokens": batch, "memory_steps": memory}
    # Adam's largest update after gradients rise tenfold over 20 steps: 5.30 learning rates at
    # beta2 0.999 against 1.15 at 0.95.
    message = f"β2 {value:g}{unstated} remembers {memory:.0f} steps"
    if value > _LONGEST_BETA2:
        return RuleVerdict(
            "warning",
            f"{message}, {times(memory / 1000)} × those of Adam's default 0.999: after gradients"
            " grow, updates stay too large for as long",
            values,
            {"beta2": 0.999 if run.is_tuning else 0.95},
        )
    if batch is not None and batch >= 1e6:
        return RuleVerdict(
            "warning",
            f"{message} at {tokens(batch)} a step: after quiet steps, ×10 gradients give updates 5"
            " × too large",
            values,
            {"beta2": 0.95},
        )
    if batch is None and (run.params or 0) >= 1e9:
        return RuleVerdict(
            "warning",
            f"{message}; at batches of 1 M tokens 0.95 is steadier",
            values,
            {"beta2": 0.95},
        )
    return RuleVerdict(
        "info", f"{message}; 0.95 to 0.99 is usual in pre-training", values, {"beta2": 0.95}
    )


def epsilon(run: Facts) -> RuleVerdict | None:
    """Epsilon that is large against small gradients, or too small for 16-bit states."""
    eps = run.positive("eps")
    if eps is None or not run.has_adam:
        return None
    values = {"eps": eps}
    if eps >= 1e-6:
        return RuleVerdict(
            "info" if run.is_tuning else "warning",
            f"Adam ε {compact(eps)}: a tensor whose gradients are that small learns at half speed,"
            " and at 9 % where they are a tenth of it",
            values,
            {"eps": 1e-8},
        )
    if eps <= 1e-12:
        # fp16's smallest number is 6e-8, so such an epsilon is lost in fp16 states.
        narrow = run.text("optimizer_dtype") in ("fp16", "float16") or run.text("dtype").startswith(
            "fp16"
        )
        return RuleVerdict(
            "warning" if narrow else "info",
            f"Adam ε {compact(eps)}: rounds to 0 in fp16, and amplifies the noise of tensors with"
            " tiny gradients",
            values,
            {"eps": 1e-8},
        )
    return None


def weight_decay(run: Facts) -> RuleVerdict | None:
    """Weight decay that is likely a typo, or 0."""
    value = run.number("weight_decay")
    if value is None or not run.has_adam:
        return None
    values = {"weight_decay": value}
    if value >= 0.5 and run.has_plain_adam:
        return RuleVerdict(
            "error",
            f"weight decay {value:g} with plain Adam, which adds it to the gradient",
            values,
            {"weight_decay": 0},
            "or AdamW with 0.1",
        )
    if value >= 0.5:
        meant = value / 10 if value < 5 else 0.1
        return RuleVerdict(
            "error",
            f"weight decay {value:g}: {times(value / 0.1)} × the 0.1 of large runs, probably a typo"
            f" for {meant:g}",
            values,
            {"weight_decay": meant},
        )
    if run.is_tuning or run.is_continued or run.is_description:
        return None
    if run.has_plain_adam or run.other_architecture:
        return None
    if value == 0 and run.setting("lr") is not None:
        if run.is_ngpt:
            return None
        return RuleVerdict(
            "warning",
            "no weight decay in pre-training; 0.1 is usual",
            values,
            {"weight_decay": 0.1},
        )
    if 0 < value <= 0.02 and run.is_large:
        return RuleVerdict(
            "info",
            f"weight decay {value:g}; 0.1 is usual at this size",
            values,
            {"weight_decay": 0.1},
        )
    return None


def decay_groups(run: Facts) -> RuleVerdict | None:
    """Weight decay on norms, biases or embeddings."""
    if run.number("weight_decay") in (None, 0.0) or run.is_tuning:
        return None
    if run.get("decay_norms_and_biases") is True:
        severity: Severity = "info" if run.get("qk_norm") is True else "warning"
        return RuleVerdict(
            severity,
            "weight decay acts on norms and biases",
            {"weight_decay": run.number("weight_decay")},
            {"decay_norms_and_biases": False},
        )
    if run.get("decay_embeddings") is True and run.is_stated("decay_embeddings"):
        return RuleVerdict(
            "info",
            "weight decay acts on embeddings: they shrink, and the first layers' gradients grow",
            {"weight_decay": run.number("weight_decay")},
            {"decay_embeddings": False},
        )
    return None


def clip(run: Facts) -> RuleVerdict | None:
    """Gradient clipping that is off, or whose limit is far above usual norms."""
    found = run.setting("clip")
    if found is None:
        return None
    value = run.number("clip")
    values = {"clip": value}
    if value is not None and value <= 0:
        stated = (
            "off" if run.is_stated("clip") else "not set, and this framework then does not clip"
        )
        return RuleVerdict(
            _severity_without_clip(run), f"gradient clipping is {stated}", values, {"clip": 1.0}
        )
    if value is not None and value >= _CLIPS_NOTHING:
        said = f"gradient clipping at {value:g} clips nothing: it is as good as off"
        return RuleVerdict(_severity_without_clip(run), said, values, {"clip": 1.0})
    if value is not None and value > 2:
        return RuleVerdict(
            "warning",
            f"gradients are clipped at {value:g}: large runs have 1.0 or less, and OPT came down"
            " from 2.5 to 0.3",
            values,
            {"clip": 1.0},
        )
    return None


def _severity_without_clip(run: Facts) -> Severity:
    """Without clipping: an error where a model of 1 B or of unknown size learns at a usual rate.

    A default in a file that states no model may be set elsewhere; adapters and gentle tuning
    of given weights survive without.
    """
    lr = run.positive("lr") or 0.0
    if run.is_adapter or (run.is_tuning and lr < 1e-4):
        return "warning"
    if run.params is not None:
        return "error" if run.params >= 1e9 else "warning"
    return "error" if run.is_stated("clip") and (run.is_large or run.is_tuning) else "warning"


def adam_rate(run: Facts) -> RuleVerdict | None:
    """Adam at a rate at which it trains no model; of transformers, the rule on their size speaks."""
    lr = run.positive("lr")
    if lr is None or lr < _NO_ADAM_RATE or not run.other_architecture:
        return None
    return RuleVerdict(
        "warning",
        f"Adam at rate {compact(lr)}: each step moves every weight by up to that much, and no"
        f" published recipe trains a network at {_NO_ADAM_RATE:g} or above",
        {"lr": lr},
        {"lr": 1e-3},
    )


def _names_adam(run: Facts) -> bool:
    """Whether Adam is named: of models other than transformers, SGD at 0.1 is as usual."""
    return run.has_adam and bool(run.text("optimizer")) and run.positive("lr") is not None


def z_loss(run: Facts) -> RuleVerdict | None:
    """A large vocabulary whose output logits nothing bounds."""
    vocab = run.positive("vocab")
    if vocab is None or vocab < 1e5 or run.number("weight_decay") != 0 or run.is_tuning:
        return None
    if run.positive("z_loss") or run.positive("softcap_final") or run.setting("lr") is None:
        return None
    return RuleVerdict(
        "warning" if run.number("z_loss") == 0 and run.is_stated("z_loss") else "info",
        f"{vocab:.0f} output logits with neither z-loss nor weight decay: log Z may drift",
        {"vocab": vocab, "weight_decay": 0},
        {"z_loss": 1e-4},
    )


OPTIMIZER_CHECKS: Checks = {
    "L09": (
        beta2,
        lambda run: (
            run.has_adam and (run.batch_tokens is not None or (run.number("beta2") or 1.0) < 0.995)
        ),
    ),
    "L10": (epsilon, lambda run: run.has_adam),
    "L11": (weight_decay, None),
    "L12": (decay_groups, lambda run: run.setting("decay_norms_and_biases") is not None),
    "L13": (clip, None),
    "ADAM-RATE": (
        lambda run: adam_rate(run) if _names_adam(run) else None,
        lambda run: _names_adam(run) and bool(run.other_architecture),
    ),
    "L20": (z_loss, None),
}
