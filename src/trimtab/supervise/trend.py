"""Where the loss stood before the first sign, place by place: what an answer is judged by."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord

__all__ = ["LossBefore", "LossCourse", "begun_from", "course_before", "newest_level"]

_LEVEL_ROWS = 32
"""Rows over which the level of the loss is taken. Ours."""
_NOISE_ROWS = 256
"""Rows from which its noise is taken, a cubic taken out. Ours."""
_ERRORS = 4.0
"""Standard errors of the difference of two levels that count as noise. Ours."""
_MOST_LINKED = 0.95
"""Highest correlation from row to row that is believed of so few rows."""


@dataclass(frozen=True, kw_only=True)
class LossBefore:
    """Where the loss stood at one place."""

    level: float
    limit: float
    """The highest median that counts as back on the trend."""


@dataclass(frozen=True, kw_only=True)
class LossCourse:
    """The finite losses that lead to the first sign, dead branches left out.

    Kept apart from the log: a script may write its log anew at each start.
    """

    steps: NDArray[np.float64]
    losses: NDArray[np.float64]

    def at(self, place: float, tolerance: float) -> LossBefore | None:
        """Return where the loss stood at a place on the log's axis; None: too little is known.

        Args:
            place: A place behind the last one stands for that.
            tolerance: Share of the descent so far that may be missing.
        """
        then = self.losses[self.steps <= place]
        if then.size < _LEVEL_ROWS // 2:
            return None
        level = float(np.median(then[-_LEVEL_ROWS:]))
        descent = max(float(np.median(then[:_LEVEL_ROWS])) - level, 0.0)
        allowed = max(_ERRORS * math.sqrt(2) * _error(then[-_NOISE_ROWS:]), tolerance * descent)
        return LossBefore(level=level, limit=level + allowed)


def _error(losses: NDArray[np.float64]) -> float:
    """Return the standard error of a level: that of a median of rows that may be linked."""
    place = np.linspace(-1.0, 1.0, losses.size)
    rest = losses - np.polyval(np.polyfit(place, losses, 3), place)
    noise = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    square = float(rest @ rest)
    linked = float(rest[1:] @ rest[:-1]) / square if square > 0 else 0.0
    linked = min(max(linked, 0.0), _MOST_LINKED)
    return 1.2533 * noise * math.sqrt((1 + linked) / (1 - linked) / _LEVEL_ROWS)


def course_before(record: RunRecord, row: int) -> LossCourse:
    """Return the losses of the final lineage before a row."""
    column = record.columns.get("loss")
    if column is None:
        return LossCourse(steps=np.zeros(0), losses=np.zeros(0))
    rows = record.lineage_rows()
    rows = column.finite_rows(rows[rows < row])
    return LossCourse(steps=record.step[rows], losses=column.values[rows])


def begun_from(record: RunRecord, row: int) -> LossCourse:
    """Return the losses that an attempt goes on from: of its lineage, else of the one before.

    A start from weights counts its steps anew, so that all of the attempt before lies behind it. It
    goes on from there where its first loss lies nearer to the end of that one than to its
    beginning; training from scratch does not.
    """
    course = course_before(record, row)
    index = int(record.attempt[row]) - 1
    column = record.columns.get("loss")
    if course.losses.size or index < 0 or column is None:
        return course
    rows = column.finite_rows(record.rows_of(index))
    before = LossCourse(steps=record.step[rows], losses=column.values[rows])
    end = before.at(math.inf, 0.0)
    if end is None or not column.present[row]:
        return course
    goes_on = column.values[row] <= (end.level + before.losses[0]) / 2
    return before if goes_on else course


def newest_level(record: RunRecord, *, rows: int) -> float | None:
    """Return the median loss at the end of the newest attempt; None while it has fewer rows."""
    column = record.columns.get("loss")
    own = np.flatnonzero(record.attempt == record.attempt[-1]) if record.num_rows else ()
    if column is None or len(own) < rows:
        return None
    losses = column.values[own][column.present[own]][-_LEVEL_ROWS:]
    # NaN counts as no trend: it compares with nothing.
    return float(np.median(losses)) if losses.size else None
