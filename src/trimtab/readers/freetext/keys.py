"""The meaning of a key in free text: a loss, another signal, a step, an epoch, a rank.

Keys of unknown trainers are seldom in the vocabulary as they are: `completed step`, `Train Epoch`,
`cls_loss`. Leading words are dropped one by one until the rest is known; each dropped or guessed
word makes the meaning less sure (`doubt`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.said_by_words import (
    HELD_OUT_SETS,
    LOSS_FUNCTIONS,
    TRAINING_SETS,
    is_mean_score,
    join_held_out,
    said_by_words,
)
from trimtab.vocabulary import SIGNAL_BY_NAME, canonical, normalise

__all__ = [
    "ETA",
    "MEAN_NOTE",
    "STEP_KEYS",
    "Kind",
    "Meaning",
    "announces",
    "are_rates",
    "bare_split",
    "counts_episodes",
    "is_adversarial",
    "is_bare",
    "is_held_out",
    "is_method",
    "is_of_critic",
    "is_part",
    "is_whole",
    "meaning",
    "names_mean",
    "score_place",
    "without_number_word",
    "without_trailing",
    "written_as_rate",
]

Kind = Literal["signal", "step", "epoch", "rank"]

STEP_KEYS = (
    "global step",
    "global step/max steps",
    "step",
    "optimizer step",
    "train step",
    "training step",
    "global iter",
    "train/global step",
    "trainer/global step",
    "train/step",
    "total timesteps",
    "total train updates",
    "iteration",
    "iter",
    "num updates",
    "update",
    "updates",
    "current steps",
    "steps",
    "iterations",
    "iters",
    "it",
    "num steps",
    "iter num",
    "step i",
    "itr",
    "training iteration",
    "learning iteration",
    "global batch idx",
    "iteration number",
    "cur iter",
    "gradient step",
    "timesteps",
    "num timesteps",
    "total num timesteps",
    "env steps",
    "frames",
    "frame",
    "total steps",
    "up.",
    "up",
    "s",
    "i",
    "minibatch",
    "batch",
    "batch id",
    "batch idx",
    "batch index",
    "batch num",
    "batch no",
    "batches",
    "mb",
)
"""Names of the step, the surest first."""
_SQUEEZED_STEPS = {key.replace(" ", ""): key for key in STEP_KEYS if " " in key}
SCORE_KEYS = (
    "score",
    "total score",
    "episode score",
    "ep score",
    "last score",
    "scores",
    "average score",
    "avg score",
    "mean score",
)
"""What an agent's return is called beside its episode; elsewhere it may be a score of any kind.
`score_place` knows further ones by their words."""
_EPOCH_KEYS = frozenset({"epoch", "epochs", "ep.", "ep", "train epoch", "train/epoch"})
_RANK_KEYS = frozenset({"rank", "global rank", "local rank", "process", "worker", "node rank"})
_HELD_OUT_KEYS = HELD_OUT_SETS | {"evaluating", "cv"}
_HELD_OUT = _HELD_OUT_KEYS - {"va", "te"}
"""The same in prose, where words of two letters are others."""
_OF_OTHERS = re.compile(r"^\s*\* +(?:acc|prec|top)|saving dict for global step", re.IGNORECASE)
"""Lines of an evaluation that do not say so: of PyTorch's ImageNet example, of TensorFlow's
estimator."""
_ANNOUNCES = re.compile(
    r"\b(?:testing|validating|evaluating|evaluation|validation|(?:eval|test|val)\w* mode"
    r"|(?:start|begin|run)\w* (?:eval|test|val)\w*)\b",
    re.IGNORECASE,
)
_MAX_ANNOUNCING = 80
_NO_MEASUREMENT = frozenset(
    [
        "best",
        "min",
        "max",
        "minimum",
        "maximum",
        "lowest",
        "highest",
        "target",
        "previous",
        "prev",
        "last",
        "final",
        "initial",
        "scale",
        "per",
        "each",
        "every",
        "total",
        "warmup",
        "num",
        "log",
        "save",
        "time",
        "no",
        "threshold",
        "patience",
        "improved",
        "delta",
        "coef",
        "coeff",
        "weight",
        "factor",
        "aux",
        "ema",
    ]
)
"""Words that turn what follows into something else than a value of this step."""
_SIDE = frozenset(
    [
        "z",
        "aux",
        "mtp",
        "kl",
        "reg",
        "router",
        "balance",
        "balancing",
        "unsuper",
        "value",
        "policy",
        "entropy",
    ]
)
_PARTS = frozenset(
    [
        "cls",
        "class",
        "box",
        "bbox",
        "obj",
        "iou",
        "giou",
        "dfl",
        "conf",
        "mask",
        "rpn",
        "seg",
        "ctc",
        "att",
        "l1",
        "simple",
        "pruned",
        "vf",
    ]
)
"""Words of losses that are one part of several."""
_OTHER_PARTS = frozenset(
    [
        "recon",
        "rec",
        "kld",
        "gan",
        "adv",
        "perceptual",
        "vgg",
        "feat",
        "l2",
        "smooth",
        "tv",
        "dice",
        "bce",
        "ce",
        "mse",
        "mae",
        "objectness",
        "landmark",
        "kpt",
        "pose",
        "depth",
        "style",
    ]
)
"""Words that are a part only beside a total."""
_MEANS = frozenset(["avg", "mean", "average", "averaged", "avr", "running", "smoothed", "moving"])
"""Words of values that are means over records before this one."""
_STAND_INS = frozenset(
    [
        *LOSS_FUNCTIONS,
        "cross_entropy",
        "ce",
        "cost",
        "objective",
        "elbo",
        "bpc",
        "bpb",
        "perplexity_loss",
        "error",
        "smoothl1",
        "smooth_l1",
    ]
)
_METHODS = frozenset(
    {"byol", "infonce", "moco", "nt xent", "ntxent", "simclr", "simsiam", "vicreg"}
)
"""Methods of self-supervised training, of which each has a loss that is called as it is."""
_VAGUE = frozenset(["norm", "gn", "scale", "clip", "tokens", "clipped", "skipped"])
"""Aliases that mean a signal only without a word in front of them."""
_TIMES = re.compile(r"\b(?:time|timing|timer|times|speed|perf|sec|seconds|ms|s)\b")
"""Words of a path under which `step` is how long one takes."""
_OF_THE_WHOLE = frozenset({"weight_norm", "activation_norm", "update_norm"})
_WHOLE = frozenset({"train", "training", "global", "total", "optim", "model"})
"""Words allowed in front of these; others name a part of the model."""
_TRAILING = re.compile(
    r"\s+(?:is|was|of|at|now|to|(?:so|this) far|(?:for|in|of|over) (?:this|the|each) "
    r"(?:epoch|iteration|batch|step|interval))$"
)
_NUMBER_WORD = re.compile(
    r"(?P<what>\b(?:epoch|step|iter|iteration|update|episode|batch))(?: (?:nr|no|num|number)\.?| ?#)$"
)
_ASIDE = re.compile(
    r"\s*[(\[](?P<words>[^()\[\]]*\b(?:avg|average[d]?|mean|running|smoothed|moving|last|past|over)"
    r"\b[^()\[\]]*)[)\]]"
    r"|\s(?:over|of|for) (?:the )?(?:last|past|previous) (?:\d+|n|few)(?: \w+)?\b"
)
"""What says over which records a value was averaged: `(avg over last 100)`."""
_ON_SET = re.compile(
    r"(?P<what>.+?) (?:on|over|for|of) (?:the )?"
    rf"(?P<set>{'|'.join(sorted(HELD_OUT_SETS))})(?: (?:data|set|split|batches|tokens|text))?"
)
"""`nll on held-out data`."""
_RANK_PART = re.compile(
    r"(?:[/_.@ :-]|^)\(?\[?(?:global |local )?rank[ _:=#]?\d+\]?\)?(?=[/_.@ :-]|$)|[/_]\(?r\d+\)?$"
)
"""The rank in a key (`loss_rank0`, `rank_3/loss`)."""
_FILE_NAME = re.compile(
    r"\.(?:py[xc]?|cc|cpp|cxx|cu|cuh|c|h|hpp|rs|go|js|ts|java|jl|sh|ipynb|lua)$"
)
"""What stands in front of a line number, not of a value: `loss_scaler.py:188`."""
_L_WORD = re.compile(r"l (?:g |d )?[a-z]{2,12}")
"""`l_pix`, `l_g_pix`: super-resolution trainers say loss with one letter."""
_ADVERSARIAL = re.compile(
    r"(?:err|loss)[ _]?[gd]|[gd] ?loss|[gd][ /]"
    r"(?:gan\w*|l1|l2|vgg|feat|adv\w*|per\w*|a|b|real|fake|total|loss)"
    r"|(?:cyc(?:le)?|idt)[ /][ab]|generator|discriminator|critic|errg|errd"
)
"""Losses of adversarial trainers, named by the net: `G_GAN`, `D_real`, `errG`, `cycle_A`."""
_CRITIC = frozenset(
    {
        "d",
        "disc",
        "dis",
        "discriminator",
        "critic",
        "lossd",
        "dloss",
        "errd",
        "cri",
        "vf",
        "tok2vec",
    }
)
"""The last is spaCy's layer that all parts share, of which each gives it a loss of its own."""
_ADVERSARIAL_ORDER = (
    r"(?:err|loss)[ _]?g|g ?loss|g[ /](?:total|loss)|generator|errg",
    r"g[ /](?:gan|adv|a|b)",
    r"g[ /]\w+",
    r"(?:err|loss)[ _]?d|d ?loss|d[ /](?:total|loss)|discriminator|critic|errd",
    r".*",
)
_MAX_KEY_LENGTH = 120
ETA = "eta"
"""The Greek letter that papers write the learning rate with, and what is left of the time."""
_MOST_RATE = 0.1
_RATE = re.compile(r"0?\.0\d{3,}|\d(?:\.\d+)?[eE]-\d+|0(?:\.0+)?[eE][-+]?0+")
_STAGE = 10
"""Doubt of a key that only stands in for a loss."""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a key."""

    kind: Kind
    name: str
    """Canonical name of the signal; else the key."""
    doubt: int = 0
    """0: known as it is; more: guessed."""


def bare_split(key: str) -> Meaning | None:
    """Return what a value is that is named by its data alone: `train 2.5`, `test: 2.6`."""
    if key in TRAINING_SETS or key == "learn":
        return Meaning("signal", "loss", _STAGE + 2)
    held_out = join_held_out(key) in _HELD_OUT_KEYS
    return Meaning("signal", "val_loss", _STAGE + 2) if held_out else None


def are_rates(values: NDArray[np.float64]) -> bool:
    """Whether what is called eta is a learning rate, and not the time that is left.

    By its values: all within 0 to 0.1 and not all 0; NaN and Inf do not count.
    """
    values = values[np.isfinite(values)]
    return bool(len(values)) and values.min() >= 0 and 0 < values.max() <= _MOST_RATE


def written_as_rate(text: str) -> bool:
    """Whether a number is written as a learning rate is, and a time in no unit is not.

    Example:
        >>> [written_as_rate(x) for x in ("3.00e-04", "0.000300", "0.25", "12.5")]
        [True, True, False, False]
    """
    return _RATE.fullmatch(text) is not None


def is_bare(doubt: int) -> bool:
    """Whether a key of so much doubt was named by its data alone, see `bare_split`."""
    return doubt >= _STAGE + 2


MEAN_NOTE = (
    "the loss is {key!r}, a mean over records before: a sudden change looks smaller and later"
)


def names_mean(key: str) -> bool:
    """Whether a key says that its values are running means."""
    return not _MEANS.isdisjoint(re.split(r"[\W_]+", key.lower()))


def is_adversarial(key: str) -> bool:
    """Whether a key names the loss of one of two nets that drive each other's up."""
    return normalise(key) in ("g", "d") or _ADVERSARIAL.fullmatch(normalise(key)) is not None


