"""Tables with a header: CSV, TSV and similar, recognized by content.

An empty cell is missing. What `nan` means is decided per column (`nan_policy`). Comment lines
before the header, a header repeated where a run was resumed, and decimal commas with `;` are
handled, and rows with one cell more than the header (`_Surplus`); in a table drawn with bars also
marks of Markdown around a cell, and a spread behind its number (`2.03 ± 0.02`). Of rows with fewer
cells than the header has names nobody can say which names are missing: a person has to. Rows of a
run that was appended with other columns are read where it wrote its own header, and counted in a
note where it did not.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from trimtab.errors import ReadError
from trimtab.limits import MAX_CELL_CHARS
from trimtab.readers.base import SAMPLE_SIZE_BYTES, Sample, TextLines
from trimtab.readers.clock_columns import is_clock_key
from trimtab.readers.csv_block import byte_blocks, even_block
from trimtab.readers.given_columns import all_given
from trimtab.readers.long_form import LongForm, fill_series
from trimtab.readers.numbers import counted, shown
from trimtab.readers.other_languages import header_in_english
from trimtab.readers.table import LogTable, is_known_key, is_step_key
from trimtab.readers.table_axis import names_epoch
from trimtab.readers.tags import might_be_loss, signal_of_tag, tag_of_file
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.record import RunRecord
from trimtab.vocabulary import normalise

__all__ = ["CsvReader"]

_OF_LOGGER = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
"""Python's logging writes the milliseconds behind a comma."""

_MANY_ROWS = 20
_FEW_LINES = 3
"""Lines below which one that fills half a sample is a dump of data, not a row of many columns."""
_DELIMITERS = (",", "\t", ";", "|")
_DECIMAL_COMMA = re.compile(r"(?<!\d)([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)")

_FEWEST_SURPLUS = 3
"""Rows from which a cell more than the header has is the way of the file."""
_MANY_LEFT_OUT = 0.1
"""Share of the rows read, from which on those are a part of the file. Ours."""
_RULE = re.compile(r"\s*:?-+:?\s*")
_MARKS = re.compile(r"[*_`±]|\+/-")
_WITH_SPREAD = re.compile(r"([-+]?\.?\d[^\s±]*?)\s*(?:±|\+/-).*")


@dataclass(frozen=True)
class _Surplus:
    """Cells that the rows have and the header does not."""

    front: int = 0
    back: int = 0
    """-1: the header ends with a delimiter, and the rows do not."""
    inside: int = 0
    """Place of an empty cell in the middle of each row; 0: none."""
    note: str = ""

    def names(self, header: list[str]) -> list[str]:
        """Return a name for each cell of a row, an empty one for those without."""
        if self.inside:
            return [*header[: self.inside], "", *header[self.inside :]]
        kept = header[: self.back] if self.back < 0 else header
        return [""] * self.front + kept + [""] * self.back


_EVEN = _Surplus()


