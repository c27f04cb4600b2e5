"""Values under a known key that are unreadable or impossible.

They are reported and never replaced by a default.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.configs.document import Document, Leaf, squash
from trimtab.configs.frameworks import Framework
from trimtab.configs.names import fact_table
from trimtab.configs.recognize import ACCEPT, PREFIXED, named, placed
from trimtab.configs.settings import Doubt, Setting
from trimtab.configs.values import duration, finite, flag, number, pair, unresolved

__all__ = ["conflicts", "doubtful", "exponents", "in_doubt", "meant"]

Kind = Literal["unreadable", "impossible", "conflict", "disagree", "word", "unsure", "not-read"]


@dataclass(frozen=True)
class Range:
    """What a value of a fact looks like, and beyond which bounds it cannot be."""

    expected: str
    low: float = float("-inf")
    high: float = float("inf")
    zero: bool = True
    """Whether 0 can be."""


RANGES: Mapping[str, Range] = {
    "lr": Range("a number above 0, such as 3e-4", 0.0, 100.0, zero=False),
    "min_lr": Range("a number from 0 on, such as 3e-5", 0.0, 100.0),
    "warmup_steps": Range("a number of steps, such as 2000"),
    "warmup_samples": Range("a number of samples"),
    "warmup_ratio": Range("a share of the run from 0 to 1, such as 0.01", 0.0, 1.0),
    "beta1": Range("a number from 0 to below 1, such as 0.9", 0.0, 1.0),
    "beta2": Range("a number from 0 to below 1, such as 0.95", 0.0, 1.0),
    "betas": Range("two numbers from 0 to below 1, such as [0.9, 0.95]", 0.0, 1.0),
    "eps": Range("a small number, such as 1e-8", 0.0, 1.0),
    "weight_decay": Range("a number from 0 on, such as 0.1", 0.0, 100.0),
    "clip": Range("a number, such as 1.0"),
    "init_std": Range("a number, such as 0.006", 0.0, 10.0),
    "hidden": Range("a whole number, such as 4096", zero=False),
    "layers": Range("a whole number, such as 32", zero=False),
    "heads": Range("a whole number, such as 32"),
    "ffn": Range("a whole number, such as 16384"),
    "seq": Range("a whole number of tokens, such as 4096"),
    "train_steps": Range("a number of steps, such as 100000"),
    "batch_global": Range("a whole number, such as 1024", zero=False),
    "micro_batch": Range("a whole number, such as 4", zero=False),
}
SHARES = frozenset(
    {
        "megatron",
        "megatron-deepspeed",
        "hf-trainer",
        "axolotl",
        "llama-factory",
        "hf-alignment",
        "open-instruct",
    }
)
"""Frameworks that refuse a warm-up share above 1; elsewhere 5 may be percent."""
SAVES_THE_BEST = frozenset({"hf-trainer", "llama-factory", "hf-alignment"})
"""Frameworks whose arguments are transformers' `TrainingArguments`, as they stand in the file."""
ONE_FORMAT = SHARES - {"axolotl", "open-instruct"} | {"deepspeed"}
"""Frameworks that refuse to start with both fp16 and bf16 on."""
LENGTHS = ("warmup_steps", "warmup_samples", "warmup_ratio", "train_steps")
"""Facts that may be written as a duration."""
HAS_DIGIT = re.compile(r"\d")
WORD = re.compile(r"[a-z]{2,12}")
PLACEHOLDER = re.compile(r"[$%<>{}@*?|=]|__|\b[a-z_]+\.[a-z_]+|\(")
SEVERAL = re.compile(
    r"[\s\[(]*[-+\d.eE]+(\s*[,;:]\s+[-+\d.eE]+|\s*,\s*[-+\d.]*[.eE][-+\d.eE]*)+[\s\])]*"
    r"|[-+\d.eE]+(\s+[-+\d.eE]+)+"
    r"|[1-9]\d*(,[1-9]\d{2,})+"
)
"""Several numbers in one text: a sweep, or one for each group."""
BARE_EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+|[-+]?\d+\.\d*[eE]\d+")
"""Numbers that YAML 1.1 takes for text: no point, or no sign in the exponent."""


