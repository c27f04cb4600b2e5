"""The signal that a tag means, for loggers whose tags are paths: `optim/lr`, `valid/lm loss`.

A tag that the vocabulary knows as a whole has that meaning. Otherwise its last part decides, with
the path as context: under `eval/` a loss is a validation loss. Words that mean something only at
the top level (`norm`, `scale`) are not trusted below an unknown path. Words for a logging interval
or for averaging (`train_loss_batch`, `loss_avg`) change no meaning. `lm loss vs samples` is the
same series on another axis and is never taken.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.given_columns import AXES, given_meaning
from trimtab.readers.summands import summands
from trimtab.record import HELD_OUT
from trimtab.said_by_words import HELD_OUT_SETS, LOSS_FUNCTIONS, TRAINING_SETS
from trimtab.vocabulary import canonical, normalise

__all__ = [
    "OF_A_TOTAL",
    "choose_tags",
    "distilled_beside",
    "held_out_merit",
    "is_called_total",
    "is_of_an_agent",
    "is_of_entropy",
    "is_of_nets",
    "is_validation_word",
    "might_be_loss",
    "names_whole_loss",
    "of_training",
    "parts_of",
    "parts_of_total",
    "set_of_tag",
    "sets_of",
    "signal_of_tag",
    "stand_in_rank",
    "stands_still",
    "tag_of_file",
    "terms_of",
    "total_of",
]

_VALIDATION = re.compile(rf"(?:{'|'.join(sorted(HELD_OUT_SETS))})(?:\d*)$")
_SETTINGS = frozenset({"config", "hparams", "hyperparameters", "args", "cfg", "params", "settings"})
"""Words of a path that holds the settings of a run."""
_TRAIN = frozenset(
    {"train", "training", "trainer", "metrics", "optim", "optimizer", "stats", "global"}
)
_NO_MEANING = frozenset({"batch", "step", "iter", "iteration", "avg", "mean", "micro"})
_EXPORTED = re.compile(r"^.+ - (?=\S)")
"""What W&B's CSV export puts before a key: the name of the run."""
_UNSAYING = re.compile(r"/main/", re.IGNORECASE)
"""Part of a path that says nothing: `validation/main/bleu`, as Chainer calls its optimizer."""
_SUFFIX = re.compile(r"(?:\.(?:[ct]sv|txt|jsonl?|np[yz]|gz|zst|xz|bz2))+$", re.IGNORECASE)
"""What a file is called behind its name."""
_RANK_PART = re.compile(
    r"[/_.@ -]?[(\[]?\b(?:global[ _]?|local[ _]?)?rank[ _:=#-]?\d+\b[)\]]?[/_.]?"
    r"|[/_.@ -](?:global[ _]?|local[ _]?)?rank[ _:=#-]?\d+(?=$|[/_.])",
    re.IGNORECASE,
)
"""The rank in a tag: `loss_rank0`, `rank_3/loss`, `loss (rank 1)`."""
_GRADIENT = frozenset({"grad", "grads", "gradient", "gradients"})
_NORM = frozenset({"norm", "norms", "l2", "gnorm", "l2norm"})
_OF_ALL = frozenset(
    [
        "total",
        "global",
        "train",
        "training",
        "all",
        "avg",
        "average",
        "mean",
        "l2",
        "model",
        "raw",
        "overall",
        "params",
        "parameters",
        "unclipped",
        "preclip",
        "before",
        "clip",
        "clipping",
        "pre",
        "optim",
        "optimizer",
        "trainer",
        "step",
        "the",
        "of",
        "and",
        "2",
        "0",
    ]
)
"""Words around a gradient norm that leave it the norm of all gradients before clipping."""
_NUMBERED_LAYER = re.compile(r"norms?/\d+$", re.IGNORECASE)
"""`grad_norm/0` is that of a layer, `grad_2.0_norm` that of the whole."""
_EXPORTED_BOUND = re.compile(r"__(?:MIN|MAX)$")
_TOP_LEVEL_ONLY = frozenset({"norm", "gn", "scale", "clip", "tokens", "clipped", "step"})
_OF_A_CODEBOOK = frozenset({"codebook", "quantize", "quantizer", "vq"})
"""Words of a path below which a perplexity says how many codes are in use."""
_NO_DISTANCE = frozenset({"actor", "policy", "pi", "pg", "surrogate", "entropy", "kl"})
"""Words of losses that measure no distance to a target: they may rise while all is well."""
_ENTROPY = re.compile(r"(?:loss)?(?:entropy|ent)(?:loss|bonus|reg)?")
_OF_CRITIC = frozenset({"critic", "value", "vf"})
_LONGEST_SET_KEY = 80
_LEAST_SETS = 2
_MOST_SETS = 64
_SPLIT = r"(?P<split>train|training|val|valid|validation|eval|test|dev|heldout)"
_SET = r"(?P<set>[A-Za-z0-9][\w.-]{0,40})"
_SET_KEYS = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        rf"(?:{_SPLIT}[/_])?loss/{_SET}",
        rf"{_SPLIT}/{_SET}/loss",
        rf"(?P<split>val|valid|validation|eval)[/_]loss_{_SET}",
        rf"(?P<split>val|valid|validation|eval|dev)[_/]{_SET}_loss",
        rf"{_SET}/(?P<split>val|valid|validation|eval)_loss",
    )
)
"""How the loss of one data set is called: `loss/code`, `val/books/loss`, `eval_c4_loss` (HF)."""
_NO_SET = frozenset(
    [
        "actor",
        "adv",
        "adversarial",
        "all",
        "aux",
        "auxiliary",
        "average",
        "avg",
        "balance",
        "balancing",
        "batch",
        "bbox",
        "bce",
        "best",
        "box",
        "byol",
        "ce",
        "chosen",
        "class",
        "clip",
        "clm",
        "cls",
        "codebook",
        "coef",
        "commit",
        "commitment",
        "contrastive",
        "critic",
        "cross",
        "current",
        "d",
        "decay",
        "dfl",
        "dice",
        "dino",
        "disc",
        "discriminator",
        "distill",
        "distillation",
        "dpo",
        "ema",
        "entropy",
        "epoch",
        "fake",
        "feature",
        "fm",
        "focal",
        "g",
        "gan",
        "gen",
        "generator",
        "giou",
        "gp",
        "gpu",
        "h",
        "head",
        "huber",
        "i",
        "ibot",
        "iou",
        "itc",
        "iter",
        "itm",
        "j",
        "kd",
        "kl",
        "koleo",
        "l1",
        "l2",
        "last",
        "layer",
        "lm",
        "load",
        "loss",
        "lpips",
        "mae",
        "main",
        "mask",
        "max",
        "mean",
        "median",
        "mel",
        "min",
        "mlm",
        "moving",
        "mse",
        "mtp",
        "nll",
        "norm",
        "obj",
        "objectness",
        "other",
        "penalty",
        "perceptual",
        "pg",
        "pi",
        "policy",
        "posterior",
        "prior",
        "q",
        "rank",
        "real",
        "rec",
        "recon",
        "reconstruction",
        "reg",
        "regression",
        "rejected",
        "reward",
        "roi",
        "router",
        "rpn",
        "running",
        "scale",
        "scaled",
        "seg",
        "sft",
        "smooth",
        "smoothed",
        "ssl",
        "stage",
        "std",
        "step",
        "student",
        "sum",
        "surrogate",
        "task",
        "td",
        "teacher",
        "total",
        "train",
        "training",
        "v",
        "value",
        "var",
        "vf",
        "vq",
        "wd",
        "weight",
        "worker",
        "xent",
        "z",
    ]
)
"""Words of what is added up to a loss, or of how it is averaged; never the name of a data set."""
_PART_KEY = re.compile(
    r"(?:train(?:ing)?[/ ])?(?:loss[ /](?P<behind>[\w.-]+(?: [\w.-]+){0,2})"
    r"|(?P<front>[\w.-]+(?: [\w.-]+){0,2}) loss)"
)
"""How a part of a total loss is called, normalised: `loss_digit`, `depth_loss`."""
_TERMS = frozenset(
    [
        "bbox",
        "bce",
        "box",
        "ce",
        "class",
        "cls",
        "dfl",
        "dice",
        "focal",
        "giou",
        "head",
        "huber",
        "iou",
        "itc",
        "itm",
        "l1",
        "mae",
        "mask",
        "mel",
        "mlm",
        "mse",
        "nll",
        "obj",
        "objectness",
        "regression",
        "roi",
        "rpn",
        "seg",
        "xent",
    ]
)
"""Words of terms that fall as the model learns, where they stand beside each other."""
_MEASURES = frozenset({"bce", "ce", "huber", "l1", "mae", "mse", "nll", "xent"})
"""Those of them that a loss is counted with, so that they may as well name a metric."""
_OF_BOXES, _REGRESSION = frozenset({"bbox", "box", "roi", "rpn"}), frozenset({"reg"})
OF_A_TOTAL = frozenset(
    {"aux_loss", "latent_kl", "policy_kl", "recon_loss", "router_z_loss", "policy_entropy"}
)
"""Signals that may be added to a total, beside its parts without a signal."""
_DISTILLED = frozenset({"kd", "distill", "distil", "distillation"})
_OF_FEATURES = frozenset(
    {"hint", "hints", "ce", "hard", "soft", "feat", "feats", "feature", "attn"}
)
"""What a student learns beside the answers of its teacher, where those stand beside it."""
_NOT_FALLING = frozenset(
    [
        "actor",
        "adv",
        "adversarial",
        "critic",
        "d",
        "disc",
        "discriminator",
        "fake",
        "g",
        "gan",
        "gen",
        "generator",
        "pg",
        "pi",
        "policy",
        "q",
        "real",
        "surrogate",
        "td",
        "v",
        "value",
        "vf",
    ]
)
"""Words of losses of nets against each other, and of an agent."""
_NO_PART = frozenset(
    [
        "cur",
        "raw",
        "local",
        "global",
        "interval",
        "target",
        "init",
        "initial",
        "final",
        "log",
        "window",
        "lowest",
        "prev",
        "previous",
        "per",
        "token",
        "tokens",
        "sample",
        "samples",
        "seq",
        "scaled",
        "unscaled",
        "this",
        "new",
        "old",
        "first",
        "time",
        "diff",
        "delta",
        "raw",
    ]
)
"""Words of another way to print the total."""
_OF_AN_AGENT = frozenset({"actor", "critic", "policy", "pi", "pg", "surrogate"})
"""Words of losses of reinforcement learning, whose targets move with what is learned."""
_NOT_A_TRAIN_LOSS = ("scale", "best", "min", "max", "aux", "ema", "weight", "coef", "lr", "std")


