"""Parsers of single values: numbers as text, durations with a unit, pairs, precisions, flags."""

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping

__all__ = [
    "LARGEST",
    "MAX_CHARS",
    "NO",
    "YES",
    "arithmetic",
    "calculate",
    "duration",
    "finite",
    "flag",
    "number",
    "pair",
    "precision",
    "unresolved",
]

LARGEST = sys.float_info.max
"""The largest float; a whole number beyond it is treated as infinity."""
MAX_CHARS = 400
"""A longer text is no number: patterns of digits take quadratic time on digits that go on."""
YES, NO = True, False
"""Names for settings that are set to a flag."""
NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
SUFFIXED = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([kKmMbBgGtT])")
SUFFIX = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
DURATION = re.compile(
    r"([-+]?[\d_]*\.?\d+(?:[eE][-+]?\d+)?)\s*"
    r"(ba|batch(?:es)?|steps?|its?|iters?|updates?|ep|epochs?|dur|sp|samples?|tok|tokens?|T|%)"
)
UNITS = {"ba": "steps", "ep": "epochs", "dur": "ratio", "sp": "samples", "tok": "tokens"}
OPERATORS: Mapping[type, Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
CALLS: Mapping[str, Callable[..., object]] = {
    "int": int,
    "float": float,
    "round": round,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
    "floor": math.floor,
}


def number(value: object) -> float | int | None:
    """Return a value as a number, or None. `3e-4`, `1_000`, `.5`, `2e12` as text are numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # Whatever counts with it takes a float, and beyond the largest there is only infinity.
        if abs(value) > LARGEST:
            return math.inf if value > 0 else -math.inf
        return value
    if isinstance(value, list | tuple) and len(value) == 1:
        return number(value[0])
    if not isinstance(value, str):
        return None
    text = value.strip().strip("'\"")
    if len(text) > MAX_CHARS:
        return None
    if NUMBER.fullmatch(text):
        found = float(text.replace("_", ""))
        plain = "." not in text and "e" not in text.lower()
        # int() of thousands of digits takes quadratic time, and Python refuses it above 4300.
        return int(text.replace("_", "")) if plain and len(text) < 40 else found
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return int(text.replace(",", ""))
    if suffixed := SUFFIXED.fullmatch(text):
        return float(suffixed[1]) * SUFFIX[suffixed[2].lower()]
    if re.fullmatch(r"[-+]?(nan|inf(inity)?)|[-+]?\.(nan|inf)", text.lower()):
        return float(text.lower().replace(".", ""))
    if len(text) < 80 and re.fullmatch(r"[\d\s.eE_+*/()-]+", text) and re.search(r"\d", text):
        return arithmetic(text)
    return None


def finite(value: object) -> float | int | None:
    """Return a value as a finite number, or None."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def arithmetic(text: str, names: Mapping[str, object] | None = None) -> float | int | None:
    """Return the value of `8 / 3`, `2**16`, `4*H`; None where it is anything else. Never runs code.

    `names` gives the values of names. Powers are bounded, so no text costs more than its length.
    """
    try:
        found = calculate(ast.parse(text.strip(), mode="eval").body, names or {})
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError):
        return None
    return number(found)


def calculate(
    node: ast.expr, names: Mapping[str, object], known: Callable[[ast.expr], object] | None = None
) -> object:
    """Return the value of a constant expression; ValueError where it is not one.

    `known` gives the value of `a.b` and `a["b"]`.
    """
    if known is not None and isinstance(node, ast.Attribute | ast.Subscript):
        return known(node)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = calculate(node.operand, names, known)
        if isinstance(node.op, ast.UAdd):
            return operand
        if not isinstance(operand, int | float | complex):
            raise ValueError(f"{operand!r:.40} is not a number")
        return -operand
    if isinstance(node, ast.BinOp):
        left, right = calculate(node.left, names, known), calculate(node.right, names, known)
        return combined(node.op, left, right)
    if isinstance(node, ast.Call) and not node.keywords:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in CALLS and 1 <= len(node.args) <= 8:
            values = [calculate(argument, names, known) for argument in node.args]
            return CALLS[name](*[number(v) if isinstance(v, str) else v for v in values])
    raise ValueError(type(node).__name__)


