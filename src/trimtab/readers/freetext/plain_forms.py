"""Lines that name their values in other forms, put into `key = value` before they are looked at.

    Loss, 2.62                                            a name and its value, parted by a comma
    loss(tx, ty) = 98.1f0                                 what Julia shows of a call
    (loss(tx, ty), now()) = (98.1f0, 2020-04-21T20:48:30)      and of several at once

Only in files in which such lines repeat with a loss: elsewhere a comma parts cells, and an equals
sign behind a call defines a function.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise

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
_CALL_OF_LOSS = re.compile(rf"\b(\w{{0,20}}loss\w{{0,20}})({_ARGUMENTS})")
_FEWEST_CALLS, _TAKES_TURNS = 3, 0.9
"""Calls with some arguments, and the share of those of a name that differ from the one before."""
_TRAINED_MARK = re.compile(r"^(?:tr|train)_|_?(?:tr|train)$", re.IGNORECASE)
_OF_A_GAME = re.compile(r"^\([GD],|\b(?:real|fake|gen|disc|critic)(?![a-z])")
_TESTED_MARK = "(?:t|v|te|ts|va|ev)"
"""What stands before or behind the name of data of training in that of other data: `Xt`, `tX`."""


def in_plain_form(text: str) -> Callable[[str], str] | None:
    r"""Return what puts a line of a text into `key = value`, None for a text that needs it not.

    Args:
        text: Its beginning.

    Example:
        >>> said = in_plain_form("loss(x, y) = 2.5f0\n" * 3)
        >>> said("(loss(x, y), accuracy(x, y)) = (2.5f-1, 0.5f0)")
        'loss = 2.5e-1, accuracy = 0.5e0'
        >>> said = in_plain_form("loss(x, y) = 2.5f0\nloss(xt, yt) = 2.75f0\n" * 3)
        >>> said("loss(xt, yt) = 2.75f0")
        'test loss = 2.75e0'
        >>> in_plain_form("Loss, 2.5\n" * 3)("Loss, 2.25")
        'Loss = 2.25'
    """
    # Two cheap searches: hardly any text needs the others.
    if ") = " in text and len(lines := _OF_LOSS.findall(text)) >= _FEWEST_LINES:
        return partial(_shown, tested=_held_out_arguments(lines))
    if _COMMA.search(text) and len(_LOSS_PAIR.findall(text)) >= _FEWEST_LINES:
        return _paired
    return None


def _paired(line: str) -> str:
    return _ONE_PAIR.sub(r"\1 = \2", line) if _PAIRS.fullmatch(line) else line


def _held_out_arguments(lines: Sequence[str]) -> frozenset[str]:
    """Return the arguments of calls of a loss that are other data than those of training.

    By their names, where one loss is shown of two sets; else those that come second each time.
    """
    calls: dict[str, list[str]] = {}
    for line in lines:
        for name, arguments in _CALL_OF_LOSS.findall(line):
            calls.setdefault(name, []).append(_squeezed(arguments))
    return frozenset(second for said in calls.values() if (second := _second_set(said)))


def _second_set(said: Sequence[str]) -> str:
    """Return which of two kinds of arguments is held-out data, empty where that is not clear."""
    times = Counter(said)
    if len(times) != 2 or min(times.values()) < _FEWEST_CALLS or any(map(_HELD_OUT.search, times)):
        return ""
    first, second = times
    if _is_beside(second, first):
        return second
    if _is_beside(first, second):
        return first
    turns = sum(a != b for a, b in pairwise(said)) >= _TAKES_TURNS * (len(said) - 1)
    # Two models on the same data are no two sets.
    other_data = _parts(first[1:-1])[-1] != _parts(second[1:-1])[-1]
    of_a_game = any(_OF_A_GAME.search(said) for said in times)
    return second if turns and other_data and not of_a_game else ""


def _is_beside(tested: str, trained: str) -> bool:
    """Whether arguments are called as those of training, but for a mark of other data."""
    ours, others = _parts(trained[1:-1]), _parts(tested[1:-1])
    if len(ours) != len(others):
        return False
    return all(a == b or _is_marked(b, a) for a, b in zip(ours, others, strict=True))


def _is_marked(name: str, trained: str) -> bool:
    plain = re.escape(_TRAINED_MARK.sub("", trained))
    return bool(
        re.fullmatch(rf"{_TESTED_MARK}_?{plain}|{plain}_?{_TESTED_MARK}", name, re.IGNORECASE)
    )


def _squeezed(arguments: str) -> str:
    return re.sub(r"\s+", "", arguments)


def _shown(line: str, tested: Collection[str]) -> str:
    if " = " not in line:
        return line
    several = _SEVERAL.fullmatch(line)
    if several is not None:
        names, values = _parts(several[2]), _parts(several[3])
        if len(names) == len(values):
            both = zip(names, values, strict=True)
            line = several[1] + ", ".join(f"{name} = {value}" for name, value in both)
    line = _NOT_FINITE.sub(r"\1", _OF_32_BITS.sub(r"\1e\2", line))
    return _CALL.sub(partial(_of_its_data, tested=tested), line)


def _of_its_data(call: re.Match[str], tested: Collection[str]) -> str:
    held_out = _HELD_OUT.search(call[2]) or _squeezed(call[2]) in tested
    return f"test {call[1]}" if held_out else call[1]


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
