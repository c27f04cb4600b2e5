"""A rate that is cut to next to nothing while the loss still falls, after which nothing moves.

`rate_ended` sees a rate that has come to zero. One that is a twentieth of its highest or less may be
as good as zero: a plateau rule that is too impatient, a decay that counts batches as epochs. With
cut the first row behind the highest rate and small the first row from which on the rate stays at
`SMALL` of it, the fault is told where all of these hold:

* `small` comes in the first `EARLY` of the rows, and `REST` rows or more follow;
* over the last rows before cut the loss still fell, by `FELL` of its level and beyond its noise;
* from small to the end, the first `BEFORE` rows left out in which a cut shows, it falls by less than
  `MOVES` of its level;
* where a validation loss is logged, it fell as well: a rule that waits for a plateau has seen one.

A schedule that comes down as it should and is over with `OVER` of the rows still to come, at a rate of
`FLOOR` of its highest or less that never changes again, was made for fewer steps than the run takes:
the same, where the loss moves no more.

Where the loss goes on, as in fine-tuning with a small rate after the head was trained, nothing is
told. In hindsight, for losses that have a natural zero.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.trend import kendall_score

__all__ = ["cut_early_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

SMALL, EARLY, REST = 0.05, 0.2, 30
FELL, SIGMA, MOVES = 0.1, 4.0, 0.05
FLOOR, OVER, OVER_ROWS, SMOOTH, GAINS, GAIN = 0.01, 0.6, 100, 10, 2.0, 0.02
HELD_OUT = {"val_loss": -1.0, "eval_error": -1.0, "eval_score": 1.0}
BEFORE, EDGE = 3, 8
"""Fewest rows before the cut; and what share of the rest is each end of it. All bars are ours."""


def cut_early_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return a warning for each attempt whose rate is cut for good while it still learns."""
    if not {"loss", "lr"} <= record.columns.keys():
        return ()
    loss, rate = record.columns["loss"], record.columns["lr"]
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = np.intersect1d(loss.finite_rows(span), rate.finite_rows(span), assume_unique=True)
        y, lr = loss.values[rows], rate.values[rows]
        if len(rows) < REST + BEFORE or y.min() <= 0 or not lr.max() > 0:
            continue
        told = _cut(record, rows, y, lr) or _over(record, rows, y, lr)
        found += [] if told is None else [told]
    return tuple(found)


def _cut(record: RunRecord, rows: Rows, y: Floats, lr: Floats) -> Finding | None:
    """Return a finding where the rate was cut while the loss still fell."""
    large = np.flatnonzero(lr > SMALL * lr.max())
    small = int(large[-1]) + 1
    cut = int(np.flatnonzero(lr == lr.max())[-1]) + 1
    if not BEFORE <= cut <= small <= EARLY * len(rows) or len(rows) - small < REST:
        return None
    noise = difference_sigma(np.diff(y[small:]))
    near = y[max(cut - max(cut // 3, BEFORE), 0) : cut]
    fell = median(near[: (len(near) + 2) // 3]) - median(near[-((len(near) + 2) // 3) :])
    rest = y[small:]
    edge = len(rest) // EDGE
    moves = median(rest[BEFORE : 2 * BEFORE]) - median(rest[-edge:])
    if _stood(record, rows[:cut]):
        return None
    if fell < max(FELL * median(near), SIGMA * noise) or moves > MOVES * median(rest[-edge:]):
        return None
    return _ended(
        record,
        rows,
        lr,
        small,
        score=fell / max(noise, 1e-12),
        text=(
            f"the learning rate was cut from {lr.max():.3g} to {lr[small]:.3g} while the loss"
            f" still fell; the loss has hardly moved in the {len(rest)} rows since, at"
            f" {lr[-1]:.3g} in the last (in hindsight)"
        ),
    )


def _over(record: RunRecord, rows: Rows, y: Floats, lr: Floats) -> Finding | None:
    """Return a finding where the schedule had ended long before the run did."""
    small = int(np.flatnonzero(lr != lr[-1])[-1]) + 1 if (lr != lr[-1]).any() else 0
    rest = y[small:]
    if not 0 < lr[-1] <= FLOOR * lr.max() or len(rest) < max(OVER * len(rows), OVER_ROWS):
        return None
    edge = len(rest) // EDGE
    first, last = median(rest[:edge]), median(rest[-edge:])
    # Step by step it came there, and from a peak that lasted: a finder and a warm-up are none.
    if small < BEFORE or abs(first - last) > MOVES * abs(last):
        return None
    down = lr[int(np.flatnonzero(lr == lr.max())[-1]) : small + 1]
    # In jumps it is a plan, or a rule that waits until nothing moves; a printed 0.00001 is rounding.
    printed = float(np.diff(np.unique(lr)).min())
    if len(np.unique(down)) < SMOOTH or (np.diff(down) > 0).any() or printed >= lr[-1]:
        return None
    near = y[small // 2 : small]
    third = len(near) // 3
    if median(near[:third]) - median(near[-third:]) <= MOVES * abs(last):
        return None  # it had converged before its rate was gone
    if any(_goes_on(record, name, sign, rows[small:]) for name, sign in HELD_OUT.items()):
        return None
    return _ended(
        record,
        rows,
        lr,
        small,
        score=10.0 * len(rest) / len(rows),
        text=(
            f"the schedule of the learning rate was over at {record.axis}"
            f" {record.step[rows[small]]:g} of {record.step[rows[-1]]:g}: {lr[-1]:.3g} since, of"
            f" {lr.max():.3g} at its peak, and the loss has hardly moved (in hindsight)"
        ),
    )


def _ended(
    record: RunRecord, rows: Rows, lr: Floats, small: int, *, score: float, text: str
) -> Finding:
    return finding_at(
        record,
        detector="rate-ended",
        kind="plateau",
        signal="lr",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[small]),
        value=float(lr[-1]),
        expected=float(lr.max()),
        score=min(99.0, score),
        direction="down",
        closed=True,
        text=text,
    )


def _goes_on(record: RunRecord, name: str, sign: float, rest: Rows) -> bool:
    """Whether something held out still gets better."""
    column = record.columns.get(name)
    if column is None:
        return False
    values = sign * column.values[column.finite_rows(slice(int(rest[0]), int(rest[-1]) + 1))]
    values = values[:: len(values) // 64 + 1]
    if len(values) < BEFORE or kendall_score(values) < GAINS:
        return False
    third = -(-len(values) // 3)
    gain = median(values[-third:]) - median(values[:third])
    return gain >= GAIN * float(np.abs(values).mean())


def _stood(record: RunRecord, before: Rows) -> bool:
    """Whether validation had come to a stand before the cut."""
    held_out = record.columns.get("val_loss")
    if held_out is None:
        return False
    values = held_out.values[before][held_out.present[before]]
    near = values[-max(len(values) // 3, BEFORE) :]
    return len(near) >= BEFORE and near[0] - near[-1] < FELL / 2 * abs(near[0])
