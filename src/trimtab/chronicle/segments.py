"""Stretches of rows from several logs, put together: copies are one, what a log repeats is cut off.

A run leaves its rows in several places: the text log and TensorBoard, an archive of the event files
that a rollback took away, the `trainer_state.json` of each checkpoint with all rows before it.
Rows of two sources are copies where every signal that both have agrees, the time of a step
included: a restart repeats losses to the last digit, but not the time that a step took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column, RunRecord

__all__ = ["Segment", "put_together", "segments_of"]

_MIN_COMMON = 3
"""Rows that must agree before two stretches are taken for copies. Ours."""
_TOLERANCE: Mapping[str, float] = {"loss": 5e-5, "step_time_s": 5e-3}
"""Relative difference within which a printed figure is that of the other log: text has 4 to 7
digits, TensorBoard float32. Norms are not compared: text has them times the loss scale. Ours."""
_SHARE = 0.98
"""Share of the common rows that must agree: a repeated row may stand in one of them. Ours."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Rising rows of one attempt, from one log or several."""

    sources: tuple[str, ...]
    step: NDArray[np.float64]
    columns: Mapping[str, Column]
    settings: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    number: str = ""
    """As the log states it; empty where it does not."""
    parent_step: float | None = None
    """Step that it resumed from, as the log states it, or as the rows cut off show."""
    follows: bool = False
    """Whether its first rows were those of an earlier segment."""
    order: int = 0
    """Place among all that was read."""
    facts: Mapping[str, float] = field(default_factory=dict)
    tail: tuple[str, ...] = ()
    """Last lines of its text log, where it is the last segment of it."""

    @property
    def begun_s(self) -> float | None:
        """Wall time of the first row, seconds; None where it is not logged."""
        wall = self.columns.get("wall_time_s")
        rows = np.zeros(0) if wall is None else wall.values[wall.present]
        return float(rows[0]) if len(rows) and rows[0] > 1e8 else None

    @property
    def ended_s(self) -> float | None:
        """Wall time of the last row, seconds."""
        wall = self.columns.get("wall_time_s")
        rows = np.zeros(0) if wall is None else wall.values[wall.present]
        return float(rows[-1]) if len(rows) and rows[-1] > 1e8 else None

    @property
    def spacing(self) -> float:
        """Usual distance of two rows, in steps."""
        return float(np.median(np.diff(self.step))) if len(self.step) > 1 else 1.0


def segments_of(record: RunRecord, first: int = 0) -> list[Segment]:
    """Return the attempts of a record as segments.

    Args:
        record: The record.
        first: `order` of the first of them.
    """
    found: list[Segment] = []
    stated = record.format in ("trimtab", "megatron") and any(
        a.settings or a.why for a in record.attempts
    )
    for index, attempt in enumerate(record.attempts):
        rows = slice(attempt.first_row, attempt.end_row)
        if attempt.end_row <= attempt.first_row:
            continue
        columns = {
            name: Column(c.values[rows], c.present[rows])
            for name, c in record.columns.items()
            if c.present[rows].any()
        }
        found.append(
            Segment(
                sources=(record.source,),
                step=record.step[rows],
                columns=columns,
                settings=attempt.settings,
                why=attempt.why,
                number=attempt.number if stated and attempt.why else "",
                parent_step=attempt.parent_step,
                order=first + index,
                facts=record.facts,
                tail=record.tail if index == len(record.attempts) - 1 else (),
            )
        )
    return found


def put_together(segments: Sequence[Segment]) -> tuple[list[Segment], list[str]]:
    """Return the segments with copies as one, and what was done, in words.

    Two segments of one log are never copies of each other: there it is a restart.

    Cost: O(segments²) comparisons of ranges, and of rows where ranges overlap.
    """
    kept: list[Segment] = []
    notes: list[str] = []
    num_copies = num_cut = 0
    for segment in segments:
        here: Segment | None = segment
        for at, other in enumerate(kept):
            if here is None or set(here.sources) & set(other.sources):
                continue
            num_equal, num_common = _agreement(other, here)
            if num_common < min(_MIN_COMMON, len(here.step), len(other.step)) or not num_common:
                continue
            if num_equal >= _SHARE * num_common:
                kept[at] = _union(other, here)
                num_copies += 1
                here = None
            elif (prefix := _prefix(other, here)) >= _MIN_COMMON:
                here = _without_prefix(here, prefix)
                num_cut += 1
        if here is not None and len(here.step):
            kept.append(here)
    if num_copies:
        notes.append(f"{num_copies} stretches are copies of others, and are counted once")
    if num_cut:
        notes.append(f"{num_cut} logs begin with rows of an earlier one; these are counted once")
    return kept, notes