def counts_episodes(keys: Iterable[str], *, has_loss: bool) -> bool:
    """Whether one of the counts of a row is of an agent's episodes.

    `ep` is one only where no loss is logged: beside a loss it may be an epoch.
    """
    words = [normalise(key).removesuffix(" id").split() for key in keys]
    return any(
        len(w) <= 2 and (w[-1:] in (["episode"], ["episodes"]) or (w == ["ep"] and not has_loss))
        for w in words
    )


def score_place(key: str) -> int | None:
    """Return a rank of a key that is an agent's return beside an episode; None for another key.

    Example:
        >>> score_place("Score"), score_place("total prey reward"), score_place("best score")
        (0, 9, None)
    """
    text = normalise(key)
    if text in SCORE_KEYS:
        return SCORE_KEYS.index(text)
    return len(SCORE_KEYS) if is_mean_score(text) else None


def is_method(key: str) -> bool:
    """Whether a key is the name of a method of self-supervised training.

    Example:
        >>> is_method("train/simsiam"), is_method("moco_momentum")
        (True, False)
    """
    leaf = normalise(key).rpartition("/")[2]
    words = [w for w in leaf.split() if w not in TRAINING_SETS and w != "loss"]
    return " ".join(words) in _METHODS


def is_held_out(text: str) -> bool:
    """Whether a piece of text is about validation data."""
    return not _HELD_OUT.isdisjoint(_words_of(text)) or _OF_OTHERS.search(text) is not None