def _short(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how many cells each row has where that is fewer than the header has names; else 0."""
    rows = rows[:-1] if len(rows) > 1 and len(rows[-1]) < len(rows[0]) else rows  # torn
    widths = {len(row) for row in rows}
    if len(rows) < _FEWEST_SURPLUS or len(widths) != 1 or not header[-1].strip():
        return 0
    (width,) = widths
    numbers = all(not cell.strip() or _is_number(cell) for row in rows for cell in row)
    return width if len(header) / 2 <= width < len(header) and width > 1 and numbers else 0


def _by_a_person(header: list[str], width: int, source: str) -> tuple[list[str], str]:
    """Return names of short rows by what a person said of them, and a note.

    By place they are `1`, `2` ...; by names of the header these hold from the front.

    Raises:
        ReadError: Nobody said which column is what.
    """
    told = all_given()
    if told and all(map(str.isdecimal, told)):
        return [str(i + 1) for i in range(width)], ""
    what = f"the header has {len(header)} names and its rows {width} cells"
    if told:
        return header[:width], f"{what}: the names hold from the front, as --columns takes them"
    # The places that would be right if the last names were the surplus ones.
    loss = next((i for i, k in enumerate(header) if signal_of_tag(k) == "loss"), None)
    if loss is None:
        loss = next((i for i, k in enumerate(header) if might_be_loss(k)), 1)
    count = next((i for i, k in enumerate(header) if is_step_key(k)), None)
    axis = "" if count is None else f",{'epoch' if names_epoch(header[count]) else 'step'}"
    said = f"--columns loss={loss + 1}" + (f"{axis}={count + 1}" if count is not None else "")
    raise ReadError(
        f"{source}: {what}, so that it is not sure which number is what; mend the header, or say"
        f" it by place, counted from 1: {said} if its last names are the surplus ones"
    )


def _stretches(rows: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Return rows in stretches of one width each."""
    return [list(group) for _, group in groupby(rows, key=len)]


def _is_of_runs(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows of the header's width come first, then those of a run with other columns.

    Commas make cells of any text: most must be numbers, under names that are known.
    """
    first, *others = _stretches(rows) or [[]]
    cells = [cell for row in rows for cell in row]
    return (
        len(first) >= _FEWEST_SURPLUS
        and len(first[0]) == len(header)
        and _is_header_like(header)
        and sum(map(_is_number, cells)) > len(cells) / 2
        and all(
            len(part) >= _FEWEST_SURPLUS or all(map(_is_header_like, part))
            for part in others[:-1]  # the last may be torn
        )
    )


def _is_header_like(cells: Sequence[str]) -> bool:
    """Whether cells are names of columns, of which two are known."""
    names = [cell.strip() for cell in cells]
    if not all(names) or any(map(_is_number, names)):
        return False
    return sum(map(is_known_key, names)) > 1


def _surplus(header: Sequence[str], rows: Sequence[Sequence[str]]) -> _Surplus:
    """Return what the rows have beside the header, nothing where that is not clear.

    An index that nobody named stands in front and rises; an empty cell is a delimiter too much, at
    the end of each row or inside it. Numbers with a point show that no decimal comma makes the cells.
    """
    name = header[0].strip() if header else ""
    rows = [row for row in rows if row and row[0].strip() != name]  # a header again
    rows = rows[:-1] if len(rows) > 1 and len(rows[-1]) < len(rows[0]) else rows  # torn
    if len(rows) < _FEWEST_SURPLUS or len({len(row) for row in rows}) != 1:
        return _EVEN
    more = len(rows[0]) - len(header)
    if more == -1 and not header[-1].strip():
        return _Surplus(back=-1)
    if more != 1:
        return _EVEN
    if not any(row[-1].strip() for row in rows):
        return _Surplus(back=1, note="each row ends with a delimiter that the header does not have")
    if not any("." in cell for row in rows for cell in row):
        return _EVEN
    first, second = ([row[i].strip() for row in rows] for i in (0, 1))
    if not _counts(first):
        return _EVEN
    if is_step_key(header[0].strip()) and not _counts(second):
        empty = [i for i in range(1, len(header)) if not any(row[i].strip() for row in rows)]
        if len(empty) == 1:
            return _Surplus(
                inside=empty[0],
                note="each row has a cell more than the header: an empty one behind"
                f" {shown(header[empty[0] - 1].strip())}, left out",
            )
        return _Surplus(
            back=1, note="each row has a cell more than the header: the last has no name, left out"
        )
    return _Surplus(
        front=1,
        note="each row has a cell more than the header: an index without a name in front, left out",
    )


def _counts(cells: Sequence[str]) -> bool:
    """Whether cells are whole numbers that rise."""
    return all(map(str.isdecimal, cells)) and all(int(a) < int(b) for a, b in pairwise(cells))


class CsvReader:
    """Reads tables with a header line."""

    name = "csv"
    looks_for = "a table with a header (`step,loss,...`; commas, tabs, semicolons or bars)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.8 for a header with a known name, followed by rows with as many cells."""
        lines = [line for line in sample.lines[:50] if not line.startswith("#")]
        if sample.is_binary or not lines:
            return 0.0
        if len(lines) < _FEW_LINES and max(map(len, lines)) >= SAMPLE_SIZE_BYTES // 2:
            return 0.0
        # Commas make tables of JSON and HTML, too.
        if lines[0].lstrip()[:1] in "{[<":
            return 0.0
        delimiter = _delimiter(lines)
        if delimiter is None:
            return 0.0
        header, *rows = (_cells(line, delimiter) for line in lines)
        if _is_framed(lines[0], delimiter):
            # Many programs draw a frame, and print other things below it; only Markdown is a table.
            if not rows or len(rows[0]) != len(header) or not all(map(_RULE.fullmatch, rows[0])):
                return 0.0
            rows = rows[1:]
        if _OF_LOGGER.match(lines[0]):
            return 0.0
        surplus = _surplus(header, rows)
        header = surplus.names(header)
        names = [name.strip() for i, name in enumerate(header) if not i or i != surplus.inside]
        while delimiter != "|" and names and not names[-1]:
            names.pop()  # a delimiter at the end of every line
        # The first name may be empty: pandas writes its index under none. A number in the header
        # means that there is no header.
        if not names or not all(names[1:]) or any(_is_number(n) for n in names):
            return 0.0
        # The last row of a sample may be cut off, hence one less and nine in ten.
        even = sum(len(row) == len(header) for row in rows)
        fits = even >= 0.9 * (len(rows) - 1)
        if not fits and not (_short(header, rows) or _is_of_runs(header, rows)):
            return 0.0
        numbers = any(_is_number(cell) for row in rows for cell in row)
        if rows and not numbers:
            return 0.0
        in_english = header_in_english(names)
        known = any(map(is_known_key, in_english)) or LongForm.told_by(names) is not None
        # Evenness over many rows is no chance: no format deeper in the file is worth a search.
        certain = known and len(rows) >= _MANY_ROWS and even == len(rows) and delimiter != "|"
        return 0.96 if certain else 0.8 if known else 0.3

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: A row is broken, there are no rows, or no column is known.
        """
        lines = TextLines(path)
        blocks = byte_blocks(path)
        parse = None
        if blocks is not None:
            try:
                parse = _in_blocks(path, blocks, self.name)
            except ValueError:  # lines of any length: one by one
                parse = None
        if parse is None:
            parse, rows = _open_table(lines, path, self.name)
            for number, cells in rows:
                parse.take(number, cells)
        parse.settle_layouts()
        table, ragged, last, long_form = parse.table, parse.ragged, parse.last, parse.long_form
        header = parse.header
        # Only the very last row can be torn; a short one elsewhere is damage.
        if ragged and ragged[-1][0] == last:
            ragged.pop()
            table.notes.append("the last row was torn in mid-write and left out")
        if long_form is not None:
            fill_series(table, long_form.series)
        if table.num_rows == 0:
            raise ReadError(
                f"{path}: a header ({', '.join(name[:40] for name in header[:6])} ...) and no rows;"
                " nothing has been logged yet, or it is the wrong file"
            )
        table.notes.extend(lines.notes())
        table.settle_problems(ragged, "a number")
        # A page shows what was logged; only files of columns have NaN where nothing was.
        record = table.to_record(columnar=parse.delimiter != "|")
        if _is_nameless(parse.raw_header) and not tag_of_file(path) and not all_given():
            record = _of_a_nameless_scalar(record, path)
        return _in_own_words(record, parse.own_names)


class _Parse:
    """The rows of a table so far."""

    def __init__(
        self, path: Path, format_name: str, header: list[str], delimiter: str, surplus: _Surplus
    ) -> None:
        self.table = LogTable(str(path), format_name)
        self.path = path
        self.own_names: dict[str, str] = {}
        """By what a column is called here, how the file calls it, where that differs."""
        self.raw_header = header
        self.delimiter = delimiter
        self.surplus = surplus
        if surplus.note:
            self.table.notes.append(surplus.note)
        self._order(_named_by_file(surplus.names(header), path))
        self.long_form = LongForm.told_by(self.header)
        self.is_even = self._can_be_even()
        """Whether blocks can be read as columns."""
        self.ragged: list[tuple[int, str]] = []
        self.other_headers: list[int] = []
        """Lines of headers with other names, of runs that were appended."""
        self.last = 0

    def _can_be_even(self) -> bool:
        return (
            self.long_form is None
            and "split" not in map(self.table.role, self.keys)
            and len(set(self.keys)) == len(self.keys)
            and self.delimiter not in (";", "|")
        )

    def _order(self, header: list[str]) -> None:
        self.header, self.keys = header, tuple(header)
        own = self.surplus.names(self.raw_header)
        translated = zip(header, header_in_english(own), own, strict=False)
        self.own_names |= {k: o for k, english, o in translated if k == english != o}
        self.wanted = [i for i, k in enumerate(self.keys) if self.table.role(k) != "nothing"]
        self.times = [i for i in self.wanted if is_clock_key(self.keys[i])]

    def _is_header(self, cells: list[str]) -> bool:
        return sorted(cell.strip() for cell in cells) == sorted(self.raw_header)

    def take(self, number: int, cells: list[str]) -> None:
        """Take the cells of a row; a header again, in any order, holds for the rows after it."""
        self.last = number
        if cells and cells[0].strip() in self.raw_header and self._is_header(cells):
            self.raw_header = [cell.strip() for cell in cells]
            self._order(_named_by_file(self.surplus.names(self.raw_header), self.path))
            return
        if self.delimiter == "|" and all(map(_RULE.fullmatch, cells)):
            return  # the line of dashes below the header of a Markdown table
        if self.long_form is None and self._begins_anew(cells):
            self._take_header(cells, number)
        elif len(cells) != len(self.header):
            what = f"{len(cells)} cells, expected {len(self.header)} as in the header"
            self.ragged.append((number, what))
        elif self.long_form is not None:
            self.long_form.add(dict(zip(self.header, cells, strict=True)))
        else:
            self.table.add(self.keys, cells, number)

    def _begins_anew(self, cells: list[str]) -> bool:
        """Whether cells are the header of a run that was appended with other columns."""
        may_be = len(cells) != len(self.header) or cells[0].strip() in self.raw_header
        shared = {cell.strip() for cell in cells} & set(self.raw_header) if may_be else set()
        return bool(shared) and _is_header_like(cells)

    def _take_header(self, cells: list[str], number: int) -> None:
        self.raw_header = [cell.strip() for cell in cells]
        self.surplus = _EVEN
        self._order(self.raw_header)
        self.is_even = self._can_be_even()
        self.other_headers.append(number)

    def settle_layouts(self) -> None:
        """Say what rows have other columns, and leave those without a header of their own out."""
        if self.other_headers:
            self.table.notes.append(
                f"{counted(len(self.other_headers), 'other header')}, the first on line"
                f" {self.other_headers[0]}: each holds for the rows below it"
            )
        kept: list[tuple[int, str]] = []
        for what, group in groupby(self.ragged, key=lambda row: row[1]):
            rows = list(group)
            if len(rows) < _FEWEST_SURPLUS or rows[-1][0] - rows[0][0] > 2 * len(rows):
                kept.extend(rows)
                continue
            many = len(rows) >= _MANY_LEFT_OUT * max(self.table.num_rows, 1)
            self.table.notes.append(
                f"{UNREAD_NOTE if many else ''}{counted(len(rows), 'row')} from line {rows[0][0]} on left out: {what}; a run that"
                " was appended with other columns needs a file and a header of its own"
            )
        self.ragged = kept

    def take_block(self, block: bytes, number: int) -> int:
        """Take whole lines; return how many there are."""
        num_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if self.is_even:
            even = even_block(block, self.delimiter, len(self.keys), self.wanted, self.times)
            if even is not None:
                columns, filled, num_rows = even
                if self.table.add_block(self.keys, columns, filled.tolist(), num_rows):
                    self.last = number + num_rows
                    return num_rows
        if block.count(b"\r") != block.count(b"\r\n"):
            raise ValueError("a carriage return of its own ends a line")
        text = block.decode("utf-8", errors="replace")
        for at, line in enumerate(text.removesuffix("\n").split("\n"), number + 1):
            line = line.removesuffix("\r")
            if line.strip():
                self.take(at, _cells(line, self.delimiter))
        return num_lines


def _in_blocks(path: Path, blocks: Iterator[bytes], format_name: str) -> _Parse | None:
    """Read a plain file a block at a time; None where its first block is no table.

    Raises:
        ValueError: It has to be read line by line.
    """
    first = next(blocks, b"")
    if first.count(b"\r") != first.count(b"\r\n"):
        return None
    text = first.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").lstrip("\0")
    parse, rows = _open_table(text.removesuffix("\n").split("\n"), path, format_name)
    for at, cells in rows:
        parse.take(at, cells)
    number = first.count(b"\n")
    for block in blocks:
        number += parse.take_block(block, number)
    return parse


def _open_table(
    lines: Iterable[str], path: Path, format_name: str
) -> tuple[_Parse, Iterator[tuple[int, list[str]]]]:
    """Return what takes the rows of a table, and (line number, cells) of each.

    Raises:
        ReadError: It is no table, or nobody can say which number is what.
    """
    numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
    head: list[tuple[int, str]] = []
    for n, line in numbered:
        if head or not line.startswith("#"):
            head.append((n, line))
        if len(head) >= 50:
            break
    delimiter = _delimiter([line for _, line in head])
    if delimiter is None:
        raise ReadError(f"{path}: no table; looked for {CsvReader.looks_for}")
    header = [name.strip() for name in _cells(head[0][1], delimiter)]
    first = [_cells(line, delimiter) for _, line in head[1:]]
    surplus = _surplus(header, first)
    if width := _short(header, first):
        header, note = _by_a_person(header, width, str(path))
        surplus = _Surplus(note=note)

    def rows() -> Iterator[tuple[int, list[str]]]:
        for source_of_lines in (iter(head[1:]), numbered):
            for n, line in source_of_lines:
                yield n, _cells(line, delimiter)

    return _Parse(path, format_name, header, delimiter, surplus), rows()


def _named_by_file(header: list[str], path: Path) -> list[str]:
    """Give a column that is only called a value the name of its file: one metric, one file.

    TensorBoard writes `Wall time,Step,Value` to `run-NAME-tag-TAG.csv`, Neptune `step,value,...` to
    `TAG.csv`.
    """
    if not all_given():  # a person's keys are names of the file
        header = header_in_english(header)
    if any(signal_of_tag(name) is not None for name in header):
        return header
    tag = tag_of_file(path) or ("loss" if _is_nameless(header) else "")
    return [tag if normalise(n) in ("value", "values") and tag else n for n in header]


def _is_nameless(header: Sequence[str]) -> bool:
    """Whether a header is that of TensorBoard's download of one scalar, which names it nowhere."""
    return [normalise(name).lower() for name in header] == ["wall time", "step", "value"]


def _of_a_nameless_scalar(record: RunRecord, path: Path) -> RunRecord:
    """Return a scalar that the name of its file does not name either as a loss, where it falls.

    Raises:
        ReadError: It does not fall, and may be anything.
    """
    column = record.columns["loss"]
    values = column.values[column.finite_rows(slice(0, record.num_rows))]
    share = max(len(values) // 10, 1)
    if not len(values) or not np.median(values[-share:]) < np.median(values[:share]):
        raise ReadError(
            f"{path}: one scalar of TensorBoard under 'Value', and nothing says which; call the"
            " file run-NAME-tag-TAG.csv as it was downloaded, or say --columns reward=Value"
        )
    note = (
        "nothing says which scalar this is: 'Value' falls and is taken for the training loss; the"
        " name of the file, run-NAME-tag-TAG.csv, would say"
    )
    return replace(record, keys={**record.keys, "loss": "Value"}, notes=(*record.notes, note))


def _in_own_words(record: RunRecord, own: Mapping[str, str]) -> RunRecord:
    """Return a record whose columns are called as the file calls them."""
    if not own:
        return record
    notes = record.notes
    for key, name in own.items():
        notes = tuple(note.replace(shown(key), shown(name)) for note in notes)
    return replace(
        record,
        keys={signal: own.get(key, key) for signal, key in record.keys.items()},
        unread={own.get(key, key): num for key, num in record.unread.items()},
        notes=notes,
    )


def _cells(line: str, delimiter: str) -> list[str]:
    # `csv` is several times slower than `split`, and hardly any log quotes a cell.
    cells = _quoted(line, delimiter) if '"' in line else line.split(delimiter)
    if _is_framed(line, delimiter):
        cells = cells[1:-1]
    if delimiter == "|" and _MARKS.search(line):
        return [_unmarked(c) if len(c) <= MAX_CELL_CHARS else c for c in cells]
    # Spreadsheets of locales with a decimal comma separate cells by semicolons.
    if delimiter == ";" and "," in line:
        return [_with_point(c) if "," in c and len(c) <= MAX_CELL_CHARS else c for c in cells]
    return cells


def _unmarked(cell: str) -> str:
    """Return a cell of Markdown without the marks around it, and a number without its spread.

    An underscore in front alone belongs to the name: `_step`.
    """
    text = cell.strip().strip("*`")
    if text[:1] == text[-1:] == "_":
        text = text.strip("_").strip("*`")
    spread = _WITH_SPREAD.fullmatch(text)
    return (spread[1] if spread else text).strip("*`")


def _is_framed(line: str, delimiter: str) -> bool:
    """Whether bars stand in front of the first cell of a line and behind its last, too."""
    line = line.strip()
    return delimiter == "|" and len(line) > 1 and line[0] == line[-1] == "|"


def _with_point(cell: str) -> str:
    return _DECIMAL_COMMA.sub(r"\1.\2", cell)


def _quoted(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a cell beyond 128 KiB, or a lone quote at the end
        return line.split(delimiter)


def _delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter that gives the header most cells and the rows as many."""
    best: tuple[int, str] | None = None
    for delimiter in _DELIMITERS:
        cells = [_cells(line, delimiter) for line in lines[:20]]
        counts = [len(c) for c in cells]
        if not counts or counts[0] < 2:
            continue
        fitting = sum(c == counts[0] for c in counts)
        header, rows = cells[0], cells[1:]
        if (
            fitting < 0.8 * len(counts) - 1
            and _surplus(header, rows) is _EVEN
            and not _short(header, rows)
            and not _is_of_runs(header, rows)
        ):
            continue
        if best is None or counts[0] > best[0]:
            best = counts[0], delimiter
    return None if best is None else best[1]


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True
