"""A gradient norm that grows on and on while the loss hardly moves, in hindsight.

Each stretch of a slow growth is near the one before it, and where the loss falls on, rules on
stretches leave it a note: the norm of a sound run may grow many times over, too. Here the run is
seen whole: medians of `POINTS` equal stretches, from the lowest one on. The norm

* comes to `FACTOR` times its lowest, by its last stretches,
* rises by Kendall's test of trend above `SCORE`, the last third no slower than half of the pace of
  the others, in logarithms: a norm that follows a falling rate flattens,
* while the loss, hardly ever below 0, keeps from there on `LOSS_KEPT` of its level: what becomes sharper falls.

A warning where no other alarm tells of the norm. Source of the test as in `came_up`; bars are ours.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.falls_on import as_it_falls_on
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.trend import kendall_score

__all__ = ["norm_climb_findings", "with_norm_climbs"]

Floats = NDArray[np.float64]

POINTS, LEAST_POINTS, END = 64, 13, 3
FACTOR, SCORE, PACE = 8.0, 4.5, 0.5
LOSS_KEPT = 0.8


def with_norm_climbs(record: RunRecord, told: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, with the climbs that no alarm on the norm tells."""
    alarms = {
        int(record.attempt[f.onset_row])
        for f in told
        if f.signal == "grad_norm"
        and f.direction != "down"
        and as_it_falls_on(f, record).severity != "info"
    }
    more = (
        f for f in norm_climb_findings(record) if int(record.attempt[f.onset_row]) not in alarms
    )
    return (*told, *more)


def norm_climb_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the climb of the gradient norm of each attempt that has one."""
    norm, loss = record.columns.get("grad_norm"), record.columns.get("loss")
    if norm is None or loss is None:
        return ()
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = norm.finite_rows(span)
        size = len(rows) // POINTS
        if not size or not loss.present[rows].any():
            continue
        first = len(rows) - POINTS * size
        y = np.median(norm.values[rows[first:]].reshape(POINTS, size), axis=1)
        if y.min() <= 0:
            continue
        k = int(np.argmin(y))
        if len(y) - k < LEAST_POINTS or not _climbs(np.log(y[k:])):
            continue
        end = float(np.median(y[-END:]))
        # From where it has left its lowest level for good.
        low = np.flatnonzero(y[k:] <= 1.25 * y[k])
        at = rows[min(first + (k + int(low[-1]) + 1) * size, len(rows) - 1) :]
        beside = loss.values[at][np.isfinite(loss.values[at])]
        num = max(len(beside) // 8, 1)
        before, after = np.median(beside[:num]), np.median(beside[-num:])
        if not len(beside) or np.quantile(beside, 0.05) < 0 or after < LOSS_KEPT * before:
            continue
        found.append(
            finding_at(
                record,
                detector="norm-climbs",
                kind="grad-drift",
                signal="grad_norm",
                severity="warning",
                row=int(rows[-1]),
                onset_row=int(at[0]),
                value=end,
                expected=float(y[k]),
                score=min(99.0, 6.0 * float(np.log(end / y[k]) / np.log(FACTOR))),
                closed=False,
                text=(
                    f"gradient norm {y[k]:.4g} → {end:.4g}: it has grown ever since its lowest, while"
                    f" the loss went from {before:.4g} to {after:.4g}"
                ),
            )
        )
    return tuple(found)


def _climbs(logs: Floats) -> bool:
    """Whether medians of a norm, as logarithms, grow to the end, and not ever slower."""
    end = float(np.median(logs[-END:]))
    if end - logs[0] < np.log(FACTOR) or kendall_score(logs) < SCORE:
        return False
    third = len(logs) // 3
    until = float(np.median(logs[-third - END : -third]))
    pace = (until - logs[0]) / max(len(logs) - third, 1)
    return bool((end - until) / third >= PACE * pace)
