"""A config as one level of keys and values in text, for a comparison key by key."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trimtab.configs.document import MAX_DEPTH, Document
from trimtab.configs.read import load, with_files
from trimtab.errors import ReadError

__all__ = ["flat_config"]

LAUNCHER = "launcher"
"""Key under which a script's document keeps the options of torchrun, srun and the like."""


def flat_config(path: Path) -> dict[str, str]:
    """Return the keys of a config file as one level of dotted keys with their values as text.

    The file is read as `read_config` reads it: any syntax, bounded, never run. What differs is what
    is kept: every key of the file, known or not, in the file's own words. Options of a command line
    are written as they are typed, without their dashes; items of a list and several documents of
    one file are numbered in brackets.

    Raises:
        ReadError: It cannot be read, is not valid in its syntax, or holds no settings.

    Cost: O(size of the file), as for `read_config`.
    """
    read = [with_files(document, path) for document in load(path, stored_config=False)]
    found: dict[str, str] = {}
    for number, document in enumerate(read):
        prefix = f"[{number}]" if len(read) > 1 else ""
        found.update(_walk(_written(document), prefix))
    if not found:
        raise ReadError(
            f"{path}: no settings found; give a config file, or a script with --key value options"
        )
    return found


def _written(document: Document) -> Mapping[str, object]:
    """Return the tree of a document under the keys that its author wrote."""
    tree = dict(document.tree)
    launcher = tree.pop(LAUNCHER, None) if document.syntax == "args" else None
    if isinstance(launcher, Mapping):
        # The program's name, which the reader notes there, is no option. A launcher's number stands
        # before the program without an option between them, so the tree has both as one list.
        tree |= {key: value for key, value in launcher.items() if key != "program"}
    typed = {path[0]: option for path, option in document.spelled.items() if len(path) == 1}
    return {typed.get(key, key).lstrip("-"): value for key, value in tree.items()}


def _walk(value: object, key: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, f"{key}.{name}" if key else str(name), depth + 1)
    elif (
        depth < MAX_DEPTH
        and isinstance(value, list)
        and any(isinstance(item, dict | list) for item in value)
    ):
        for index, item in enumerate(value):
            yield from _walk(item, f"{key}[{index}]", depth + 1)
    elif key:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)