_OF_SET = re.compile(
    r"\b((?:[Tt]rain|[Vv]al(?:id)?|[Tt]est|[Ee]val|[Hh]oldout)(?:ing|ation)?)([A-Z])"
)
"""Where the name of a set ends in a name of one word: `ValidLogloss`."""


def _words(text: str) -> list[str]:
    return [w for w in re.split(r"[^a-z0-9]+", normalise(_OF_SET.sub(r"\1_\2", text))) if w]


def _is_no_series(tag: str) -> bool:
    """Whether a tag repeats a series on another axis, bounds one, or is a run's final figure."""
    other_axis = " vs " in normalise(tag) or not _SETTINGS.isdisjoint(tag.lower().split("/")[:-1])
    return other_axis or bool(_EXPORTED_BOUND.search(tag)) or tag.startswith("hparam/")


def is_validation_word(word: str) -> bool:
    """Whether a word, such as the name of a directory, says that what it holds is validation."""
    return _VALIDATION.match(word.lower()) is not None


def signal_of_tag(tag: str) -> str | None:
    """Return the canonical name of the signal that a tag means, None where nobody knows.

    Example:
        >>> [signal_of_tag(t) for t in ("lm-loss-training/lm loss", "val/lm loss", "h.3/norm")]
        ['loss', 'val_loss', None]
    """
    given = given_meaning(tag)
    if given is not None:
        return None if given in AXES else given
    if _is_no_series(tag):
        return None
    tag = _EXPORTED.sub("", tag)
    if "rank" in tag.lower():
        # Ranks log the same signals under names of their own.
        tag = _RANK_PART.sub("", tag).strip("/_. ") or tag
    tag = _UNSAYING.sub("/", tag)
    name = canonical(tag)
    if name is not None:
        return name
    # Some loggers join a path by dots; with slashes a dot belongs to the name (`top.1`).
    if "." in tag and "/" not in tag:
        tag = tag.replace(".", "/")
        name = canonical(tag)
        if name is not None:
            return name
    if _is_grad_norm(tag):
        return "grad_norm"
    path, _, last = tag.rpartition("/")
    words = _words(last)
    kept = " ".join(w for w in words if not _VALIDATION.match(w) and w not in _NO_MEANING)
    # Before the plain meaning: `val/loss` ends in a word that means the training loss.
    if any(_VALIDATION.match(w) for w in [*_words(path), *words]):
        # Keras calls the loss of an epoch `epoch_loss`, here as in training.
        return "val_loss" if canonical(kept.removeprefix("epoch ")) == "loss" else None
    name = canonical(last) or canonical(kept)
    if name == "perplexity" and not _OF_A_CODEBOOK.isdisjoint(_words(path)):
        return None
    is_vague = normalise(last) in _TOP_LEVEL_ONLY or kept in _TOP_LEVEL_ONLY
    return None if is_vague and not _TRAIN.issuperset(_words(path)) else name


