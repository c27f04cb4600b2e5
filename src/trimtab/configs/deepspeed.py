"""What DeepSpeed takes from its own config, and not from the options of the launch script."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trimtab.configs.compose import file_within
from trimtab.configs.document import Document, squash
from trimtab.configs.settings import Doubt, Origin, Setting
from trimtab.configs.text_sources import read_json
from trimtab.configs.values import finite, flag

__all__ = ["INNER", "TRAINERS", "mismatches", "own_scaler", "with_config"]

INNER = "deepspeed_json"
"""Key of a script's DeepSpeed config in its tree."""
TRAINERS: frozenset[str] = frozenset(
    {"hf-trainer", "axolotl", "llama-factory", "hf-alignment", "open-instruct"}
)
MATCHING = (
    ("train_micro_batch_size_per_gpu", "micro_batch"),
    ("gradient_accumulation_steps", "grad_accum"),
    ("gradient_clipping", "clip"),
    ("optimizer.params.lr", "lr"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("optimizer.params.eps", "eps"),
    ("scheduler.params.warmup_num_steps", "warmup_steps"),
    ("scheduler.params.warmup_max_lr", "lr"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
)
"""Keys of DeepSpeed's config that transformers refuses where they differ from its own arguments."""


def with_config(document: Document, path: Path) -> Document:
    """Return a script merged with the DeepSpeed config that it names, where that file is found.

    It is looked for below the script's own folder, and by the last part of its name in that folder;
    a file that cannot be read is named as missing.
    """
    named = document.tree.get("deepspeed_config") or document.tree.get("deepspeed")
    if INNER in document.tree or not isinstance(named, str) or not named.endswith(".json"):
        return document
    # Scripts are often read away from the folder they run in, so the bare name is tried as well.
    file = file_within(path.parent, named)
    if file is None and ".." not in named:
        file = file_within(path.parent, Path(named).name)
    try:
        inner = (
            None
            if file is None
            else read_json(file.read_text(encoding="utf-8", errors="replace")).tree
        )
    except (OSError, ValueError):
        inner = None
    if inner is None:
        return replace(document, missing=(*document.missing, named))
    return replace(
        document, tree={**document.tree, INNER: inner}, parts=(*document.parts, str(file))
    )


def mismatches(
    tree: Mapping[str, object], stated: Mapping[str, Setting], framework: str
) -> Iterator[Doubt]:
    """Give what a DeepSpeed config states otherwise than the arguments of transformers' Trainer.

    Source: transformers, HfTrainerDeepSpeedConfig: values that are not "auto" must match.
    """
    inner = tree.get(INNER)
    if framework not in TRAINERS or not isinstance(inner, Mapping):
        return
    for key, name in MATCHING:
        theirs: object = inner
        for part in key.split("."):
            theirs = theirs.get(part) if isinstance(theirs, Mapping) else None
        mine = stated.get(name)
        # "auto" takes the Trainer's own argument, so it cannot differ from it.
        if theirs is None or theirs == "auto" or (mine is not None and INNER in mine.key):
            continue
        if ours := differing(name, mine, theirs):
            line = mine.line if mine else None
            expected = 'one value, or "auto" in the DeepSpeed config'
            yield Doubt(
                name,
                f"{ours} and the DeepSpeed config's {key}",
                str(theirs)[:40],
                line,
                expected,
                "conflict",
            )


def differing(name: str, mine: Setting | None, theirs: object) -> str:
    """Return the script's own setting where it differs from DeepSpeed's config; empty otherwise."""
    if name in ("fp16", "bf16"):
        on = bool(mine and flag(mine.value))  # an option that is absent is off
        differs = flag(theirs) is not None and on != flag(theirs)
        return f"{name} {'on' if on else 'off'}" if differs else ""
    ours, other = finite(mine.value) if mine else None, finite(theirs)
    if mine is None or ours is None or other is None:
        return ""
    # Both are read from decimal text, so anything beyond round-off is a different number.
    close = abs(ours - other) <= 1e-9 * max(abs(ours), abs(other))
    return "" if close else f"{mine.key} {mine.value}"


def own_scaler(
    tree: Mapping[str, object], stated: Mapping[str, Setting]
) -> dict[str, Setting] | None:
    """Return what is stated with the loss scale of DeepSpeed in place of the script's.

    The result is None where DeepSpeed is off.

    DeepSpeed's engine scales the loss as the `fp16` part of its config says: `loss_scale` 0, or
    none, is dynamic from 2 ** `initial_scale_power` on. Megatron's `--loss-scale` is not passed on
    (BigScience's scripts give 12 there and 0 with power 12 in the config; their scale starts at
    4096 and moves).
    """
    on = {squash(key): value for key, value in tree.items()}
    found = tree.get(INNER)
    inner = found if isinstance(found, Mapping) else None
    switched = on.get("deepspeed")
    if inner is None and not (flag(switched) or isinstance(on.get("deepspeedconfig"), str)):
        return None
    kept = {name: value for name, value in stated.items() if name != "loss_scale"}
    half = inner.get("fp16") if inner is not None else None
    if isinstance(half, Mapping):
        for name, key, default in (
            ("loss_scale", "loss_scale", 0),
            ("loss_scale_power", "initial_scale_power", 16),
        ):
            value = finite(half.get(key))
            origin: Origin = "default" if value is None else "stated"
            kept[name] = Setting(default if value is None else value, origin, f"{INNER}.fp16.{key}")
    return kept
