"""The settings of attempts: one name for one setting, what differs, and whether it is a new family.

`--adam-beta2 0.95` of a launch script and `adam_beta2 .... 0.95` of a log are one setting. The
names are those of `trimtab.configs`; a key that it does not know keeps its own name.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from trimtab.configs.document import squash
from trimtab.configs.names import fact_table
from trimtab.configs.settings import NAMES
from trimtab.masking import masked
from trimtab.text import number, plain

__all__ = [
    "Difference",
    "canonical_settings",
    "differences",
    "differences_text",
    "is_new_family",
    "settings_hash",
]

_FAMILY = frozenset(
    [
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "experts",
        "topk",
        "norm",
        "activation",
        "position",
        "embed_norm",
        "qk_norm",
        "attention",
        "tied_embeddings",
        "gated_ffn",
        "optimizer",
        "objective",
    ]
)
"""Settings by which the model or the task is another: a checkpoint does not simply go on. Ours."""
_PER_LAUNCH = re.compile(
    r"(?:^|[._-])(?:id|name|time|date|addr|address|port|host|hosts|hostname|rank|pid|path|dir"
    r"|directory|file|prefix|save|load|output|data|log|logs|url)$",
    re.IGNORECASE,
)
"""Keys that differ from launch to launch and say nothing of the training."""
_MOST_NEW = 4
"""Settings stated on one side alone that a sentence names; more come of another kind of source."""


@dataclass(frozen=True)
class Difference:
    """One setting that differs; None where a side does not state it."""

    name: str
    before: str | None
    after: str | None


@cache
def _known_keys() -> Mapping[str, str]:
    known = {squash(name): name for name in NAMES}
    for fact, row in fact_table().items():
        if fact in NAMES:
            for key in row.keys:
                known.setdefault(key, fact)
    return known


def canonical_settings(raw: Mapping[str, object]) -> dict[str, str]:
    """Return settings as texts by canonical name where there is one.

    Example:
        >>> canonical_settings({"--adam-beta2": "0.95", "Nodes": 64, "clip_grad": 1.0})
        {'beta2': '0.95', 'nodes': '64', 'clip': '1'}
    """
    found: dict[str, str] = {}
    for key, value in raw.items():
        last = str(key).rpartition(".")[2].lstrip("-")
        name = _known_keys().get(squash(last)) or str(key).strip().lstrip("-").lower()
        found.setdefault(name, _text(value))
    return found


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, int | float):
        return number(value, digits=8)
    return plain(value, limit=400)


def settings_hash(settings: Mapping[str, object]) -> str:
    """Return twelve digits that tell one full config from another; empty for no settings."""
    if not settings:
        return ""
    text = json.dumps({str(k): str(v) for k, v in settings.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what differs, by name; nothing where a side states no settings at all.

    Numbers that are equal count as equal. Keys that name a launch (paths, job ids) are left out.

    Example:
        >>> differences({"clip": "1.0", "lr": "6e-5"}, {"clip": "0.3", "lr": "0.00006"})
        (Difference(name='clip', before='1.0', after='0.3'),)
    """
    if not before or not after:
        return ()
    return tuple(
        Difference(k, before.get(k), after.get(k))
        for k in sorted({*before, *after})
        if not _same(before.get(k), after.get(k)) and not _PER_LAUNCH.search(k)
    )


def _same(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    try:
        return a is not None and b is not None and float(a) == float(b)
    except ValueError:
        return False


def differences_text(found: tuple[Difference, ...]) -> str:
    """Return differences as a clause: `clip 1.0 → 0.3, seed 42 → 43`; secrets are masked."""
    both = [d for d in found if d.before is not None and d.after is not None]
    one = [d for d in found if d.before is None or d.after is None]
    parts = [f"{_name(d)} {_value(d, d.before)} → {_value(d, d.after)}" for d in both]
    if len(one) <= _MOST_NEW:
        parts += [
            f"{_name(d)} {_value(d, d.after)}" if d.before is None else f"no {_name(d)}"
            for d in one
        ]
    elif not parts:
        parts.append(f"{len(one)} settings are stated on one side alone")
    return ", ".join(parts)


def _name(d: Difference) -> str:
    return plain(d.name).replace("_", " ")


def _value(d: Difference, value: str | None) -> str:
    return plain(masked(value, name=d.name), limit=60)


def is_new_family(found: tuple[Difference, ...]) -> bool:
    """Whether the model or the task is another one: both sides state it, and differ."""
    return any(d.name in _FAMILY and d.before is not None and d.after is not None for d in found)