def sets_of(tags: Iterable[str]) -> dict[str, str]:
    """Return `loss/SET` or `val_loss/SET` -> tag, of data sets logged apart.

    One training set alone is not told from a part of the loss, so there must be two; 64 at most.
    """
    named = {name: tag for tag in tags if (name := set_of_tag(tag)) is not None}
    trained = [name for name in named if name.startswith("loss/")]
    if len(trained) < _LEAST_SETS:
        named = {name: tag for name, tag in named.items() if name not in trained}
    return dict(sorted(named.items())[:_MOST_SETS])


def parts_of(
    tags: Iterable[str], whole: str, values: Mapping[str, NDArray[np.float64]] | None = None
) -> dict[str, str]:
    """Return `loss/PART` -> tag, of the parts of a loss that stand beside their total.

    Two by their names at least, tasks (`digit`) or kinds of terms (`cls`, `bbox`), or those that
    the total is made of by arithmetic; 64 at most. Names of what need not fall (`kl`, `aux`) are
    none, nor is a term beside losses of nets against each other, or of an agent.

    Args:
        tags: As logged.
        whole: That of the total.
        values: Of the tags, float64 [n] each with NaN where there is none; None: not known.

    Example:
        >>> parts_of(("total_loss", "loss_digit", "depth_loss", "loss_avg"), "total_loss")
        {'loss/depth': 'depth_loss', 'loss/digit': 'loss_digit'}
        >>> parts_of(("loss", "loss_cls", "loss_bbox", "loss_kl"), "loss")
        {'loss/bbox': 'loss_bbox', 'loss/cls': 'loss_cls'}
    """
    if signal_of_tag(whole) != "loss":
        return _terms_beside(tags, whole)
    tags = list(tags)
    names = {
        tag: name
        for tag in tags
        if (name := _name_of_part(tag))
        and tag != whole
        and not signal_of_tag(tag)
        and not set_of_tag(tag)
    }
    tasks = {t for t, n in names.items() if _part_words(n).isdisjoint(_NO_SET | _NO_PART)}
    named = tasks | _terms_among(names, tags)
    # What a loss is counted with may be a metric: it needs a term that is none.
    if all(_part_words(names[tag]) <= _MEASURES for tag in named):
        named = set()
    named = named if len(named) >= _LEAST_SETS else set()
    if values is not None and whole in values:
        named |= _by_arithmetic(names, tags, whole, values)
    found = dict[str, str]()
    for tag in names:
        if tag in named:
            found.setdefault(f"loss/{names[tag].replace(' ', '_')}", tag)
    return dict(sorted(found.items())[:_MOST_SETS])


