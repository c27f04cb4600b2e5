"""A run whose gradients died away while its loss has hardly left where it began.

A loss that stays at its first level is no fault by itself: fine-tuning may begin at its floor. It
is one where the gradient norm came down with nothing to show for it: updates that are too large
drive units to where nothing reaches them (a saturated or dead model), and the loss comes to rest at
that of a guess, whatever the first rows did. With s the first loss, e the median of the second half
of the rows, and norms g of the first rows and of that half:

    |s - e| <= `MOVED_SHARE` s,   the half is flat to `FLAT_SHARE`,   median g_first / g >= `DIED`

and no eighth of the first half lies below `LEARNED` s: what had been learned was lost later.
Where e lies above s, by `WORSE` or more, the highest of the first `EARLY_ROWS` norms is held
against g: a rate too high breaks a model within some steps, not in the first one.

A loss that has not fallen at all in `WARM_ROWS` rows or more, while a logged rate climbs from its first
row to its last and never comes above `BARELY`, is that of a warm-up that takes longer than the run:
no optimizer of today learns at such a rate.

A loss that has come down by less than `CREPT` in `CREEP_ROWS` rows or more, in a straight line and
without noise, and as fast in the last third as in the first, is that of a rate that is far too low:
at another rate it would have bent.

An attempt that starts over at the first step, and stands for as many rows far above what the one before
it had come to, does not learn either.

Looks at whole attempts that begin with their first rows, of a loss that is positive: in hindsight
only. Blind to a loss that came to rest a little lower.
"""

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.trend import kendall_score

__all__ = ["hardly_moved_findings"]

MIN_ROWS, WARM_ROWS = 100, 200
FIRST_ROWS = 3
MOVED_SHARE, LEARNED = 0.05, 0.8
FLAT_SHARE = 0.02
DIED = 5.0
EARLY_ROWS = 16
WORSE = 1.01
BARELY, CLIMBS, TREND = 1.5e-7, 0.99, -3.0
"""A rate; the share of its moves that are up; and the normal score of Kendall's S of a loss that
falls."""
CREEP_ROWS, CREPT, STRAIGHT, AS_FAST, MONOTONE = 40, 0.05, 0.98, 0.6, 0.9
"""Rows; the fall as a share of the first loss; the share of the variance that a line explains; the
fall of the last third as a share of the first third's; and the share of moves that go down."""
MOST, WARMS = 15.0, 1.5
"""Largest loss, which may have a constant part; and times the first rate, that a warm-up comes to."""
ANEW_ROWS, AGAIN = 48, 1.5
"""Rows of an attempt that starts over; and times the loss that the one before had come to."""
POINTS = 200
SURE = 8.0
"""Score of what is told by its whole course."""
LEAST = 0.5
"""Nats: below it a share of the level is next to nothing, as of `rough_start`. All ours."""


