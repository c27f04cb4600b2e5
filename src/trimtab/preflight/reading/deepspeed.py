"""What DeepSpeed takes from its own config where a launch script starts it, and not from the script's options."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.preflight.reading.document import Document, squash
from trimtab.preflight.reading.text_sources import read_json
from trimtab.preflight.reading.values import finite, flag
from trimtab.preflight.settings import Origin, Setting

__all__ = ["own_scaler", "with_config"]

INNER = "deepspeed_json"
"""Where the DeepSpeed config of a script stands in its tree."""
MAX_BYTES = 1_000_000


def with_config(document: Document, path: Path) -> Document:
    """Return a script with the DeepSpeed config that it names, where that file lies beside it.

    Only the last part of the name is looked for, in the script's own folder; a file that cannot be read is left out.
    """
    named = document.tree.get("deepspeed_config")
    if INNER in document.tree or not isinstance(named, str) or not named.endswith(".json"):
        return document
    try:
        file = path.parent / Path(named).name
        if file.stat().st_size > MAX_BYTES:
            return document
        inner = read_json(file.read_text(encoding="utf-8", errors="replace")).tree
    except (OSError, ValueError):
        return document
    return replace(document, tree={**document.tree, INNER: inner})


def own_scaler(tree: Mapping[str, Any], stated: Mapping[str, Setting]) -> dict[str, Setting] | None:
    """Return what is stated with the loss scale of DeepSpeed in place of the script's; None where DeepSpeed is off.

    DeepSpeed's engine scales the loss as the `fp16` part of its config says: `loss_scale` 0, or none, is dynamic from
    2 ** `initial_scale_power` on. Megatron's `--loss-scale` is not passed on (BigScience's scripts give 12 there and
    0 with power 12 in the config; their scale starts at 4096 and moves).
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
