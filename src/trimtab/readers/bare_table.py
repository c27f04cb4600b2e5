"""Tables of numbers whose columns have no names, and tables of one column under its name.

What a column is cannot be read off its numbers: 0.9 that rises may be an accuracy. A person says
it, by the place of the column: `--columns loss=2,step=1`, or `reward=2`, counted from 1. A comment
above that names every column (as `numpy.savetxt` writes it) does as well, and so does the name of a
file that holds one number a line, or a count and a number: `loss.txt`, `val_losses.csv`,
`rewards.csv`. A column that is exp of another names both: a perplexity and its loss. Of rows under
headings of epochs, one number may count the batches of each and the other fall: a loss. The places
that pandas heads the columns of a frame without names with (`,0,1`) say nothing.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines, take_sample
from trimtab.readers.given_columns import all_given
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.readers.table import LogTable, is_known_key
from trimtab.record import RunRecord
from trimtab.said_by_words import HELD_OUT_SETS
from trimtab.trend import kendall_score

__all__ = ["BareTable", "BareTableReader", "bare_table"]

_MIN_ROWS = 3
_MAX_ROWS = 50
_MAX_CELLS = 512
_MAX_CELL_CHARS = 64
"""A perplexity beyond all bounds has 44 digits in front of its point."""
_MAX_PAIRED = 12
"""Columns among which a perplexity is sought; each is held against each other."""
_EXP_CAPS = (math.inf, 100.0, 20.0)
"""Losses above which a perplexity goes on no further: none, OpenNMT's, Megatron's."""
_MIN_DECIMALS = 2
_MIN_SPREAD = 20.0
"""How many times their rounding losses must differ to tell what is exp of them. Ours."""
_MAX_NAME_CHARS = 40
_MOST_SHOWN = 6
_SURE = 0.05
"""Error of a logarithm by the digits that are printed: with more, many numbers are exp of others. Ours."""
_MOST_LOSS, _SCATTERS = 1e3, 0.2
"""Largest number under epochs that may be a loss, and the share of its moves that turn: a rate comes
down smoothly. Ours."""
_EPOCH = re.compile(
    r"[-=*#\s\[]{0,40}epochs?[\s:#=]{0,4}(\d{1,7})(?:\s?/\s?\d{1,7})?[-=*#:\s\]]{0,40}", re.I
)
"""A heading that says of which epoch the rows below are."""
_FEWEST_EPOCHS, _FEWEST_FALLING = 2, 10
_FALLS = -3.0
"""Normal score of Kendall's S: one chance in 700. Ours."""
_MOST_COMPARED = 100
_PLACES = re.compile(r"(?:\"\")?[,;\t]0(?:[,;\t]\d{1,3}){0,99}")
"""The header of pandas over an index and columns that have no names."""
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where a name in camel case begins a word."""
_LOSS_WORDS = frozenset({"loss", "losses"})
_OTHER_WORDS = frozenset(
    ["weight", "weights", "packet", "packets", "acc", "accuracy", "accuracies", "scale", "memory"]
)
"""Beside `loss` in the name of a file that holds something else."""
_REWARD_WORDS = frozenset({"reward", "rewards", "returns"})
_DELIMITERS = (",", "\t", ";", "|", None)
"""None: blanks of any number, which also part the one cell of a line from nothing."""


@dataclass(frozen=True)
class BareTable:
    """The form of a table of numbers."""

    delimiter: str | None
    num_columns: int
    names: tuple[str, ...] = ()
    """Names of the columns, where a line above the numbers gives all of them."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells of the first rows."""
    has_end: bool = False
    """Whether each row ends with a delimiter, behind which nothing stands."""
    under_epochs: bool = False
    """Whether the rows stand under headings that count the epochs."""

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        cells = [cell.strip() for cell in line.split(self.delimiter)]
        return cells[:-1] if self.has_end and not cells[-1] else cells

    @property
    def keys(self) -> tuple[str, ...]:
        """What the columns are called: by name, else by their place, from 1."""
        return self.names or tuple(str(i + 1) for i in range(self.num_columns))

    @property
    def way_out(self) -> str:
        """What to say to have it read."""
        if self.num_columns == 1:
            return (
                "one number a line, without a name; where it is the loss, say so:"
                " --columns loss=1 (columns are counted from 1), or reward=1 of an agent"
            )
        count = next((i for i in range(self.num_columns) if self._counts(i)), None)
        # Whole numbers in every row more likely count batches than are what is looked for.
        others = [i for i in range(self.num_columns) if i != count]
        value = next((i for i in others if not self._is_whole(i)), 1 if count != 1 else 0)
        step = "" if count is None else f",step={count + 1}"
        ends = [
            f"{i + 1}: {self.rows[0][i]} to {self.rows[-1][i]}"
            for i in range(min(self.num_columns, _MOST_SHOWN))
        ]
        return (
            f"{self.num_columns} columns of numbers without names; say which is what, counted from"
            f" 1: --columns loss={value + 1}{step} where {value + 1} is a loss, which falls as the"
            f" run learns, --columns reward={value + 1}{step} where it is a reward or a score,"
            f" which rises (in the first {len(self.rows)} rows {', '.join(ends)})"
        )

    def _is_whole(self, index: int) -> bool:
        return all(row[index].isdecimal() for row in self.rows)

    def _counts(self, index: int) -> bool:
        """Whether a column may count the rows: whole numbers that rise, but for a restart."""
        return _count([row[index] for row in self.rows])


