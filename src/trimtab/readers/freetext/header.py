"""Tables inside text: a line of names, then lines with a number under each.

Cells are separated by bars, tabs, two blanks or more, or one blank. A row counts only if it has as
many cells as the header and a number where the header says loss. In columns of a fixed width a cell
may be empty: the others are known by the name that they stand under.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.readers.by_values import may_be_timed
from trimtab.readers.freetext.key_values import Field, to_number
from trimtab.readers.freetext.keys import Meaning, meaning
from trimtab.readers.layer_norms import layers_of
from trimtab.readers.numbers import MISSING
from trimtab.readers.other_columns import MAX_CANDIDATES, may_be_measured
from trimtab.text import OTHER
from trimtab.vocabulary import normalise, unit_scale

__all__ = ["Header", "read_header"]

_WIDE = re.compile(r"\s{2,}")
_WITH_VALUE = re.compile(r"[:=]\s?[-+.]?\d|[:=](?:nan|inf)", re.IGNORECASE)
"""A name with its value, `val_loss:2.095`, which is no name of a column."""
_WORDS = re.compile(r"\S+(?: \S+)*")
_VALUE = re.compile(
    r"\[?\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf))(?:/\d+)?\s*\]?"
    r"\s?(?:%|[A-Za-z]{1,3})?",
    re.IGNORECASE,
)
_ABSENT = MISSING | {"[]"}
_SHORT = {"#": Meaning("step", "it"), "E": Meaning("epoch", "epoch")}
_MIN_CELLS = 2
_MAX_CELLS = 512
_MAX_HEADER_LENGTH = 20_000
_MAX_PLAIN_LENGTH = 32
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True)
class Header:
    """The names over a table."""

    delimiter: str
    """`|`, tab, comma, two blanks or one."""
    num_cells: int
    fields: tuple[Field, ...]
    spans: tuple[tuple[int, int], ...] = ()
    """Where each name begins and ends, of columns that blanks part."""

    def row(self, line: str) -> tuple[tuple[Field, ...], list[float]] | None:
        """Return the fields with a value and the values, None where the line is no row."""
        cells = _cells(line, self.delimiter)
        # Wide numbers leave one blank between columns that the header sets apart by more.
        if len(cells) != self.num_cells and self.delimiter == "  ":
            cells = self._placed(line) or line.split()
        if len(cells) > self.num_cells and self.delimiter.isspace() and "%" in line:
            cells = cells[: self.num_cells]  # a progress bar behind the row
        if len(cells) == self.num_cells + 1 and self.delimiter.isspace() and cells[0].isdecimal():
            del cells[0]  # the index of a printed data frame, which has no name
        if len(cells) != self.num_cells:
            return None
        fields: list[Field] = []
        values: list[float] = []
        for field in self.fields:
            match = _VALUE.fullmatch(cells[field.index])
            if match is not None:
                fields.append(field)
                values.append(to_number(match[1]) * field.factor)
            elif cells[field.index].lower() not in _ABSENT and not field.name.startswith(OTHER):
                return None
        # Text below a table may have as many words as the header has names.
        has_loss = any(f.name in ("loss", "val_loss") for f in fields)
        return (tuple(fields), values) if has_loss else None

    def _placed(self, line: str) -> list[str]:
        """Return the cells by the names that they stand under; none where that is not clear.

        Columns are set to the left, to the right, or each number stands below its own name only.
        """
        found = [(m.start(), m.end(), m[0]) for m in _WORDS.finditer(line)]
        if not 1 < len(found) < self.num_cells:
            return []
        starts = {start: i for i, (start, _) in enumerate(self.spans)}
        ends = {end: i for i, (_, end) in enumerate(self.spans)}
        at = [starts.get(start) for start, _, _ in found]
        if None in at:
            at = [ends.get(end) for _, end, _ in found]
        if None in at:
            at = [self._under(start, end) for start, end, _ in found]
        places = [i for i in at if i is not None]
        if len(places) < len(found) or len(set(places)) < len(places):
            return []
        cells = [""] * self.num_cells
        for i, (_, _, text) in zip(places, found, strict=True):
            cells[i] = text
        return cells

    def _under(self, start: int, end: int) -> int | None:
        """Return the one name that a stretch of the line overlaps."""
        over = [i for i, (a, b) in enumerate(self.spans) if a < end and start < b]
        return over[0] if len(over) == 1 else None


def read_header(line: str, extra: Mapping[str, Meaning | None]) -> Header | None:
    """Return the header that a line is, None for another line."""
    if len(line) > _MAX_HEADER_LENGTH:
        return None
    # The surest first: every line can be split by single blanks.
    for delimiter in ("|", "\t", ",", "  ", " "):
        cells = _cells(line, delimiter)
        if not _MIN_CELLS <= len(cells) <= _MAX_CELLS:
            continue
        longest = _MAX_NAME_LENGTH if delimiter in "|\t" else _MAX_PLAIN_LENGTH
        # Two blanks between names are meant; more words between single ones are prose.
        words = 4 if delimiter in ", " else 8
        if all(_is_name(cell, longest, words) for cell in cells):
            fields = _fields(cells, extra)
            if any(f.name in ("loss", "val_loss") for f in fields):
                spans = [m.span() for m in _WORDS.finditer(line)] if delimiter == "  " else []
                return Header(delimiter, len(cells), fields, tuple(spans))
        # A line with bars or tabs is laid out by them, and by nothing else.
        if delimiter in "|\t":
            return None
    return None


def _fields(cells: list[str], extra: Mapping[str, Meaning | None]) -> tuple[Field, ...]:
    fields: list[Field] = []
    for i, cell in enumerate(cells):
        key = normalise(cell)
        found = extra[key] if key in extra else _SHORT.get(cell) or meaning(key)
        if found is not None and all(f.key != key for f in fields):
            fields.append(Field(found.kind, key, found.name, i, 1.0, found.doubt))
    others = {f.index for f in fields if f.name != "grad_norm"}
    free = {normalise(c): i for i, c in enumerate(cells) if i not in others}
    layers = layers_of(free)
    kept = [f for f in fields if f.key not in layers.values()]
    taken = {*layers.values(), *(f.key for f in fields)}
    unknown = [k for k in free if k not in taken and (may_be_measured(k) or may_be_timed(k))][
        :MAX_CANDIDATES
    ]
    return (
        *kept,
        *(Field("signal", key, name, free[key], 1.0, 2) for name, key in layers.items()),
        # Names that nobody knows: numbers of their own, or the validation of a loss of the same name.
        *(Field("signal", key, OTHER + key, free[key], _seconds_in(key), 9) for key in unknown),
    )


def _seconds_in(key: str) -> float:
    return unit_scale(key) if may_be_timed(key) else 1.0


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        return [c.strip() for c in line.strip().strip("|").split("|")] if "|" in line else []
    if delimiter == "  ":
        return _WIDE.split(line.strip())
    if delimiter == " ":
        return line.split()
    return [c.strip() for c in line.strip().split(delimiter)] if delimiter in line else []


def _is_name(cell: str, longest: int, words: int) -> bool:
    return (
        0 < len(cell) <= longest
        and (cell[0].isalpha() or cell == "#")
        and len(cell.split()) <= words
        and cell[-1] not in ".:=,;"
        and _WITH_VALUE.search(cell) is None
    )