def _terms_among(names: Mapping[str, str], tags: Iterable[str]) -> set[str]:
    """Return the tags of terms by their names that fall as the model learns."""
    if is_of_nets(t for t in tags if "loss" in t.lower()):
        return set()
    words = {tag: _part_words(name) for tag, name in names.items()}
    two_stages = any("rpn" in w for w in words.values())
    return {
        tag
        for tag, named in words.items()
        # `box_reg` is a regression, `reg` may be a regularizer.
        if (named - _REGRESSION if named & _OF_BOXES else named).isdisjoint(
            (_NO_SET - _TERMS) | _NO_PART
        )
        # The boxes of a second stage are counted over more and more proposals that hit.
        and not (two_stages and named & _OF_BOXES and "rpn" not in named)
    }


def _by_arithmetic(
    names: Mapping[str, str],
    tags: Sequence[str],
    whole: str,
    values: Mapping[str, NDArray[np.float64]],
) -> set[str]:
    """Return the tags of terms that the total is made of, with other losses or without."""
    falling = _terms_among(names, tags)
    if not falling:
        return set()
    others = {
        tag: values[tag]
        for tag in tags
        if tag in names or (tag != whole and signal_of_tag(tag) in OF_A_TOTAL)
    }
    return falling & summands(values[whole], others)


