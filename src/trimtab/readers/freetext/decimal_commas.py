"""Decimal commas in printed lines: `nll 1,7324`, `val_loss: 0,4312`.

Where fractions are written so throughout, a file is read with numbers of that form. Where points
stand beside them, as in a log to which two libraries print, each name is asked by its values: those
of a decimal comma begin with a bare 0, or have not just three digits behind it, as `1,234` tokens do.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from trimtab.readers.freetext.keys import bare_split, meaning
from trimtab.readers.numbers import shown

__all__ = ["Commas", "commas_of", "has_decimal_commas", "with_points"]

_FEWEST, _FEWEST_UNKNOWN = 3, 8
"""Decimals under a name, and different ones under a name that no signal has. Ours."""
_MOST_NAMES = 8
_FRACTIONS = ("loss", "val_loss", "grad_norm", "lr")
# Not three digits behind the comma: `1,234` may be a thousand, `0,234` is none.
_SURELY = r"(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+|\d+,\d+[eE][-+]?\d+)(?!\w|[,.]\d)"
_DECIMAL_COMMA = re.compile(rf"[:=\s][-+]?{_SURELY}")
_DECIMAL_POINT = re.compile(r"[:=\s]-?\d+\.\d+")
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_])(?P<name>[A-Za-z][\w/.\-]{0,40}?)"
    r"(?P<sign>[\"'|\u2016]{0,2}[ \t]{0,8}[:=]?[ \t]{0,8}[\"']?)(?<![A-Za-z0-9_.,])"
    r"(?P<value>[-+]?\d+,\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?)(?!\w)"
)
"""A name, and a number with a comma right behind it."""
_SURE_VALUE = re.compile(rf"[-+]?{_SURELY}")


def has_decimal_commas(text: str) -> bool:
    """Whether fractions are written with a comma, and hardly any with a point."""
    commas = len(_DECIMAL_COMMA.findall(text))
    # Lists and thousands have commas anywhere; where fractions have them, points are rare.
    return commas >= _FEWEST and commas > 2 * len(_DECIMAL_POINT.findall(text))


@dataclass(frozen=True)
class Commas:
    """The names of a text whose values have a comma in them."""

    decimal: frozenset[str] = frozenset()
    """Those of which it parts a fraction, as printed."""
    doubtful: tuple[str, ...] = ()
    """Signals of which all values read as thousands, and may be fractions of three digits."""

    def notes(self) -> list[str]:
        """Say whose commas are read as points, and whose are not."""
        said = list[str]()
        if self.decimal:
            said.append(
                f"decimal commas: the numbers of {_told(sorted(self.decimal))} are read with a point"
                " for the comma"
            )
        if self.doubtful:
            said.append(
                f"{_told(self.doubtful)}: all numbers have a comma and three digits, and are read as"
                " thousands; if they are fractions, write them with a point"
            )
        return said


def commas_of(text: str) -> Commas:
    r"""Return the names of a text whose values have commas, by what these part.

    Example:
        >>> lines = (f"step {i},000 nll 1,7{i}24 acc 0.91 size 3,3 tok 1,{i}34" for i in range(1, 9))
        >>> sorted(commas_of("\n".join(lines)).decimal)
        ['nll']
    """
    values: dict[str, set[str]] = defaultdict(set)
    sure: dict[str, int] = defaultdict(int)
    refused: set[str] = set()
    doubtful: dict[str, int] = {}
    for match in _NAMED.finditer(text):
        name, value = match["name"], match["value"]
        if value.count(",") > 1 or "." in value:
            refused.add(name)  # thousands, or a list
        elif _SURE_VALUE.fullmatch(value):
            sure[name] += 1
            if len(values[name]) < _FEWEST_UNKNOWN:
                values[name].add(value)
        else:
            doubtful[name] = doubtful.get(name, 0) + 1
    decimal = frozenset(
        name
        for name, num in sure.items()
        if num >= _FEWEST and name not in refused and _is_measured(name, len(values[name]))
    )
    unknown = (
        name
        for name, num in doubtful.items()
        if num >= _FEWEST_UNKNOWN and name not in refused and name not in sure
    )
    return Commas(decimal, tuple(n for n in unknown if _is_fraction(n, doubtful[n], text)))


def _is_fraction(name: str, num: int, text: str) -> bool:
    """Whether a name is that of a fraction, each value of which has a comma."""
    found = meaning(name)
    if found is None or found.name not in _FRACTIONS:
        return False
    plain = re.findall(
        rf"(?<!\w){re.escape(name)}[\"'|]{{0,2}}[ \t]{{0,8}}[:=]?[ \t]{{0,8}}[-+]?\d", text
    )
    return len(plain) == num


def _is_measured(name: str, num_values: int) -> bool:
    """Whether a name is that of a signal, or of what changes; a count of two numbers is neither."""
    found = meaning(name) or bare_split(name.lower())
    if found is not None:
        return found.kind == "signal"
    return num_values >= _FEWEST_UNKNOWN


def with_points(names: Set[str]) -> Callable[[str], str]:
    """Return what writes the values of some names with a point."""

    def put(match: re.Match[str]) -> str:
        value = match["value"]
        if match["name"] not in names or value.count(",") > 1 or "." in value:
            return match[0]
        return f"{match['name']}{match['sign']}{value.replace(',', '.')}"

    return lambda line: _NAMED.sub(put, line) if "," in line else line


def _told(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(shown(name) for name in names[:_MOST_NAMES])}{more}"
