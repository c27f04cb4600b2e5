"""Damages of files: of bytes, of header fields, of JSON values and of the tokens of configs."""

import json
import random
import re
from collections.abc import Callable, Sequence

from benchmarks.logs.fuzzing import mutated

__all__ = ["HOSTILE", "MAX_BYTES", "damage_binary", "damage_config", "damage_json"]

MAX_BYTES = 200_000
"""A made input is cut here."""
HOSTILE = "</script><img src=x onerror=fuzzed()><svg onload=fuzzed()>"
"""A text that runs where a page does not escape it."""

_MAGIC = (
    b"PAR1",
    b"ARROW1\0\0",
    b"\x93NUMPY\x01\x00",
    b"\x93NUMPY\x02\x00",
    b"MMIDIDX\x00\x00",
    b"\x1f\x8b\x08\x00",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\x00",
    b"BZh9",
    b"PK\x03\x04",
    b"ustar\x0000",
    b"\xff\xff\xff\xff",
    b"\x80\x04\x95",
)
_EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 1 << 20, (1 << 31) - 1, 1 << 31)
_WIDE_EDGES = ((1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_VALUES: tuple[Callable[[random.Random], object], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: "",
    lambda _: [],
    lambda _: {},
    lambda _: float("nan"),
    lambda _: float("-inf"),
    lambda _: 1e308,
    lambda _: 5e-324,
    lambda _: -1,
    lambda _: 10**30,
    lambda _: 2**63,
    lambda r: r.randrange(-(2**40), 2**40),
    lambda _: int("9" * 4000),
    lambda _: "9" * 16_000,
    lambda _: HOSTILE,
    lambda _: "\x1b[2J\x07\u202e\u2028\ud800",
    lambda _: "a\nb\r\n- c: [",
    lambda _: "../../../etc/passwd",
    lambda _: "x" * 5000,
    lambda r: [[r.random()] * 5] * 3,
    lambda _: {"a": {"b": {"c": [1, {"d": None}]}}},
    lambda _: "2024-02-30T25:61:00Z",
    lambda _: "0.0",
    lambda _: "1.9999999999",
)


def damage_binary(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return a file with one to four damages: of single bytes, fields, stretches, magic numbers."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_BINARY)(made, rng)
    if others and rng.random() < 0.05:
        other = rng.choice(others)
        made[rng.randrange(len(made) + 1) :] = other[rng.randrange(len(other) + 1) :]
    if rng.random() < 0.1:
        return mutated(bytes(made), rng, tuple(others))
    return bytes(made[:MAX_BYTES])


def _place(made: bytearray, rng: random.Random, size: int = 1) -> int:
    """Return a place; headers and footers, which say how the rest is read, come more often."""
    last = max(len(made) - size, 0)
    near = rng.random()
    if near < 0.25:
        return rng.randint(0, min(last, 256))
    if near < 0.5:
        return rng.randint(max(last - 1024, 0), last)
    return rng.randint(0, last)


def _flip(made: bytearray, rng: random.Random) -> None:
    if made:
        made[_place(made, rng)] ^= 1 << rng.randrange(8)


def _set_byte(made: bytearray, rng: random.Random) -> None:
    if made:
        made[_place(made, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _set_field(made: bytearray, rng: random.Random) -> None:
    width = rng.choice((2, 4, 8))
    at = _place(made, rng, width)
    if rng.random() < 0.7:
        at -= at % width  # headers align their fields
    value = rng.choice(_EDGES if width < 8 else (*_EDGES, *_WIDE_EDGES))
    if rng.random() < 0.3:
        old = int.from_bytes(made[at : at + width], "little")
        value = old + rng.choice((-8, -1, 1, 8, 64, 1 << 16))
    made[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "little")


def _truncate(made: bytearray, rng: random.Random) -> None:
    del made[_place(made, rng) :]


def _remove(made: bytearray, rng: random.Random) -> None:
    at = _place(made, rng)
    del made[at : at + rng.choice((1, 4, 8, 64, 512))]


def _double(made: bytearray, rng: random.Random) -> None:
    at = _place(made, rng)
    made[at:at] = made[at : at + rng.choice((1, 4, 8, 64, 512))]


def _move(made: bytearray, rng: random.Random) -> None:
    size = rng.choice((4, 8, 64, 512))
    part = made[(at := _place(made, rng, size)) : at + size]
    target = _place(made, rng, size)
    made[target : target + len(part)] = part


def _zeros(made: bytearray, rng: random.Random) -> None:
    at = _place(made, rng)
    size = min(rng.choice((4, 16, 512, 4096)), len(made) - at)
    made[at : at + size] = bytes(size)


def _magic(made: bytearray, rng: random.Random) -> None:
    magic = rng.choice(_MAGIC)
    at = 0 if rng.random() < 0.3 else _place(made, rng)
    made[at : at + (len(magic) if rng.random() < 0.5 else 0)] = magic


_BINARY: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _flip,
    _set_byte,
    _set_field,
    _set_field,
    _set_field,
    _truncate,
    _remove,
    _double,
    _move,
    _zeros,
    _magic,
)


def damage_json(text: str, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return JSON or JSON lines with odd values, other types, lost and doubled keys, or bytes."""
    if rng.random() < 0.3:
        return damage_binary(text.encode(), rng, others)
    lines = text.splitlines(keepends=True)
    whole = len(lines) < 2 or not lines[0].rstrip().endswith("}")
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.randrange(len(lines)) if lines else 0
        try:
            tree = json.loads(text if whole else lines[row])
        except (ValueError, RecursionError):  # an earlier damage left it so
            break
        made = _written(_changed(tree, rng), rng)
        if whole:
            return made.encode("utf-8", "surrogatepass")[:MAX_BYTES]
        lines[row] = made + "\n"
        if rng.random() < 0.1:
            lines[row] = ""
        elif rng.random() < 0.1:
            lines.insert(rng.randrange(len(lines)), lines[row])
    return "".join(lines).encode("utf-8", "surrogatepass")[:MAX_BYTES]


def _written(tree: object, rng: random.Random) -> str:
    made = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.03:
        deep = rng.choice((50, 900, 5000, 60_000))
        made = made.replace(":", ":" + rng.choice("[{") * deep, 1)
    if rng.random() < 0.03:
        made = made.replace('"', "'")
    return made


def _changed(tree: object, rng: random.Random) -> object:
    """Return a tree in which one node, at any depth, is another."""
    if isinstance(tree, dict) and tree:
        key = rng.choice(list(tree))
        draw = rng.random()
        if draw < 0.55:
            return {**tree, key: _changed(tree[key], rng)}
        if draw < 0.65:
            return {k: v for k, v in tree.items() if k != key}
        if draw < 0.75:
            odd = rng.choice(
                (HOSTILE, "", "t", "event", "step", "\0", "x" * 300, "a.b", "__proto__")
            )
            return {**tree, odd: tree[key]}
        return {**tree, key: rng.choice(_VALUES)(rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.7:
        at = rng.randrange(len(tree))
        return [*tree[:at], _changed(tree[at], rng), *tree[at + 1 :]]
    return rng.choice(_VALUES)(rng)


_TOKEN = re.compile(r"[A-Za-z_][\w.-]*|-?\d[\d_.eE+-]*|\"[^\"\n]*\"|'[^'\n]*'|[^\s\w]")
_CONFIG_TOKENS = (
    "&a ",
    "*a",
    "<<: *a",
    "!!python/object/apply:os.system ['true']",
    "!!binary ",
    "!include x.yaml",
    "---\n",
    "...\n",
    "- ",
    "? ",
    ": ",
    "|\n",
    ">-\n",
    "[[a]]\n",
    "[a.b.c]\n",
    "a.b.c = 1\n",
    "${a}",
    "${lr}",
    "${multiply:${lr},9999999999}",
    "${oc.env:HOME,1}",
    "%YAML 1.1\n",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    '"',
    "'",
    '"""',
    "\\",
    "\\\n",
    "#",
    "\t",
    "\0",
    "\ufeff",
    "9" * 5000,
    "0x" + "f" * 5000,
    "1e400",
    "-0",
    ".inf",
    "nan",
    "2**64**2",
    "9**9**9",
    "1_000",
    "190:20:30",
    "2024-02-30",
    "lambda: 0",
    "--lr",
    "--lr=",
    "$(cat x)",
    "<<EOF\n",
    "[" * 300,
    "{" * 300,
    "a:\n " * 80,
    "-" * 300,
    "not " * 300,
    "(" * 300,
    "a." * 2000 + "b = 1\n",
    "defaults: [a, b]\n",
    HOSTILE,
)


def damage_config(text: str, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return a config with tokens replaced, repeated, moved or inserted, lines indented, or bombs."""
    draw = rng.random()
    if draw < 0.2:
        return damage_binary(text.encode(), rng, others)
    if draw < 0.25:
        return _bomb(rng).encode("utf-8", "surrogatepass")
    if draw < 0.4 and text.lstrip().startswith("{"):
        return damage_json(text, rng, others)
    for _ in range(rng.choice((1, 1, 2, 5))):
        text = rng.choice(_CONFIG)(text, rng)
    return text.encode("utf-8", "surrogatepass")[:MAX_BYTES]


def _tokens(text: str) -> list[re.Match[str]]:
    return list(_TOKEN.finditer(text))


def _replace_token(text: str, rng: random.Random) -> str:
    found = _tokens(text)
    if not found:
        return text
    spot, other = rng.choice(found), rng.choice(found)
    new = other[0] if rng.random() < 0.4 else rng.choice(_CONFIG_TOKENS)
    return text[: spot.start()] + new + text[spot.end() :]


def _insert_token(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(_CONFIG_TOKENS) + text[at:]


def _repeat_token(text: str, rng: random.Random) -> str:
    found = _tokens(text)
    if not found:
        return text
    spot = rng.choice(found)
    return text[: spot.end()] + spot[0] * rng.choice((1, 10, 200)) + text[spot.end() :]


def _indent_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    row = rng.randrange(len(lines))
    lines[row] = rng.choice((" ", "  ", "\t", " " * 200)) + lines[row].lstrip(" ")
    return "\n".join(lines)


def _swap_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _drop_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


_CONFIG: tuple[Callable[[str, random.Random], str], ...] = (
    _replace_token,
    _replace_token,
    _insert_token,
    _insert_token,
    _repeat_token,
    _indent_line,
    _swap_lines,
    _drop_line,
)


def _bomb(rng: random.Random) -> str:
    """Return a short text that grows when it is expanded, or nests deeply."""
    deep = rng.choice((20, 61, 500, 3000, 20_000))
    kind = rng.randrange(9)
    if kind == 0:  # aliases of aliases
        wide = rng.randint(2, 9)
        rows = [
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * wide)}]" for i in range(1, min(deep, 40))
        ]
        return "a0: &a0 [lr, lr]\n" + "\n".join(rows)
    if kind == 1:  # the same with merge keys
        rows = [f"b{i}: &b{i}\n  x: *b{i - 1}\n  y: *b{i - 1}" for i in range(1, min(deep, 60))]
        return "b0: &b0 {lr: 0.1}\n" + "\n".join(rows)
    if kind == 2:  # TOML dotted keys: each part a table
        return "\n".join(f"{'a.' * deep}k{i} = 1" for i in range(min(200_000 // (2 * deep), 400)))
    if kind == 3:
        return f"[{'.'.join(['a'] * deep)}]\nlr = 1"
    if kind == 4:
        return '{"lr": ' + "[" * deep + "]" * rng.choice((deep, 0)) + "}"
    if kind == 5:
        return "lr = " + rng.choice(("[", "(", "{", "-", "not ", "~", "lambda: ")) * deep + "1"
    if kind == 6:
        return "lr = " + " + ".join(["1"] * deep)
    if kind == 7:
        return "".join(f"{' ' * i}a{i}:\n" for i in range(min(deep, 600))) + " " * 600 + "lr: 1"
    return "x = ${x}${x}\ny = ${y}\nlr: ${a}\na: ${lr}\n" + "z: " + "${" * deep + "}" * deep
