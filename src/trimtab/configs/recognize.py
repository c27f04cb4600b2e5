"""Which value states which fact, where the framework is not known: by key, place and size."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from trimtab.configs.document import Leaf, squash
from trimtab.configs.names import Fact, fact_table
from trimtab.configs.values import duration, flag, number, pair, precision, unresolved

__all__ = ["KeyCandidate", "accepted", "left_open", "recognise", "switched_off"]


def bag(words: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(words.split())


STRONG, PREFIXED, JOINED, WEAK_FITTING, WEAK_ALONE, WEAK = 10.0, 8.0, 9.0, 5.0, 4.5, 2.0
ACCEPT = 4.0

PREFIXES = (
    "target",
    "default",
    "base",
    "model",
    "config",
    "cfg",
    "train",
    "training",
    "trainer",
    "optimizer",
    "optim",
    "opt",
    "adamw",
    "adam",
    "scheduler",
    "scheduling",
    "hparams",
    "text",
    "llm",
    "lm",
    "gpt",
    "decoder",
    "transformer",
    "global",
    "args",
    "attention",
    "attn",
    "actor",
    "policy",
    "student",
    "arg",
    "hp",
    "pretrain",
    "pretraining",
    "sft",
    "finetune",
    "data",
    "lr",
)
SUFFIXES = ("value", "val", "arg", "param", "cfg")
WRAPPERS = {"value", "default", "val", "_value", "_default"}

GROUP_WORDS: Mapping[str, frozenset[str]] = {
    "model": bag(
        "model network net arch architecture transformer llm lm gpt llama decoder backbone encoder"
        " lmconfig modelconfig shape text attention attn mlp ffn block layer embedding config"
        " params modelargs textconfig language"
    ),
    "optimizer": bag(
        "optimizer optim optimization opt adam adamw hparams optimizerparams optimizerargs"
        " optimconfig hyperparameters learning"
    ),
    "schedule": bag(
        "scheduler schedule lrscheduler sched lr learningrate lrschedule optimizer optim warmup"
        " decay learning lrsched"
    ),
    "batch": bag(
        "train training trainer data dataset dataloader batch batching trainloader tokens loader"
        " traindata"
    ),
    "precision": bag(
        "precision mixedprecision amp fp16 bf16 dtype trainer training system fsdp dist autocast mp"
    ),
    "layout": bag(
        "parallelism parallel distributed trainer system launcher dist cluster infra slurm mesh"
        " model"
    ),
    "any": bag(
        "train training trainer data optimization run task hyperparameters hparams trainargs"
        " trainingargs"
    ),
}
ELSEWHERE: Mapping[str, frozenset[str]] = {
    "model": bag("optimizer optim scheduler sched data dataset dataloader trainer"),
    "optimizer": bag("model norm layernorm layer block attention network data dataset rmsnorm"),
    "schedule": bag(
        "model data dataset loss betascheduler beta2scheduler weightdecayscheduler wdscheduler"
    ),
    "batch": bag("model optimizer"),
    "precision": bag("optimizer checkpoint export generator"),
}
BESIDE_THE_POINT = bag(
    "eval evals evaluation evaluator evaluators val valid validation test tests testing infer"
    " inference generate generation generator sampling sampler vision visual visionencoder"
    " visionconfig vit image imageencoder audio audioencoder speechencoder teacher draft ref"
    " reference reward critic rollout tokenizer wandb logger logging tracker profiler profilers"
    " profiling profile callbacks lora loraconfig ema autotuning sparseattention compression"
    " discriminator projector resampler adapter linearattn linearattnconfig mamba ssm rope"
    " ropescaling ropeparameters quantization quant quantizationconfig nsysprofile monitor metrics"
    " metric checkpoint checkpointing ckpt validloader evalloader benchmark visionmodel vae"
    " clipmodel diffusion qformer visiontower mtp predictor retriever dpo augmentation auxiliary"
    " aux muon soap shampoo downstream lighteval harness specaug ctc frontend curriculum"
    " curriculumlearning flopsprofiler tensorboard"
)
MILDLY_BESIDE = bag(
    "encoder embedding embed lmhead head unembed router moe bias scalar scalars groups paramgroups"
    " output deepspeedconfig deepspeedjson deepspeed"
)
KEEPS: Mapping[str, frozenset[str]] = {
    "eval_steps": bag("eval evaluation val validation valid"),
    "save_steps": bag("checkpoint checkpointing ckpt"),
    "base_model": bag("checkpoint tokenizer"),
    "vocab": bag("tokenizer data dataset"),
    "seq": bag("tokenizer"),
    "init_std": bag("embedding"),
    "experts": bag("moe router"),
    "topk": bag("moe router"),
    "moe_ffn": bag("moe router"),
    "adapter": bag("lora adapter loraconfig"),
    "router_z_loss": bag("moe router aux auxiliary"),
    "z_loss": bag("aux auxiliary lmhead head output"),
    "rotary": bag("rope"),
    "fp8": bag("quantization quant"),
    "warmup_steps": bag("curriculum"),
}
SPLIT_BESIDE = bag(
    "eval val valid validation evaluation test vision image audio lora teacher profiler profilers"
    " tokenizer inference generation"
)
"""Words that put a part of the path aside even inside a longer name: `val_dataloader`."""
PLAIN_NUMBER = re.compile(r"\s*[-+\d._]+(e[-+]?\d+)?\s*")
WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class KeyCandidate:
    """One leaf that may state a fact."""

    fact: str
    leaf: Leaf
    value: object
    score: float


def recognise(leaves: Iterable[Leaf]) -> dict[str, KeyCandidate]:
    """Return the best candidate of each fact; a leaf that fits no fact is left alone.

    Score = how well the key is known (squashed key, key without a usual prefix, parent and key
    joined, or a weak key) + 2 where the path speaks of the right part of a config − 3 for another
    part − 7 for evaluation, vision towers, tokenizers, LoRA and the like − 0.1 per level. Values of
    the wrong kind or an impossible size are not candidates. Ties go to the first in the file.
    """
    best: dict[str, KeyCandidate] = {}
    for leaf in leaves:
        for candidate in candidates(leaf):
            rival = best.get(candidate.fact)
            if candidate.score > ACCEPT and (rival is None or candidate.score > rival.score):
                best[candidate.fact] = candidate
    return best


def candidates(leaf: Leaf) -> list[KeyCandidate]:
    """Return what one leaf may state."""
    path = [squash(part) for part in leaf.path]
    while len(path) > 1 and (path[-1] in WRAPPERS or path[-1] == "") and leaf.path[-1] in WRAPPERS:
        path = path[:-1]
    key, parents = path[-1], [part for part in path[:-1] if not part.isdigit()]
    aside = (
        frozenset(word for part in leaf.path[:-1] for word in WORD.findall(part.lower()))
        & SPLIT_BESIDE
    )
    found = []
    for name, base in named(key, parents[-1] if parents else ""):
        fact = fact_table()[name]
        value = accepted(fact, leaf.value)
        if value is None:
            continue
        place = placed(name, fact, parents, aside)
        # A weak key counts in full only under a parent that names the right part of a config.
        if base <= WEAK_FITTING:
            fits = bool(GROUP_WORDS.get(fact.group, frozenset()) & words_of(parents))
            if fact.kind == "text" and not fits:
                continue
            base = WEAK_FITTING if fits else WEAK if parents else WEAK_ALONE
        found.append(KeyCandidate(name, leaf, value, base + place))
    return found


def left_open(leaves: Iterable[Leaf]) -> set[str]:
    """Return the facts whose key is there without a value, such as `$LR` or `auto`.

    No default of the framework applies to them.
    """
    found: set[str] = set()
    for leaf in leaves:
        # `key:` without any text is not a placeholder: the framework's default holds there.
        if isinstance(leaf.value, str) and unresolved(leaf.value) and leaf.value.strip():
            found.update(
                name for name, base in named(squash(leaf.path[-1]), "") if base >= PREFIXED
            )
    return found


def switched_off(leaves: Iterable[Leaf], name: str) -> Leaf | None:
    """Return the leaf that names a fact and gives it no value (`max_norm: null`), or None."""
    for leaf in leaves:
        if leaf.value is not None:
            continue
        parents = [squash(part) for part in leaf.path[:-1]]
        sure = dict(named(squash(leaf.path[-1]), parents[-1] if parents else "")).get(name, 0)
        if (
            sure >= PREFIXED
            and sure + placed(name, fact_table()[name], parents, frozenset()) > ACCEPT
        ):
            return leaf
    return None


@cache
def index() -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
    """Return squashed key → facts, for strong and for weak keys."""
    strong: dict[str, tuple[str, ...]] = {}
    weak: dict[str, tuple[str, ...]] = {}
    for name, fact in fact_table().items():
        for table, keys in ((strong, fact.keys), (weak, fact.weak)):
            for key in keys:
                table[key] = (*table.get(key, ()), name)
    return strong, weak


def named(key: str, parent: str) -> list[tuple[str, float]]:
    """Return the facts that a key may name, with how sure the key alone makes it."""
    strong, weak = index()
    found: dict[str, float] = dict.fromkeys(strong.get(key, ()), STRONG)
    for name in strong.get(parent + key, ()) if parent else ():
        found.setdefault(name, JOINED)
    if not found:
        for short in shortened(key):
            for name in strong.get(short, ()):
                found.setdefault(name, PREFIXED)
    for name in weak.get(key, ()):
        found.setdefault(name, WEAK)
    return list(found.items())


def shortened(key: str) -> list[str]:
    """Return a key without one usual prefix or suffix."""
    without = [key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix)]
    without += [key.removesuffix(suffix) for suffix in SUFFIXES if key.endswith(suffix)]
    return [short for short in without if len(short) > 1]


def words_of(parents: list[str]) -> frozenset[str]:
    """Return the words of the parents, and each parent without a usual ending."""
    plain = set(parents)
    for parent in parents:
        plain.add(
            re.sub(
                r"(config|cfg|args|params|arguments|options|kwargs|settings|conf|opts)$", "", parent
            )
        )
        plain.add(parent.rstrip("s"))
    return frozenset(plain - {""})


def placed(name: str, fact: Fact, parents: list[str], aside: frozenset[str]) -> float:
    """Return the score of a key's place in the config."""
    words = (words_of(parents) | aside) - KEEPS.get(name, frozenset())
    score = -0.1 * len(parents)
    if GROUP_WORDS.get(fact.group, frozenset()) & words:
        score += 2
    elif ELSEWHERE.get(fact.group, frozenset()) & words:
        score -= 3
    score -= 7 * bool(BESIDE_THE_POINT & words)
    score -= 1.5 * bool(MILDLY_BESIDE & words)
    return score