def _is_held_out_key(text: str) -> bool:
    return not _HELD_OUT_KEYS.isdisjoint(_words_of(text))


def _words_of(text: str) -> list[str]:
    return re.split(r"[\W\d]+", join_held_out(text))


def announces(line: str) -> bool:
    """Whether a line without a number says that an evaluation begins.

    Example:
        >>> announces("testing in eval mode ..."), announces("Now continue training")
        (True, False)
    """
    return len(line) <= _MAX_ANNOUNCING and _ANNOUNCES.search(line) is not None


def is_whole(key: str) -> bool:
    """Whether a key names the sum of what stands beside it."""
    return normalise(key) in ("total", "tot", "sum")


def is_part(key: str) -> bool:
    """Whether a key names a part of a loss by itself: `box`, `cls`, `kl`."""
    words = set(normalise(key).split())
    return bool(words) and words <= _PARTS | _SIDE | _OTHER_PARTS | {"loss"}


def without_trailing(text: str) -> str:
    """Return a key without the words between it and its value: `so far is`, `this epoch`."""
    while (shorter := _TRAILING.sub("", text)) != text:
        text = shorter
    return text


def without_number_word(text: str) -> str:
    """Return the name of a count without the word that says so: `epoch nr`, `iteration #`.

    Example:
        >>> without_number_word("epoch nr."), without_number_word("loss no.")
        ('epoch', 'loss no.')
    """
    return _NUMBER_WORD.sub(r"\g<what>", text)


