"""`${a.b}` of OmegaConf and hydra: filled from the same file, never from the machine."""

import re
from collections.abc import Mapping

from trimtab.configs.values import arithmetic, number

__all__ = ["interpolate"]

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
WHOLE = re.compile(r"\s*\$\{[^${}]*\}\s*")
MAX_ROUNDS = 20


def interpolate(tree: Mapping[str, object]) -> dict[str, object]:
    """Return the tree with `${…}` replaced where the file itself gives the value.

    Absolute (`${model.hidden}`), relative (`${.hidden}`, `${..x}`), arithmetic resolvers
    (`${multiply:4, ${.hidden}}`), and the fallback of `${oc.env:NAME,512}`. The rest stays as it is
    written. Only strings that hold `${` cost anything.
    """
    done = walk(dict(tree), dict(tree), ())
    assert isinstance(done, dict)
    return done


def walk(node: object, root: dict[str, object], path: tuple[str, ...]) -> object:
    """Return one node with its references filled."""
    if isinstance(node, dict):
        return {key: walk(value, root, (*path, str(key))) for key, value in node.items()}
    if isinstance(node, list):
        return [walk(value, root, (*path, str(i))) for i, value in enumerate(node)]
    if isinstance(node, str) and "${" in node and len(node) < 2000:
        return fill(node, root, path)
    return node


def fill(text: str, root: dict[str, object], path: tuple[str, ...]) -> object:
    """Return a text with its references filled, innermost first.

    A lone reference keeps its type.
    """
    for _ in range(MAX_ROUNDS):
        found = INNERMOST.search(text)
        if found is None:
            return text
        value = resolve(found[1].strip(), root, path)
        # A value that repeats itself in each round would grow without bound.
        if value is None or isinstance(value, dict) or len(str(value)) > 2000:
            return text
        # `${a.b}` alone stands for a number or list, not for its text.
        if WHOLE.fullmatch(text) and not (isinstance(value, str) and "${" in value):
            return value
        text = text[: found.start()] + str(value) + text[found.end() :]
    return text


def resolve(reference: str, root: dict[str, object], path: tuple[str, ...]) -> object:
    """Return the value of one reference, or None."""
    name, colon, rest = reference.partition(":")
    if not colon:
        return look_up(reference, root, path)
    arguments = [part.strip().strip("'\"") for part in rest.split(",")]
    name = name.strip().lower().removeprefix("oc.").removeprefix("calc_").removeprefix("math.")
    # The environment of this machine is not the one the run had: only the fallback counts.
    if name in {"env", "environ", "select", "decode"}:
        return plain(arguments[-1]) if len(arguments) > 1 else None
    if name in {"eval", "calc", "math"}:
        return arithmetic(rest.strip().strip("'\""))
    values = [number(argument) for argument in arguments]
    if any(value is None for value in values) or not 1 <= len(values) <= 8:
        return None
    return calculate(name, [value for value in values if value is not None])


def calculate(name: str, values: list[float | int]) -> float | int | None:
    """Return the result of a resolver that many projects register under these names."""
    sign = {
        "multiply": "*",
        "mul": "*",
        "prod": "*",
        "add": "+",
        "sum": "+",
        "plus": "+",
        "subtract": "-",
        "sub": "-",
        "divide": "/",
        "div": "/",
        "int_div": "//",
        "int_divide": "//",
        "floor_divide": "//",
        "div_int": "//",
    }.get(name)
    if sign is None:
        return int(values[0]) if name in {"int", "as_int"} else None
    return arithmetic(f" {sign} ".join(f"({value!r})" for value in values))


def look_up(reference: str, root: dict[str, object], path: tuple[str, ...]) -> object:
    """Return the value at a reference.

    One unknown first word is taken for the name of this file's root.
    """
    dots = len(reference) - len(reference.lstrip("."))
    parts = [part for part in re.split(r"[.\[\]]+", reference.lstrip(".")) if part]
    if dots:
        parts = [*path[: max(0, len(path) - dots)], *parts]
    found = step_down(root, parts)
    return found if found is not None or dots or len(parts) < 2 else step_down(root, parts[1:])


def step_down(node: object, parts: list[str]) -> object:
    """Return the value at a path, or None."""
    for part in parts:
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return None
    return node


def plain(text: str) -> object:
    """Return a fallback value: a number where it reads as one."""
    found = number(text)
    return text if found is None else found
