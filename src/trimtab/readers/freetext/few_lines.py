"""Whether the few lines with a loss in a text are records of a run, or words about one.

A run that breaks at once leaves a line or two and a traceback, and an excerpt holds what somebody
copied. Prose, source code, settings and messages name a loss as well. What tells them apart is the
form of the line itself and what stands around it, each worth points (`_POINTS`).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.crash import classify
from trimtab.readers.base import TextLines, read_tail

__all__ = ["AreRecords", "are_records"]

_POINTS = 3
"""Points from which lines are records. Chosen on excerpts of public logs and on READMEs, sources,
settings and messages with a loss in them."""
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)\b", re.I
)
_NAMED = re.compile(
    r"[A-Za-z_\])][\w)\]%.]{0,30}[\"']?\s*[:=]\s*[-+\[(]{0,2}(?:\.?\d|nan\b|inf\b)", re.I
)
_WORD = re.compile(r"(?!(?:nan|inf)\b)\b[A-Za-z]{2,}|(?<=[\d_])[A-Za-z]{2,}", re.I)
_CLOCK = re.compile(r"\b\d\d?:\d\d:\d\d\b|\b\d{4}-\d\d-\d\d\b")
_LEVEL = re.compile(r"\b(?:INFO|DEBUG|WARNING)\b|^\W{0,2}[IWE]\d{4} \d")
_COUNT = re.compile(r"\b(?:global[ _]?step|step|iter(?:ation)?|epoch|update)s?\b\W{0,3}\d", re.I)
_OF_CODE = re.compile(
    r"`|[\"'][^\"']*\)|[;{]\s*$|\b(?:print|assert|return|def|if|for)\b"
    r"|^\s*(?:\w+ )?[A-Za-z_][\w.]*\([^()]*=[^()]*\)\s*$"
)
"""What a line of source code or of an explanation has, and a record has not."""
_SOURCE = re.compile(
    r"(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|#include\b|@\w+|function \w+\(|package \w)"
)
_MAX_SOURCE_LINES = 1
_MAX_LOOKED_AT = 5_000
_MIN_NAMED = 3
_MANY = 5


class AreRecords(Protocol):
    """`are_records` of one text."""

    def __call__(self, lines: NDArray[np.int64], *, broken: bool, counts: bool) -> bool:
        """Return whether lines are records of a run."""
        ...


def are_records(path: Path, lines: NDArray[np.int64], *, broken: bool, counts: bool) -> bool:
    """Return whether lines of a text are records of a run.

    Args:
        path: The text.
        lines: int64 [n_rows], numbers of the lines with a loss, from 1, in their order.
        broken: Whether one of the losses is NaN or Inf.
        counts: Whether a step or an epoch, on the lines or near them, counts the rows.

    Cost: one pass over the first lines of the file and its end; asked only where a text would be
    refused.
    """
    first = lines[:_MANY].tolist()
    texts: dict[int, str] = {}
    num_source = 0
    for number, line in enumerate(TextLines(path), 1):
        if number in first:
            texts[number] = line
        num_source += _SOURCE.match(line) is not None
        if number > _MAX_LOOKED_AT and number > first[-1]:
            break
    if num_source > _MAX_SOURCE_LINES or not texts or not all(map(_is_record, texts.values())):
        return False
    shown = list(texts.values())
    points = (
        2 * broken
        + (counts or any(_COUNT.search(text) for text in shown))
        + any(_CLOCK.search(text) or _LEVEL.search(text) for text in shown)
        + all(len(_NAMED.findall(text)) >= _MIN_NAMED for text in shown)
        # Rows without a word have their names in a header above, and so have a form.
        + 2
        * all(len(_NUMBER.findall(text)) >= _MIN_NAMED and not _WORD.search(text) for text in shown)
        + _repeats(shown)
        + (len(lines) >= _MANY)
    )
    # The end is looked at last, since that costs most.
    return points >= _POINTS or (points >= _POINTS - 2 and classify(read_tail(path)) is not None)


def _is_record(text: str) -> bool:
    """Whether a line has the form of a record: mostly numbers and their names."""
    if _OF_CODE.search(text):
        return False
    numbers = len(_NUMBER.findall(text))
    return len(_WORD.findall(text)) <= 2 * numbers + 2


def _repeats(texts: Sequence[str]) -> bool:
    """Whether two lines have the same words."""
    return len({_NUMBER.sub("#", text) for text in texts}) < len(texts)
