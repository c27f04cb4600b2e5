"""Several runs in one file, one after the other: folds, seeds, trials, repeats.

A run begins where a line or a column names the next one (`Fold 2/5`, `seed=3`, `Trial 4`) and what
counts the rows begins again, or the loss is back at its start. Without a name a count that falls to
its first value does, where the loss is back as well, from the third run on: once may be a restart
without a checkpoint.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.base import TextLines

__all__ = [
    "MOST_ROWS",
    "RUNS_NOTE",
    "RUN_WORDS",
    "Marks",
    "is_back",
    "marks_in",
    "runs_by_count",
    "runs_by_name",
]

RUN_WORDS = ("fold", "trial", "seed", "run", "experiment", "repeat", "repetition", "split", "model")
"""What a log calls runs of one kind that it numbers; also names of columns."""
RUNS_NOTE = "{runs} runs in this file, one after the other: each is judged alone"
MIN_RUN_ROWS = 3
LEAST_RUNS = 3
"""Runs from which a count that begins again and a loss that is back are enough. As in `runs`."""
_BACK_SHARE = 0.35
"""Of the way from the first start to where a run ends, within which the next one starts. Ours."""
_LEAST_WAY = 0.2
"""Share of the first loss by which a run must have left it; else it is always back. Ours."""
_ENDS = 8
MOST_ROWS = 50_000
"""Rows beyond which a text is not looked through for the names of runs."""
_NUMBER = (
    rf"(?<![A-Za-z])({'|'.join(RUN_WORDS)})(?![A-Za-z])[\s_#:=\[(\"'-]{{0,4}}"
    r"(\d{1,9})(?![A-Za-z\d]|\.\d)"
)
_NAMED = re.compile(_NUMBER, re.IGNORECASE)

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Marks = Callable[[], Mapping[str, Sequence[tuple[int, int]]]]
"""Word -> (line, number) where a text names another run than in the line before."""


def marks_in(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Return where a text names another run: word -> (number of the line, number of the run).

    Cost: one pass over the file.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(TextLines(path), 1):
        match = _NAMED.search(line)
        if match is None:
            continue
        seen = found.setdefault(match[1].lower(), [])
        if not seen or seen[-1][1] != int(match[2]):
            seen.append((number, int(match[2])))
    return {word: seen for word, seen in found.items() if len(seen) > 1}


def runs_by_name(labels: Floats, loss: Floats, counts: Sequence[Floats]) -> Ints | None:
    """Return the first rows of the runs that a number in each row names; None where it does not.

    Args:
        labels: float64 [n_rows], the number of each row's run; NaN in front of the first.
        loss: float64 [n_rows].
        counts: What may count the rows of a run, each float64 [n_rows].
    """
    known = np.where(np.isnan(labels), -1.0, labels)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(known) != 0) + 1))
    if known[0] == -1.0 and len(starts) > 1:
        starts = np.delete(starts, 1 if _is_short(starts, len(labels)) else 0)
        starts[0] = 0
    if len(starts) < 2 or np.diff([*starts, len(labels)]).min() < MIN_RUN_ROWS:
        return None
    if len(np.unique(known[starts[1:]])) < len(starts) - 1:
        return None  # one number again: it counts something else, such as a part of an epoch
    begins_again = any(_begins_again(c, starts[1:]) for c in counts)
    back = [is_back(loss, starts, k) for k in range(1, len(starts))]
    known_back = [b for b in back if b is not None]
    if begins_again or (known_back and np.mean(known_back) > 0.5):
        return np.asarray(starts)
    return None


def _begins_again(count: Floats, borders: Ints) -> bool:
    """Whether a count is back at its first value at each border; a resume goes on from another."""
    if not np.isfinite(count).all():
        return False
    spacing = max(0.0, float(count[1] - count[0]))
    back = (count[borders] < count[borders - 1]) & (count[borders] <= count[0] + spacing)
    return bool(back.all())


def _is_short(starts: Ints, num: int) -> bool:
    return bool(starts[1] < MIN_RUN_ROWS) and num > MIN_RUN_ROWS


def runs_by_count(loss: Floats, counts: Sequence[Floats]) -> Ints | None:
    """Return the first rows of runs that no name tells apart; None where there is one run.

    Args:
        loss: float64 [n_rows].
        counts: What may count the rows of a run, each float64 [n_rows].
    """
    for count in counts:
        if not len(count) or not np.isfinite(count).all():
            continue
        falls = np.flatnonzero(np.diff(count) < 0) + 1
        if len(falls) < LEAST_RUNS - 1 or not (count[falls] == count[0]).all():
            continue
        starts = np.concatenate(([0], falls))
        sizes = np.diff([*starts, len(loss)])
        if sizes[:-1].min() < MIN_RUN_ROWS:
            continue
        if all(is_back(loss, starts, k) for k in range(1, len(starts))):
            return np.asarray(starts)
    return None


def is_back(loss: Floats, starts: Ints, index: int) -> bool | None:
    """Whether a run starts where the first did and not where the one before it ended.

    None: the loss does not tell, as it has hardly moved.
    """
    ends = [*starts[1:].tolist(), len(loss)]
    first = loss[starts[0] : ends[0]]
    before = loss[starts[index - 1] : ends[index - 1]]
    here = loss[starts[index] : ends[index]]
    parts = [p[np.isfinite(p)] for p in (first, before, here)]
    if min(len(p) for p in parts) == 0:
        return None
    # Of a short run the first row alone is at the start.
    num = max(1, min(_ENDS, min(len(p) for p in parts) // 8))
    origin, now = float(np.median(parts[0][:num])), float(np.median(parts[2][:num]))
    left = float(np.median(parts[1][-num:]))
    way = abs(left - origin)
    if way <= _LEAST_WAY * abs(origin):
        return None
    return abs(now - origin) <= _BACK_SHARE * way
