"""The frameworks: how a config of each is recognized, and what its own keys mean.

The table is `frameworks.toml`; it adds to the common names of `names.toml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from trimtab.configs.document import Document, Leaf, squash
from trimtab.configs.names import read_table

__all__ = ["Framework", "detect", "frameworks", "marks_of"]


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework: its marks, its own keys, the defaults it documents, and how it rounds."""

    name: str
    marks: Sequence[str]
    """Alternatives; each is words that must all be there: a key (`flavor`), a path from the root
    (`model.flavor`), or a value (`=mpt_causal_lm`); keys squashed, `!` before what must not be
    there."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Squashed path (`optimizer.params.lr`) or squashed key → fact; wins over the common names."""
    ignore: Sequence[str] = ()
    """Squashed keys or paths that say nothing about the training."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Facts or settings that hold where the file is silent. Only what the framework documents."""
    batch_unit: str = ""
    """What `batch_size` counts: global, micro, shared (one device's, times accumulation is the
    step), tokens, or "" to tell from the other keys."""
    ffn_rule: str = ""
    syntax: str = ""
    """Needed syntax, where the same keys mean something else elsewhere."""
    source: str = ""


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return the known frameworks in order: the first whose marks are all there is it."""
    table = read_table("frameworks.toml")
    found = []
    for row in table["framework"]:
        own = dict(row)
        for part in ("keys", "defaults"):
            shared = own.pop(f"{part}_of", None)
            lent = table["shared"][shared][part] if shared else {}
            own[part] = {**lent, **own.get(part, {})}
        found.append(Framework(**own))
    return tuple(found)


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
    document: Document, leaves: Sequence[Leaf], known: Sequence[Framework]
) -> Framework | None:
    """Return the framework that a config is written for, or None."""
    named = document.tree.get("framework")
    if isinstance(named, str):
        for framework in known:
            if squash(framework.name) == squash(named):
                return framework
    present = marks_of(leaves)
    for framework in known:
        if framework.syntax and framework.syntax != document.syntax:
            continue
        if any(all(holds(mark, present) for mark in marks.split()) for marks in framework.marks):
            return framework
    return None


def holds(mark: str, present: set[str]) -> bool:
    """Whether one mark is there, or, with `!`, is not."""
    return mark[1:] not in present if mark.startswith("!") else mark in present