def combined(operation: ast.operator, left: object, right: object) -> object:
    """Return the result of an operation on two numbers.

    Bounded, so that a text of a few characters cannot ask for a number of a million digits.
    """
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise ValueError(f"{left!r:.40} and {right!r:.40} are not two numbers")
    if isinstance(operation, ast.Pow):
        if abs(left) > 1e9 or abs(right) > 64:
            raise ValueError("power too large")
        return left**right
    whole = isinstance(left, int) and isinstance(right, int)
    if isinstance(operation, ast.LShift) and whole and 0 <= right <= 64:
        return int(left) << int(right)
    # Python's integers have no largest value: a product of huge ones takes memory and time.
    if whole and max(abs(left), abs(right)) > 1e30:
        raise ValueError("number too large")
    if type(operation) not in OPERATORS:
        raise ValueError(type(operation).__name__)
    return OPERATORS[type(operation)](left, right)


def pair(value: object) -> tuple[float, float] | None:
    """Return two numbers from `[0.9, 0.95]`, `(0.9,0.98)`, `"0.9 0.95"`, `{"beta1": …}`."""
    if isinstance(value, str):
        value = re.split(r"[\s,;]+", value.strip().strip("()[]").strip())
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple) or not 2 <= len(value) <= 3:
        return None
    first, second = number(value[0]), number(value[1])
    return None if first is None or second is None else (float(first), float(second))


def duration(value: object) -> tuple[float, str] | None:
    """Return (amount, unit) of a length of training: steps, epochs, ratio, samples, tokens.

    `100ba`, `0.01dur`, `375e6tok`, `2e12T`, `3%`; a plain number has the unit "".
    """
    if isinstance(value, Mapping) and "value" in value:
        amount = finite(value["value"])
        unit = str(value.get("unit", ""))
        return None if amount is None else (float(amount), unit_of(unit))
    short = isinstance(value, str) and len(value) <= MAX_CHARS
    if short and (found := DURATION.fullmatch(str(value).strip())):
        amount = float(found[1].replace("_", ""))
        if not math.isfinite(amount):
            return None
        return (amount / 100, "ratio") if found[2] == "%" else (amount, unit_of(found[2]))
    plain = finite(value)
    return None if plain is None else (float(plain), "")


def unit_of(word: str) -> str:
    """Return the unit behind a word of a duration."""
    if word == "T":
        return "tokens"
    word = word.lower()
    for start, unit in UNITS.items():
        if word.startswith(start):
            return unit
    for unit in ("steps", "epochs", "samples", "tokens"):
        if word.rstrip("s") == unit.rstrip("s"):
            return unit
    return "steps" if word.startswith(("it", "update")) else ""


def flag(value: object) -> bool | None:
    """Return a value as a flag, or None."""
    if isinstance(value, bool):
        return value
    # 2 under a flag's key is a level or a count, not "on".
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        return {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }.get(value.strip().lower())
    return None


def precision(value: object) -> str | None:
    """Return bf16, fp16, fp32 or fp8 from how a framework names its precision; None if unknown."""
    if isinstance(value, bool) or value is None:
        return None
    text = str(value).lower().replace("torch.", "")
    if "compute" in text or re.search(r"(^|,)c=", text):  # jmp: p=f32,c=bfloat16
        text = re.split(r"(?:compute|c)=", text)[-1].split(",")[0]
    if "bf16" in text or "bfloat16" in text:
        return "bf16"
    if "fp8" in text or "float8" in text:
        return "fp8"
    if re.search(r"fp16|float16|f16|half", text) or text in ("16", "16-mixed", "16-true"):
        return "fp16"
    if re.search(r"fp32|float32|f32|single|^(float|no)$", text) or text.startswith("32"):
        return "fp32"
    return None


def unresolved(value: object) -> bool:
    """Whether a value is a placeholder that the file alone does not fill."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    return "$" in text or text in {"", "auto", "???", "none", "None", "null", "~"} or "{{" in text
