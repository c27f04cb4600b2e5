"""Numbers under keys that no alias knows: kept beside the rows, to be judged by their shape alone.

What a metric of somebody's own means nobody can list; that it is NaN to the end, or at another
level for good, shows without. Kept are columns that are measured: numbers in most of the rows, that
differ from row to row and do not only rise, as counters and clocks do. They make no row. Those that
are logged seldom, as validations are, are kept to be compared with those of another run alone.
"""

import re
from collections.abc import Collection, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column
from trimtab.text import OTHER

__all__ = [
    "LEAST_VALUES",
    "MAX_CANDIDATES",
    "MAX_OTHERS",
    "MEMORY",
    "MOVES",
    "TIME_BESIDE",
    "is_measured",
    "is_seldom",
    "may_be_measured",
    "others_of",
]

MAX_OTHERS, MAX_CANDIDATES = 16, 64
"""Columns that are kept; keys that are looked at for them, since constants are none."""
TIME_BESIDE = {"time": True, "data time": False}
"""Keys that say beside each other which is the time of a step: so mmengine and detectron2 write."""
LEAST_VALUES, LEAST_SHARE = 48, 0.5
"""Numbers, and of the rows."""
LEAST_OF_MEMORY = 16
"""Numbers of memory in use, which a few epochs show to grow."""
LEAST_SELDOM = 4
"""Numbers."""
MOVES, MOST_UP = 0.1, 0.98
"""Of the values, that differ from the one before; and that rise, as those of a counter. Ours."""
MEMORY = re.compile(
    r"(?:^|[^a-z])(?:mem|memory|ram|rss|vram)(?:[^a-z]|$)(?!.*(?:resv|reserved|pct|percent|cache|replay))"
)
"""Words of memory in use, which may only rise."""
_NEVER = re.compile(
    r"(?:^|[^a-z])(?:id|idx|index|seed|rank|pid|port|eta|elapsed|remaining|time|timestamp|date|hour"
    r"|minutes?|best|total|count|num|version|progress|percent\w*|data|layer|lr|rate|epoch|step|iter\w*)"
    r"(?:[^a-z]|$)"
)


def may_be_measured(key: str) -> bool:
    """Whether a key may be that of a measured number, by its words.

    Example:
        >>> [may_be_measured(k) for k in ("embed_std", "eta", "total_steps")]
        [True, False, False]
    """
    return bool(key) and len(key) <= 80 and not _NEVER.search(key.lower())


def others_of(
    columns: Mapping[str, Column], rows: NDArray[np.intp], taken: Mapping[str, str]
) -> dict[str, tuple[str, Column]]:
    """Return name -> key and column [len(rows)] of those that are measured, or logged seldom.

    Args:
        columns: By key, of all rows of a file.
        rows: Those that are kept.
        taken: Signal -> key that is one; these are left out.
    """
    used: Collection[str] = {k for keys in taken.values() for k in (keys, *keys.split(", "))}
    found: dict[str, tuple[str, Column]] = {}
    seldom: dict[str, tuple[str, Column]] = {}
    for key, column in columns.items():
        here = Column(column.values[rows], column.present[rows])
        if key in used or len(found) == MAX_OTHERS:
            continue
        if is_measured(here, key):
            found[OTHER + key] = key, here
        elif is_seldom(here):
            seldom[OTHER + key] = key, here
    return found | dict(islice(seldom.items(), MAX_OTHERS - len(found)))


def is_seldom(column: Column) -> bool:
    """Whether numbers stand in few rows, with gaps between them."""
    values = column.logged()
    if not len(values):
        return False
    begun = int(column.present.argmax())
    few = LEAST_SELDOM <= len(values) < LEAST_SHARE * len(column.values)
    # One that stops being written stands in each row before.
    apart = not column.present[begun : begun + len(values)].all()
    return bool(few and apart)


def is_measured(column: Column, key: str) -> bool:
    """Whether the numbers under a key are measured, by what they do."""
    values = column.logged()
    is_memory = MEMORY.search(key.lower()) is not None
    if len(values) < (LEAST_OF_MEMORY if is_memory else LEAST_VALUES):
        return False
    if len(values) < LEAST_SHARE * len(column.values):
        # One that stops being written was there in each row before.
        begun = int(column.present.argmax())
        if not column.present[begun : begun + len(values)].all():
            return False
    finite = values[np.isfinite(values)]
    if len(finite) < (LEAST_OF_MEMORY if is_memory else LEAST_VALUES) // 2:
        return False
    moves = np.diff(finite)
    return bool(np.mean(moves != 0) >= MOVES and (is_memory or np.mean(moves >= 0) < MOST_UP))