def _terms_beside(tags: Iterable[str], first: str) -> dict[str, str]:
    """Return `loss/TERM` -> tag, of the terms beside one that stands in for a total nobody logs.

    Nothing beside losses of nets against each other, or of an agent: those need not fall.
    """
    named = {tag: name for tag in {*tags, first} if (name := _name_of_part(tag))}
    if first not in named or any(_part_words(n) & _NOT_FALLING for n in named.values()):
        return {}
    terms = {
        f"loss/{name.replace(' ', '_')}": tag
        for tag, name in sorted(named.items())
        if tag != first and _part_words(name).isdisjoint((_NO_SET - _TERMS) | _NO_PART)
    }
    return dict(sorted(terms.items())[:_MOST_SETS])


def distilled_beside(loss: str, keys: Iterable[str]) -> dict[str, str]:
    """Return `loss/TERM` -> key of the terms of a distillation, by their names alone.

    Example:
        >>> distilled_beside("ce", ["kd", "hint", "lr"])
        {'loss/kd': 'kd', 'loss/hint': 'hint'}
        >>> distilled_beside("ce", ["hint"])
        {}
    """
    named = {k: frozenset(_words(k)) - TRAINING_SETS for k in keys if k != loss}
    from_teacher = any(words <= _DISTILLED and words for words in named.values())
    if not from_teacher and not frozenset(_words(loss)) & _DISTILLED:
        return {}
    terms = {k: w for k, w in named.items() if len(w) == 1 and w <= _DISTILLED | _OF_FEATURES}
    return {f"loss/{next(iter(words))}": key for key, words in terms.items()}


def _name_of_part(tag: str) -> str:
    """Return what a key calls a part of a loss, "" where it names none, or a held-out one."""
    found = _PART_KEY.fullmatch(normalise(tag)) if len(tag) <= _LONGEST_SET_KEY else None
    name = found["behind"] or found["front"] if found is not None else ""
    words = _part_words(name)
    held_out = any(map(_VALIDATION.match, words))
    return "" if held_out or all(w.isdigit() for w in words) else name


def _part_words(name: str) -> set[str]:
    return {w.rstrip("0123456789") or w for w in _words(name)}