def is_of_critic(key: str) -> bool:
    """Whether a loss is that of an adversary or a shared layer, not of the net that is trained."""
    return not _CRITIC.isdisjoint(re.split(r"[\W_]+", key.lower()))


@lru_cache(maxsize=8192)
def meaning(key: str) -> Meaning | None:
    """Return what a key means, None for one that is of no use.

    Example:
        >>> meaning("completed step"), meaning("best loss")
        (Meaning(kind='step', name='step', doubt=1), None)
    """
    text = normalise(key)
    if _FILE_NAME.search(text):
        return None
    text = without_number_word(text)
    aside = _ASIDE.search(text) if len(text) <= _MAX_KEY_LENGTH else None
    if aside is not None and _exact(text) is None:
        # A mean by what stands behind it reads as a mean by its name.
        found = meaning(f"{text[: aside.start()]}{text[aside.end() :]}".strip())
        return found if found is None else replace(found, doubt=found.doubt + 1)
    if "rank" in text and text not in _RANK_KEYS:
        text = _RANK_PART.sub("", text).strip()
    text = without_trailing(text)
    if (on_set := _ON_SET.fullmatch(text)) is not None:
        text = f"{on_set['set']} {on_set['what']}"
    words = text.split()
    if not words or len(text) > 60:
        return None
    if "ema" in text and said_by_words(text) == "ema_loss":
        return Meaning("signal", "ema_loss", 1)
    # Leading words are dropped, not trailing ones: names qualify in front (`completed step`).
    for start in range(min(len(words), 5)):
        # `best loss` is not the loss of this step, whatever stands in front of it.
        if start and words[start - 1] in _NO_MEASUREMENT:
            break
        found = _exact(" ".join(words[start:]))
        if found is None or (start and _is_of_domain(found)):
            continue
        if found.name in _OF_THE_WHOLE and not _WHOLE.issuperset(words[:start]):
            break
        # `cls loss` is known by its last word only: the others say whether it is a part.
        if start and found.name == "loss":
            return _guessed_loss(text)
        if start and words[-1] in _VAGUE and len(words) - start == 1:
            break
        return replace(found, doubt=found.doubt + (1 if start else 0))
    if "." in text.strip("."):
        text = text.strip(".")
        found = _exact(text.replace(".", " "))
        if found is not None:
            return found
        text = text.replace(".", "/")
    leaf = text.rpartition("/")[2]
    if leaf != text and leaf not in _VAGUE and _NO_MEASUREMENT.isdisjoint(re.split(r"[ /]", text)):
        found = _exact(leaf)
        if found is not None and found.kind == "step" and _TIMES.search(text[: -len(leaf)]):
            return None
        if found is not None and found.kind in ("signal", "epoch", "step"):
            return _of_path(text, found)
    return _guessed_loss(text)


