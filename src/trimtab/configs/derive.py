"""From what keys state to settings in canonical units: ratios, samples, tokens, durations."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

from trimtab.configs import derive_batch, derive_shape
from trimtab.configs.derivation import Derivation
from trimtab.configs.document import squash
from trimtab.configs.names import factor_schedules
from trimtab.configs.settings import NAMES, UNEVEN, Setting
from trimtab.configs.values import NO, YES, duration, flag, precision

__all__ = ["settings_of"]


AS_STATED = """
hidden layers heads kv_heads head_dim seq norm activation dropout attention_dropout
embedding_dropout softcap_attention softcap_final z_loss router_z_loss router_aux_loss
router_bias init_std init_std_output embedding_scale optimizer lr min_lr schedule beta1 beta2
eps weight_decay clip params embed_norm tensor_parallel pipeline_parallel context_parallel
data_parallel zero_stage world_size seed loss_scale loss_scale_init loss_scale_window
loss_scale_hysteresis loss_scale_min ffn epochs micro_batch topk shared_experts moe_ffn group_size
label_smoothing warmup_epochs
"""
"""Facts that are settings of the same name and unit."""


def settings_of(facts: Derivation) -> dict[str, Setting]:
    """Return the canonical settings of one config, in the order of `NAMES`.

    A stated value wins. A value computed from stated ones is `derived`. What is still absent gets
    the framework's documented default, and the computations run once more with it.
    """
    for name in AS_STATED.split():
        facts.keep(name)
    for step in STEPS:
        step(facts)
    # A default of the vocabulary is for texts in sub-words; of letters there are some hundred.
    if "char" in str(facts.fact("dataset_name") or "").lower():
        facts.defaults = {k: v for k, v in facts.defaults.items() if k != "vocab"}
    for name, value in facts.defaults.items():
        if name in NAMES and name not in facts.values:
            facts.values[name] = Setting(value, "default")
    for step in STEPS:
        step(facts)
    derive_shape.parameters(facts)
    return {name: facts.values[name] for name in NAMES if name in facts.values}


def optimizer(facts: Derivation) -> None:
    """Betas as a pair, clip below 0 as off, minimum LR as a share of the peak."""
    betas = facts.fact("betas")
    if isinstance(betas, tuple | list) and betas:
        facts.derive("beta1", betas[0], "betas", origin="stated")
        facts.derive("beta2", betas[1], "betas", origin="stated")
    if facts.fact("clip_on") is False:
        facts.values.pop("clip", None)
        facts.derive("clip", 0, "clip_on", origin="stated")
    clip = facts.get("clip")
    if clip is not None and clip < 0:
        facts.values.pop("clip")
        facts.derive("clip", 0, "clip")
    ratio, lr = facts.amount("min_lr_ratio"), facts.get("lr")
    if ratio is not None and lr is not None:
        facts.derive("min_lr", ratio * lr, "min_lr_ratio")
    init_scheme(facts)
    scale = facts.get("loss_scale")
    if scale is not None and facts.amount("loss_scale_power") is not None and scale == 0:
        facts.derive(
            "loss_scale_init", 2.0 ** (facts.amount("loss_scale_power") or 0), "loss_scale_power"
        )


def rate_of_factor(facts: Derivation) -> None:
    """The peak rate under a schedule that takes a factor; none where it cannot be computed.

    peak = factor / sqrt(width × warm-up steps), Vaswani et al. (arXiv:1706.03762), section 5.3.
    """
    stated = facts.values.get("lr")
    factor = facts.get("lr")
    by = next((n for n in ("schedule", "optimizer") if takes_factor(facts.fact(n), factor)), None)
    if by is None or stated is None or factor is None or "lr_factor" in facts.values:
        return
    facts.values["lr_factor"] = facts.values.pop("lr")
    if by == "optimizer":  # ESPnet 1 names the schedule there; below it is Adam
        facts.values.pop("optimizer", None)
        facts.derive("optimizer", "adam", "optimizer")
    width = facts.amount("schedule_width") or facts.get("hidden")
    steps, unit = duration(facts.fact("warmup_steps") or facts.fact("warmup")) or (0.0, "")
    name = f"{stated.key or 'lr'} {factor:g} is a factor of the schedule {facts.fact(by)}"
    if width and steps > 0 and unit in ("", "steps"):
        facts.values["lr"] = replace(
            stated, value=factor / math.sqrt(width * steps), origin="derived"
        )
        peak = facts.get("lr") or 0.0
        facts.note.append(f"{name}: its peak is {factor:g}/√({width:g}·{steps:g}) = {peak:.2g}")
    else:
        facts.note.append(f"{name}: its peak needs the width and a warm-up, and was not judged")


_PEAK_UP_TO = 0.01
"""Rates up to here are taken for a peak under a name that both kinds of schedule have."""


def takes_factor(name: object, rate: float | None) -> bool:
    """Whether the rate of a schedule of this name is a factor."""
    own = squash(str(name).rsplit(".", 1)[-1])
    if rate is None or own not in factor_schedules():
        return False
    return own != "noam" or rate > _PEAK_UP_TO


def init_scheme(facts: Derivation) -> None:
    """A named init in place of a standard deviation."""
    scheme = facts.fact("init_scheme")
    if isinstance(scheme, str) and not re.fullmatch(
        r"(trunc(ated)?_?)?normal(_)?|gaussian|default|none", scheme, re.IGNORECASE
    ):
        if facts.ffn_rule in ("neox", "olmo") or "init_std" not in facts.stated:
            facts.values.pop("init_std", None)
        facts.derive("init_std", scheme, "init_scheme", origin="stated")


def flags(facts: Derivation) -> None:
    """Tied embeddings, QK norm, positions, and whether training starts from given weights."""
    if flag(facts.fact("z_loss_on")) is False:
        facts.values.pop("z_loss", None)
        facts.derive("z_loss", 0, "z_loss_on", origin="stated")
    untied = flag(facts.fact("untied"))
    if untied is not None:
        facts.derive("tied_embeddings", not untied, "untied", origin="stated")
    facts.keep("tied_embeddings", "tied")
    facts.keep("max_positions")
    qk = facts.fact("qk_norm")
    if qk is not None:
        facts.derive(
            "qk_norm",
            flag(qk) if flag(qk) is not None else str(qk).lower() != "none",
            "qk_norm",
            origin="stated",
        )
    facts.keep("position")
    for name, word in (("alibi", "alibi"), ("rotary", "rotary")):
        if facts.fact(name):
            facts.derive("position", word, name, origin="stated")
    resumes = facts.fact("resumes")
    if resumes is not None and str(resumes).lower() not in {"false", "none", "null", "0", "", "no"}:
        facts.derive("resumes", YES, "resumes", origin="stated")
    base = facts.fact("base_model")
    if flag(facts.fact("reinit")):
        facts.derive("pretrained", NO, "reinit")
    elif (isinstance(base, str) and names_weights(base, facts.stated["base_model"].key)) or flag(
        facts.fact("finetune")
    ):
        facts.derive("pretrained", YES, "base_model", "finetune")
    adapter = facts.fact("adapter")
    if adapter is not None:
        known = flag(adapter)
        text = str(adapter).lower()
        value = (
            known
            if known is not None
            else text not in {"full", "freeze", "none", "", "0", "false", "[]"}
        )
        facts.derive("adapter", value, "adapter", origin="stated")


def names_weights(base: str, key: str) -> bool:
    """Whether a text names given weights; under a bare `model` only a path, `org/name`."""
    if base.endswith((".json", ".yaml", ".yml")):  # a description, no weights
        return False
    return "/" in base or (bool(base.strip()) and squash(key.split(".")[-1]) != "model")


PREFERENCES = ("dpo", "orpo", "kto", "simpo", "cpo")
OBJECTIVES = (
    *((name, name) for name in PREFERENCES),
    ("rl", "rl"),
    ("grpo", "rl"),
    ("dapo", "rl"),
    ("rloo", "rl"),
    ("reinforce", "rl"),
    ("gspo", "rl"),
    ("ppo", "rl"),
    ("rlhf", "rl"),
    ("sft", "sft"),
    ("rm", "reward"),
    ("reward", "reward"),
    ("pt", "pretrain"),
    ("pretrain", "pretrain"),
)


def objective(facts: Derivation) -> None:
    """What is trained for, where a key, the loss or the program's name says it."""
    facts.derive("objective", goal_of(facts.fact("stage")), "stage", origin="stated")
    # `beta` of GRPO weighs a KL term; only what no sampler has states a preference loss.
    if facts.fact("rl_sign") is not None and facts.fact("stage") is None:
        facts.derive("objective", "rl", "rl_sign")
    loss = goal_of(facts.fact("loss_type"))
    if loss in PREFERENCES:
        facts.derive("objective", loss, "loss_type")
    if facts.amount("pref_beta") is not None:  # dpo_beta, orpo_alpha
        named = goal_of(facts.stated["pref_beta"].key)
        facts.derive("objective", named if named in PREFERENCES else "dpo", "pref_beta")
    started = goal_of(facts.fact("program"))
    if started != "pretrain":  # Megatron's pretrain_gpt.py tunes given weights as well
        facts.derive("objective", started, "program")