def bare_table(lines: Sequence[str]) -> BareTable | None:
    """Return the form of a table of numbers without a header, None where the lines are none.

    Example:
        >>> bare_table(("1, 0.5", "2, 0.4", "3, 0.3")).num_columns
        2
    """
    if lines and _EPOCH.fullmatch(lines[0]):
        rows = [line for line in lines if not _EPOCH.fullmatch(line)][:_MAX_ROWS]
        under = _form((), rows) or _form((), rows[:-1])
        return None if under is None else replace(under, under_epochs=True)
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    above, rows = list(lines[:first]), list(lines[first : first + _MAX_ROWS])
    # The last line may be torn. Numbers go first: `1e-05` has a letter, and is no name.
    found = _form(above, rows) or _form(above, rows[:-1])
    if found is not None or not rows:
        return found
    if _PLACES.fullmatch(rows[0]):
        above, rows = [], rows[1:]
    elif len(rows) > 1 and len(rows[0]) <= _MAX_NAME_CHARS and _is_name(rows[0]):
        above = [rows.pop(0)]  # the header of one column has no delimiter to be told by
        if not is_known_key(above[0].strip().strip("\"'")):
            return None
    else:
        return None
    return _form(above, rows) or _form(above, rows[:-1])


def _named_by_file(table: BareTable, path: Path, lines: Sequence[str]) -> BareTable:
    """Return the table with the names that the name of its file gives; as it is without."""
    words = set(re.split(r"[^a-z]+", _HUMP.sub(" ", path.name).lower()))
    if table.names or table.num_columns > 2 or all_given() or words & _OTHER_WORDS:
        return table
    if words & _LOSS_WORDS:
        name = "val_loss" if words & HELD_OUT_SETS else "loss"
    elif words & _REWARD_WORDS:
        name = "reward"
    else:
        return table
    if table.num_columns == 1:
        return replace(table, names=(name,))
    rows = [table.cells(line) for line in lines if not line.startswith("#")][:-1]
    # The header of pandas is none of the rows.
    counts = [cells[0] for k, cells in enumerate(rows) if k or all(map(_is_number, cells))]
    return replace(table, names=("step", name)) if _count(counts) else table


def _named_by_exp(table: BareTable) -> BareTable:
    """Return the table with names where one column is exp of another; as it is without."""
    if table.names or all_given() or not 2 <= table.num_columns <= _MAX_PAIRED:
        return table
    columns = list(zip(*table.rows, strict=True))
    pairs = [
        (a, b)
        for a, b in permutations(range(table.num_columns), 2)
        if any(_is_exp(columns[b], columns[a], cap) for cap in _EXP_CAPS)
    ]
    if len(pairs) != 1:  # of training and of validation: which is which nothing says
        return table
    names = list(table.keys)
    names[pairs[0][0]], names[pairs[0][1]] = "loss", "perplexity"
    count = next((i for i, c in enumerate(columns) if i not in pairs[0] and _count(c)), None)
    if count is not None:
        names[count] = "step"
    return replace(table, names=tuple(names))


