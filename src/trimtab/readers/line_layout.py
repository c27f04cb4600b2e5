"""Lines that differ only in the digits of their numbers, read as columns.

A program prints most lines of a log with one format, and long stretches of them have every number
in the same place. From one such line the layout is learned: which bytes are digits of a number, and
which must stay as they are. It is then applied to all lines of the same length at once. A number is
its digits as an integer times or over a power of ten: below 2^53 and up to 10^22 both are exact, so
one rounding gives what `float` gives, to the last bit. Anything else is left to the caller.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column

__all__ = ["LaidOut", "Layouts", "LineLayout", "RecordLayout", "learn_record"]

_NUMBER = re.compile(rb"\s*([-+]?)(\d+)(?:\.(\d*))?(?:[eE]([-+])(\d+))?\s*")
_CLOCK = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")
# 10^15 < 2^53: every integer of so many digits is an exact float64.
_MAX_DIGITS = 15
_FEW_LINES = 8
"""Lines of one length, left over, for which no layout is learned."""
_MAX_TRIES = 24
"""Layouts laid over lines of one length, in one block."""
# 10^22 is the last power of ten that is an exact float64.
_POWERS = 10.0 ** np.arange(23)


class _Block:
    """Some lines, in ASCII, sorted by length."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Join the lines; one that is not ASCII has no layout."""
        text = "\n".join((*lines, ""))
        if not text.isascii():
            text = "\n".join([*(line if line.isascii() else "" for line in lines), ""])
        self._data = np.frombuffer(text.encode(), np.uint8)
        ends = np.flatnonzero(self._data == 10)
        self.starts = np.concatenate(([0], ends[:-1] + 1))
        sizes = ends - self.starts
        order = np.argsort(sizes, kind="stable")
        edges = np.flatnonzero(np.diff(sizes[order])) + 1
        self.groups: list[NDArray[np.int64]] = np.split(order, edges)
        """Places of lines of one length each."""
        self._sizes = sizes

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return lines of one length as uint8 [n, length]."""
        size = int(self._sizes[places[0]])
        if not size:
            return np.zeros((len(places), 0), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self._data, size)
        return np.asarray(windows[self.starts[places]])


@dataclass(frozen=True)
class _Number:
    """The positions of the digits of one number."""

    digits: NDArray[np.intp]
    num_decimals: int
    exponent: NDArray[np.intp]
    exponent_sign: int
    sign: int

    def read(self, digits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return values float64 [n], and bool [n] where they are exact.

        Args:
            digits: float64 [n, number of digits], those of the exponent last.
        """
        size = len(self.digits)
        whole = _integers(digits[:, :size])
        if len(self.exponent):
            power = self.exponent_sign * _integers(digits[:, size:]) - self.num_decimals
            exact = np.abs(power) <= 22
            scale = _POWERS[np.where(exact, np.abs(power), 0).astype(np.int64)]
            # Divided where negative, since 10^-n is not exact: the result would be rounded twice.
            return self.sign * np.where(power < 0, whole / scale, whole * scale), exact
        exact = np.ones(len(digits), dtype=np.bool_)
        return self.sign * (whole / _POWERS[self.num_decimals]), exact