def goal_of(text: object) -> str | None:
    """Return what the words of a text say is trained for, or None."""
    if not isinstance(text, str):
        return None
    # `GRPOTrainer` and `grpo_config` are both of GRPO.
    apart = re.sub(r"(?<=[A-Za-z])(?:Trainer|Config|Script)\b", " ", text)
    words = set(re.split(r"[^a-z]+", apart.lower()))
    return next((goal for word, goal in OBJECTIVES if word in words), None)


def dtypes(facts: Derivation) -> None:
    """One dtype from flags and names; fp8 counts where it is switched on."""
    text = facts.fact("precision")
    named = precision(text) if text is not None else None
    bf16, fp16 = flag(facts.fact("bf16")), flag(facts.fact("fp16"))
    fp8 = facts.fact("fp8")
    on8 = fp8 is not None and (
        flag(fp8) if flag(fp8) is not None else str(fp8).lower() not in {"none", "no", ""}
    )
    chosen, source = named, "precision"
    if bf16:
        chosen, source = "bf16", "bf16"
    elif fp16:
        chosen, source = "fp16", "fp16"
    if on8:
        chosen, source = "fp8", "fp8"
    # Both off and nothing named is a statement; both absent is not.
    if chosen is None and bf16 is False and fp16 is False:
        chosen, source = "fp32", "bf16"
    if facts.fact("half_weights"):
        chosen, source = "fp16-pure", "half_weights"
    facts.derive("dtype", chosen, source, origin="stated")
    reduce = facts.fact("reduce_dtype")
    facts.derive(
        "reduce_dtype",
        precision(reduce) if reduce is not None else None,
        "reduce_dtype",
        origin="stated",
    )
    if flag(facts.fact("reduce_bf16")):
        facts.derive("reduce_dtype", "bf16", "reduce_bf16", origin="stated")
    if flag(facts.fact("reduce_fp32")):
        facts.derive("reduce_dtype", "fp32", "reduce_fp32", origin="stated")
    state = facts.fact("optimizer_dtype")
    facts.derive(
        "optimizer_dtype",
        precision(state) if state is not None else None,
        "optimizer_dtype",
        origin="stated",
    )


