"""Repeated n-grams: runs of the same 1 to 13 elements, found by sampling.

In a run of period s each element equals the one s before it. A run that is long enough has several
such equalities at every few elements, so it is enough to look there, and to measure exactly only
where all of them hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import Elements

__all__ = ["MAX_SPAN", "MIN_REPEATS", "MIN_RUN_BYTES", "Runs", "find_runs"]

MIN_REPEATS = 32
"""OLMo 2 leaves out what repeats a span of 1 to 13 tokens 32 times or more (arXiv:2501.00656)."""
MAX_SPAN = 13
MIN_RUN_BYTES = 512
"""Shortest run that counts in text. 32 repeats of a byte are a ruler or an indentation, 8 tokens
long; chosen on the rulers and tables of Python's own documentation."""


@dataclass(frozen=True)
class Runs:
    """Runs found, in the order of their starts: three int64 arrays [runs]."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    spans: NDArray[np.int64]


def find_runs(
    data: Elements,
    edges: NDArray[np.int64],
    *,
    min_length: int = 0,
    max_span: int = MAX_SPAN,
) -> Runs:
    """Return every run of one n-gram of 1 to `max_span` elements, repeated `MIN_REPEATS` times.

    data[i] == data[i - s] for all i in [start + s, end), and the stretch does not cross an edge.
    The shortest span that describes a run is reported. Blind to repeats with variation.

    Args:
        data: integers [n].
        edges: int64 [units + 1], rising, from 0 to n; no run crosses one.
        min_length: Shortest stretch reported, in elements.
        max_span: Longest span looked for.

    Cost: about max_span * n / (the sampling step, 8 to 100) comparisons; 1 to 5 ns per byte.

    Example:
        >>> runs = find_runs(np.array([7, 8] * 40 + [1, 2, 3]), np.array([0, 83]))
        >>> runs.starts.tolist(), runs.ends.tolist(), runs.spans.tolist()
        ([0], [80], [2])
    """
    of_span: dict[int, NDArray[np.int64]] = {}
    for span in range(1, max_span + 1):
        shortest = max(MIN_REPEATS * span, min_length)
        found = np.array(list(_of_span(data, edges, span, shortest)), np.int64).reshape(-1, 2)
        for divisor in (s for s in of_span if span % s == 0):
            found = found[~_within(found, of_span[divisor])]
        of_span[span] = found
    runs = np.concatenate(list(of_span.values()))
    spans = np.repeat(list(of_span), [len(r) for r in of_span.values()]).astype(np.int64)
    order = np.lexsort((spans, runs[:, 1], runs[:, 0]))
    return Runs(runs[order, 0], runs[order, 1], spans[order])


def _within(inner: NDArray[np.int64], outer: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which [start, end) lie in one of the others, whose starts and ends both rise."""
    if not len(outer):
        return np.zeros(len(inner), np.bool_)
    last = np.searchsorted(outer[:, 0], inner[:, 0], side="right") - 1
    within: NDArray[np.bool_] = (last >= 0) & (inner[:, 1] <= outer[np.maximum(last, 0), 1])
    return within


def _of_span(
    data: Elements, edges: NDArray[np.int64], span: int, shortest: int
) -> Iterator[tuple[int, int]]:
    """Yield runs of one span, each as [start, end)."""
    equal_needed = shortest - span  # consecutive i with data[i] == data[i - span]
    if len(data) < shortest:
        return
    step = max(equal_needed // 5, 1)  # any run holds at least 4 of the places looked at
    hits = data[span::step] == data[:-span:step]
    for first, last in _stretches(hits, max(equal_needed // step - 1, 1)):
        low = max(first * step - step, 0)
        high = min(last * step + step, len(data) - span)
        equal = data[low + span : high + span] == data[low:high]
        inside = edges[
            np.searchsorted(edges, low, "right") : np.searchsorted(edges, high + span, "left")
        ]
        for edge in inside.tolist():  # i in [edge, edge + span) looks back over the edge
            equal[max(edge - span - low, 0) : max(edge - low, 0)] = False
        for a, b in _stretches(equal, equal_needed):
            yield low + a, low + b + span


def _stretches(flags: NDArray[np.bool_], least: int) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of every stretch of at least `least` True."""
    if not flags.any():
        return
    padded = np.zeros(len(flags) + 2, np.int8)
    padded[1:-1] = flags
    turns = np.diff(padded)
    first, end = np.flatnonzero(turns == 1), np.flatnonzero(turns == -1)
    long = end - first >= least
    yield from zip(first[long].tolist(), end[long].tolist(), strict=True)