def _named_by_epochs(table: BareTable, lines: Sequence[str]) -> BareTable:
    """Return rows under epochs with names where one number counts batches and the other falls.

    What merely falls may be anything; what falls from batch to batch of a training is its loss.
    """
    if not table.under_epochs or table.names or all_given() or table.num_columns != 2:
        return table
    epochs: list[list[list[str]]] = []
    for line in lines:
        if _EPOCH.fullmatch(line):
            epochs.append([])
        elif len(cells := table.cells(line)) == 2 and all(map(_is_number, cells)):
            epochs[-1].append(cells)
    epochs = [rows for rows in epochs if rows]
    if len(epochs) < _FEWEST_EPOCHS:
        return table
    for count, value in ((0, 1), (1, 0)):
        begins = {rows[0][count] for rows in epochs}
        rising = all(_rises([row[count] for row in rows]) for rows in epochs)
        values = [r[value] for rows in epochs for r in rows]
        if len(begins) == 1 and rising and _falls(values) and _scatters(values):
            names = ("batch", "loss") if count == 0 else ("loss", "batch")
            return replace(table, names=names)
    return table


def _rises(cells: Sequence[str]) -> bool:
    """Whether cells are whole numbers at even distances, but for the last, each above the one before."""
    if not all(c.isdecimal() for c in cells):
        return False
    steps = [int(b) - int(a) for a, b in pairwise(cells)]
    return all(s > 0 for s in steps) and len(set(steps[:-1])) <= 1


def _scatters(cells: Sequence[str]) -> bool:
    """Whether numbers of the size of a loss go up and down, as losses of batches do."""
    values = np.array([x for c in cells if math.isfinite(x := float(c))])
    turns = np.diff(np.sign(np.diff(values))) != 0
    return bool(values.max() < _MOST_LOSS and turns.mean() >= _SCATTERS)


