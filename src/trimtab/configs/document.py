"""The common form of every syntax: a tree of plain values, with line numbers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

__all__ = [
    "MAX_DEPTH",
    "MAX_DOCUMENTS",
    "MAX_KEYS",
    "MAX_LEAVES",
    "Document",
    "Leaf",
    "PathKey",
    "leaves",
    "squash",
]

PathKey = tuple[str, ...]

MAX_LEAVES = 100_000
MAX_KEYS = 20_000
"""Named settings of one document; recognizing one takes some 0.2 ms."""
MAX_DOCUMENTS = 2_000
"""Configs in one file: YAML documents, functions of a Python file."""
MAX_DEPTH = 60
"""Levels of nesting that are read; no config has as many."""


@dataclass(frozen=True)
class Leaf:
    """One value of a config and the way to it."""

    path: PathKey
    value: object
    line: int | None = None
    spelled: str = ""
    """The option as it is typed, `--adam-beta2`, where it is one."""

    @property
    def key(self) -> str:
        """The path as a person would write it."""
        return self.spelled or ".".join(self.path)


@dataclass(frozen=True)
class Document:
    """One config as its syntax gives it: nested dicts and lists of plain values."""

    tree: Mapping[str, object]
    syntax: str
    lines: Mapping[PathKey, int] = field(default_factory=dict)
    note: tuple[str, ...] = ()
    spelled: Mapping[PathKey, str] = field(default_factory=dict)
    """Options of a command line as they are typed there."""
    parts: tuple[str, ...] = ()
    """Files that were read into it."""
    missing: tuple[str, ...] = ()
    """Files that it names and that were not read."""

    def leaves(self) -> list[Leaf]:
        """Return every value with its path; lists of plain values are one value."""
        found = leaves(self.tree, self.lines)
        if not self.spelled:
            return list(found)
        return [replace(leaf, spelled=self.spelled.get(leaf.path, "")) for leaf in found]


def leaves(tree: object, lines: Mapping[PathKey, int], path: PathKey = ()) -> Iterator[Leaf]:
    """Walk a tree depth first. Lists of dicts give their index as a key; depth is bounded."""
    if len(path) > MAX_DEPTH:
        return
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, lines, (*path, str(key)))
    elif isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        for index, item in enumerate(tree[:50]):
            yield from leaves(item, lines, (*path, str(index)))
    elif path:
        yield Leaf(path, tree, lines.get(path))


def squash(key: str) -> str:
    """Return a key without case and separators: `--num-layers`, `numLayers` → `numlayers`."""
    return re.sub(r"[^a-z0-9]", "", key.lower())