class LineLayout:
    """What a line looks like; `names` are those of its numbers."""

    def __init__(self, line: bytes, spans: Mapping[str, tuple[int, int]]) -> None:
        """Learn from one line.

        Args:
            line: Without its end.
            spans: By name, where a number stands; blanks around it belong to it. What is no
                number in plain digits has to stay as it is. A number whose name begins with `?`
                may change, and is not read.
        """
        found = {name: _number_at(line, *span) for name, span in spans.items()}
        numbers = {name: n for name, n in found.items() if n is not None}
        self.names = tuple(name for name in numbers if not name.startswith("?"))
        self._numbers = [numbers[name] for name in self.names]
        self._line = np.frombuffer(line, np.uint8)
        unread = [n for name, n in numbers.items() if name not in self.names]
        places = [place for n in (*self._numbers, *unread) for place in (n.digits, n.exponent)]
        clocks = [np.arange(*m.span(), dtype=np.intp) for m in _CLOCK.finditer(line)]
        loose = np.concatenate([np.zeros(0, np.intp), *places, *clocks])
        # uint8 wraps below "0", so one comparison tests both ends of the range of digits.
        self._loose = loose[(self._line[loose] - np.uint8(48)) <= 9]
        self._mask = np.full(len(line), 255, np.uint8)
        self._mask[self._loose] = 0

    def read(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the numbers of lines uint8 [n, length], and which lines have this layout.

        Returns:
            float64 [n, number of names], of use where bool [n] holds.
        """
        # XOR leaves the bytes that differ from the learned line; loose digits are masked out.
        changed: NDArray[np.bool_] = np.any((rows ^ self._line) & self._mask, axis=1)
        spelt = rows[:, self._loose] - np.uint8(48)
        fits = ~changed & (spelt.max(axis=1, initial=0) <= 9)
        digits = spelt.astype(np.float64)
        values = np.empty((len(rows), len(self._numbers)))
        first = 0
        for j, number in enumerate(self._numbers):
            end = first + len(number.digits) + len(number.exponent)
            values[:, j], exact = number.read(digits[:, first:end])
            fits &= exact
            first = end
        return values, np.asarray(fits, dtype=np.bool_)


@dataclass(frozen=True)
class RecordLayout:
    """The layout of a line that is one row, with what its numbers mean."""

    lines: LineLayout
    factors: tuple[float, ...]
    constants: tuple[tuple[str, float], ...]
    """Values that are spelled otherwise (`nan`), and so are the same in every such line."""
    rank: str
    closed: bool
    unread: tuple[str, ...] = ()
    """Keys of numbers that are not read."""

    @property
    def shape(self) -> tuple[object, ...]:
        """The same for layouts whose rows have the same columns, in the same order."""
        return self.lines.names, self.rank, self.closed, repr(self.constants), self.unread

    def columns(self, values: NDArray[np.float64]) -> dict[str, Column]:
        """Return the columns of rows, by name; the first number is the step and left out."""
        present = np.ones(len(values), dtype=np.bool_)
        columns = {
            name: Column(values[:, j] * self.factors[j], present)
            for j, name in enumerate(self.lines.names)
            if j
        }
        for name, value in self.constants:
            columns[name] = Column(np.full(len(values), value), present)
        return columns


def learn_record(
    line: str,
    fields: Mapping[str, tuple[tuple[int, int], float]],
    values: Mapping[str, float],
    marks: tuple[str, bool],
    unread: tuple[str, ...] = (),
) -> RecordLayout | None:
    """Return the layout of a line, None where it would not read this very line as it was read.

    Args:
        line: A record, in ASCII.
        fields: By name, the step first: where its number stands, and its unit's factor. The name
            of one that is not wanted begins with `?`.
        values: By name, what the line says, in units.
        marks: The rank that printed it, and whether it has its last field.
        unread: Keys of numbers that are not wanted.
    """
    data = line.encode()
    layout = LineLayout(data, {name: span for name, (span, _) in fields.items()})
    factors = tuple(fields[name][1] for name in layout.names)
    constants = tuple((n, v) for n, v in values.items() if n not in layout.names)
    record = RecordLayout(layout, factors, constants, *marks, unread)
    if layout.names[:1] != ("step",):
        return None
    numbers, fits = layout.read(np.frombuffer(data, np.uint8)[None])
    # The layout must read its own line exactly as the slow path did, or it is not used at all.
    same = all(
        number * factor == values[name]
        for name, number, factor in zip(layout.names, numbers[0].tolist(), factors, strict=True)
    )
    return record if fits[0] and same else None


@dataclass(frozen=True)
class LaidOut:
    """Lines with their layouts."""

    kinds: NDArray[np.intp]
    """int [n_lines], place of each line's layout; -1 where it has none."""
    values: NDArray[np.float64]
    """float64 [n_lines, most numbers of any], in the order of the layout's names."""
    layouts: list[RecordLayout]

    def shapes(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return a number per line that is the same where the rows have the same columns."""
        numbers: dict[tuple[object, ...], int] = {}
        of = np.array([numbers.setdefault(x.shape, len(numbers)) for x in self.layouts])
        return np.asarray(of[self.kinds[places]], dtype=np.intp)


class Layouts:
    """The layouts that lines of a file have had, by the length of the line, the latest first."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[int, list[RecordLayout]] = {}

    def lay_over(
        self, lines: Sequence[str], learn: Callable[[str], RecordLayout | None]
    ) -> LaidOut:
        """Return what layout each line has, learning new ones from lines that have none."""
        block = _Block(lines)
        used: list[RecordLayout] = []
        kinds = np.full(len(lines), -1, dtype=np.intp)
        read: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        for places in block.groups:
            rows = block.rows(places)
            known = self._known.get(rows.shape[1], [])
            waiting, here = list(known), list[RecordLayout]()
            for _ in range(_MAX_TRIES):
                if not waiting:
                    places, rows, learnt = _learn_from(lines, places, rows, learn)
                    waiting = [learnt] if learnt is not None else []
                if not waiting:
                    break
                layout = waiting.pop(0)
                values, fits = layout.lines.read(rows)
                if fits.any():
                    kinds[places[fits]] = len(used)
                    read.append((places[fits], values[fits]))
                    used.append(layout)
                    here.append(layout)
                    places, rows = places[~fits], rows[~fits]
            if here:
                others = [x for x in known if x not in here]
                # The latest first: logs change their layout at restarts and then keep it.
                self._known[rows.shape[1]] = (here + others)[:_MAX_TRIES]
        width = max((v.shape[1] for _, v in read), default=1)
        table = np.full((len(lines), width), np.nan)
        for places, values in read:
            table[places, : values.shape[1]] = values
        return LaidOut(kinds, table, used)


def _learn_from(
    lines: Sequence[str],
    places: NDArray[np.int64],
    rows: NDArray[np.uint8],
    learn: Callable[[str], RecordLayout | None],
) -> tuple[NDArray[np.int64], NDArray[np.uint8], RecordLayout | None]:
    """Return the lines from the first one on that gives a layout, and that layout."""
    while len(places) >= _FEW_LINES and rows.shape[1]:
        layout = learn(lines[places[0]])
        if layout is not None:
            return places, rows, layout
        places, rows = places[1:], rows[1:]
    return places, rows, None


def _number_at(line: bytes, first: int, end: int) -> _Number | None:
    match = _NUMBER.fullmatch(line, first, end)
    if match is None:
        return None
    before = np.arange(*match.span(2), dtype=np.intp)
    after = np.arange(*match.span(3), dtype=np.intp) if match[3] else before[:0]
    exponent = np.arange(*match.span(5), dtype=np.intp) if match[5] else before[:0]
    if len(before) + len(after) > _MAX_DIGITS or len(exponent) > 3:
        return None
    return _Number(
        digits=np.concatenate((before, after)),
        num_decimals=len(after),
        exponent=exponent,
        exponent_sign=-1 if match[4] == b"-" else 1,
        sign=-1 if match[1] == b"-" else 1,
    )


def _integers(digits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the integers that rows of digits spell, float64 [n]; below 2^53."""
    return np.asarray(digits @ _POWERS[np.arange(digits.shape[1] - 1, -1, -1)])
