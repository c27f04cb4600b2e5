"""What a framework is to the reader."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.configs.document import Document, Leaf, squash

__all__ = ["Framework", "detect", "marks_of"]


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework: marks, own keys, defaults it documents, and how it rounds."""

    name: str
    marks: Sequence[str]
    """Alternatives; each is words that must all be there: a key (`flavor`), a path from the root
    (`model.flavor`), or a value (`=mpt_causal_lm`); keys squashed, `!` before what must not be
    there."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Squashed path (`optimizer.params.lr`) or squashed key → fact; wins over the common names."""
    ignore: Sequence[str] = ()
    """Squashed keys or paths that say nothing about the training."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Facts or settings that hold where the file is silent. Only what the framework documents."""
    batch_unit: str = ""
    """What `batch_size` counts: global, micro, shared (one device's, times accumulation is the
    step), tokens, or "" to tell from the other keys."""
    ffn_rule: str = ""
    syntax: str = ""
    """Needed syntax, where the same keys mean something else elsewhere."""
    source: str = ""


def marks_of(leaves: Iterable[Leaf]) -> set[str]:
    """Return everything that a mark can name.

    Squashed keys, paths from the root, and short text values.
    """
    found: set[str] = set()
    for leaf in leaves:
        parts = [squash(part) for part in leaf.path]
        found.update(parts)
        found.update(".".join(parts[:end]) for end in range(2, len(parts) + 1))
        if isinstance(leaf.value, str) and len(leaf.value) < 60:
            found.add(f"={squash(leaf.value)}")
    return found


def detect(
    document: Document, leaves: Sequence[Leaf], frameworks: Sequence[Framework]
) -> Framework | None:
    """Return the framework that a config is written for, or None."""
    said = document.tree.get("framework")
    if isinstance(said, str):
        for framework in frameworks:
            if squash(framework.name) == squash(said):
                return framework
    present = marks_of(leaves)
    for framework in frameworks:
        if framework.syntax and framework.syntax != document.syntax:
            continue
        if any(all(holds(mark, present) for mark in marks.split()) for marks in framework.marks):
            return framework
    return None


def holds(mark: str, present: set[str]) -> bool:
    """Whether one mark is there, or, with `!`, is not."""
    return mark[1:] not in present if mark.startswith("!") else mark in present
