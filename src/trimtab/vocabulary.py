"""The words of the field: canonical signals, their units, their bad direction, their aliases.

One table, `SIGNALS`. A reader asks `canonical(key)` what a logged key means; a detector asks a
`Signal` which direction is bad and on which scale its noise lives; the incident grouping asks how
far ahead of the loss a signal can speak (`lead_rows`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trimtab.domain_words import DOMAIN_WORDS
from trimtab.said_by_words import (
    HELD_OUT_SETS,
    TRAINING_SETS,
    join_held_out,
    name_norms,
    said_by_words,
)

__all__ = [
    "SIGNALS",
    "SIGNAL_BY_NAME",
    "TIMES",
    "Severity",
    "Signal",
    "alias_place",
    "canonical",
    "may_count",
    "normalise",
    "unit_scale",
]

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One canonical signal."""

    name: str
    """Canonical name; what every part of trimtab calls it."""
    unit: str
    """Unit after reading; readers convert to it."""
    bad: Literal["up", "down", "both", "none"]
    """Direction that is bad news."""
    scale: Literal["linear", "log"] = "linear"
    """Scale on which its noise is roughly even: norms live on a log scale."""
    lead_rows: int = 0
    """How many rows before the loss it can be believed as a first sign; 0: never one."""
    doc: str
    """One line for people."""
    aliases: tuple[str, ...] = ()
    """Keys that frameworks use, matched after `normalise`."""
    domain: str = ""
    """Kind of training that it belongs to, such as rl or moe; empty: any."""
    spread: bool = False
    """Whether it is logged once for each layer, rank or expert; the worst of them is the signal."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


def _of_sets(sets: frozenset[str], text: str) -> tuple[str, ...]:
    """Return keys as listed, then the loss of each of some sets, also known in one word."""
    return (*_listed(text), *(f"{s}_loss" for s in sorted(sets)))


_COUNTED = _listed(
    "tok|tokens|samples|examples|ex|sequences|seqs|sentences|sents|words|img|imgs|images|frames|records|items"
)
"""What a trainer consumes so many of in a second."""
_THROUGHPUT = (
    "throughput",
    "tps",
    "throughput(tps)",
    "perf/tokens_per_second",
    "throughput/device/tokens_per_sec",
    "throughput/tokens_per_sec",
    "tokens_per_second_per_gpu",
    "tokens_per_sec_per_gpu",
    "wps",
    *(
        f"{what}{per}{of}"
        for what in _COUNTED
        for per in ("/s", "/sec", "/second", "_per_s", "_per_sec", "_per_second")
        for of in ("", "/gpu", "/device", "_per_gpu", "_per_device")
    ),
    *(
        f"{what}{per}"
        for what in ("it", "its", "iter", "iters", "iterations", "step", "steps", "batches")
        for per in ("/s", "/sec", "/second", "_s", "_per_s", "_per_sec", "_per_second")
        # `step_s` is the time of one.
        if (what, per) not in (("step", "_s"), ("iter", "_s"), ("steps", "_s"))
    ),
)
_DATA_TIMES = (
    "data_time",
    "data_time_s",
    "time/data",
    "time/data_s",
    "data_s",
    "data_loading_time",
    "dataloader_time",
    "data_wait_s",
    "perf/data_wait_s",
    "time/data_loading",
    "data_load_time",
    "time_data",
    "data (s)",
    "data (ms)",
    "data_ms",
    "data_time_ms",
    "data time",
)
_STEP_TIMES = (
    "step_time_s",
    "step time",
    "step_time",
    "iteration_time",
    "iteration-time",
    "elapsed time per iteration (s)",
    "iter_time",
    "time/step",
    "time_per_step",
    "train_speed(s/it)",
    "train_speed_s_per_it",
    "seconds_per_step",
    "sec/step",
    "batch (s)",
    "batch (ms)",
    "batch_time",
    "iter_s",
    "iter_ms",
    *(
        f"{time}_per_{of}"
        for time in ("time", "sec", "seconds", "s")
        for of in ("step", "iter", "iteration", "it", "batch", "update")
    ),
    # Over ranks or over steps; what the slowest takes is what all of them take.
    *(f"{time}_{of}" for of in ("mean", "avg") for time in ("step_time", "iter_time")),
    *(f"{of}_{time}" for of in ("mean", "avg") for time in ("step_time", "iter_time")),
    *(f"{time}_max" for time in ("step_time", "iter_time")),
)

SIGNALS: tuple[Signal, ...] = (
    Signal(
        name="loss",
        unit="nats/token",
        bad="up",
        doc="Training loss as logged; often a mean over the log interval.",
        aliases=_of_sets(
            TRAINING_SETS,
            "lm loss|train loss|train/loss|training loss|loss/train|lm-loss|train/lm_loss|"
            "train_loss|train/cross_entropy_loss|train/ce_loss|nll_loss|lm_loss|"
            "global_avg_loss|loss_metrics/global_avg_loss|train_inner/loss|"
            "reduced_train_loss|metrics/train/loss|cross_entropy_loss|train_loss_step|"
            "train/loss_step|training/loss|total_loss|train/total_loss|loss/total|"
            "step_loss|trl|train/crossentropyloss|training/train_loss|training_loss|"
            "batch_loss|loss/mean|\u635f\u5931",
        ),
    ),
    Signal(
        name="val_loss",
        unit="nats/token",
        bad="up",
        doc="Validation loss.",
        aliases=_of_sets(
            HELD_OUT_SETS,
            "validation loss|valid loss|valid_loss|eval_loss|eval/loss|val/loss|"
            "validation/loss|lm loss value|test loss|loss/val|val_loss|test/loss|"
            "val_loss_epoch|loss/validation|loss/valid|loss/eval|valid/loss|tel|eval/crossentropyloss",
        ),
    ),
    Signal(
        name="grad_norm",
        unit="L2 norm before clipping",
        bad="up",
        scale="log",
        lead_rows=200,
        doc="Global gradient norm before clipping, with the loss scale divided out.",
        aliases=_listed(
            "grad norm|gradient norm|gnorm|grad_norm|train/grad_norm|norm|total_grad_norm|"
            "optim/total_grad_norm|gradient_norm|global_grad_norm|grad-norm|"
            "train/gradient_norm|grad_norm_total|train/gnorm|l2_norm/grad/global|grad|"
            "global_norm|l2_grads|global grad norm|actor_grad_norm|\u2207|gn"
        ),
    ),
    Signal(
        name="lr",
        unit="1",
        bad="up",
        scale="log",
        lead_rows=64,
        doc="Learning rate in effect (first parameter group, factors of the guard included).",
        aliases=_listed(
            "learning rate|learning_rate|learning-rate|train/learning_rate|lr|train/lr|"
            "optim/learning_rate_group0|lr-adam|lr-adamw|lr-adamw/pg1|optim/lr|lrate|learn rate|"
            "train lr|actor_lr|cur lr|current learning rate|current lr|l.r.|l.r|x/lr0|"
            "\u5b66\u4e60\u7387|lr_g|g_lr|lr_gen|lr_generator|generator_lr"
        ),
    ),
    Signal(
        name="loss_scale",
        unit="1",
        bad="down",
        scale="log",
        lead_rows=4000,
        doc="fp16 loss scale.",
        aliases=(
            "loss scale",
            "loss_scale",
            "loss-scale",
            "grad_scale",
            "train/loss_scale",
            "scale",
            *(f"{of}{by}scale" for of in ("amp", "fp16", "scaler", "grad_scaler") for by in "_/"),
        ),
    ),
    Signal(
        name="update_norm",
        unit="L2 norm",
        bad="up",
        scale="log",
        lead_rows=64,
        doc="Norm of the applied parameter update.",
        aliases=("update_norm", "update norm", "optim/update_norm", "param_update_norm"),
    ),
    Signal(
        name="activation_norm",
        unit="root mean square",
        bad="up",
        scale="log",
        lead_rows=200,
        doc="Norm of the last hidden state before the output softmax.",
        aliases=("activation_norm", "activation norm", "act_norm", "actv_norm", "act_rms"),
    ),
    Signal(
        name="adam_v_l1",
        unit="L1 norm",
        bad="up",
        scale="log",
        doc="L1 norm of Adam's second moment over all parameters (variance norm).",
        aliases=("adam_v_l1", "variance_l1", "variance_norm", "optimizer/variance_l1"),
    ),
    Signal(
        name="adam_v_max",
        unit="1",
        bad="up",
        scale="log",
        doc="Largest element of Adam's second moment.",
        aliases=("adam_v_max", "variance_max", "optimizer/variance_abs_max"),
    ),
    Signal(
        name="attention_logit_max",
        unit="1",
        bad="up",
        scale="log",
        lead_rows=200,
        doc="Largest attention logit before the softmax.",
        aliases=(
            "attention_logit_max",
            "max_attention_logit",
            "max_logit",
            "attn_logit_max",
            "attn_max",
        ),
    ),
    Signal(
        name="clipped",
        unit="0 or 1",
        bad="up",
        doc="Whether gradient clipping changed this step; its mean is the clip share.",
        aliases=("clipped", "clip_fraction", "clip", "pct_clipped"),
    ),
    Signal(
        name="clip_frequency",
        unit="share of steps so far",
        bad="up",
        doc="Running mean of the clip flags.",
    ),
    Signal(
        name="skipped",
        unit="share of the row's steps: 0 or 1 where each step is logged",
        bad="up",
        doc="Whether the optimizer step was skipped; over a log interval, the share that was.",
        aliases=(
            *("skipped", "optim/step_skipped", "number of skipped iterations", "skipped_iters"),
            *("skipped_iterations", "skipped_steps", "steps_skipped", "num_skipped"),
            *("num_skipped_steps", "grad_overflow", "found_inf", "step_skipped"),
        ),
    ),
    Signal(
        name="nonfinite",
        unit="count in the row's steps",
        bad="up",
        doc="Non-finite losses or gradients this step.",
        aliases=("nonfinite", "number of nan iterations", "nan_iters"),
    ),
    Signal(
        name="num_zeros",
        unit="count",
        bad="up",
        doc="Gradient elements that are exactly zero.",
        aliases=("num zeros", "num_zeros", "num-zeros"),
    ),
    Signal(
        name="grad_zero_share",
        unit="share of the trained elements",
        bad="none",
        doc="Parameters whose whole gradient is exactly 0, or that no longer have one.",
    ),
    Signal(
        name="grad_zero_steps",
        unit="optimizer steps",
        bad="none",
        doc="For how long at least half of the trained elements have been so.",
    ),
    Signal(
        name="step_time_s",
        unit="s",
        bad="up",
        scale="log",
        doc="Wall time of the step.",
        aliases=_STEP_TIMES,
    ),
    Signal(
        name="data_time_s",
        unit="s",
        bad="up",
        scale="log",
        doc="Time of a step that waits for the next batch.",
        aliases=_DATA_TIMES,
    ),
    Signal(
        name="wall_time_s",
        unit="s since 1970",
        bad="none",
        doc="When the row was written.",
    ),
    Signal(
        name="throughput",
        unit="tokens, samples or operations per second, as logged",
        bad="down",
        scale="log",
        doc="How fast data is consumed.",
        aliases=_THROUGHPUT,
    ),
    Signal(
        name="tokens_seen",
        unit="tokens",
        bad="none",
        doc="Tokens consumed since the start of the run.",
        aliases=(
            "tokens_seen",
            "consumed tokens",
            "consumed_tokens",
            "num_input_tokens_seen",
            "tokens",
        ),
    ),
    Signal(
        name="samples_seen",
        unit="samples",
        bad="none",
        doc="Samples consumed since the start of the run.",
        aliases=("samples_seen", "consumed samples", "consumed_samples"),
    ),
    Signal(
        name="epochs_seen",
        unit="passes",
        bad="none",
        doc="Passes over the data: the epoch as logged, or with the share of it that is done.",
    ),
    Signal(
        name="batch_size",
        unit="samples",
        bad="none",
        doc="Global batch size.",
        aliases=("batch_size", "global batch size", "global_batch_size", "batch-size", "gbs"),
    ),
    Signal(
        name="attention_entropy",
        unit="nats",
        bad="down",
        lead_rows=200,
        doc="Mean entropy of the attention weights, of the layer where it is lowest.",
        aliases=("attention_entropy", "attn_entropy", "attention/entropy", "attn/entropy"),
    ),
    Signal(
        name="activation_max",
        unit="1",
        bad="up",
        scale="log",
        doc="Largest absolute value that a block gives out.",
        aliases=("activation_max", "act_max"),
    ),
    Signal(
        name="output_log_z",
        unit="nats",
        bad="up",
        doc="Root mean square of log Z, the log of the output softmax's denominator.",
        aliases=("output_log_z", "log_z", "logz"),
    ),
    Signal(
        name="num_outputs",
        unit="count",
        bad="none",
        doc="Outputs of the layer whose logits are looked at: classes, or the vocabulary.",
    ),
    Signal(
        name="weight_norm",
        unit="L2 norm",
        bad="up",
        scale="log",
        doc="Norm of all trained weights.",
        aliases=("weight_norm", "params_norm", "params norm", "param_norm", "parameter_norm"),
    ),
    Signal(
        name="weight_scale",
        unit="1",
        bad="none",
        doc="Norm of the matrices at first, by that of weights of variance 1 / fan-in.",
        aliases=("weight_scale",),
    ),
    Signal(
        name="update_ratio",
        unit="1",
        bad="up",
        scale="log",
        doc="Norm of the update over the norm of the weights.",
        aliases=("update_ratio", "update_to_weight_ratio"),
    ),
    Signal(
        name="embedding_grad_norm",
        unit="L2 norm before clipping",
        bad="up",
        scale="log",
        lead_rows=64,
        doc="Norm of the gradient of the embeddings.",
    ),
    Signal(
        name="grad_norm_ratio",
        unit="1",
        bad="up",
        scale="log",
        doc="Gradient norm of the first block over that of the last.",
    ),
    Signal(
        name="rms_ratio_max",
        unit="1",
        bad="up",
        scale="log",
        doc="Largest typical gradient over the root of Adam's second moment, of one matrix.",
        aliases=("rms_ratio_max", "rms_t"),
    ),
    Signal(
        name="adam_m_l1",
        unit="L1 norm",
        bad="up",
        scale="log",
        doc="L1 norm of Adam's first moment over all parameters.",
        aliases=("adam_m_l1", "momentum_l1"),
    ),
    Signal(
        name="adam_m_max",
        unit="1",
        bad="up",
        scale="log",
        doc="Largest absolute element of Adam's first moment.",
    ),
    Signal(
        name="adam_broken",
        unit="count",
        bad="up",
        doc="Tensors whose Adam state makes no sense.",
    ),
    Signal(
        name="adam_v_left",
        unit="1",
        bad="down",
        doc="Adam's second moments over the least that updates leave of them, where it is less.",
    ),
    Signal(
        name="weight_max",
        unit="1",
        bad="up",
        scale="log",
        doc="Largest absolute weight.",
    ),
    Signal(
        name="weight_jump",
        unit="1",
        bad="up",
        doc="Growth of the norm of a matrix since the last reading that no update explains.",
    ),
    Signal(
        name="loss_step_std",
        unit="nats/token",
        bad="up",
        scale="log",
        doc="Standard deviation of the change of the loss from row to row, over the last 64 rows.",
    ),
    Signal(
        name="sample_loss_max",
        unit="nats/token",
        bad="up",
        doc="Largest loss of one sample of the batch, where the loop gives them.",
    ),
    Signal(
        name="batch_compression",
        unit="bytes after zlib over bytes before",
        bad="both",
        doc="How well the batch's tokens compress, known before the step.",
    ),
    Signal(
        name="batch_entropy",
        unit="nats/token",
        bad="both",
        doc="Entropy of the batch's own token counts, known before the step.",
    ),
    Signal(
        name="batch_nonfinite",
        unit="values",
        bad="up",
        doc="Values of the batch that are NaN or Inf, known before the step.",
    ),
    Signal(
        name="batch_integers",
        unit="tensors",
        bad="none",
        doc="Tensors of whole numbers in the batch, such as labels or tokens.",
    ),
    Signal(
        name="batch_fingerprint",
        unit="checksum",
        bad="none",
        doc="Checksum of values all over the batch: the same for the same batch.",
    ),
    Signal(
        name="yardstick_loss",
        unit="nats/token",
        bad="up",
        doc="Mean loss of the guard's fixed batches in eval mode; a reward counts with minus.",
    ),
    Signal(
        name="yardstick_evidence",
        unit="nats",
        bad="none",
        doc="Log likelihood ratio that the fixed batches have got worse, sequential, paired.",
    ),
    Signal(
        name="yardstick_rise",
        unit="nats/token",
        bad="none",
        doc="Mean paired rise of the fixed batches over their newest readings.",
    ),
    Signal(
        name="host_memory_gib",
        unit="GiB",
        bad="up",
        scale="log",
        doc="Resident memory of the first process.",
    ),
    Signal(
        name="beta1",
        unit="1",
        bad="none",
        doc="Adam's first decay rate in force, read from the optimizer.",
        aliases=("beta1", "adam_beta1"),
    ),
    Signal(
        name="beta2",
        unit="1",
        bad="none",
        doc="Adam's second decay rate in force, read from the optimizer.",
        aliases=("beta2", "adam_beta2"),
    ),
    Signal(
        name="adam_eps",
        unit="1",
        bad="none",
        doc="Adam's epsilon in force, read from the optimizer.",
    ),
    Signal(
        name="weight_decay",
        unit="1",
        bad="none",
        doc="Largest weight decay in force, read from the optimizer.",
        aliases=("weight_decay", "train/weight_decay"),
    ),
    Signal(
        name="momentum",
        unit="1",
        bad="none",
        doc="Largest momentum in force, read from an optimizer such as SGD where it changes.",
    ),
    Signal(
        name="stated_setting",
        unit="as logged",
        bad="none",
        doc="A setting that the log states under a name of its own: a weight of the loss, a "
        "temperature, a size of the data. Where it changes, the loss is made of something else.",
    ),
    Signal(
        name="clip_limit",
        unit="1",
        bad="none",
        doc="Largest global gradient norm before the guard's factor, recorded where it changes.",
    ),
    Signal(
        name="dropout",
        unit="1",
        bad="none",
        doc="Largest dropout probability of the model's modules, recorded where it changes.",
    ),
    Signal(
        name="trainable_parameters",
        unit="count",
        bad="none",
        doc="Tensors of the model that require a gradient, recorded where that changes.",
    ),
    Signal(
        name="eval_modules",
        unit="count",
        bad="none",
        doc="Modules in eval mode when an update was made, recorded where that changes.",
    ),
    Signal(
        name="unannounced_changes",
        unit="count",
        bad="none",
        doc="Settings that changed before this step without being announced; absent: none.",
    ),
    Signal(
        name="batch_scale",
        unit="1",
        bad="none",
        doc="Spread of a batch's values over the usual one, recorded where it becomes another.",
    ),
    Signal(
        name="loss_factor",
        unit="1",
        bad="none",
        doc="By what the loss is multiplied since this step; -1: its sign has turned.",
    ),
    Signal(
        name="trained_share",
        unit="1",
        bad="none",
        doc="Share of the trained tensors that still are, recorded where most are frozen at once.",
    ),
    Signal(
        name="rate_over_peak",
        unit="1",
        bad="none",
        doc="Rate over its earlier peak, recorded where it climbs far beyond that.",
    ),
    Signal(
        name="perplexity",
        unit="1",
        bad="up",
        scale="log",
        doc="exp(loss); Inf where it would overflow.",
        aliases=_listed(
            "perplexity|ppl|lm loss ppl|train/ppl|train_ppl|train/perplexity|train_perplexity|"
            "training_ppl|training/ppl|training_perplexity|training/perplexity"
        ),
    ),
    Signal(
        name="val_perplexity",
        unit="1",
        bad="up",
        scale="log",
        doc="exp(validation loss), where that is logged and the loss itself is not.",
        aliases=tuple(
            f"{held_out}{joint}{name}"
            for held_out in sorted(HELD_OUT_SETS)
            for joint in ("/", "_")
            for name in ("ppl", "perplexity")
        ),
    ),
    *(
        Signal(
            name=w.name,
            unit=w.unit,
            bad=w.bad,
            doc=w.doc,
            aliases=_listed(w.aliases),
            domain=w.domain,
            spread=w.spread,
        )
        for w in DOMAIN_WORDS
    ),
)

TIMES = ("step_time_s", "data_time_s")
"""Signals whose keys may name a unit that is not the second."""
SIGNAL_BY_NAME: Mapping[str, Signal] = {s.name: s for s in SIGNALS}


def normalise(key: str) -> str:
    """Return a key in the form in which keys are compared: lower case, one blank for `_ - `.

    Held-out is one word of it, however it is written, and `|g|` is a norm of the gradient.
    """
    key = name_norms(key)
    return join_held_out(re.sub(r"[\s_\-]+", " ", key.strip().strip("\"'")).strip())


_KNOWN: Mapping[str, str] = {
    normalise(alias): s.name for s in SIGNALS for alias in (s.name, *s.aliases)
}
_OF_TRAINING: Mapping[str, str] = {
    f"train {alias}": name
    for alias, name in _KNOWN.items()
    if SIGNAL_BY_NAME[name].domain and not name.startswith("eval")
}
"""What is measured on training data where that is said: `train_kl` beside `val_kl`."""
_ALIASES: Mapping[str, str] = {**_OF_TRAINING, **_KNOWN}

_ALIAS_PLACE: Mapping[str, int] = {
    normalise(alias): place for s in SIGNALS for place, alias in enumerate(s.aliases)
}

_MIN_SQUEEZED = 6
_SQUEEZED: Mapping[str, str] = {
    squeezed: name
    for alias, name in _ALIASES.items()
    if len(squeezed := alias.replace(" ", "")) >= _MIN_SQUEEZED
}
"""The same without blanks, for keys in one word: `trainLoss`, `GradNorm`."""

_MOST_COUNT_WORDS = 4

_UNIT_SUFFIXES: tuple[tuple[str, float], ...] = (
    (r"\s*\(ms\)$|[ /]ms(?:ec)?$", 1e-3),
    (r"\s*\((?:s|sec|seconds)\)$|[ /]s(?:ec(?:onds)?)?$", 1.0),
)
_GROUP_OF_LR = re.compile(
    r"(?:^|[/ ])(?:lr|learning rate)(?:$|[ /(].{0,30}?(?:pg|group|param group) ?\d+\)?$)"
)
"""`optim/LR (group 0)`, `lr-DecoupledAdamW/group0`, `lr/pg0`."""
_LR_OF_OPTIMIZER = re.compile(r"optim(?:izer)? ?\d+[/ ]lr ?\d*")
"""`optim0_lr0`."""
_COUNTS = frozenset(
    [
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "episode",
        "episodes",
        "generation",
        "generations",
        "round",
        "rounds",
    ]
)
_NO_COUNT = frozenset(
    [
        "per",
        "time",
        "times",
        "sec",
        "seconds",
        "ms",
        "loss",
        "lr",
        "rate",
        "size",
        "max",
        "min",
        "num",
        "reward",
        "score",
        "return",
        "acc",
        "accuracy",
        "length",
        "len",
        "mean",
        "avg",
        "std",
        "best",
        "last",
        "warmup",
        "save",
        "eval",
        "val",
        "test",
        "log",
        "every",
        "patience",
        "speed",
        "dt",
        "done",
        "remaining",
    ]
)
_EXPERT_KEY = re.compile(
    r"(?:^|[/. ])(?:(?:load|tokens?|usage|share|frac(?:tion)?|util(?:ization)?|counts?)"
    r"[/. ](?:per[/. ])?)?experts?[/. ]?(\d{1,5})"
    r"(?:[/. ](?:load|tokens?|usage|share|frac(?:tion)?|util(?:ization)?|counts?))?$"
)
"""`moe/expert_3_load`, `tokens_per_expert/12`, `layer 2/expert 5`: the load of one expert."""
_INDEXED = re.compile(
    r"(?:(?<=^)|(?<=[/. ]))(?:layers?|blocks?|h|rank|gpu|stage|l)[/. ]?\d{1,5}(?=$|[/. ])"
)
"""The part of a key that says of which layer or rank it is."""
_LONGEST_INDEXED = 200
"""Characters of a key beyond which no layer or expert is sought in it."""
_SET_BEHIND = re.compile(rf"(?P<what>[a-z][^/]*)[ /](?P<of>{'|'.join(sorted(HELD_OUT_SETS))})")
_OF_HELD_OUT = ("val_loss", "val_perplexity", "eval_score", "eval_error")
_TIME_KEYS = frozenset(
    {
        "elapsed time per iteration",
        "time per iteration",
        "step time",
        "iter time",
        "iteration time",
        "time per step",
        "train step time",
        "step",
        "dt",
    }
)


def unit_scale(key: str) -> float:
    """Return the factor from the unit of a time key to seconds; 1.0 where it names no unit."""
    text = normalise(key)
    for pattern, factor in _UNIT_SUFFIXES:
        if re.search(pattern, text):
            return factor
    return 1.0


@lru_cache(maxsize=4096)
def may_count(key: str) -> bool:
    """Whether a key that no alias knows may count the rows, if its values rise: by its last word.

    Example:
        >>> may_count("total_step"), may_count("Episode"), may_count("steps_per_second")
        (True, True, False)
        >>> may_count("episode_id"), may_count("env_id")
        (True, False)
    """
    words = re.split(r"[^a-z0-9]+", normalise(key).removesuffix(" id"))
    return words[-1] in _COUNTS and len(words) <= _MOST_COUNT_WORDS and _NO_COUNT.isdisjoint(words)


def alias_place(key: str) -> int:
    """Return where a key stands among those of its signal: of several the first says most."""
    return _ALIAS_PLACE.get(normalise(key), len(_ALIAS_PLACE))


@lru_cache(maxsize=4096)
def canonical(key: str) -> str | None:
    """Return the canonical name of a logged key, or None for a key that no alias knows.

    Matching is exact after `normalise`; a time key may carry its unit
    (`elapsed time per iteration (ms)`), which `unit_scale` turns into a factor. What no list has
    may be known by its words (`said_by_words`).

    Example:
        >>> canonical("lm loss"), canonical("elapsed time per iteration (ms)"), canonical("foo")
        ('loss', 'step_time_s', None)
    """
    text = normalise(key)
    name = _ALIASES.get(text) or _SQUEEZED.get(text)
    if name is not None:
        return name
    if text.startswith(("lr", "learning", "optim", "train")) and _GROUP_OF_LR.search(text):
        return "lr"
    if text.startswith("optim") and _LR_OF_OPTIMIZER.fullmatch(text):
        return "lr"
    for pattern, _ in _UNIT_SUFFIXES:
        stem = re.sub(pattern, "", text)
        # `step/s` is how many of them there are in a second, and no time.
        if stem != text and stem in _TIME_KEYS and not (stem == "step" and text[4:5] == "/"):
            return "step_time_s"
    return _of_one_part(text) or said_by_words(text) or _of_set_behind(text)


def _of_set_behind(text: str) -> str | None:
    """Return what a metric of held-out data is whose set stands behind it: `r2_valid`."""
    named = _SET_BEHIND.fullmatch(text)
    if named is None or (named["of"] == "dev" and named["what"] in ("score", "error")):
        return None  # a deviation
    name = _ALIASES.get(f"{named['of']} {named['what']}")
    return name if name in _OF_HELD_OUT else None


def _of_one_part(text: str) -> str | None:
    """Return the signal of a key that names one layer, rank or expert; None for any other.

    Only for signals that are spread: `h.3/norm` stays unknown.
    """
    # Most keys have no digit, and keys of other metrics must cost next to nothing.
    if len(text) > _LONGEST_INDEXED or not any(c.isdigit() for c in text):
        return None
    if "expert" in text and _EXPERT_KEY.search(_INDEXED.sub("", text)):
        return "expert_load"
    stem = _INDEXED.sub("", text)
    if stem == text:
        return None
    stem = re.sub(r"[/. ]*([/.])[/. ]*| +", lambda m: m[1] or " ", stem).strip("/. ")
    name = _ALIASES.get(stem) or _ALIASES.get(stem.rpartition("/")[2])
    return name if name is not None and SIGNAL_BY_NAME[name].spread else None