def sharding(facts: Derivation) -> None:
    """Derive the ZeRO stage from the names of FSDP strategies and distributed optimizers."""
    named = facts.fact("fsdp")
    text = str(named).lower()
    if any(word in text for word in ("shard_grad_op", "shardgradop", "zero2")):
        facts.derive("zero_stage", 2, "fsdp")
    elif flag(named) or any(
        word in text for word in ("full_shard", "fullshard", "hybrid", "zero3")
    ):
        facts.derive("zero_stage", 3, "fsdp")
    elif "no_shard" in text:
        facts.derive("zero_stage", 0, "fsdp")
    if flag(facts.fact("zero_on")) or "distributed" in str(facts.fact("optimizer") or ""):
        facts.derive("zero_stage", 1, "zero_on", "optimizer")


def intervals(facts: Derivation) -> None:
    """Save and evaluation intervals in steps, where they are steps; whether anything is saved."""
    saving = facts.fact("saving")
    if flag(saving) is False or (isinstance(saving, str) and saving.lower() == "no"):
        facts.derive("saves", NO, "saving", origin="stated")
    if facts.fact("uneven_pipeline") is not None and UNEVEN not in facts.note:
        facts.note.append(UNEVEN)
    for name in ("save_steps", "eval_steps"):
        found = duration(facts.fact(name))
        if found and found[1] in ("", "steps") and found[0] >= 1:
            facts.derive(name, found[0], name, origin="stated")


STEPS: tuple[Callable[[Derivation], None], ...] = (
    rate_of_factor,  # before a minimum rate is computed from the peak
    optimizer,
    flags,
    objective,
    dtypes,
    sharding,
    intervals,
    derive_shape.shape,
    derive_batch.batch,
    derive_batch.length,
    derive_batch.warmup,
)