def accepted(fact: Fact, value: object) -> object:
    """Return the value in the fact's kind, or None where it cannot be it."""
    if value is None or (unresolved(value) and fact.kind != "flag"):
        return None
    return KINDS.get(fact.kind, measured)(fact, value)


def worded(_: Fact, value: object) -> str | None:
    """Return a text, a list of texts as one; numbers and long texts are none."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ",".join(value)
    if not isinstance(value, str) or len(value) >= 200 or PLAIN_NUMBER.fullmatch(value):
        return None
    return value


def paired(_: Fact, value: object) -> tuple[float, float] | None:
    """Return two numbers from 0 to 1."""
    found = pair(value)
    return found if found and all(0 <= part <= 1 for part in found) else None


def lasting(fact: Fact, value: object) -> object:
    """Return a length of training as it is written, if it has a unit or a possible size."""
    length = None if isinstance(value, bool) else duration(value)
    if length is None:
        return None
    amount, unit = length
    return value if unit or fact.low <= amount <= fact.high or amount <= 0 else None


def measured(fact: Fact, value: object) -> object:
    """Return a number within the fact's bounds.

    A mistyped number of the optimizer stays as text.
    """
    found = number(value)
    if found is None:
        typo = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+[eE_][\w.+-]*", value.strip())
        return value if typo and fact.group in ("optimizer", "schedule") else None
    if found != found:  # NaN in a config is worth a finding, not silence
        return found
    if not fact.low <= found <= fact.high:
        return None
    if fact.kind == "count":
        return int(found) if float(found).is_integer() else None
    return found


KINDS: Mapping[str, Callable[[Fact, object], object]] = {
    "flag": lambda _, value: flag(value),
    "bool": lambda _, value: value if isinstance(value, bool) else None,
    "text": worded,
    "precision": lambda _, value: value if precision(value) else None,
    "pair": paired,
    "duration": lasting,
    "any": lambda _, value: value,
}
"""How a value of each kind is accepted; the other kinds are numbers."""
