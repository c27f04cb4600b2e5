"""Lines that name their values in other forms, put into `key = value` before they are looked at.

    Loss, 2.62                                            a name and its value, parted by a comma
    loss(tx, ty) = 98.1f0                                 what Julia shows of a call
    (loss(tx, ty), now()) = (98.1f0, 2020-04-21T20:48:30)      and of several at once

Only in files in which such lines repeat with a loss: elsewhere a comma parts cells, and an equals
sign behind a call defines a function.
"""

import re
from collections.abc import Callable

__all__ = ["in_plain_form"]

_FEWEST_LINES = 3
_NAME = r"[A-Za-z][\w /.-]{0,40}?"
_VALUE = r"[-+]?(?:\d{1,20}(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_PAIR = rf"({_NAME})\s*,[ \t]*({_VALUE})"
_PAIRS = re.compile(rf"[ \t]*{_PAIR}(?:\s*,\s*{_PAIR}){{0,20}}[ \t]*,?\s*", re.IGNORECASE)
_ONE_PAIR = re.compile(rf"(?<![\w.]){_PAIR}(?=\s*(?:,|\Z))", re.IGNORECASE)
_LOSS_PAIR = re.compile(
    rf"^(?:[^\n]{{0,200}}, ?)?(?:{_NAME}[ _])?loss[ \t]*,[ \t]*{_VALUE}[ \t]*(?:,|$)",
    re.IGNORECASE | re.MULTILINE,
)
_COMMA = re.compile(r"loss[ \t]*,[ \t]*[-+]?\d", re.IGNORECASE)
_ARGUMENTS = r"\((?:[^()\n]|\([^()\n]{0,80}\)){0,120}\)"
_OF_LOSS = re.compile(
    r"^[^=\n]{0,80}?\b\w{0,20}loss\w{0,20}\((?=[^\n]{0,120}?(?:,|_|\.\.\.))"
    r"(?:[^()\n]|\([^()\n]{0,80}\)){0,120}\)[^=\n]{0,120} = (?:\(\d+,|[-(]?(?:\d+\.\d|\d+e|NaN|Inf))[^*+/\n]*$",
    re.MULTILINE,
)
_CALL = re.compile(rf"(\b[^\W\d]\w{{0,40}}!?)({_ARGUMENTS})(?= = )")
_SEVERAL = re.compile(r"(.{0,80}?)\((.{1,400})\) = \((.{1,400})\)\s*")
_OF_32_BITS = re.compile(r"(?<![\w.])([-+]?\d+\.\d*)f([-+]?\d+)\b")
_NOT_FINITE = re.compile(r"\b(NaN|Inf)(?:16|32)\b")
_HELD_OUT = re.compile(
    r"(?:\b|_)[xy]?(?:test|tst|val|valid|validation|dev)[xy]?(?:set|data)?(?:\b|_)", re.IGNORECASE
)


def in_plain_form(text: str) -> Callable[[str], str] | None:
    r"""Return what puts a line of a text into `key = value`, None for a text that needs it not.

    Args:
        text: Its beginning.

    Example:
        >>> said = in_plain_form("loss(x, y) = 2.5f0\n" * 3)
        >>> said("(loss(x, y), accuracy(x, y)) = (2.5f-1, 0.5f0)")
        'loss = 2.5e-1, accuracy = 0.5e0'
        >>> in_plain_form("Loss, 2.5\n" * 3)("Loss, 2.25")
        'Loss = 2.25'
    """
    # Two cheap searches: hardly any text needs the others.
    if ") = " in text and len(_OF_LOSS.findall(text)) >= _FEWEST_LINES:
        return _shown
    if _COMMA.search(text) and len(_LOSS_PAIR.findall(text)) >= _FEWEST_LINES:
        return _paired
    return None


def _paired(line: str) -> str:
    return _ONE_PAIR.sub(r"\1 = \2", line) if _PAIRS.fullmatch(line) else line


def _shown(line: str) -> str:
    if " = " not in line:
        return line
    several = _SEVERAL.fullmatch(line)
    if several is not None:
        names, values = _parts(several[2]), _parts(several[3])
        if len(names) == len(values):
            both = zip(names, values, strict=True)
            line = several[1] + ", ".join(f"{name} = {value}" for name, value in both)
    line = _NOT_FINITE.sub(r"\1", _OF_32_BITS.sub(r"\1e\2", line))
    return _CALL.sub(_of_its_data, line)


def _of_its_data(call: re.Match[str]) -> str:
    return f"test {call[1]}" if _HELD_OUT.search(call[2]) else call[1]


def _parts(text: str) -> list[str]:
    """Return what commas part, but for those in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
