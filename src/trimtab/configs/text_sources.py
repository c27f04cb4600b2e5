"""JSON (strict and lenient), TOML and lines of `name = value` (INI, gin, .properties)."""

import json
import re

from trimtab.bounded_toml import read_toml_text
from trimtab.configs.document import MAX_DEPTH, Document, PathKey
from trimtab.configs.values import MAX_CHARS

__all__ = ["read_assignments", "read_json", "read_toml"]

STRING_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|(?<=[\s,{\[}\]])#[^\n]*', re.DOTALL
)
TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')
SECTION = re.compile(r"\s*\[([\w .:/-]+)\]\s*")
BLOCK = re.compile(r"([A-Za-z_][\w./]*):\s*")
ASSIGNMENT = re.compile(r"\s*(?:export\s+|set\s+)?([A-Za-z_][\w./@-]*)\s*[=:]\s*(.*?)\s*")


def read_json(text: str) -> Document:
    """Read JSON; comments, trailing commas, NaN and Infinity are forgiven.

    Raises:
        ValueError: It is no JSON (with the line), or no object.
    """
    try:
        try:
            tree = json.loads(text, parse_int=whole)
        except json.JSONDecodeError as error:
            # Strict JSON first: the lenient pass costs two regular expressions over the whole text.
            bare = STRING_OR_COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else " ", text)
            bare = TRAILING_COMMA.sub(lambda m: m[1] or "", bare)
            try:
                tree = json.loads(bare, parse_int=whole)
            except json.JSONDecodeError:
                raise ValueError(f"line {error.lineno}: not valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if isinstance(tree, list) and len(tree) == 1:
        tree = tree[0]
    if not isinstance(tree, dict):
        raise ValueError(
            "line 1: a config is an object with named settings, this is a list or a value"
        )
    return Document(tree, "json", key_lines(text, tree))


def whole(digits: str) -> int | float:
    """Return a whole number; int() refuses thousands of digits, and no setting has as many."""
    return int(digits) if len(digits) <= MAX_CHARS else float(digits)


def read_toml(text: str) -> Document:
    """Read TOML.

    Raises:
        ValueError: It is no TOML; the message has the line.
    """
    try:
        tree = read_toml_text(text)
    except ValueError as error:
        raise ValueError(f"not valid TOML ({error})") from error
    return Document(tree, "toml", key_lines(text, tree))


def read_assignments(text: str) -> Document:
    """Read lines of `name = value` under optional `[section]` heads.

    Macros `%NAME` are filled in.
    """
    tree: dict[str, object] = {}
    lines: dict[PathKey, int] = {}
    section: PathKey = ()
    block: PathKey = ()
    for row, line in enumerate(text.splitlines(), start=1):
        # A sign inside a word, as in `a#b`, starts no comment.
        bare = re.sub(r"(^|\s)[#;].*$", "", line)
        if head := SECTION.fullmatch(bare):
            section = tuple(part for part in re.split(r"[.:/]", head[1].strip()) if part)
            continue
        if bare[:1] not in (" ", "\t", ""):
            block = ()
        if head := BLOCK.fullmatch(bare):
            block = tuple(part for part in re.split(r"[./]", head[1]) if part)
            continue
        if not (found := ASSIGNMENT.fullmatch(bare)):
            continue
        path = (*section, *block, *(part for part in re.split(r"[./]", found[1]) if part))
        if len(path) > MAX_DEPTH:
            raise ValueError(f"line {row}: a name of more than {MAX_DEPTH} parts")
        put(tree, path, plain(found[2]))
        lines[path] = row
    done = {key: filled(value, tree) for key, value in tree.items()}
    return Document(done, "assignments", lines)


def put(tree: dict[str, object], path: PathKey, value: object) -> None:
    """Set a value at a path; a plain value on the way is replaced."""
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            below = tree[part] = {}
        tree = below
    tree[path[-1]] = value


def plain(text: str) -> object:
    """Return the value of a right-hand side: JSON where it is some, else text without quotes."""
    text = text.strip().rstrip(",")
    # gin writes tuples with parentheses, which JSON does not have
    listed = f"[{text[1:-1]}]" if text.startswith("(") and text.endswith(")") else text
    try:
        return json.loads(listed.replace("'", '"'))
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text, text.strip("'\""))


def filled(node: object, root: dict[str, object]) -> object:
    """Return a tree whose macros `%NAME` have the value of NAME at the root."""
    if isinstance(node, dict):
        return {key: filled(value, root) for key, value in node.items()}
    if isinstance(node, str) and node.startswith("%") and not isinstance(root.get(node[1:]), dict):
        return root.get(node[1:], node)
    return node


def key_lines(text: str, tree: dict[str, object]) -> dict[PathKey, int]:
    """Find the line of each key by looking on from the key before it; good enough to point at."""
    lines: dict[PathKey, int] = {}
    starts: dict[str, list[int]] = {}
    for match in re.finditer(r'"([\w./-]+)"\s*:|^\s*([\w.-]+)\s*=', text, re.MULTILINE):
        starts.setdefault(match[1] or match[2], []).append(
            match.start(1) if match[1] else match.start(2)
        )

    def walk(node: object, path: PathKey) -> None:
        if isinstance(node, dict) and len(path) < 60:
            for key, value in node.items():
                if starts.get(key):
                    lines[*path, key] = text.count("\n", 0, starts[key].pop(0)) + 1
                walk(value, (*path, key))

    if len(text) < 300_000:
        walk(tree, ())
    return lines