def set_of_tag(tag: str) -> str | None:
    """Return `loss/SET` or `val_loss/SET` for the loss of one data set of several; None otherwise.

    Parts of a loss (`loss/kl`) are no data sets: they need not fall together.

    Example:
        >>> [set_of_tag(t) for t in ("loss/code", "eval_c4_loss", "val/books/loss", "loss/kl")]
        ['loss/code', 'val_loss/c4', 'val_loss/books', None]
    """
    if "loss" not in tag.lower() or len(tag) > _LONGEST_SET_KEY or _is_no_series(tag):
        return None
    found = next((m for p in _SET_KEYS if (m := p.fullmatch(tag))), None)
    if found is None:
        return None
    held_out, name = found["split"] or "", found["set"]
    words = [w.rstrip("0123456789") or w for w in _words(name)]
    if not words or not _NO_SET.isdisjoint(words) or all(_VALIDATION.match(w) for w in words):
        return None
    if not held_out and any(_VALIDATION.match(w) for w in words):
        return None
    if all(w.isdigit() for w in words) or (canonical(name) is not None):
        return None
    return ("val_loss/" if _VALIDATION.match(held_out.lower()) else "loss/") + name


def _is_grad_norm(tag: str) -> bool:
    """Whether words say that a tag is the norm of all gradients, as `train/total_gradient_norm`."""
    words = set(_words(tag))
    if _NUMBERED_LAYER.search(tag):
        return False
    joined = words & {"gradnorm", "gnorm"}
    named = bool(joined) or (not words.isdisjoint(_GRADIENT) and not words.isdisjoint(_NORM))
    return named and (words - joined) <= (_GRADIENT | _NORM | _OF_ALL)


def tag_of_file(path: Path) -> str:
    """Return the tag that the name of a file with one metric is, "" where it names no signal.

    Example:
        >>> tag_of_file(Path("run-a-tag-train_loss.csv")), tag_of_file(Path("results.csv"))
        ('train_loss', '')
    """
    # TensorBoard's download is called run-NAME-tag-TAG.csv; either of the two may have a point.
    _, mark, whole = _SUFFIX.sub("", path.name).rpartition("tag-")
    begin = whole.partition(".")[0]
    for tag in dict.fromkeys((whole, begin) if mark else (begin,)):
        # File names have no slash; the first underscore may stand for it.
        for text in (tag, tag.replace("_", "/", 1)):
            if signal_of_tag(text) is not None or might_be_loss(text):
                return text
    return ""


def might_be_loss(tag: str) -> bool:
    """Whether a tag that no alias knows may be a training loss."""
    key = _EXPORTED.sub("", tag)
    words = _words(key if "loss" in key.lower() else tag)
    if _is_no_series(tag) or any(_VALIDATION.match(w) or w in _NOT_A_TRAIN_LOSS for w in words):
        return False
    return any("loss" in w for w in words) or not LOSS_FUNCTIONS.isdisjoint(words)


