"""Which syntax a text is written in, and its documents."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from trimtab.configs.arguments import argument_tree, spelled_options
from trimtab.configs.document import MAX_DEPTH, MAX_DOCUMENTS, MAX_KEYS, Document
from trimtab.configs.interpolation import interpolate
from trimtab.configs.python_source import read_python
from trimtab.configs.shell_source import expand, read_shell
from trimtab.configs.text_sources import read_assignments, read_json, read_toml
from trimtab.configs.values import LARGEST
from trimtab.configs.yaml_source import read_yaml

__all__ = ["SUFFIXES", "documents"]

BY_SUFFIX: Mapping[str, str] = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".jsonc": "json",
    ".json5": "json",
    ".toml": "toml",
    ".py": "python",
    ".sh": "shell",
    ".bash": "shell",
    ".sbatch": "shell",
    ".slurm": "shell",
    ".sub": "shell",
    ".job": "shell",
    ".pbs": "shell",
    ".lsf": "shell",
    ".gin": "assignments",
    ".ini": "assignments",
    ".cfg": "assignments",
    ".conf": "assignments",
    ".properties": "assignments",
    ".env": "assignments",
}
SUFFIXES = frozenset(BY_SUFFIX)


def documents(name: str, text: str, *, stored_config: bool = True) -> Iterator[Document]:
    """Yield the documents of a text, with `${…}` filled in and wrappers of stored facts removed.

    Args:
        name: Name of the file; its ending gives the syntax.
        text: What the file holds.
        stored_config: Also remove the wrapper of `{"config": {…}}`, which drops the keys beside it.

    Raises:
        ValueError: The text is not valid in the syntax that its name or its content shows.
    """
    if not text.strip():
        raise ValueError("the file is empty")
    syntax = BY_SUFFIX.get(PurePath(name).suffix.lower()) or guess(text)
    for number, document in enumerate(READERS[syntax](text)):
        if number >= MAX_DOCUMENTS:
            raise ValueError(f"more than {MAX_DOCUMENTS:,} configs in one file")
        document = replace(document, tree=bounded(document.tree))
        found = without_argument_list(document)
        if found is document and stored_config:
            found = without_config_key(document)
        yield replace(found, tree=interpolate(found.tree))


def bounded(tree: Mapping[str, object]) -> dict[str, object]:
    """Return a tree whose size, depth and numbers are such that all after it can count on them.

    A whole number beyond every float becomes infinity: Python refuses to print one of more than
    4300 digits, and `0xff…` writes one in a line.

    Raises:
        ValueError: It nests more than `MAX_DEPTH` levels deep, or has more than `MAX_KEYS` keys.
    """
    num_keys = 0

    def within(node: object, depth: int) -> object:
        nonlocal num_keys
        if isinstance(node, dict | list) and depth >= MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, dict):
            num_keys += len(node)
            if num_keys > MAX_KEYS:
                raise ValueError(f"more than {MAX_KEYS:,} keys, as no config has")
            return {str(key): within(value, depth + 1) for key, value in node.items()}
        if isinstance(node, list):
            return [within(value, depth + 1) for value in node]
        if isinstance(node, int) and abs(node) > LARGEST:
            return math.inf if node > 0 else -math.inf
        return node

    found = within(dict(tree), 0)
    assert isinstance(found, dict)
    return found


def guess(text: str) -> str:
    """Return the syntax of a text whose file name does not determine it."""
    head = text.lstrip()
    if head.startswith("#!"):
        return "python" if "python" in head.split("\n")[0] else "shell"
    if head.startswith("{"):
        return "json"
    if re.search(r"(^|\s)--[A-Za-z][\w-]+([ =]|$)", text):
        return "shell"
    if re.search(r"^\s*\[[\w.]+\]\s*$", text, re.MULTILINE):
        return (
            "toml"
            if not re.search(r"^\s*\w+\s*=\s*[A-Za-z/][^\"'\n]*$", text, re.MULTILINE)
            else "assignments"
        )
    if re.search(r"^\s*(import|from|def|class)\s+\w", text, re.MULTILINE):
        return "python"
    if re.search(r"^\s*[\w.-]+\s*:(\s|$)", text, re.MULTILINE):
        return "yaml"
    return "assignments"


def without_argument_list(document: Document) -> Document:
    """Return stored arguments, `{"args": […]}`, as the options that they are."""
    tree = document.tree
    arguments = tree.get("args")
    if not (
        isinstance(arguments, list)
        and arguments
        and all(isinstance(word, str | int | float) for word in arguments)
    ):
        return document
    beside = {
        key: value for key, value in tree.items() if key == "framework" or isinstance(value, dict)
    }
    # Stored arguments may hold `${NAME:-512}`: the fallback runs unless the caller sets NAME.
    words = [expand(str(word), {}) for word in arguments]
    return Document(
        {**beside, **argument_tree(words)},
        "args",
        note=document.note,
        spelled=spelled_options(words),
    )


def without_config_key(document: Document) -> Document:
    """Return stored settings, `{"config": {…}}`, without their wrapper."""
    tree = document.tree
    inner = tree.get("config")
    beside = {key: value for key, value in tree.items() if key == "framework"}
    if (
        isinstance(inner, dict)
        and len(inner) > 1
        and not any(key in tree for key in ("model", "optimizer", "trainer", "lr"))
    ):
        return Document({**inner, **beside}, document.syntax, note=document.note)
    return document


READERS: Mapping[str, Callable[[str], Iterable[Document]]] = {
    "yaml": read_yaml,
    "json": lambda text: [read_json(text)],
    "toml": lambda text: [read_toml(text)],
    "python": read_python,
    "shell": lambda text: [read_shell(text)],
    "assignments": lambda text: [read_assignments(text)],
}
