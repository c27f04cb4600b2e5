"""How logs write numbers: spellings of NaN and of missing values, `1/294`, `12.1K`."""

import math
import re

from trimtab.limits import MAX_CELL_CHARS

__all__ = ["MISSING", "BadNumberError", "counted", "parse_number", "parse_step", "shown"]

MISSING = frozenset(
    ["", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "_", "-", "--", "no log"]
)
"""What stands, in lower case, where there is no value. `No Log` is what Hugging Face's tables in notebooks have where nothing was logged."""
_SPECIAL = {
    "true": 1.0,  # as a bool is, in a table of text
    "false": 0.0,
    "nan": math.nan,
    "-nan": math.nan,
    "+nan": math.nan,
    "nan(ind)": math.nan,
    "-nan(ind)": math.nan,
    # As the C library of Windows prints them.
    **dict.fromkeys(("1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "1.#snan"), math.nan),
    "1.#inf": math.inf,
    "-1.#inf": -math.inf,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
_PERCENT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) ?%")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_SHORT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s?([kKmMbBgG])")
_TIMES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


class BadNumberError(ValueError):
    """A value that should be a number is not one; only inside `readers/`."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as `1 row` or `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(name: str) -> str:
    """Return a name from a log for a message: quoted, and cut where it is no name any more."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


def parse_number(value: object) -> float | None:
    """Return a logged value as a number, None where it says "missing".

    `12.1K` is 12100 and `48.1%` is 48.1, as written; NaN and Inf in any spelling are values; null, the empty string, `None`, `n/a` and
    a dash are missing.

    Raises:
        BadNumberError: It is neither.

    Example:
        >>> parse_number("1e-4"), parse_number("-Infinity"), parse_number("None")
        (0.0001, -inf, None)
    """
    # A bool is an int, and some loggers write true for a flag: it reads as 1.
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # an integer of more than 308 digits
            return _bad(value)
    if value is None:
        return None
    if isinstance(value, str):
        if len(value) > MAX_CELL_CHARS:
            return _bad(f"{value[:60]}... ({len(value):,} characters)")
        text = value.strip()
        try:
            # Python reads 1_000 as 1000, and so would take `3_7` of a name for a number.
            return float(text) if "_" not in text else _bad(value)
        except ValueError:
            lowered = text.lower()
            if lowered in MISSING:
                return None
            if lowered in _SPECIAL:
                return _SPECIAL[lowered]
            short = _SHORT.fullmatch(text)
            if short:
                return float(short[1]) * _TIMES[short[2].lower()]
            percent = _PERCENT.fullmatch(text)
            if percent:
                return float(percent[1])
    return _bad(value)


def parse_step(value: object) -> float | None:
    """Return a logged step as a number; `12/294` is step 12, and `1,000` is 1000.

    Only what counts is read so: elsewhere the comma may be that of a decimal fraction.

    Raises:
        BadNumberError: It is no finite number.
    """
    if isinstance(value, str) and "/" in value:
        value = value.partition("/")[0]
    if isinstance(value, str) and "," in value and _THOUSANDS.fullmatch(value.strip()):
        value = value.replace(",", "")
    step = parse_number(value)
    if step is not None and not math.isfinite(step):
        return _bad(value)
    return step


def _bad(value: object) -> float:
    shown = repr(value)
    raise BadNumberError(shown if len(shown) <= 120 else f"{shown[:60]}...")