_NO_LOSS = frozenset({"policy_kl", "value_loss", "aux_loss", "router_z_loss"})
"""Signals that a path such as `actor/kl_loss` names, and that never are the loss of a run."""


def _is_of_domain(found: Meaning) -> bool:
    """Whether it is a signal of one kind of training: `entropy` behind other words may be any."""
    return found.kind == "signal" and bool(SIGNAL_BY_NAME[found.name].domain)


def _exact(text: str) -> Meaning | None:
    text = _SQUEEZED_STEPS.get(text, text)
    if text in STEP_KEYS:
        # From there on the names are short or count batches of an epoch.
        doubt = 0 if STEP_KEYS.index(text) < STEP_KEYS.index("up.") else 1
        return Meaning("step", text, doubt)
    if text in _EPOCH_KEYS:
        return Meaning("epoch", "epoch")
    if text in _RANK_KEYS:
        return Meaning("rank", "rank")
    name = canonical(text)
    if name is None:
        return None
    # A part of a loss goes on being one, which may stand in for the loss in text.
    is_part = "loss" in text or _ADVERSARIAL.fullmatch(text) is not None
    if SIGNAL_BY_NAME[name].domain and is_part and not ("/" in text and name in _NO_LOSS):
        return None
    return Meaning("signal", name)


def _of_path(text: str, found: Meaning) -> Meaning | None:
    if found.name != "loss":
        return None if _is_held_out_key(text) else replace(found, doubt=found.doubt + 1)
    return Meaning("signal", "val_loss" if _is_held_out_key(text) else "loss", 2)


def _guessed_loss(text: str) -> Meaning | None:
    """Read a key as a loss by the words in it."""
    words = [w for w in re.split(r"[\s/.:()]+", text) if w]
    losses = [w for w in words if "loss" in w and not w.startswith("lossz")]
    if losses and not _NO_MEASUREMENT.intersection(words) - {"total", "aux"}:
        if _is_held_out_key(text):
            return Meaning("signal", "val_loss", 2)
        mean = not _MEANS.isdisjoint(words)
        plain = not (TRAINING_SETS | {"lm"}).isdisjoint(words)
        known = mean or plain or words[-1] in losses
        if not known or not (_SIDE | _PARTS).isdisjoint(words):
            return Meaning("signal", "loss", 5)
        # A loss of this record goes before a running mean, one that says train before all others.
        return Meaning("signal", "loss", 2 if mean and plain else 4 if mean else 1 if plain else 3)
    if _ADVERSARIAL.fullmatch(text) and not _is_held_out_key(text):
        # The generator's whole loss is what is trained for; its parts and the critic stand in.
        rank = next(i for i, p in enumerate(_ADVERSARIAL_ORDER) if re.fullmatch(p, text))
        return Meaning("signal", "loss", _STAGE + rank)
    if _L_WORD.fullmatch(text):
        return Meaning("signal", "loss", _STAGE - 1)
    if any(w.startswith("crossentropy") for w in words):
        words = [*words, "crossentropy"]
    held_out = _is_held_out_key(text)
    # `mse_train` is `train_mse`; which data it is of is asked of the whole name.
    while len(words) > 1 and words[-1] in TRAINING_SETS | _HELD_OUT_KEYS:
        text, words = text[: text.rindex(words[-1])].rstrip(" /"), words[:-1]
    joined = "_" + re.sub(r"[\s\-/]", "_", text)
    if is_method(text):
        return Meaning("signal", "val_loss" if held_out else "loss", _STAGE)
    stand_in = any(joined.endswith(f"_{s}") for s in _STAND_INS) or words[-1:] == ["crossentropy"]
    if stand_in and not _NO_MEASUREMENT.intersection(words):
        if not held_out:
            # A detector's loss of the boxes goes behind that of the classes beside it.
            return Meaning("signal", "loss", _STAGE + words[-1].endswith("l1"))
        if words[-1] not in ("bpb", "bpc"):  # in bits: no validation loss beside a loss in nats
            return Meaning("signal", "val_loss", _STAGE)
    return None


UNIT_FACTORS: Mapping[str, float] = {
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "B": 1e9,
    "G": 1e9,
    "T": 1e12,
    "us": 1e-6,
    "ms": 1e-3,
    "msec": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
"""Suffixes of numbers that scale them."""
