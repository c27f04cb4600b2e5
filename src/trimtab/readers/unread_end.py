"""Lines at the end of a text that count on where its records stop: rows in a form that no one reads.

A trainer that goes on in other words leaves the reader of the first ones with half of a run. Lines
of one wording, numbers left out, are such rows where one of their numbers rises by the step of the
records, line by line, from the place behind the last record on. A test that follows a training
counts anew, and a table of results counts nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.readers.base import MAX_TAIL_LINES
from trimtab.readers.numbers import counted
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.record import RunRecord

__all__ = ["with_unread_end"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\d)")
_LEAST_NUMBERS, _MOST_NUMBERS, _LONGEST = 2, 8, 1000
_FEWEST, _SHARE, _MOST = 6, 0.1, 60
"""Lines, their share of the records, and lines that are enough of any log. Ours."""
_NEXT = 2.5
"""Steps of a record behind the last, within which the first of them lies. Ours."""


def with_unread_end(record: RunRecord, lines: tuple[str, ...]) -> RunRecord:
    """Return a record with a note on lines that go on where it ends; without them as it is.

    Args:
        record: As read.
        lines: The last of the file; those of the records may be among them.
    """
    if record.axis == "row" or record.num_loss_rows < _FEWEST:
        return record
    step = record.step[record.columns["loss"].present]
    gap, last = float(np.median(np.diff(step))), float(step[-1])
    if not gap > 0:
        return record
    forms: dict[str, list[tuple[int, tuple[float, ...]]]] = {}
    for at, line in enumerate(lines):
        if len(line) > _LONGEST or len(found := _NUMBER.findall(line)) < _LEAST_NUMBERS:
            continue
        numbers = tuple(float(n) for n in found[:_MOST_NUMBERS])
        form = " ".join(_NUMBER.sub("#", line).split())
        forms.setdefault(form, []).append((at, numbers))
    least = max(_FEWEST, min(_SHARE * record.num_loss_rows, _MOST))
    for rows in forms.values():
        # Where the tail holds nothing else, the first of them is cut off.
        cut = len(lines) >= MAX_TAIL_LINES and rows[0][0] < _FEWEST
        if len(rows) >= least and _counts_on([n for _, n in rows], last, gap, cut=cut):
            more = " and more" if cut else ""
            text = f"the last {counted(len(rows), 'line')}{more} count on behind the last record"
            return replace(record, notes=(*record.notes, UNREAD_NOTE + text))
    return record


def _counts_on(rows: Sequence[tuple[float, ...]], last: float, gap: float, *, cut: bool) -> bool:
    """Whether one of the numbers of each line rises by a gap from line to line, behind a place."""
    for values in zip(*rows, strict=False):
        steps = np.diff(values)
        if (
            np.allclose(steps, gap)
            and last < values[0]
            and (cut or values[0] <= last + _NEXT * gap)
        ):
            return True
    return False
