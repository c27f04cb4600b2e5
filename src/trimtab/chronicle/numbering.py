"""Numbers of attempts: `11.9 < 11.10 < 12.0`; a restart raises the minor number.

A new family of settings, or a start from scratch, raises the major one. The names that a team gave
its runs win where they are numbers of this form.
"""

import re
from collections.abc import Collection

__all__ = ["next_number", "number_key", "stated_number"]

_PART = re.compile(r"\d+|\D+")
_STATED = re.compile(r"(?<![\d.])(\d{1,4}\.\d{1,4})(?![\d]|\.\d)")


def number_key(number: str) -> tuple[tuple[int, str], ...]:
    """Return a key under which attempts sort as people count them.

    Example:
        >>> sorted(["12.0", "11.10", "11.9", "11.0"], key=number_key)
        ['11.0', '11.9', '11.10', '12.0']
    """
    return tuple((int(p[:18]), "") if p.isdecimal() else (-1, p) for p in _PART.findall(number))


def next_number(previous: str, taken: Collection[str], *, new_family: bool = False) -> str:
    """Return the number after `previous` that no attempt carries.

    Args:
        previous: The attempt before in time; empty for the first.
        taken: Numbers that are in use.
        new_family: Whether the settings are of another family, or it starts from scratch.

    Example:
        >>> next_number("11.9", {"11.9"}), next_number("11.9", {"11.9"}, new_family=True)
        ('11.10', '12.0')
    """
    major, _, minor = previous.partition(".")
    first, second = _whole(major), _whole(minor)
    if not previous:
        first, second = 1, 0
    elif new_family:
        first, second = max([first, *(_whole(t.partition(".")[0]) for t in taken)]) + 1, 0
    else:
        second += 1
    while f"{first}.{second}" in taken:
        second += 1
    return f"{first}.{second}"


def _whole(text: str) -> int:
    return int(text[:9]) if text.isdecimal() else 0


def stated_number(name: str) -> str:
    """Return the one number of the form `12.16` that the name of a log states; else empty.

    Example:
        >>> stated_number("175B_run12.16.log"), stated_number("v1.2.3.log"), stated_number("a.log")
        ('12.16', '', '')
    """
    found = _STATED.findall(re.sub(r"\.(log|txt|out|err|jsonl?|csv|gz|zst)$", "", name))
    return found[0] if len(found) == 1 else ""
