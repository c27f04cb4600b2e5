"""When the rows of a text were written, from the clock that their lines begin with.

A clock is printed in one form, and stands at one place of all lines of a wording: its place is
learned from the first rows, and what stands there is taken from all of them at once, which costs a
small part of what reading the line does.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.base import TextLines
from trimtab.readers.stamps import MONTHS, clock_in, in_order, without_summer_time
from trimtab.record import Column

__all__ = ["CLOCK_NOTE", "RowClocks", "row_clocks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLOCK_NOTE = "the time of a row is the one that its line begins with"
_FAR = 48
"""Characters before a clock beyond which it is of something else. Ours."""
_TRIED = 32
"""First rows of which one has to show the clock."""
_DAY_S = 86400.0
_YEAR_S = 366 * _DAY_S
_LATE = 8
"""Rows that a line of the day before may come late."""


class RowClocks(Protocol):
    """`row_clocks` of one text."""

    def __call__(self, lines: Ints) -> Column | None:
        """Return when each row was written, None where the text does not tell."""
        ...


def row_clocks(path: Path, lines: Ints) -> Column | None:
    """Return when each row was written, in seconds since 1970, by the clock on its line.

    A clock without a zone counts as UTC. One without a year counts from 1972, one without a date
    from a day in it, so that differences hold where the date does not; a day that ends is known by
    the fall of the clock. The hour that a clock without a zone skips or repeats when summer time
    begins or ends is taken out, since it did not pass.

    Args:
        path: The text.
        lines: int64 [n_rows], numbers of the lines of the rows, from 1, in their order.

    Returns:
        None where fewer than nine of ten rows have one, where it falls as often as it rises, or
        stands still.

    Cost: one pass over the file where one of the first rows has a clock, to the first row else.
    """
    place: _Place | None = None
    parts: list[Floats] = []
    for mine in _lines_of(path, lines):
        if place is None:
            places = (_place_of(line) for line in mine[:_TRIED])
            place = next((p for p in places if p is not None), None)
            if place is None:
                return None
        parts.append(place.read(mine))
    if place is None:
        return None
    at = np.concatenate(parts)
    known = np.flatnonzero(np.isfinite(at))
    if len(at) < len(lines) or not len(known):
        return None
    at[known] = place.since_1970(at[known])
    return Column(at, np.isfinite(at)) if in_order(at) else None


def _lines_of(path: Path, lines: Ints) -> Iterator[list[str]]:
    """Yield some lines of a text, by their numbers, many at a time."""
    at, first = 0, 1
    for block in TextLines(path).blocks():
        end = int(np.searchsorted(lines, first + len(block)))
        if end > at:
            yield [block[i] for i in (lines[at:end] - first).tolist()]
        at, first = end, first + len(block)
        if at == len(lines):
            return


class _Place:
    """Where the parts of a clock stand in the lines of a text."""

    def __init__(self, found: re.Match[str]) -> None:
        groups = {k: v for k, v in found.groupdict().items() if v is not None}
        # Behind the seconds stand a fraction, a zone or the half of the day.
        self.begin, self.end = found.start(), found.end()
        self.text = found[0]
        self.parts = {k: (found.start(k) - self.begin, found.end(k) - self.begin) for k in groups}
        self.zone_s = _zone_s(groups.get("z", ""))
        self.has_zone = "z" in groups

    @property
    def period_s(self) -> float | None:
        """Seconds after which the clock shows the same again; None: never."""
        if "Y" in self.parts or "u" in self.parts:
            return None
        return _YEAR_S if "d" in self.parts else _DAY_S

    def read(self, lines: Sequence[str]) -> Floats:
        """Return the seconds that each line shows, NaN where it shows no such clock."""
        begin, end = self.begin, self.end
        width = end - begin
        text = "".join([line[begin:end] for line in lines])
        if len(text) != width * len(lines):  # some lines are shorter
            text = "".join([line[begin:end].ljust(width) for line in lines])
        chars = np.frombuffer(text.encode("latin-1", "replace"), np.uint8).reshape(-1, width)
        # One character of all lines after the other: contiguous, and small numbers.
        chars = np.ascontiguousarray(chars.T)
        good = np.ones(len(lines), dtype=np.bool_)
        for i, char in enumerate(self.text):
            mine = chars[i]
            if self._is_free(i):
                good &= (mine >= ord("0")) & (mine <= ord("9"))
            elif self._is_within("d", i):  # a blank before a day of one digit
                good &= (mine == ord(" ")) | ((mine >= ord("0")) & (mine <= ord("9")))
            elif not any(self._is_within(k, i) for k in "pbw"):
                good &= mine == ord(char)
        if "u" in self.parts:
            at = np.where(good, self._number(chars, "u"), np.nan)
            return at + self._fraction(chars)
        numbers = {k: self._number(chars, k) for k in "YmdHMS" if k in self.parts}
        if "b" in self.parts:
            numbers["m"] = self._named_month(chars)
        hour = numbers["H"]
        if "p" in self.parts:
            half = chars[self.parts["p"][0]]
            good &= (half == ord("A")) | (half == ord("P"))
            hour = hour % 12 + 12 * (half == ord("P"))
        good &= (hour < 24) & (numbers["M"] < 60) & (numbers["S"] <= 60)
        of_day = (hour * 60 + numbers["M"]) * 60 + numbers["S"]
        at = _days(numbers, good) * _DAY_S + of_day + self._fraction(chars)
        return np.where(good, at - self.zone_s, np.nan)

    def since_1970(self, at: Floats) -> Floats:
        """Return times that go on over the end of a day or year, and over summer time."""
        if self.period_s is not None:
            return _unwrapped(at, self.period_s)
        return at if self.has_zone else without_summer_time(at)

    def _is_within(self, part: str, i: int) -> bool:
        first, end = self.parts.get(part, (0, 0))
        return first <= i < end

    def _is_free(self, i: int) -> bool:
        """Whether a digit stands at a place that changes from line to line."""
        padded = "b" in self.parts and i == self.parts["d"][0]
        here = any(self._is_within(k, i) for k in "YmdHMSfu")
        return here and self.text[i].isdigit() and not padded

    def _fraction(self, chars: NDArray[np.uint8]) -> Floats:
        if "f" not in self.parts:
            return np.zeros(chars.shape[1])
        first, end = self.parts["f"]
        return self._number(chars, "f") / 10.0 ** (end - first - 1)

    def _named_month(self, chars: NDArray[np.uint8]) -> Ints:
        """Return the number of the month that each line names, 0 for no name of one."""
        first, end = self.parts["b"]
        months = np.zeros(chars.shape[1], dtype=np.int64)
        for number, name in enumerate(MONTHS, 1):
            same = [chars[i] == ord(c) for i, c in zip(range(first, end), name, strict=True)]
            months[np.all(same, axis=0)] = number
        return months

    def _number(self, chars: NDArray[np.uint8], part: str) -> Ints:
        first, end = self.parts[part]
        first += part == "f"  # its point or comma
        number = np.zeros(chars.shape[1], dtype=np.int64)
        for i in range(first, end):
            digit = np.where(chars[i] == ord(" "), 0, chars[i].astype(np.int64) - ord("0"))
            number = number * 10 + digit
        return number


def _place_of(head: str) -> _Place | None:
    found = clock_in(head)
    return None if found is None or found.start() > _FAR else _Place(found)


def _zone_s(zone: str) -> float:
    """Return by how much a zone is ahead of UTC, seconds."""
    if zone[:1] not in ("+", "-"):
        return 0.0
    seconds = int(zone[1:3]) * 3600.0 + int(zone[-2:]) * 60.0
    return -seconds if zone[0] == "-" else seconds


def _days(numbers: dict[str, Ints], good: NDArray[np.bool_]) -> Floats:
    """Return the days since 1970 of dates; NaN for what is no date. A day is looked up once."""
    days = np.zeros(len(good))
    if "d" not in numbers:
        return days + (date(1972, 1, 1) - date(1970, 1, 1)).days
    years = numbers.get("Y", np.full(len(good), 1972))
    code = np.where(good, (years * 100 + numbers["m"]) * 100 + numbers["d"], 0)
    shown, where = _distinct(code)
    return np.array([_day(int(c)) for c in shown.tolist()])[where]


def _distinct(code: Ints) -> tuple[Ints, Ints]:
    """Return the values and where each number stands among them; most follow one like them."""
    starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    sizes = np.diff(np.append(starts, len(code)))
    return code[starts], np.repeat(np.arange(len(starts)), sizes)


def _day(code: int) -> float:
    try:
        day = date(code // 10_000, code // 100 % 100, code % 100)
    except ValueError:
        return np.nan
    return float((day - date(1970, 1, 1)).days)


def _unwrapped(at: Floats, period_s: float) -> Floats:
    """Let times go on where the clock begins again, and lines of before that come late stay so."""
    turns, begun = np.zeros(len(at)), -_LATE - 1
    moves = np.diff(at)
    for i in np.flatnonzero(np.abs(moves) > 0.5 * period_s).tolist():
        if moves[i] < 0:
            turns[i + 1], begun = 1.0, i
        elif i - begun <= _LATE:
            turns[i + 1] = -1.0
    return at + np.cumsum(turns) * period_s