def doubtful(
    document: Document,
    leaves: Iterable[Leaf],
    framework: Framework | None,
    stated: Mapping[str, Setting],
) -> tuple[Doubt, ...]:
    """Return the values that are unreadable or impossible under an unambiguous key, one per fact.

    Left alone: placeholders, `auto`, flags, lists of several values, -1 (which stands for "not set"
    in many trainers), and facts that another key states.
    """
    found: dict[str, Doubt] = {}
    for leaf in leaves:
        for name in sure_facts(framework, leaf):
            if name not in RANGES or name in found:
                continue
            kind = judged(name, leaf, document, framework)
            # A value under another key is kept. This key's own value may have been taken although
            # it is out of range, and is then removed.
            taken = stated.get(name)
            if kind is None or (taken is not None and taken.key != leaf.key):
                continue
            if taken is not None and isinstance(taken.value, str):  # the rules speak of it
                continue
            found[name] = Doubt(
                name,
                leaf.key,
                text_of(leaf.value),
                leaf.line,
                RANGES[name].expected,
                kind,
                meant(text_of(leaf.value)),
            )
    return tuple(found.values())


def sure_facts(framework: Framework | None, leaf: Leaf) -> list[str]:
    """Return the facts that a leaf's key names beyond doubt."""
    parts = [squash(part) for part in leaf.path]
    if framework is not None:
        if set(framework.ignore) & set(parts):
            return []
        for key in (".".join(parts), parts[-1]):
            if key in framework.keys:
                return [framework.keys[key]]
    parents = [part for part in parts[:-1] if not part.isdigit()]
    return [
        name
        for name, base in named(parts[-1], parents[-1] if parents else "")
        if base >= PREFIXED
        and base + placed(name, fact_table()[name], parents, frozenset()) > ACCEPT
    ]


def judged(name: str, leaf: Leaf, document: Document, framework: Framework | None) -> Kind | None:
    """Return what is wrong with a value, or None."""
    value = leaf.value
    if value is None or isinstance(value, bool) or unresolved(value):
        return None
    if name == "betas":
        return pair_kind(value, squash(leaf.path[-1]))
    if isinstance(value, list):
        return None
    amount = number(value)
    if amount is None and name in LENGTHS and (found := duration(value)):
        amount = found[0]
    if amount is None:
        return text_kind(str(value), document, framework)
    if amount != amount or abs(amount) == math.inf:  # isfinite refuses integers beyond all floats
        return None  # NaN and Inf are kept, for a rule to report
    if framework is None and "beta" not in squash(leaf.key) and name != "lr":
        return None  # a word of many meanings
    # Only a framework that itself refuses the value makes it impossible rather than odd.
    strict = framework is not None and framework.name in SHARES
    return None if is_possible(name, amount, strict=strict) else "impossible"


def is_possible(name: str, amount: float, *, strict: bool) -> bool:
    """Whether a fact can have a value; `strict` where the framework itself refuses the others."""
    bounds = RANGES[name]
    if amount == -1 and name != "lr":
        return True  # "not set" in many trainers
    if not strict and name == "warmup_ratio" and amount > 1:
        return True  # percent
    if amount == 0 and not bounds.zero:
        return name == "lr" and not strict  # a rate that the schedule sets
    if amount >= 1 and name in ("beta1", "beta2"):
        return False
    return bounds.low <= amount <= bounds.high


def text_kind(text: str, document: Document, framework: Framework | None) -> Kind | None:
    """Return what is wrong with a text in place of a number, or None."""
    plain = text.strip()
    if not plain or len(plain) > 40 or PLACEHOLDER.search(plain) or SEVERAL.fullmatch(plain):
        return None
    if flag(plain) is not None:
        return None
    if HAS_DIGIT.search(plain) and re.match(r"[-+.−–\dOoIl]", plain):
        return "unreadable" if framework is not None or meant(plain) else "unsure"
    if WORD.fullmatch(plain) and document.syntax != "python":
        return "unreadable" if framework is not None else "unsure"
    return None


def meant(text: str) -> str:
    """Return what `3e-4,`, `3e−4`, `1,0` and `O.1` were meant to be; empty where unclear."""
    plain = re.sub(r"[−–—]", "-", text.strip().rstrip(",;"))
    plain = re.sub(r"^[Oo](?=\.)", "0", plain)
    plain = re.sub(r"^(\d{1,2}),(\d{1,3})$", r"\1.\2", plain)
    return plain if plain != text and re.fullmatch(r"-?\d*\.?\d+([eE]-?\d+)?", plain) else ""


