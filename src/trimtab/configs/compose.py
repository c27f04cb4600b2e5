"""A hydra config with its `defaults:` list filled in from the group files beside it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.configs.document import Document
from trimtab.configs.interpolation import interpolate
from trimtab.configs.yaml_source import read_yaml

__all__ = ["composed", "file_within"]

MAX_BYTES = 1_000_000
MAX_FILES = 50
MAX_DEPTH = 6
PLAIN_NAME = re.compile(r"/?[\w.-]+(/[\w.-]+)*")
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


@dataclass
class Composition:
    """What was taken in so far."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def composed(document: Document, path: Path) -> Document:
    """Return a YAML document with the files that its defaults list names, where they lie beside it.

    Only files below the config's own folder are read, at most `MAX_FILES` of 1 MB. `_self_` says
    where the file itself comes; without it the file comes last and wins. What is not there is noted
    as missing, and nothing is guessed.

    Source: hydra.cc, The Defaults List.
    """
    if document.syntax != "yaml" or not isinstance(document.tree.get("defaults"), list):
        return document
    work = Composition(path.parent)
    tree = with_defaults(dict(document.tree), work, 0)
    missing = tuple(name for name in work.missing)
    if not work.files:
        return replace(document, missing=missing)
    note = "composed with " + ", ".join(
        file.relative_to(path.parent).as_posix() for file in work.files
    )
    return replace(
        document,
        tree=interpolate(tree),
        note=(*document.note, note),
        parts=tuple(str(file) for file in work.files),
        missing=missing,
    )


def with_defaults(
    tree: dict[str, object], work: Composition, depth: int, folder: str = ""
) -> dict[str, object]:
    """Return a tree merged with what its defaults list names, in the list's order.

    Names are below the file's own folder.
    """
    entries = tree.pop("defaults", None)
    if not isinstance(entries, list) or depth > MAX_DEPTH:
        return tree
    names = [*entries] if "_self_" in entries else [*entries, "_self_"]
    result: dict[str, object] = {}
    for entry in names:
        if entry == "_self_":
            result = merged(result, tree)
            continue
        for group, option, optional in choices(entry):
            package = group.split("@", 1)
            name = f"{package[0]}/{option}" if package[0] else option
            name = name.strip("/") if name.startswith("/") else f"{folder}/{name}".strip("/")
            found = group_file(name, work, depth)
            if found is None:
                if not optional:
                    work.missing.append(name)
                continue
            below, home = found
            place = home if home is not None else (package[1] if len(package) > 1 else package[0])
            parts = () if place in ("_global_", "_here_") else re.split(r"[./]", place.strip("/"))
            for part in reversed([part for part in parts if part]):
                below = {part: below}
            result = merged(result, below)
    return result


def choices(entry: object) -> Iterator[tuple[str, str, bool]]:
    """Give group, option and whether it may be missing, of one entry of a defaults list."""
    if isinstance(entry, str):
        yield "", entry, False
    if not isinstance(entry, Mapping):
        return
    for key, chosen in entry.items():
        words = str(key).split()
        group = words[-1] if words else ""
        if "override" in words or group.startswith(("hydra", "/hydra")):
            continue
        for option in chosen if isinstance(chosen, list) else [chosen]:
            if isinstance(option, str):
                yield group, option, "optional" in words


def group_file(
    name: str, work: Composition, depth: int
) -> tuple[dict[str, object], str | None] | None:
    """Return the tree of a group's file and the package that its head states.

    The result is None where it is not there.
    """
    name = name.removesuffix(".yaml").removesuffix(".yml")
    if not PLAIN_NAME.fullmatch(name) or ".." in name or len(work.files) >= MAX_FILES:
        return None
    for ending in (".yaml", ".yml"):
        file = file_within(work.folder, name + ending)
        if file is None or file in work.files:
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            tree = next(iter(read_yaml(text)), None)
        except (OSError, ValueError):
            return None
        work.files.append(file)
        head = PACKAGE.search(text[:500])
        inner = dict(tree.tree) if tree is not None else {}
        below = with_defaults(inner, work, depth + 1, name.rpartition("/")[0])
        return below, head[1] if head else None
    return None


def file_within(folder: Path, name: str) -> Path | None:
    """Return a file by its name below a folder; None where it is outside, too large or missing."""
    try:
        # Resolved first, so that a link or `..` cannot lead out of the folder.
        root, file = folder.resolve(), (folder / name).resolve()
        if not file.is_relative_to(root) or not file.is_file() or file.stat().st_size > MAX_BYTES:
            return None
    except (OSError, ValueError):
        return None
    return folder / name


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Return two trees as one; what is above wins."""
    result = dict(below)
    for key, value in above.items():
        mine = result.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        result[key] = merged(mine, value) if both else value  # type: ignore[arg-type]
    return result
