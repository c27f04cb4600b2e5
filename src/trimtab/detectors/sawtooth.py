"""Data that comes in one order in each pass: a loss that climbs within each and steps down between.

With the level of the first and of the last tenth of each pass over the data, the loss

    drops   from the end of one pass to the start of the next,   D[k] = last[k-1] - first[k]
    climbs  from the start of a pass to its end,                 R[k] = last[k] - first[k]

Data sorted by length or by difficulty climbs back by much of what it dropped, R[k] >= D[k] / 2 in
the middle of the later half of the passes, and bit by bit: half-way through a pass it is on its
way. What is learned by heart steps down and stays there. A window of bad data at the end of each
pass falls at an edge, and is none.

Where epochs are counted, passes are theirs, and the finding is a note; else they are those of a
staircase (`epochs`), and it is a warning. What rises within a pass and no higher than the one
before ended, or falls at a tooth and no further than twice the others, is of it (`each_pass`).

Blind to fewer than four passes, and to an order that only flattens the fall within a pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median
from trimtab.vocabulary import Severity

__all__ = ["Sawtooth", "finding_of", "of_epochs", "sawtooth_findings", "sawtooth_of", "teeth_of"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

LEAST_PASSES = 4
LEAST_ROWS = 40
"""Of a pass; fewer give its ends no level."""
END_SHARE = 10
CLIMB_SHARE = 0.5
"""Of a drop, that the loss climbs back by within a pass. All of these are ours."""
ON_ITS_WAY = 0.2
"""Of the climb, that half a pass has at least, and at most all but that much."""
ERRORS = 3.0
LEVEL_ROWS = 8
TWICE = 2.0
NEAR_SHARE = 20
"""Of a pass, by which a fall may be off its place."""


@dataclass(frozen=True)
class Sawtooth:
    """Passes within which the loss climbs."""

    starts: Rows
    """Rows of the record at which a pass begins, but for the first one."""
    stop: int
    """Row behind the last pass."""
    tops: Floats
    """Level at the end of the pass before each start."""
    highs: Floats
    """Highest level behind each start and before the next, as medians of `LEVEL_ROWS`."""
    drop: float
    """In the middle."""
    sigma: float
    """Noise of single rows."""

    @property
    def rows(self) -> int:
        """Rows of a pass, in the middle."""
        return int(np.median(np.diff([*self.starts.tolist(), self.stop])))

    def explains(self, f: Finding) -> bool:
        """Whether an alarm on the loss is of the teeth."""
        if f.signal != "loss" or not np.isfinite(f.value):
            return False
        near = max(f.grain_rows, self.rows // NEAR_SHARE)
        k = int(np.searchsorted(self.starts, f.onset_row + near, "right")) - 1
        if k < 0:
            return False
        if f.kind == "plateau":
            return f.row - f.onset_row <= self.rows
        if f.direction == "down":
            at_tooth = f.onset_row - int(self.starts[k]) <= near
            return at_tooth and f.expected - f.value <= TWICE * self.drop
        # A run that diverges goes on up from where the finding is made.
        highest = max(f.value, float(self.highs[k]))
        return highest <= float(self.tops[k]) + ERRORS * self.sigma


def sawtooth_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one note per attempt whose loss climbs within each counted epoch."""
    found = []
    for attempt in range(len(record.attempts)):
        saw = of_epochs(record, attempt)
        if saw is not None:
            found.append(finding_of(record, saw, severity="info"))
    return tuple(found)


def finding_of(record: RunRecord, saw: Sawtooth, *, severity: Severity) -> Finding:
    """Return a sawtooth as a finding."""
    loss = record.columns["loss"].values
    first = int(saw.starts[0])
    return finding_at(
        record,
        detector="sawtooth",
        kind="repeated-data",
        signal="loss",
        severity=severity,
        row=saw.stop - 1,
        onset_row=first,
        value=float(loss[saw.stop - 1]),
        expected=float(saw.tops[0]),
        score=9.0,
        closed=True,
        text=(
            f"loss climbs within each pass of {saw.rows} rows and steps down by about"
            f" {saw.drop:.3g} at the next, {len(saw.starts)} times: the data comes in one order in"
            " each pass, as where it is sorted by length (in hindsight)"
        ),
    )