def pair_kind(value: object, key: str) -> Kind | None:
    """Return what is wrong with a pair of betas."""
    if isinstance(value, str) and PLACEHOLDER.search(value):
        return None
    found = pair(value)
    if found is None:
        alone = isinstance(value, int | float) and key.endswith("betas")
        broken = alone or (isinstance(value, list) and len(value) in (1, 2))
        unset = isinstance(value, list) and any(v is None or unresolved(v) for v in value)
        return "unreadable" if broken and not unset else None
    return None if all(0 <= part < 1 for part in found) else "impossible"


def text_of(value: object) -> str:
    """Return a value as written, shortened."""
    return str(value)[:40]


def conflicts(framework: Framework | None, stated: Mapping[str, Setting]) -> Iterator[Doubt]:
    """Give what a framework refuses together, and what one key takes from another."""
    own, other = stated.get("lr"), stated.get("scheduler_lr")
    rates = [finite(found.value) if found else None for found in (own, other)]
    if own and other and rates[0] and rates[1] and abs(rates[0] / rates[1] - 1) > 0.01:
        yield Doubt(
            "lr",
            f"{own.key} {own.value} and {other.key}",
            str(other.value),
            other.line,
            "one rate; DeepSpeed's scheduler sets the second",
            "disagree",
        )
    yield from unlike_strategies(framework, stated)
    bf16, fp16 = stated.get("bf16"), stated.get("fp16")
    if framework is None or framework.name not in ONE_FORMAT or bf16 is None or fp16 is None:
        return
    if flag(bf16.value) and flag(fp16.value):
        yield Doubt(
            "dtype",
            f"{bf16.key} and {fp16.key}",
            "both on",
            fp16.line or bf16.line,
            "one number format: bf16",
            "conflict",
        )


def unlike_strategies(
    framework: Framework | None, stated: Mapping[str, Setting]
) -> Iterator[Doubt]:
    """Give the evaluation that transformers refuses beside `load_best_model_at_end`.

    `TrainingArguments` raises ValueError where evaluation and saving differ in their strategy. Where
    nothing is said of evaluation, a command line may say it.
    """
    best, evaluation = stated.get("load_best"), stated.get("eval_strategy")
    if framework is None or framework.name not in SAVES_THE_BEST:
        return
    if best is None or not flag(best.value) or evaluation is None:
        return
    saving = stated.get("saving")
    wanted = "steps" if saving is None else strategy(saving.value)
    given = strategy(evaluation.value)
    # From transformers 4.47 on the strategy `best` saves at evaluations, whatever theirs.
    if wanted == given or (wanted == "best" and given != "no"):
        return
    yield Doubt(
        "load_best",
        f"{best.key} with {evaluation.key}",
        given,
        evaluation.line,
        f"the strategy of saving, {wanted}; without it there is no best model to load",
        "conflict",
    )


def strategy(value: object) -> str:
    """Return the name of a strategy: YAML reads `no` as false."""
    return "no" if flag(value) is False else str(value).strip().lower()


def exponents(document: Document, leaves: Iterable[Leaf]) -> Iterator[Doubt]:
    """Yield the numbers that a YAML file writes as `4e-4`, which PyYAML reads as text."""
    if document.syntax != "yaml":
        return
    for leaf in leaves:
        if isinstance(leaf.value, str) and BARE_EXPONENT.fullmatch(leaf.value.strip()):
            yield Doubt(
                squash(leaf.path[-1]),
                leaf.key,
                leaf.value,
                leaf.line,
                "a point and a sign, such as 4.0e-4",
                "word",
            )


def in_doubt(doubts: Iterable[Doubt]) -> set[str]:
    """Return the settings that must not be filled with a default."""
    names = {doubt.name for doubt in doubts if doubt.kind in ("unreadable", "impossible", "unsure")}
    if "betas" in names:
        names |= {"beta1", "beta2"}
    if any(name.startswith("warmup") for name in names):
        names |= {"warmup_steps"}
    return names
