"""Keys that look like a known one and are not: one letter off, or another framework's word."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from trimtab.configs.document import Document, Leaf, squash
from trimtab.configs.frameworks import Framework
from trimtab.configs.names import fact_table
from trimtab.configs.recognize import BESIDE_THE_POINT, named
from trimtab.configs.settings import Doubt, Setting
from trimtab.configs.values import finite

__all__ = ["misspelt"]

WATCHED = (
    "lr",
    "min_lr",
    "warmup_steps",
    "warmup_ratio",
    "beta1",
    "beta2",
    "betas",
    "eps",
    "weight_decay",
    "clip",
    "init_std",
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "ffn",
    "seq",
    "vocab",
    "batch_global",
    "micro_batch",
    "train_steps",
    "grad_accum",
    "save_steps",
)
"""Facts whose misspelt key would leave a default in force."""
SHORTEST = 6
MEGATRON: Mapping[str, str] = {
    "clip": "--clip-grad",
    "weight_decay": "--weight-decay",
    "lr": "--lr",
    "min_lr": "--min-lr",
    "beta1": "--adam-beta1",
    "beta2": "--adam-beta2",
    "eps": "--adam-eps",
    "init_std": "--init-method-std",
    "warmup_steps": "--lr-warmup-iters",
    "layers": "--num-layers",
    "hidden": "--hidden-size",
    "heads": "--num-attention-heads",
    "ffn": "--ffn-hidden-size",
    "batch_global": "--global-batch-size",
    "train_steps": "--train-iters",
    "save_steps": "--save-interval",
}
"""Megatron-LM's own options: it stops at one that it does not know."""


def misspelt(
    document: Document,
    leaves: Iterable[Leaf],
    framework: Framework | None,
    stated: Mapping[str, Setting],
) -> Iterator[Doubt]:
    """Yield keys one letter off a known one, and options that Megatron-LM does not know."""
    if framework is not None and framework.name == "megatron" and document.syntax == "args":
        for name, option in MEGATRON.items():
            found = stated.get(name)
            if (
                found is not None
                and found.key.startswith("--")
                and squash(found.key) != squash(option)
            ):
                yield Doubt(
                    name,
                    found.key,
                    str(found.value),
                    found.line,
                    f"Megatron-LM's option is {option}",
                    "not-read",
                )
    # A Python file has names of its own for everything; one letter off means nothing there.
    if document.syntax == "python":
        return
    for leaf in leaves:
        parts = [squash(part) for part in leaf.path]
        # Short keys are one letter from too many words: `lr` from `lm`, `eps` from `dps`.
        if finite(leaf.value) is None or len(parts[-1]) < SHORTEST or BESIDE_THE_POINT & set(parts):
            continue
        if is_known(parts, framework):
            continue
        meant = nearest(parts[-1])
        if meant is not None and meant[0] not in stated:
            yield Doubt(
                meant[0],
                leaf.key,
                str(leaf.value)[:40],
                leaf.line,
                f"did you mean {as_written(meant[1], leaf.path[-1])}?",
                "not-read",
            )


def is_known(parts: list[str], framework: Framework | None) -> bool:
    """Whether a key means something here."""
    if framework is not None:
        listed = {".".join(parts), *parts}
        if listed & framework.keys.keys() or listed & set(framework.ignore):
            return True
    return bool(named(parts[-1], parts[-2] if len(parts) > 1 else ""))


def as_written(known: str, key: str) -> str:
    """Return a known key with the separators of a key of the same length.

    `maxnorm` as `max_norm`.
    """
    letters = sum(sign.isalnum() for sign in key)
    if letters != len(known):
        return known
    left = iter(known)
    return "".join(next(left) if sign.isalnum() else sign for sign in key)


@cache
def nearest(key: str) -> tuple[str, str] | None:
    """Return the one fact and known key that differ from a key by one letter, or None."""
    found = {
        name: known
        for name in WATCHED
        for known in fact_table()[name].keys
        if len(known) >= SHORTEST and is_one_off(key, known)
    }
    # Two facts within one letter: which of them was meant is a guess, so neither is offered.
    return next(iter(found.items())) if len(found) == 1 else None


def is_one_off(one: str, other: str) -> bool:
    """Whether two words differ by one letter more, one less, one other, or two swapped.

    Example:
        >>> is_one_off("maxnrom", "maxnorm"), is_one_off("minlr", "maxlr")
        (True, False)
    """
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    a, b = one[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