def validation_beside(loss: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that name on held-out data what a key names of training, in their order.

    Example:
        >>> validation_beside("training/ce", ["training/ce", "validation/ce", "validation/acc"])
        ['validation/ce']
        >>> validation_beside("train/box_loss", ["val/cls_loss", "val/box_loss"])
        ['val/box_loss']
        >>> validation_beside("train_mse", ["val_rmse", "val_r2"])
        ['val_rmse']
        >>> validation_beside("bpr_loss", ["val_bpr", "val_ndcg"])
        ['val_bpr']
    """
    what = [w for w in _words(loss) if w not in TRAINING_SETS]
    named = {key: trained_beside(key).split("/") for key in keys}
    same = [key for key, words in named.items() if what and words == what]
    if not same and "loss" in what:
        # `bpr_loss` in training may be `val_bpr`.
        net = [w for w in what if w != "loss"]
        same = [key for key, words in named.items() if net and words == net]
    # With no other loss on held-out data, what it is counted with there: `val_rmse`.
    return (
        same or sorted(key for key, words in named.items() if LOSS_FUNCTIONS.issuperset(words))[:1]
    )


def trained_beside(key: str) -> str:
    """Return what a key of held-out data names, without saying so; empty for another key.

    Example:
        >>> trained_beside("val/box_loss"), trained_beside("train/box_loss")
        ('box/loss', '')
    """
    words = _words(key)
    rest = [w for w in words if not _VALIDATION.match(w)]
    return "/".join(rest) if len(words) == len(rest) + 1 else ""


def choose_tags(
    values: Mapping[str, NDArray[np.float64]],
) -> tuple[dict[str, str], list[str]]:
    """Return canonical name -> tag for the best tag of each signal, and notes on the choice.

    Of several tags for one signal the one with most values is taken (NaN counts for less than any
    number), of equals one that the vocabulary knows as a whole, then the shortest. For held-out
    signals the name goes before the number (`held_out_merit`): a mean over a validation set says
    more than its batches.
    With no training loss by name, a tag that might be one stands in: one that says train or total
    first.
    """
    found: dict[str, list[str]] = {}
    for tag in values:
        name = signal_of_tag(tag)
        if name is not None:
            found.setdefault(name, []).append(tag)
    notes: list[str] = []
    if "loss" not in found:
        stand_ins = sorted(
            (t for t in values if might_be_loss(t)),
            key=lambda t: (*stand_in_rank(t)[:3], stands_still(values[t]), stand_in_rank(t)),
        )
        whole = total_of(values, stand_ins)
        if whole or stand_ins:
            found["loss"] = [whole or stand_ins[0]]
            notes.append(f"no tag is called a training loss; {found['loss'][0]!r} is taken for it")
    if "val_loss" not in found and "loss" in found:
        beside = validation_beside(
            found["loss"][0], (t for t in values if signal_of_tag(t) is None)
        )
        found |= {"val_loss": beside} if beside else {}
    chosen: dict[str, str] = sets_of(values)
    for name, tags in found.items():
        given = [tag for tag in tags if given_meaning(tag) == name]
        best = max(given or tags, key=partial(_rank_of, values, name))
        chosen[name] = best
        if name == "loss":
            chosen |= parts_of(values, best, values)
        if len(tags) > 1:
            notes.append(f"{name} is read from {best!r}; left out: {_some(tags, best)}")
    return chosen, notes


def _rank_of(values: Mapping[str, NDArray[np.float64]], name: str, tag: str) -> tuple[int, ...]:
    # Not numbers alone: of two series with as many, the one that also logged its NaN says more.
    fullness = 2 * int(np.isfinite(values[tag]).sum()) + len(values[tag])
    known = int(canonical(tag) is not None)
    if name == "val_loss":
        return (known, *held_out_merit(tag, values[tag]), fullness, -len(tag))
    merit = held_out_merit(tag, values[tag]) if name in HELD_OUT else ()
    return (*merit, fullness, known, -len(tag))


def held_out_merit(key: str, values: NDArray[np.float64]) -> tuple[bool, bool, bool]:
    """Return a sort key for several keys of one held-out signal; the greatest is read.

    One that names a set goes before one that may be of training, one that moves before a constant,
    as a final result repeated in each row is, and validation before a test set, which is no part of
    the training.

    Args:
        key: As logged.
        values: float64 [n], those that are logged.

    Example:
        >>> one, two = np.array([0.5, 0.4]), np.array([0.3, 0.3])
        >>> max(("test_loss", two), ("val_loss", one), key=lambda s: held_out_merit(*s))[0]
        'val_loss'
    """
    words = _words(key)
    sets = [w for w in words if _VALIDATION.match(w)]
    finite = values[np.isfinite(values)]
    return bool(sets), bool(len(finite) and np.ptp(finite) > 0), sets != [] and "test" not in sets


def terms_of(keys: Mapping[str, str]) -> list[str]:
    """Return the keys of the parts of a loss among those of all signals."""
    return [key for name, key in keys.items() if name.startswith("loss/")]


def stand_in_rank(tag: str) -> tuple[bool, int, int, int, str]:
    """Return a sort key for tags that might be a loss; it does not rest on their order.

    Train and total first, those of a policy behind them, then those of a critic, whose targets
    move; an entropy last of all: it is a bonus.
    """
    words = _words(tag)
    order = [
        "train" in words and "loss" in words,
        "total" in words or "loss" in words,
        any(w.startswith("train") for w in words),
    ]
    place = next((i for i, holds in enumerate(order) if holds), len(order))
    of_critic = not _OF_CRITIC.isdisjoint(words)
    of_agent = 2 if of_critic else int(not _NO_DISTANCE.isdisjoint(words))
    return is_of_entropy(tag), place, of_agent, len(tag), tag


def total_of(values: Mapping[str, NDArray[np.float64]], parts: Collection[str]) -> str:
    """Return the key that is called a total, of nothing named, and is the sum of some losses.

    Args:
        values: By key, float64 [n] each with NaN where there is none.
        parts: The keys that may be losses.

    Returns:
        The key; empty where none is so called, or where arithmetic does not bear it out.

    Example:
        >>> a, b = np.random.default_rng(0).random((2, 100))
        >>> total_of({"total": a + b, "l_cls": a, "l_box": b}, ["l_cls", "l_box"])
        'total'
    """
    beside = {k: values[k] for k in parts if k in values}
    # Nets against each other and agents have losses that need not fall, and no total that says more.
    if is_of_nets(beside) or any(signal_of_tag(k) in _OF_PLAYERS for k in beside):
        return ""
    called = [k for k in values if k not in beside and is_called_total(k)]
    return next((k for k in called if summands(values[k], beside)), "")


_OF_PLAYERS = ("generator_loss", "discriminator_loss", "policy_loss", "value_loss")


def parts_of_total(
    values: Mapping[str, NDArray[np.float64]], whole: str, terms: Iterable[str]
) -> dict[str, str]:
    """Return `loss/TERM` -> tag, of some losses that add up to what is only called a total.

    Nothing of nets against each other, or of an agent: their losses need not fall.
    """
    found = summands(values[whole], {k: values[k] for k in terms if k != whole})
    return {} if is_of_nets(found) else {f"loss/{t.replace(' ', '_')}": t for t in sorted(found)}


def names_whole_loss(tag: str) -> bool:
    """Whether a tag names a loss as a whole: the training loss, or what is only called a total."""
    return signal_of_tag(tag) == "loss" or is_called_total(tag)


def of_training(tag: str) -> bool:
    """Whether a tag says that it is of training data.

    Example:
        >>> of_training("train/parity"), of_training("val/parity"), of_training("parity")
        (True, False, False)
    """
    return not TRAINING_SETS.isdisjoint(_words(tag))


def is_called_total(tag: str) -> bool:
    """Whether a tag says that it is a total, and not of what.

    Example:
        >>> [is_called_total(k) for k in ("total", "train/total", "total_steps", "val_total")]
        [True, True, False, False]
    """
    return set(_words(tag)) - TRAINING_SETS in _TOTALS


_TOTALS = ({"total"}, {"tot"}, {"overall"}, {"sum"}, {"all"})


def stands_still(values: NDArray[np.float64]) -> bool:
    """Whether values are one number throughout: that of a term which is switched off."""
    return len(values) > 1 and bool((values == values[0]).all())


def is_of_an_agent(key: str) -> bool:
    """Whether a key names the loss of a policy or of a critic.

    Example:
        >>> is_of_an_agent("train/loss_critic"), is_of_an_agent("train/loss")
        (True, False)
    """
    return not _OF_AN_AGENT.isdisjoint(_words(key))


def is_of_nets(keys: Iterable[str]) -> bool:
    """Whether one of some keys names a net of several against each other, or of an agent.

    Example:
        >>> is_of_nets(["loss_digit", "loss_disc"]), is_of_nets(["loss_digit", "loss_parity"])
        (True, False)
    """
    return any(not _NOT_FALLING.isdisjoint(_part_words(key)) for key in keys)


def is_of_entropy(key: str) -> bool:
    """Whether a key names the entropy of a policy: a bonus, and nothing that is learned.

    Example:
        >>> is_of_entropy("loss/entropy"), is_of_entropy("cross_entropy_loss")
        (True, False)
    """
    words = re.split(r"[\W_]+", key.lower())
    return any(map(_ENTROPY.fullmatch, words)) and "cross" not in words


def _some(tags: Sequence[str], best: str) -> str:
    others = [repr(t) for t in tags if t != best]
    return ", ".join(others[:6]) + (f" and {len(others) - 6} more" if len(others) > 6 else "")
