"""Lines at the end of a text that count on where its records stop: rows in a form that no one reads.

A trainer that goes on in other words leaves the reader of the first ones with half of a run. Lines
of one wording, numbers left out, are such rows where one of their numbers rises by the step of the
records, line by line, from the place behind the last record on. A test that follows a training
counts anew, and a table of results counts nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trimtab.readers.base import MAX_TAIL_LINES, TextLines
from trimtab.readers.numbers import counted
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.record import RunRecord

__all__ = ["with_unread_end"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\d)")
_LEAST_NUMBERS, _MOST_NUMBERS, _LONGEST = 2, 8, 1000
_FEWEST, _SHARE, _MOST = 6, 0.1, 60
"""Lines, their share of the records, and lines that are enough of any log. Ours."""
_NEXT, _SELDOM = 20.0, 20.0
"""Steps of a record behind the last, within which the first of them lies, and times the steps of a
record that may lie between two. Ours."""
_TESTED = re.compile(r"(?i)\b(?:test|eval|valid|val|sampl|infer|predict|image|uptime|class|score)")
"""Words of what follows a training and counts what it is done with."""


def with_unread_end(record: RunRecord, lines: Sequence[str], path: Path) -> RunRecord:
    """Return a record with a note on lines that go on where it ends; without them as it is.

    Args:
        record: As read.
        lines: The last of the file; those of the records may be among them.
        path: The file, read once more where all of these are such lines.
    """
    if record.axis == "row" or record.num_loss_rows < _FEWEST:
        return record
    step = record.step[record.columns["loss"].present]
    with np.errstate(over="ignore", invalid="ignore"):  # damaged logs hold steps of 1e308
        gap, last = float(np.median(np.diff(step))), float(step[-1])
    if not 0 < gap < np.inf:
        return record
    forms: dict[str, list[tuple[int, tuple[float, ...]]]] = {}
    for at, line in enumerate(lines):
        if (numbers := _numbers(line)) is not None:
            forms.setdefault(_form(line), []).append((at, numbers))
    least = max(_FEWEST, min(_SHARE * record.num_loss_rows, _MOST))
    for form, found in forms.items():
        if len(found) < least or _TESTED.search(form):
            continue
        rows = [numbers for _, numbers in found]
        place = _rises(rows, last, gap)
        if place is None:
            continue
        # Where the tail holds nothing else, the first of them is cut off.
        cut = len(lines) >= MAX_TAIL_LINES and found[0][0] < _FEWEST
        first = _first_of(path, form, place) if cut else rows[0][place]
        if first is not None and last < first <= last + _NEXT * gap:
            more = " and more" if cut else ""
            text = f"the last {counted(len(rows), 'line')}{more} count on behind the last record"
            return replace(record, notes=(*record.notes, UNREAD_NOTE + text))
    return record


def _numbers(line: str) -> tuple[float, ...] | None:
    """Return the first numbers of a line; None of one that has hardly any, or is too long."""
    if len(line) > _LONGEST or len(found := _NUMBER.findall(line)) < _LEAST_NUMBERS:
        return None
    return tuple(float(n) for n in found[:_MOST_NUMBERS])


def _form(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())


def _first_of(path: Path, form: str, place: int) -> float | None:
    """Return the number at a place of the first line of a form in a file."""
    words = form.partition("#")[0].strip()
    for line in TextLines(path):
        if words in line and (numbers := _numbers(line)) is not None and _form(line) == form:
            return numbers[place]
    return None


def _rises(rows: Sequence[tuple[float, ...]], last: float, gap: float) -> int | None:
    """Return which of the numbers of each line rises by a gap from line to line, all behind a place."""
    for place, values in enumerate(zip(*rows, strict=False)):
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.diff(values)
            even = np.isfinite(steps).all() and np.allclose(steps, steps[0])
        if even and gap <= steps[0] <= _SELDOM * gap and last < values[0]:
            return place
    return None