def _falls(cells: Sequence[str]) -> bool:
    """Whether positive numbers with a fraction fall over their course."""
    values = np.array([x for c in cells if math.isfinite(x := float(c))])
    if len(values) < _FEWEST_FALLING or values.min() <= 0 or not np.any(values % 1):
        return False
    steps = np.diff(values)
    if np.ptp(steps) <= 1e-6 * np.abs(steps).max():  # an even grid
        return False
    third = len(values) // 3
    lower = np.median(values[-third:]) < np.median(values[:third])
    return bool(lower) and kendall_score(values[:: len(values) // _MOST_COMPARED + 1]) <= _FALLS


def _is_exp(cells: Sequence[str], of: Sequence[str], cap: float) -> bool:
    """Whether numbers are exp of others, none of which is negative, as near as they are rounded."""
    rounded = 10.0 ** -_num_decimals(of)
    if rounded > 10.0**-_MIN_DECIMALS:
        return False
    pairs = [(float(a), float(b)) for a, b in zip(of, cells, strict=True)]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    losses = [a for a, _ in pairs]
    if len(pairs) < _MIN_ROWS or max(losses) - min(losses) < _MIN_SPREAD * rounded:
        return False
    own = 10.0 ** -_num_decimals(cells)
    others = [b for _, b in pairs]
    # A number may be cut instead of rounded.
    errors = [rounded + own / max(b, own) for b in others]
    near = max(errors) <= _SURE and all(
        a >= 0 < b and abs(math.log(b) - min(a, cap)) <= error
        for (a, b), error in zip(pairs, errors, strict=True)
    )
    if not near or min(losses) >= cap:  # nothing but a perplexity stops there
        return near
    # A curve and its exponential are no log: a loss falls, and scatters.
    return max(others) - min(others) >= _MIN_SPREAD * own and _falls(of)


def _num_decimals(cells: Sequence[str]) -> int:
    """Return how many digits stand behind the point of the most exact cell."""
    plain = (cell.lower().partition("e")[0] for cell in cells)
    return max(len(cell.partition(".")[2]) for cell in plain)


def _count(cells: Sequence[str]) -> bool:
    """Whether cells are whole numbers that rise, but for a restart; `1.000e+00` is one as well."""
    numbers = [float(cell) for cell in cells if _is_number(cell) and not cell[-1:].isalpha()]
    if len(numbers) < len(cells) or not all(n >= 0 and n.is_integer() for n in numbers):
        return False
    return sum(b <= a for a, b in pairwise(numbers)) <= 1 + len(numbers) // 20


def _form(above: Sequence[str], rows: Sequence[str]) -> BareTable | None:
    if len(rows) < _MIN_ROWS:
        return None
    for delimiter in _DELIMITERS:
        split = [[cell.strip() for cell in row.split(delimiter)] for row in rows]
        has_end = all(len(row) > 1 and not row[-1] for row in split)
        if has_end:
            split = [row[:-1] for row in split]
        widths = {len(row) for row in split}
        if len(widths) != 1 or not 0 < (width := widths.pop()) <= _MAX_CELLS:
            continue
        if width == 1 and not has_end and delimiter is not None:
            continue
        if all(_is_number(cell) for row in split for cell in row):
            names = _names(above, delimiter, width)
            return BareTable(delimiter, width, names, tuple(map(tuple, split)), has_end)
    return None


def _names(above: Sequence[str], delimiter: str | None, width: int) -> tuple[str, ...]:
    text = above[-1].lstrip("# \t") if above else ""
    names = [text] if width == 1 else text.split(delimiter)
    names = [name.strip().strip("\"'") for name in names]
    fits = len(names) == width and all(map(_is_name, names)) and len(set(names)) == width
    return tuple(names) if fits else ()


def _is_name(text: str) -> bool:
    return any(map(str.isalpha, text)) and not _is_number(text)


def _is_number(text: str) -> bool:
    if len(text) > _MAX_CELL_CHARS or not text.strip():
        return False
    try:
        return parse_number(text) is not None
    except BadNumberError:
        return False


class BareTableReader:
    """Reads tables of numbers whose columns a person has named."""

    name = "numbers"
    looks_for = "numbers alone, with --columns loss=2,step=1 (or reward=2; counted from 1)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.97 for a table of numbers whose columns were said; 0.8 where names are known.

        Without either it is nobody's.
        """
        lines = sample.lines[: _MAX_ROWS + 2]
        table = None if sample.is_binary else bare_table(lines)
        if table is None:
            return 0.0
        table = _named_by_exp(_named_by_file(table, sample.path, lines))
        table = _named_by_epochs(table, sample.lines)
        if table.names:
            return 0.8 if any(map(is_known_key, table.names)) else 0.0
        return 0.97 if all_given() else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It is no such table, a named column is none of its, or a line is broken.
        """
        sample = take_sample(path)
        lines = sample.lines[: _MAX_ROWS + 2]
        found = bare_table(lines)
        if found is None:
            raise ReadError(f"{path}: no table of numbers; looked for {self.looks_for}")
        by_file = _named_by_file(found, path, lines)
        by_exp = _named_by_exp(by_file)
        table = _named_by_epochs(by_exp, sample.lines)
        keys = ("epoch", *table.keys) if table.under_epochs else table.keys
        lacking = [key for key in all_given() if not table.names and key not in keys]
        if lacking:
            raise ReadError.of_no_log(f"{path}: no column {lacking[0]!r}; {table.way_out}")
        log = LogTable(str(path), self.name)
        if by_file != found:
            log.notes.append(
                f"a number a line is taken for the loss, by the name of the file: {path.name!r}"
            )
        elif table != by_exp:
            log.notes.append(
                "numbers have no names: under each epoch one counts the batches, and the other"
                " falls over the run, so it is taken for the loss"
            )
        elif table != found:
            loss, perplexity = (table.names.index(name) + 1 for name in ("loss", "perplexity"))
            log.notes.append(
                f"columns have no names: column {perplexity} is exp of column {loss}, so it is taken"
                f" for the perplexity and column {loss} for its loss"
            )
        ragged: list[tuple[int, str]] = []
        last = 0
        for last, cells in _rows(table, TextLines(path)):
            if len(cells) == len(keys):
                log.add(keys, cells, last)
            else:
                what = f"{counted(len(cells), 'cell')}, expected {len(keys)}"
                ragged.append((last, what))
        # Only the very last row can be torn; a short one elsewhere is damage.
        if ragged and ragged[-1][0] == last:
            ragged.pop()
            log.notes.append("the last row was torn in mid-write and left out")
        log.settle_problems(ragged, "a number")
        return log.to_record(columnar=True)


def _rows(table: BareTable, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) from the first line of numbers on, blank ones left out.

    The number of its epoch goes before a row that stands under one.
    """
    began = False
    epoch: list[str] = []
    for number, line in enumerate(lines, 1):
        if table.under_epochs and (heading := _EPOCH.fullmatch(line)):
            epoch = [heading[1]]
            continue
        cells = table.cells(line)
        began = began or all(map(_is_number, cells))
        if began and line.strip() and not line.startswith("#"):
            yield number, epoch + cells
