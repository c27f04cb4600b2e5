"""A loss that is counted on another scale from some row on: judged at one scale, in hindsight.

A sum in place of a mean, a loss that is no longer divided by the micro-batches, a factor taken out:
loss and gradient norm become k times as large in one row and stay so, while neither is any noisier
for its size. With medians of `BEFORE` and up to `AFTER` rows, of a log that grows `LEAST_AFTER` at
first, on both sides of a row

    k = after / before,   |log k(loss) - log k(norm)| <= log `SAME`,   k >= `LEAST_FACTOR`

and no later block of rows comes back below root k times the level. The rows from there on are
judged divided by k, so that noise is that of the new level, and a spike within it is one of the
run as it was. A model that breaks moves the two by different factors, and no row after it is as
quiet as before.

Blind without a gradient norm, to factors below 2.5, and to a scale that comes back.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import Column, RunRecord
from trimtab.signals.derived import perplexity, step_std
from trimtab.signals.robust import mad_sigma

__all__ = ["Rescaled", "at_one_scale"]

Floats = NDArray[np.float64]

BEFORE, AFTER, LEAST_AFTER = 16, 32, 12
LEAST_FACTOR = 2.5
SAME = 1.25
"""Most that the factors of loss and norm differ by, and a median of `AFTER` rows errs. Ours."""
NOISIER = 2.0
"""Times its noise before, relative to its level, that either may have. Ours."""
SIGNALS = ("loss", "grad_norm")


@dataclass(frozen=True)
class Rescaled:
    """One attempt from a row on."""

    row: int
    end_row: int
    """The end of the attempt."""
    factor: float

    def finding(self, record: RunRecord) -> Finding:
        """Return the finding that says so."""
        loss = record.columns["loss"]
        before = loss.finite_rows(slice(max(0, self.row - BEFORE), self.row))
        level = float(np.median(loss.values[before]))
        return finding_at(
            record,
            detector="loss-rescaled",
            kind="setting-jump",
            signal="loss",
            severity="warning",
            # Where it is sure: what comes later on the new scale is an episode of its own.
            row=min(self.row + AFTER, self.end_row) - 1,
            onset_row=self.row,
            value=level * self.factor,
            expected=level,
            score=10.0,
            closed=True,
            text=(
                f"loss and gradient norm are {self.factor:.3g} times as large from one row to the"
                f" next, and stay so for {self.end_row - self.row} rows: the loss is counted on"
                " another scale"
            ),
        )

    def told(self, f: Finding) -> Finding:
        """Return a finding on rows that were judged divided by the factor, saying so."""
        if f.signal not in SIGNALS or not self.row <= f.onset_row < self.end_row:
            return f
        return replace(
            f,
            value=f.value * self.factor,
            expected=f.expected * self.factor,
            text=f"{f.text}, divided by {self.factor:.3g}",
        )


def at_one_scale(record: RunRecord) -> tuple[RunRecord, tuple[Rescaled, ...]]:
    """Return the record with every change of scale divided out, and the changes."""
    if any(name not in record.columns for name in SIGNALS):
        return record, ()
    found = [r for i in range(len(record.attempts)) if (r := _rescaled(record, i)) is not None]
    if not found:
        return record, ()
    columns = dict(record.columns)
    for name in SIGNALS:
        values = columns[name].values.copy()
        for r in found:
            values[r.row : r.end_row] /= r.factor
        columns[name] = Column(values, columns[name].present)
    # Those that nobody logged follow from the loss.
    for name, derive in (("perplexity", perplexity), ("loss_step_std", step_std)):
        if name in columns and name not in record.keys:
            columns[name] = derive(columns["loss"])
    return replace(record, columns=columns), tuple(found)


def _rescaled(record: RunRecord, attempt: int) -> Rescaled | None:
    span = record.rows_of(attempt)
    loss, norm = (record.columns[name] for name in SIGNALS)
    rows = norm.finite_rows(loss.finite_rows(span))
    if len(rows) < BEFORE + LEAST_AFTER:
        return None
    both = np.stack([loss.values[rows], norm.values[rows]])
    step = np.full(len(rows), -math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Noise may hide a part of the factor in any one row.
        step[1:] = np.log(both[:, 1:] / both[:, :-1]).min(axis=0)
    step[:BEFORE], step[len(rows) - LEAST_AFTER + 1 :] = -math.inf, -math.inf
    for at in np.lexsort((-step,))[:8].tolist():
        if not step[at] >= 0.5 * math.log(LEAST_FACTOR):
            break
        if (factor := _factor(both, at)) is not None:
            return Rescaled(int(rows[at]), span.stop, factor)
    return None


def _factor(both: Floats, at: int) -> float | None:
    """Return by how much loss and norm are larger from a place on; None: not by one factor."""
    if not (both[:, at - BEFORE :] > 0).all():
        return None
    y = np.log(both[:, at - BEFORE :])
    before, after = y[:, :BEFORE], y[:, BEFORE : BEFORE + AFTER]
    level = np.median(before, axis=1)
    jump = np.median(after, axis=1) - level
    if jump[0] < math.log(LEAST_FACTOR) or abs(jump[0] - jump[1]) > math.log(SAME):
        return None
    later, size = y[:, BEFORE:], after.shape[1]
    blocks = later[:, : later.shape[1] // size * size].reshape(2, -1, size)
    stays = (np.median(blocks, axis=2) > (level + jump / 2)[:, None]).all()
    quiet = all(
        mad_sigma(np.diff(after[i])) <= NOISIER * mad_sigma(np.diff(before[i])) for i in (0, 1)
    )
    sharp = before[0].max() < level[0] + jump[0] / 2 < after[0].min()
    return float(math.exp(jump[0])) if stays and quiet and sharp else None
