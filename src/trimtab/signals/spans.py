"""Figures of long spans of a record: the last values, the extremes, the usual distance of steps.

A record is judged again and again while it grows, and a log may hold thousands of incidents, so a
figure of a long span must not cost a pass over it each time. The rows are cut into blocks of
`BLOCK_ROWS`. What is known of a whole block is kept in `RunRecord.memo`; only the two ends of a
span are looked at anew. Rows of a record do not change once they are recorded, so a block that is
full stays valid while the record grows.

All functions read the record by slices and single rows only.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord

__all__ = [
    "BLOCK_ROWS",
    "Span",
    "finite_values",
    "first_finite",
    "fold_blocks",
    "has_finite",
    "has_value_other_than",
    "highest",
    "last_finite",
    "last_rows",
    "lineage_spans",
    "logs_any",
    "lowest",
    "median_spacing",
    "num_rows_of",
    "positive_peak",
    "rising_start",
]

BLOCK_ROWS = 4096
_FIRST_CHUNK_ROWS = 256

Floats = NDArray[np.float64]
Span = tuple[int, int]
"""Rows [first, stop)."""
T = TypeVar("T")


def lineage_spans(record: RunRecord, attempt: int, end_row: int) -> tuple[Span, ...]:
    """Return the spans of rows that led to `end_row`, oldest first, dead branches left out.

    Args:
        record: What the run logged.
        attempt: Index of the attempt that `end_row` belongs to.
        end_row: First row left out.
    """
    by_number = {a.number: i for i, a in enumerate(record.attempts)}
    own = record.attempts[attempt]
    spans = [(own.first_row, max(own.first_row, min(end_row, own.end_row)))]
    seen = {attempt}
    child = own
    while child.parent is not None and by_number.get(child.parent, attempt) not in seen:
        index = by_number[child.parent]
        seen.add(index)
        parent = record.attempts[index]
        stop = parent.end_row
        if child.parent_step is not None:
            # The state that was restored had taken that step, so its row belongs to the lineage.
            stop = _stop_at(record, parent.first_row, stop, child.parent_step, inclusive=True)
        elif child.first_row < child.end_row:
            first_step = float(record.step[child.first_row])
            # The log names no step: what the child logged again replaces the parent's row.
            stop = _stop_at(record, parent.first_row, stop, first_step, inclusive=False)
        spans.append((parent.first_row, stop))
        child = parent
    return tuple(spans[::-1])


def _stop_at(record: RunRecord, first: int, stop: int, limit: float, *, inclusive: bool) -> int:
    """Return the end of the rows up to a step; steps rise within an attempt."""
    if math.isnan(limit):
        return first
    search = bisect_right if inclusive else bisect_left
    return first + search(range(first, stop), limit, key=lambda row: float(record.step[row]))


def num_rows_of(spans: Iterable[Span]) -> int:
    """Return the number of rows in spans."""
    return sum(stop - first for first, stop in spans)


def last_rows(spans: Sequence[Span], count: int) -> NDArray[np.intp]:
    """Return the last `count` rows of spans, in order."""
    parts: list[NDArray[np.intp]] = []
    for first, stop in reversed(spans):
        if count <= 0:
            break
        part = np.arange(max(first, stop - count), stop, dtype=np.intp)
        parts.append(part)
        count -= len(part)
    return np.concatenate(parts[::-1]) if parts else np.zeros(0, dtype=np.intp)


def finite_values(record: RunRecord, name: str, first: int, stop: int) -> Floats:
    """Return the logged, finite values of a signal at rows [first, stop), in order."""
    return _finite(record, name, first, stop)[1]


def last_finite(
    record: RunRecord, name: str, spans: Sequence[Span], count: int
) -> tuple[NDArray[np.intp], Floats]:
    """Return rows and values of the last `count` logged, finite values of a signal, in order.

    Reads back from the end, so the cost is that of the rows that hold them.
    """
    rows: list[NDArray[np.intp]] = []
    values: list[Floats] = []
    # Chunks double, so a sparse signal far back costs few passes and a dense one few rows.
    left, size = count, max(_FIRST_CHUNK_ROWS, count)
    for first, stop in reversed(spans):
        while stop > first and left > 0:
            begin = max(first, stop - size)
            at, found = _finite(record, name, begin, stop)
            rows.append(at[-left:])
            values.append(found[-left:])
            left -= len(values[-1])
            stop, size = begin, 2 * size
    if not rows:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    return np.concatenate(rows[::-1]), np.concatenate(values[::-1])


def first_finite(record: RunRecord, name: str, spans: Iterable[Span]) -> float | None:
    """Return the first logged, finite value of a signal; None where there is none."""
    found = _folds(record, spans, ("first", name), lambda a, b: _first(_finite(record, name, a, b)))
    return next((value for _, value in found), None)


def _first(found: tuple[NDArray[np.intp], Floats]) -> float | None:
    return float(found[1][0]) if len(found[1]) else None


def has_finite(record: RunRecord, name: str, spans: Iterable[Span]) -> bool:
    """Whether any logged value of a signal is finite."""
    return first_finite(record, name, spans) is not None


def logs_any(record: RunRecord, name: str, spans: Iterable[Span]) -> bool:
    """Whether a signal was logged at all, NaN and Inf included."""
    column = record.columns.get(name)
    if column is None:
        return False
    present = column.present
    found = _folds(record, spans, ("any", name), lambda a, b: bool(present[a:b].any()) or None)
    return next((True for _ in found), False)


def has_value_other_than(record: RunRecord, name: str, spans: Iterable[Span], usual: float) -> bool:
    """Whether any logged value of a signal differs from the usual one."""
    column = record.columns.get(name)
    if column is None:
        return False

    def differs(first: int, stop: int) -> bool | None:
        logged = column.values[first:stop][column.present[first:stop]]
        return bool((logged != usual).any()) or None

    found = _folds(record, spans, ("other", name, usual), differs)
    return next((True for _ in found), False)


def highest(record: RunRecord, name: str, spans: Iterable[Span]) -> float | None:
    """Return the highest finite value of a signal; None where there is none."""

    def fold(first: int, stop: int) -> float | None:
        values = _finite(record, name, first, stop)[1]
        return float(values.max()) if len(values) else None

    return max((v for _, v in _folds(record, spans, ("max", name), fold)), default=None)


def lowest(record: RunRecord, name: str, spans: Iterable[Span]) -> float | None:
    """Return the lowest finite value of a signal; None where there is none."""

    def fold(first: int, stop: int) -> float | None:
        values = _finite(record, name, first, stop)[1]
        return float(values.min()) if len(values) else None

    return min((v for _, v in _folds(record, spans, ("min", name), fold)), default=None)


def positive_peak(
    record: RunRecord, name: str, spans: Iterable[Span]
) -> tuple[int, float, int, float] | None:
    """Return (last row of the peak, the peak, last row, its value) of the values above 0.

    None where fewer than two were logged. Inf counts.
    """
    column = record.columns.get(name)
    if column is None:
        return None

    def fold(first: int, stop: int) -> tuple[int, int, float, int, float] | None:
        values, present = column.values[first:stop], column.present[first:stop]
        at = np.flatnonzero(present & (values > 0))
        if not len(at):
            return None
        found = values[at]
        # The last of equal peaks: a fall is dated from where the scale was last at its height.
        top = len(found) - 1 - int(np.argmax(found[::-1]))
        row, last = first + int(at[top]), first + int(at[-1])
        return len(at), row, float(found[top]), last, float(found[-1])

    parts = [part for _, part in _folds(record, spans, ("peak", name), fold)]
    if sum(count for count, *_ in parts) < 2:
        return None
    peak = max(value for _, _, value, _, _ in parts)
    row = next(row for _, row, value, _, _ in reversed(parts) if value == peak)
    return row, peak, parts[-1][3], parts[-1][4]


def rising_start(
    record: RunRecord, name: str, spans: Sequence[Span]
) -> tuple[NDArray[np.intp], Floats]:
    """Return rows and values from the first finite value of a signal to the first that is no rise.

    All of them where each one rises. The cost is that of the rows up to there.
    """
    rows, values = np.zeros(0, dtype=np.intp), np.zeros(0)
    size = _FIRST_CHUNK_ROWS
    for first, stop in spans:
        while first < stop:
            end = min(first + size, stop)
            at, found = _finite(record, name, first, end)
            rows, values = np.concatenate([rows, at]), np.concatenate([values, found])
            falls = np.flatnonzero(~(np.diff(values) > 0))
            if len(falls):
                return rows[: falls[0] + 2], values[: falls[0] + 2]
            first, size = end, 2 * size
    return rows, values


def median_spacing(record: RunRecord, first: int, stop: int) -> float | None:
    """Return the median distance of the steps of rows [first, stop); None for fewer than two."""
    if stop - first < 2:
        return None

    def fold(begin: int, end: int) -> dict[float, int]:
        """Count the distances from each of these rows to the row before it."""
        gaps = np.diff(record.step[max(begin, 1) - 1 : end])
        found, counts = np.unique(gaps, return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    total: dict[float, int] = {}
    for _, part in _folds(record, ((first + 1, stop),), ("gaps",), fold):
        for gap, count in part.items():
            total[gap] = total.get(gap, 0) + count
    return _median(total)


def _median(counts: dict[float, int]) -> float:
    """Return the median of values that are given with their counts, as NumPy has it."""
    gaps = sorted(counts)
    number = sum(counts.values())
    middle = [(number - 1) // 2, number // 2]
    found: list[float] = []
    below = 0
    for gap in gaps:
        below += counts[gap]
        while len(found) < 2 and middle[len(found)] < below:
            found.append(gap)
    return float(np.mean(found))


def _finite(record: RunRecord, name: str, first: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
    column = record.columns.get(name)
    if column is None or first >= stop:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    values = column.values[first:stop]
    at = np.flatnonzero(column.present[first:stop] & np.isfinite(values))
    return at + first, values[at]


def _folds(
    record: RunRecord,
    spans: Iterable[Span],
    key: tuple[object, ...],
    fold: Callable[[int, int], T | None],
) -> Iterator[tuple[int, T]]:
    """Yield (first row, what `fold` gives) for the pieces of spans, in order; None is left out.

    `fold(first, stop)` must depend on these rows (and the step of the row before them) alone.
    """
    for first, stop in spans:
        while first < stop:
            block, offset = divmod(first, BLOCK_ROWS)
            end = min(stop, first - offset + BLOCK_ROWS)
            found: T | None
            # Only whole blocks are kept: an unfinished one still changes.
            if offset == 0 and end - first == BLOCK_ROWS:
                place = (*key, block)
                # Not `get`: None is an answer, too (no finite value in the block).
                if place in record.memo:
                    found = cast("T | None", record.memo[place])
                else:
                    found = record.memo[place] = fold(first, end)
            else:
                found = fold(first, end)
            if found is not None:
                yield first, found
            first = end


def fold_blocks(record: RunRecord, first: int, stop: int) -> None:
    """Compute and keep the figures of whole blocks, before some of their values are dropped."""
    spans = ((first, stop),)
    # The very questions that diagnosis asks of long spans; what is missing here costs a pass later,
    # over values that are gone.
    for name in ("loss", "grad_norm"):
        first_finite(record, name, spans)
        logs_any(record, name, spans)
    lowest(record, "loss", spans)
    highest(record, "lr", spans)
    has_value_other_than(record, "loss_scale", spans, 1.0)
    positive_peak(record, "loss_scale", spans)
    median_spacing(record, max(first, 1) - 1, stop)
