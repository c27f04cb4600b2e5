"""A skip list: which samples or documents of which files are to be left out of training, as JSON.

`trimtab scan --write-skip` writes one, `guard.skip_list` reads it; a program of yours may do
either. The form is in docs/formats.md.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.durable import sync_folder
from trimtab.errors import ConfigError, ReadError

__all__ = ["SkipList", "SkipSource", "merge_ranges", "read_skip_list", "write_skip_list"]

_KIND = "skip-list"


@dataclass(frozen=True, kw_only=True)
class SkipSource:
    """What to leave out of one file."""

    path: str
    unit: str
    """What the numbers count: "document" (record, row, line of JSON) or "sample" (of `context`
    elements)."""
    size: int
    """Units the file holds; a reader whose count differs must not use the numbers."""
    ids: tuple[tuple[int, int], ...]
    """Ranges [first, last] of unit numbers, counted from 0 in this file; rising, apart from each
    other."""
    context: int | None = None

    def __post_init__(self) -> None:
        """Refuse ranges that are out of order or beyond the file."""
        after = -1
        for first, last in self.ids:
            if not after < first <= last < self.size:
                raise ConfigError(
                    f"skip list, {self.path}: range [{first}, {last}]; expected rising ranges"
                    f" within 0..{self.size - 1}"
                )
            after = last


@dataclass(frozen=True)
class SkipList:
    """Sources in the order in which a dataset holds them one after the other."""

    sources: tuple[SkipSource, ...]

    @property
    def size(self) -> int:
        """Units of all sources."""
        return sum(s.size for s in self.sources)

    @property
    def num_skipped(self) -> int:
        """Units left out."""
        return sum(last - first + 1 for s in self.sources for first, last in s.ids)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] over all sources, as indices into all of them in this order."""
        found, before = [], 0
        for source in self.sources:
            found += [(before + first, before + last) for first, last in source.ids]
            before += source.size
        return merge_ranges(found)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same numbers as rising ranges [first, last] that neither touch nor overlap.

    Example:
        >>> merge_ranges([(7, 9), (1, 2), (3, 3)])
        ((1, 3), (7, 9))
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def write_skip_list(path: Path, skips: SkipList) -> None:
    """Write a skip list; a kill or a power cut leaves the old file or the new one.

    Raises:
        ConfigError: It cannot be written.
    """
    sources = [
        {
            "path": s.path,
            "unit": s.unit,
            "context": s.context,
            "size": s.size,
            "ids": [list(r) for r in s.ids],
        }
        for s in skips.sources
    ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no file of another's
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"schema": 1, "kind": _KIND, "sources": sources}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error


def read_skip_list(path: Path) -> SkipList:
    """Read a skip list.

    Raises:
        ReadError: It cannot be read, or is none.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "no JSON"
        raise ReadError(
            f"{path}: cannot be read as a skip list ({why}); `trimtab scan --write-skip` makes one"
        ) from error
    if (
        not isinstance(document, dict)
        or document.get("kind") != _KIND
        or document.get("schema") != 1
    ):
        raise ReadError(
            f'{path}: no skip list of schema 1; expected {{"schema": 1, "kind": "{_KIND}",'
            ' "sources": […]}'
        )
    try:
        return SkipList(tuple(_source(s) for s in document["sources"]))
    except (KeyError, TypeError, ValueError) as error:  # ConfigError is a ValueError
        raise ReadError(
            f"{path}: a source of it is malformed ({error}); see docs/formats.md"
        ) from error


def _source(raw: dict[str, Any]) -> SkipSource:
    numbers = [raw["size"], *(n for pair in raw["ids"] for n in pair)]
    if any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise TypeError("sizes and ids are whole numbers")
    ids = tuple((first, last) for first, last in raw["ids"])
    return SkipSource(
        path=str(raw["path"]),
        unit=str(raw["unit"]),
        size=raw["size"],
        ids=ids,
        context=raw.get("context"),
    )