def hardly_moved_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt from the start whose loss stays while its norms die away."""
    if "loss" not in record.columns:
        return ()
    spans = [record.rows_of(i) for i, a in enumerate(record.attempts) if a.parent is None]
    rules = [
        r for name, r in (("grad_norm", _judge), ("lr", _barely_warm)) if name in record.columns
    ]
    found = (rule(record, span) for span in spans for rule in (*rules, _creeps))
    anew = (_stands_anew(record, i) for i in range(1, len(record.attempts)))
    return tuple(f for f in (*found, *anew) if f is not None)


def _judge(record: RunRecord, span: slice) -> Finding | None:
    loss, norm = record.columns["loss"], record.columns["grad_norm"]
    rows, normed = loss.finite_rows(span), norm.finite_rows(span)
    if len(rows) < MIN_ROWS or len(normed) < MIN_ROWS:
        return None
    if _is_excerpt(record, rows):
        return None
    losses, norms = loss.values[rows], norm.values[normed]
    half, last = len(rows) // 2, 3 * len(rows) // 4
    first, level = float(losses[0]), median(losses[half:])
    before, now = median(norms[:FIRST_ROWS]), median(norms[len(norms) // 2 :])
    if level >= WORSE * first:
        before = float(norms[:EARLY_ROWS].max())
    moved = abs(median(losses[half:last]) - median(losses[last:]))
    if losses.min() < 0 or level < LEAST or abs(first - level) > MOVED_SHARE * first:
        return None
    if moved > FLAT_SHARE * level or not now > 0 or before / now < DIED:
        return None
    if _lowest_of(losses[:half]) < LEARNED * first:
        return None  # it had learned, and lost it: the rise is what is told
    return finding_at(
        record,
        detector="hardly-moved",
        kind="never-learns",
        signal="loss",
        severity="warning",
        row=int(rows[half]),
        onset_row=int(rows[0]),
        peak_row=int(rows[0]),
        value=level,
        expected=first,
        score=min(99.0, before / now),
        closed=True,
        text=(
            f"loss {first:.4g} at first and {level:.4g} after {len(rows)} rows, while the gradient"
            f" norm fell {before:.3g} → {now:.3g}: nothing is learned (in hindsight)"
        ),
    )


def _lowest_of(losses: NDArray[np.float64]) -> float:
    """Return the lowest median of a stretch of an eighth of these rows."""
    size = max(len(losses) // 8, 1)
    return float(np.median(losses[: len(losses) // size * size].reshape(-1, size), axis=1).min())


def _barely_warm(record: RunRecord, span: slice) -> Finding | None:
    loss, rate = record.columns["loss"], record.columns["lr"]
    rows, rated = loss.finite_rows(span), rate.finite_rows(span)
    if min(len(rows), len(rated)) < WARM_ROWS:
        return None
    rates, losses = rate.values[rated], loss.values[rows]
    if not 0 < rates[-1] <= BARELY or rates.max() > BARELY or rates.min() < 0:
        return None
    size = -(-len(losses) // POINTS)
    points = losses[: len(losses) // size * size].reshape(-1, size).mean(axis=1)
    if np.mean(np.diff(rates) > 0) < CLIMBS or kendall_score(points) < TREND:
        return None
    first, level = median(losses[: len(losses) // 8]), median(losses[-(len(losses) // 8) :])
    return _all_along(
        record,
        rows,
        detector="barely-warm",
        value=level,
        expected=first,
        text=(
            f"loss {first:.4g} at first and {level:.4g} after {len(rows)} rows, while the learning"
            f" rate still climbs and has come to {rates[-1]:.2g}: its warm-up is longer than the"
            " run (in hindsight)"
        ),
    )


def _creeps(record: RunRecord, span: slice) -> Finding | None:
    loss = record.columns["loss"]
    rows = loss.finite_rows(span)
    y = loss.values[rows]
    if len(rows) < CREEP_ROWS or y.min() <= 0 or y[0] < LEAST:
        return None
    if _is_excerpt(record, rows):
        return None
    fell = (y[0] - y[-1]) / y[0]
    third = len(y) // 3
    early, late = y[0] - y[third], y[-third - 1] - y[-1]
    if not 0 < fell < CREPT or np.mean(np.diff(y) < 0) < MONOTONE or y[0] > MOST:
        return None
    # A rate that still rises speeds it up.
    if not AS_FAST * early <= late <= early / AS_FAST:
        return None
    if np.corrcoef(np.arange(len(y)), y)[0, 1] ** 2 < STRAIGHT:
        return None
    rate = record.columns.get("lr")
    rates = rate.values[rate.finite_rows(span)] if rate is not None else np.zeros(0)
    if len(rates) and rates[-1] > WARMS * rates[0]:
        return None
    at = f" at a learning rate of {rates.max():.2g}" if len(rates) else ""
    return _all_along(
        record,
        rows,
        detector="creeps",
        value=float(y[-1]),
        expected=float(y[0]),
        text=(
            f"loss {y[0]:.4g} → {y[-1]:.4g} in {len(rows)} rows{at}, in a straight line and as fast at"
            " the end: the rate is far too low (in hindsight)"
        ),
    )


def _stands_anew(record: RunRecord, index: int) -> Finding | None:
    loss = record.columns["loss"]
    rows, before = (
        loss.finite_rows(record.rows_of(index)),
        loss.finite_rows(record.rows_of(index - 1)),
    )
    if len(rows) < ANEW_ROWS or not len(before):
        return None
    y, earlier = loss.values[rows], loss.values[before]
    spacing = float(np.median(np.abs(np.diff(record.step[rows]))))
    if record.step[rows[0]] > record.step[before[0]] + 2 * spacing or y.min() < 0:
        return None
    level, quarter = median(y), len(y) // 4
    had = median(earlier[-FIRST_ROWS:])
    moved = abs(median(y[:quarter]) - median(y[-quarter:]))
    # Of two losses of 0 neither stands above the other.
    if moved > FLAT_SHARE * level or not level > AGAIN * had or len(y) < len(earlier):
        return None
    return _all_along(
        record,
        rows,
        detector="hardly-moved",
        value=level,
        expected=had,
        text=(
            f"the run started over, and its loss has stood at {level:.4g} for all {len(y)} rows since;"
            f" it had come to {had:.4g} in {len(earlier)} rows before (in hindsight)"
        ),
    )


def _all_along(
    record: RunRecord,
    rows: NDArray[np.intp],
    *,
    detector: str,
    value: float,
    expected: float,
    text: str,
) -> Finding:
    """Return the warning that nothing is learned, from the first to the last of some rows."""
    return finding_at(
        record,
        detector=detector,
        kind="never-learns",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=value,
        expected=expected,
        score=SURE,
        closed=False,
        text=text,
    )


def _is_excerpt(record: RunRecord, rows: NDArray[np.intp]) -> bool:
    """Whether the rows begin in the middle of a run, at the level that it has come to."""
    spacing = float(np.median(np.diff(record.step[rows])))
    return float(record.step[rows[0]]) > 2 * spacing