def _agreement(a: Segment, b: Segment) -> tuple[int, int]:
    """Return how many common rows agree in every signal that both have, and how many there are."""
    if a.step[-1] < b.step[0] or b.step[-1] < a.step[0]:
        return 0, 0
    _, at_a, at_b = np.intersect1d(a.step, b.step, assume_unique=True, return_indices=True)
    equal, compared = _equal(a, b, at_a, at_b)
    return int((equal & compared).sum()), int(compared.sum())


def _equal(
    a: Segment, b: Segment, at_a: NDArray[np.intp], at_b: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    equal = np.ones(len(at_a), dtype=np.bool_)
    compared = np.zeros(len(at_a), dtype=np.bool_)
    for name, tolerance in _TOLERANCE.items():
        one, other = a.columns.get(name), b.columns.get(name)
        if one is None or other is None:
            continue
        both = one.present[at_a] & other.present[at_b]
        x, y = one.values[at_a], other.values[at_b]
        with np.errstate(invalid="ignore"):
            near = np.isclose(x, y, rtol=tolerance, atol=0.0, equal_nan=True)
        equal &= near | ~both
        if name == "loss":
            compared |= both
    wall_a, wall_b = a.columns.get("wall_time_s"), b.columns.get("wall_time_s")
    if wall_a is not None and wall_b is not None and a.begun_s and b.begun_s:
        both = wall_a.present[at_a] & wall_b.present[at_b]
        # Two writers of one process are seconds apart; a restart is minutes.
        equal &= ~both | (np.abs(wall_a.values[at_a] - wall_b.values[at_b]) < 60.0)
    return equal, compared


def _prefix(a: Segment, b: Segment) -> int:
    """Return how many rows `b` begins with that are rows of `a`."""
    _, at_a, at_b = np.intersect1d(a.step, b.step, assume_unique=True, return_indices=True)
    if not len(at_b) or at_b[0] != 0:
        return 0
    equal, compared = _equal(a, b, at_a, at_b)
    good = equal & compared & (at_b == np.arange(len(at_b)))
    wrong = np.flatnonzero(~good)
    return int(wrong[0]) if len(wrong) else len(good)


def _without_prefix(b: Segment, num_rows: int) -> Segment:
    last = float(b.step[num_rows - 1])
    return replace(
        b,
        step=b.step[num_rows:],
        columns={
            n: Column(c.values[num_rows:], c.present[num_rows:]) for n, c in b.columns.items()
        },
        parent_step=last if b.parent_step is None else b.parent_step,
        follows=True,
    )


def _union(a: Segment, b: Segment) -> Segment:
    """Return the rows of both; where both have a value, that of the one with more rows."""
    if len(b.step) > len(a.step):
        a, b = b, a
    step = np.union1d(a.step, b.step)
    columns: dict[str, Column] = {}
    for name in dict.fromkeys([*a.columns, *b.columns]):
        values = np.full(len(step), np.nan)
        present = np.zeros(len(step), dtype=np.bool_)
        for part in (b, a):
            column = part.columns.get(name)
            if column is not None:
                at = np.searchsorted(step, part.step)[column.present]
                values[at], present[at] = column.values[column.present], True
        columns[name] = Column(values, present)
    stated = [s for s in (a.parent_step, b.parent_step) if s is not None]
    return Segment(
        sources=tuple(dict.fromkeys((*a.sources, *b.sources))),
        step=step,
        columns=columns,
        settings={**b.settings, **a.settings},
        why=a.why or b.why,
        number=a.number or b.number,
        parent_step=stated[0] if stated else None,
        follows=a.follows or b.follows,
        order=min(a.order, b.order),
        facts={**b.facts, **a.facts},
        tail=a.tail or b.tail,
    )