def teeth_of(record: RunRecord, f: Finding) -> Sawtooth | None:
    """Return the teeth that a finding of this file, or of `epochs`, was made of."""
    attempt = int(record.attempt[f.onset_row])
    counted = of_epochs(record, attempt)
    if counted is not None:
        return counted
    loss = record.columns["loss"]
    rows = loss.finite_rows(record.rows_of(attempt))
    period = int(np.searchsorted(rows, f.onset_row))
    return sawtooth_of(loss.values, rows, rows[period::period]) if period else None


def of_epochs(record: RunRecord, attempt: int) -> Sawtooth | None:
    """Return the sawtooth of the epochs that are counted; None where there is none."""
    loss, epochs = record.columns.get("loss"), record.columns.get("epochs_seen")
    if loss is None or epochs is None:
        return None
    span = record.rows_of(attempt)
    rows = epochs.finite_rows(span)
    if len(rows) < LEAST_PASSES * LEAST_ROWS:
        return None
    # What is rounded or added up may lie a hair below a whole number.
    count = np.floor(epochs.values[rows] + 1e-6)
    starts = rows[1:][np.diff(count) > 0]
    return sawtooth_of(loss.values, loss.finite_rows(span), starts)


def sawtooth_of(loss: Floats, rows: Rows, starts: Sequence[int] | Rows) -> Sawtooth | None:
    """Return the teeth of a loss whose passes begin at these rows; None where it does not climb.

    Args:
        loss: float64 [n], by row of the record.
        rows: Its finite rows, of one attempt.
        starts: Rows at which passes begin, the first one of the attempt left out.
    """
    at = np.searchsorted(rows, np.asarray(starts, dtype=np.intp))
    edges = np.unique(np.concatenate(([0], at, [len(rows)])))
    lengths = np.diff(edges)
    if len(lengths) < LEAST_PASSES or int(np.median(lengths)) < LEAST_ROWS:
        return None
    usual = int(np.median(lengths))
    if lengths[-1] < usual // 2:  # a pass that has hardly begun has no end yet
        edges, lengths = edges[:-1], lengths[:-1]
    if len(lengths) < LEAST_PASSES or int(lengths.min()) < usual // 2:
        return None
    y = loss[rows]
    width = max(4, usual // END_SHARE)
    sigma = mad_sigma(np.diff(y)) / np.sqrt(2)
    first, middle, last = (
        np.array([median(y[slice(*_around(a, b, width, share))]) for a, b in pairwise(edges)])
        for share in (0.0, 0.5, 1.0)
    )
    drops, climbs = last[:-1] - first[1:], last[1:] - first[1:]
    later = slice(len(drops) // 2, None)
    error = 1.25 * sigma * np.sqrt(2 / width)
    if float(min(drops[later].min(), climbs[later].min())) <= ERRORS * error:
        return None
    share = median(climbs[later] / drops[later])
    way = median((middle[1:] - first[1:])[later] / climbs[later])
    if share < CLIMB_SHARE or not ON_ITS_WAY <= way <= 1 - ON_ITS_WAY:
        return None
    # To the end, also of a pass that has hardly begun.
    stops = [*edges[2:-1].tolist(), len(y)]
    highs = [_highest(y[a:b]) for a, b in zip(edges[1:-1].tolist(), stops, strict=True)]
    return Sawtooth(
        rows[edges[1:-1]],
        int(rows[edges[-1] - 1]) + 1,
        last[:-1],
        np.array(highs),
        median(drops[later]),
        float(sigma),
    )


def _highest(y: Floats) -> float:
    levels = np.lib.stride_tricks.sliding_window_view(y, min(LEVEL_ROWS, len(y)))
    return float(np.median(levels, axis=1).max())


def _around(start: int, stop: int, width: int, share: float) -> tuple[int, int]:
    """Return the rows of one width at a share of the way from a start to a stop."""
    begin = start + round(share * (stop - start - width))
    return begin, begin + width
